"""The project's pages: static files that open from disk, without scripts from elsewhere and without a server."""
