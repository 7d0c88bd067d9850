"""`marin leaderboard serve`: a built site on this machine's loopback address, with the headers that a good host would send."""

import logging
import pathlib
import socket
from collections.abc import Sequence

import uvicorn
from starlette.applications import Starlette
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from marin.errors import ConfigError
from marin.site.browser.security import Guard, allowed_hosts
from marin.site.leaderboard.build import POLICY
from marin.site.leaderboard.output import RECORD

HEADER_POLICY = f"{POLICY}; frame-ancestors 'none'"
_TYPES = {
    ".atom": b"application/atom+xml",
    ".bib": b"text/plain; charset=utf-8",
    ".parquet": b"application/vnd.apache.parquet",
}


class _SiteHeaders:
    """Sends the pages' own policy as a header, and the types that Python's table does not know."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                kind = _TYPES.get(pathlib.PurePosixPath(scope.get("path", "")).suffix)
                headers = [item for item in message["headers"] if kind is None or item[0] != b"content-type"]
                headers += [(b"content-type", kind)] if kind is not None else []
                message["headers"] = [*headers, (b"content-security-policy", HEADER_POLICY.encode())]
            await send(message)

        await self._app(scope, receive, send_with_headers)


def make_app(site: pathlib.Path, hosts: Sequence[str]) -> ASGIApp:
    """The site's files and nothing else: links out of the directory are not followed.

    Raises:
        ConfigError: if the directory holds no site.
    """
    if not (site / RECORD).is_file() or not (site / "index.html").is_file():
        raise ConfigError(
            f"{site}: no built site here: run `marin leaderboard build --results-dir DIR --output {site}` first"
        )
    files = Starlette()
    files.mount("/", StaticFiles(directory=site, html=True, follow_symlink=False))
    return Guard(_SiteHeaders(files), hosts)


def make_server(site: pathlib.Path, listener: socket.socket) -> uvicorn.Server:
    """The server for a socket of `marin.site.browser.app.bind`; `run(sockets=[listener])` answers until Ctrl-C or SIGTERM."""
    config = uvicorn.Config(
        make_app(site, sorted(allowed_hosts(listener.getsockname()[1]))),
        access_log=False,
        log_level=logging.WARNING,
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config)
