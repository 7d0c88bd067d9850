"""An S3 server on loopback with one bucket, `bucket`, for tests of what only an object store does.

    python tests/s3_server.py

Prints its URL as the first line and serves from memory until its standard input ends.
"""

import io
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server


class Quiet(WSGIRequestHandler):
    def log_request(self, *_: Any) -> None:
        pass


def _body(environ: dict[str, Any]) -> bytes:
    length, stream = environ.get("CONTENT_LENGTH"), environ["wsgi.input"]
    if length:
        return bytes(stream.read(int(length)))
    return bytes(stream.read()) if environ.get("wsgi.input_terminated") else b""


def main() -> None:
    app = DomainDispatcherApplication(create_backend_app)
    one_at_a_time = threading.Lock()  # moto looks for the key and then writes it; a real server decides in one step

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        # Before the lock: a client that is stopped amid its request must not hold up all others.
        environ["wsgi.input"] = io.BytesIO(_body(environ))
        with one_at_a_time:
            return list(app(environ, start_response))

    server = make_server("127.0.0.1", 0, serve, threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    urllib.request.urlopen(urllib.request.Request(f"{url}/bucket", method="PUT")).close()
    print(url, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
