"""What every request must satisfy, and what every answer carries.

On the loopback address the danger is another web site in the same person's browser. Only our own names are accepted as
`Host`, so that no foreign name can be pointed at this machine, and a request with a body must be of JSON's type, which a
page of another origin cannot send unasked. The chat page shows text that a model wrote: no answer may run any script but
the one file of ours, or load anything from elsewhere.
"""

from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from marin.inference.server.problems import ProblemError

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """ASGI middleware around the whole app.

    Args:
        hosts: names under which the server answers, in lower case with their port; None for any.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str] | None) -> None:
        self._app = app
        self._hosts = None if hosts is None else frozenset(hosts)

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

        problem = self._problem(scope)
        await (self._app if problem is None else problem.response())(scope, receive, send_guarded)

    def _problem(self, scope: Scope) -> ProblemError | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if self._hosts is not None and (len(hosts) != 1 or hosts[0].lower() not in self._hosts):
            return ProblemError(421, "this server answers only under its own address, as printed at its start")
        if scope["method"] == "POST":
            kind = headers.get("content-type", "").split(";")[0].strip().lower()
            if kind != "application/json":
                return ProblemError(415, f"the body is of type {kind or 'nothing'}: send application/json")
        return None


def loopback_hosts(port: int) -> frozenset[str]:
    """The `Host` headers that name a server on this machine; browsers leave the port out only where it is 80."""
    names = ("127.0.0.1", "localhost", "[::1]")
    return frozenset(f"{name}:{port}" for name in names) | frozenset(names if port == 80 else ())
