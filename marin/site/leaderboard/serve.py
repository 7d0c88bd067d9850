"""`marin leaderboard serve`: a built site on this machine's loopback address, with the headers that a good host would send."""

import pathlib

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from marin.errors import ConfigError
from marin.site.leaderboard.build import POLICY
from marin.site.leaderboard.output import RECORD
from marin.web.guard import Guard, loopback_hosts, read_only

HEADER_POLICY = f"{POLICY}; frame-ancestors 'none'"
_TYPES = {
    ".atom": "application/atom+xml",
    ".bib": "text/plain; charset=utf-8",
    ".parquet": "application/vnd.apache.parquet",
}


class _Types:
    """Sends the types that Python's table does not know."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = _TYPES.get(pathlib.PurePosixPath(scope.get("path", "")).suffix)

        async def send_typed(message: Message) -> None:
            if message["type"] == "http.response.start" and kind is not None:
                MutableHeaders(scope=message)["content-type"] = kind
            await send(message)

        await self._app(scope, receive, send_typed)


def make_app(site: pathlib.Path, port: int) -> ASGIApp:
    """The site's files and nothing else, for a server on `port`: links out of the directory are not followed.

    Raises:
        ConfigError: if the directory holds no site.
    """
    if not (site / RECORD).is_file() or not (site / "index.html").is_file():
        raise ConfigError(
            f"{site}: no built site here: run `marin leaderboard build --results-dir DIR --output {site}` first"
        )
    files = Starlette()
    files.mount("/", StaticFiles(directory=site, html=True, follow_symlink=False))
    return Guard(_Types(files), loopback_hosts(port), policy=HEADER_POLICY, rules=[read_only])
