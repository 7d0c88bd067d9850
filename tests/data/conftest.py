"""Servers on loopback: files with the faults that servers have, and as much of the hub as a download asks for."""

import hashlib
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import pytest


class FileServer:
    """Files at `{url}/{name}`, with ETags and ranges.

    Attributes:
        faults: what to do wrong at the next requests, one entry each: an HTTP status; ("drop", n) ends the connection
            after n bytes; ("announce", n) states n bytes too few or too many; None answers well.
        ranges, etags: whether the server knows these.
        seconds_a_block: a pause after every 16 KiB.
        stays_after: bytes of a file after which no more of it come until this is None.
        asked: method, path and headers of each request.
        redirects: a path to the URL that it is answered with.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.faults: list[int | tuple[str, int] | None] = []
        self.ranges = self.etags = True
        self.seconds_a_block = 0.0
        self.stays_after: int | None = None
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.redirects: dict[str, str] = {}
        self.headers: dict[str, str] = {}
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.answer(self)

            do_HEAD = do_GET

            def log_message(self, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def etag(self, name: str) -> str:
        return f'"{hashlib.sha256(self.files[name]).hexdigest()[:16]}"'

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        name = request.path.lstrip("/").partition("?")[0]
        self.asked.append((request.command, name, dict(request.headers)))
        request.close_connection = True
        fault = self.faults.pop(0) if self.faults and request.command == "GET" else None
        if name in self.redirects:
            return self.send_head(request, 302, 0, {"Location": self.redirects[name]})
        if isinstance(fault, int) or name not in self.files:
            return self.send_head(request, fault if isinstance(fault, int) else 404, 0, self.headers)
        data, status, headers = self.files[name], 200, dict(self.headers)
        if self.etags:
            headers["ETag"] = self.etag(name)
        wanted = request.headers.get("Range", "")
        if self.ranges and wanted and request.headers.get("If-Range") in (None, self.etag(name)):
            start, _, end = wanted.removeprefix("bytes=").partition("-")
            if int(start) >= len(data):
                return self.send_head(request, 416, 0, headers)
            last = min(int(end) if end else len(data) - 1, len(data) - 1)
            headers["Content-Range"] = f"bytes {start}-{last}/{len(data)}"
            data, status = data[int(start) : last + 1], 206
        announced = len(data) + (fault[1] if isinstance(fault, tuple) and fault[0] == "announce" else 0)
        self.send_head(request, status, announced, headers)
        if request.command == "GET":
            if isinstance(fault, tuple) and fault[0] == "drop":
                data = data[: fault[1]]
            for start_of_block in range(0, len(data), 1 << 14):
                while self.stays_after is not None and start_of_block >= self.stays_after:
                    time.sleep(0.01)
                try:
                    request.wfile.write(data[start_of_block : start_of_block + (1 << 14)])
                except OSError:
                    return  # the client was killed
                time.sleep(self.seconds_a_block)

    def send_head(
        self, request: http.server.BaseHTTPRequestHandler, status: int, length: int, headers: dict[str, str]
    ) -> None:
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(length), "Connection": "close"}.items():
            request.send_header(name, value)
        request.end_headers()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class FakeHub(FileServer):
    """One repository of the Hugging Face hub with a branch `main`; files of 1,000 bytes and more are in its large store.

    Attributes:
        commits: the files of each commit; `main` stands for the last.
        gated: whether files and listings are denied without a token.
    """

    def __init__(self, repo: str, repo_type: str = "dataset"):
        super().__init__()
        self.repo, self._type = repo, repo_type
        self.commits: dict[str, dict[str, bytes]] = {}
        self.gated = False

    @property
    def _root(self) -> str:
        return self.repo if self._type == "model" else f"{self._type}s/{self.repo}"

    def commit(self, files: dict[str, bytes]) -> str:
        name = hashlib.sha1(repr((len(self.commits), sorted(files))).encode()).hexdigest()
        self.commits[name] = dict(files)
        for path, content in files.items():
            self.files[f"{self._root}/resolve/{name}/{urllib.parse.quote(path)}"] = content
        return name

    @property
    def fetched(self) -> list[str]:
        """The path in the repository of each file that was asked for, in order."""
        names = [name.partition("/resolve/")[2] for _, name, _ in self.asked]
        return [urllib.parse.unquote(name.partition("/")[2]) for name in names if name]

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        path = urllib.parse.unquote(urllib.parse.urlparse(request.path).path)
        is_api = path.startswith(f"/api/{self._type}s/{self.repo}")
        if not is_api and not path.startswith(f"/{self._root}/"):
            return self.send_head(request, 401, 0, {"X-Error-Code": "RepoNotFound"})
        if self.gated and request.headers.get("Authorization") != "Bearer good":
            return self.send_head(request, 401, 0, {"X-Error-Code": "GatedRepo"})
        if not is_api:
            return super().answer(request)
        self.asked.append((request.command, path, dict(request.headers)))
        if "/tree/" in path:
            commit = self._resolve(path.rpartition("/tree/")[2])
            return self._send_json(request, [self._entry(*item) for item in self.commits[commit].items()])
        revision = path.rpartition("/revision/")[2] if "/revision/" in path else "main"
        if revision != "main" and revision not in self.commits:
            return self.send_head(request, 404, 0, {"X-Error-Code": "RevisionNotFound"})
        commit = self._resolve(revision)
        siblings = [{"rfilename": name} for name in self.commits[commit]]
        self._send_json(request, {"id": self.repo, "sha": commit, "siblings": siblings, "private": False})

    def _resolve(self, revision: str) -> str:
        return revision if revision in self.commits else list(self.commits)[-1]

    def _entry(self, path: str, content: bytes) -> dict[str, object]:
        entry: dict[str, object] = {"type": "file", "path": path, "size": len(content)}
        entry["oid"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        if len(content) >= 1000:
            entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        return entry

    def _send_json(self, request: http.server.BaseHTTPRequestHandler, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_head(request, 200, len(data), {"Content-Type": "application/json"})
        request.wfile.write(data)


@pytest.fixture
def kill_python() -> Callable[..., bool]:
    """A function that runs `python -c`, kills it with SIGKILL some time after a condition holds, and says whether it did.

    False means that the program ended first.
    """

    def run(arguments: list[str], *, begun: Callable[[], bool], after: float, environment: Any = None) -> bool:
        process = subprocess.Popen([sys.executable, "-c", *arguments], stdout=subprocess.DEVNULL, env=environment)
        deadline = time.monotonic() + 60
        while not begun() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        try:
            process.wait(timeout=after)
            return False
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            return True

    return run


@pytest.fixture
def hub_repository() -> tuple[str, str]:
    """Name and type of what the hub holds; a module of tests may have a fixture of this name for another."""
    return "some-lab/tiny", "dataset"


@pytest.fixture
def hub(hub_repository: tuple[str, str]) -> Iterator[FakeHub]:
    served = FakeHub(*hub_repository)
    yield served
    served.close()


@pytest.fixture
def server() -> Iterator[FileServer]:
    served = FileServer()
    yield served
    served.close()


@pytest.fixture
def online(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """The library looks for the hub at the server, without a stored token."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
