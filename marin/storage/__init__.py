"""Where outputs lie: the prefix, atomic files on any fsspec store, and leases on a directory."""
