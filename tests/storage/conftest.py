"""The stores that everything in `marin.storage` is tested on: local, memory:// and a real S3 server on loopback."""

import contextlib
import pathlib
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The URL of an S3 server of this process, with one bucket `bucket`; skips where moto or s3fs is not installed."""
    server_module = pytest.importorskip("moto.server", reason="the S3 server for tests needs moto[server]")
    pytest.importorskip("s3fs", reason="s3:// needs s3fs")
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log_request(self, *_: Any) -> None:
            pass

    app = server_module.DomainDispatcherApplication(server_module.create_backend_app)
    one_at_a_time = threading.Lock()  # moto looks for the key and then writes it; a real server decides in one step

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with one_at_a_time:
            return list(app(environ, start_response))

    server = make_server("127.0.0.1", 0, serve, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, name="s3-server", daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def s3_prefix(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh prefix in the bucket, reached through the environment as a person would point the project at MinIO."""
    import fsspec

    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with contextlib.suppress(FileExistsError):
        fsspec.filesystem("s3", use_listings_cache=False).mkdir("bucket")
    return f"s3://bucket/{secrets.token_hex(8)}"


@pytest.fixture(params=["local", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> str:
    """An empty directory on each kind of store."""
    if request.param == "s3":
        return str(request.getfixturevalue("s3_prefix"))
    return str(tmp_path / "d") if request.param == "local" else f"memory://{tmp_path}/d"
