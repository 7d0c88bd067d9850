"""What every request must satisfy before anything is read, and what every answer carries.

The server listens on the loopback address, so the danger is another web site in the same person's browser. Such a site
can make the browser ask, under a name of its own that it points at 127.0.0.1 (DNS rebinding), so only our own names are
accepted as `Host`. It can embed answers, so they forbid that. A file may hold markup or scripts, so no answer may run any
script but the one file of ours, load anything from elsewhere, or be read as another type than it states.
"""

from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
FILE_POLICY = "default-src 'none'; sandbox; frame-ancestors 'none'"
"""For the bytes of a file, should a browser show them after all."""

_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_METHODS = ("GET", "HEAD")


def allowed_hosts(port: int) -> frozenset[str]:
    """The `Host` headers that name this server; the port is left out by browsers only where it is 80."""
    names = ("127.0.0.1", "localhost", "[::1]")
    return frozenset(f"{name}:{port}" for name in names) | frozenset(names if port == 80 else ())


class Guard:
    """ASGI middleware around the whole app."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app = app
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no websocket is ever accepted

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        hosts = Headers(scope=scope).getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return PlainTextResponse("This server answers only under its own address, as printed at its start.\n", 421)
        if scope["method"] not in _METHODS:
            return PlainTextResponse("Only GET and HEAD: nothing can be changed here.\n", 405, {"allow": "GET, HEAD"})
        return None
