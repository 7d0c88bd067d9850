"""Where outputs lie: the prefix, atomic and exclusive files on any fsspec store, and leases on a directory."""
