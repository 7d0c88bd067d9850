"""What every local server of ours shares: where it listens, whom it answers, and the headers that its answers carry.

    listen.py    a socket with a clear message where the address cannot be used; the server until Ctrl-C or SIGTERM
    guard.py     the middleware around an app: host names, methods, origins, security headers
    markdown.py  texts of strangers in the Markdown that we write

It knows nothing of pages or of models, and imports no JAX.
"""
