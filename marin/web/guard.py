"""What every request must satisfy before an app sees it, and what every answer carries.

Our servers listen on the loopback address, so the danger is another web site in the same person's browser. Such a site can
make the browser ask, under a name of its own that it points at 127.0.0.1 (DNS rebinding), so only our own names are accepted
as `Host`. It can embed answers, so they forbid that. Answers show text that others wrote, so none may run any script but the
files of ours, load anything from elsewhere, or be read as another type than it states. What else a request must satisfy
differs between apps; each gives its rules.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send


def policy(*, forms: str) -> str:
    """A content security policy that allows our own files and nothing else.

    Args:
        forms: where forms may be sent to: "'self'" or "'none'".
    """
    return (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
        f"form-action {forms}; frame-ancestors 'none'"
    )


FILE_POLICY = "default-src 'none'; sandbox; frame-ancestors 'none'"
"""For the bytes of a file, should a browser show them after all."""

_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Refusal:
    """Why a request is not answered, as a status, a sentence and headers."""

    status: int
    message: str
    headers: dict[str, str] = field(default_factory=dict)


Rule = Callable[[Scope, Headers], Refusal | None]


def _plainly(refusal: Refusal) -> Response:
    return PlainTextResponse(f"{refusal.message}\n", refusal.status, refusal.headers)


class Guard:
    """ASGI middleware around a whole app.

    Args:
        hosts: names under which the server answers, in lower case with their port; None for any.
        policy: the content security policy of answers that state none.
        rules: what a request must satisfy beside its host.
        refuse: a refusal in the app's own form.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Iterable[str] | None,
        *,
        policy: str,
        rules: Iterable[Rule] = (),
        refuse: Callable[[Refusal], Response] = _plainly,
    ) -> None:
        self._app = app
        self._rules = (*(() if hosts is None else (_only_under(frozenset(hosts)),)), *rules)
        self._refuse = refuse
        self._headers = {"content-security-policy": policy, **_HEADERS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no websocket is ever accepted

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        headers = Headers(scope=scope)
        refusals = (rule(scope, headers) for rule in self._rules)
        refusal = next((found for found in refusals if found is not None), None)
        await (self._app if refusal is None else self._refuse(refusal))(scope, receive, send_guarded)


def loopback_hosts(port: int, address: str = "127.0.0.1") -> frozenset[str]:
    """The `Host` headers that name a server on this machine; browsers leave the port out only where it is 80.

    Args:
        address: that the server listens on.
    """
    names = {"127.0.0.1", "localhost", "[::1]", address}
    return frozenset(f"{name}:{port}" for name in names) | frozenset(names if port == 80 else ())


def _only_under(hosts: frozenset[str]) -> Rule:
    def check(scope: Scope, headers: Headers) -> Refusal | None:
        given = headers.getlist("host")
        if len(given) == 1 and given[0].lower() in hosts:
            return None
        return Refusal(421, "This server answers only under its own address, as printed at its start.")

    return check


def read_only(scope: Scope, headers: Headers) -> Refusal | None:
    """Refuses what could change anything."""
    if scope["method"] in ("GET", "HEAD"):
        return None
    return Refusal(405, "Only GET and HEAD: nothing can be changed here.", {"allow": "GET, HEAD"})


def json_bodies(scope: Scope, headers: Headers) -> Refusal | None:
    """Refuses a body of another type than JSON's, which is all that a page of another origin can send unasked."""
    kind = headers.get("content-type", "").split(";")[0].strip().lower()
    if scope["method"] != "POST" or kind == "application/json":
        return None
    return Refusal(415, f"the body is of type {kind or 'nothing'}: send application/json")


def from_own_pages(hosts: Iterable[str]) -> Rule:
    """Refuses a change that a page of another origin asks for.

    Browsers state by `Sec-Fetch-Site` and `Origin` who asks, and no script can alter either. Our own forms come with the origin
    `null`, as our pages send no referrer, so that counts where the other header vouches for it. A request that states neither
    comes from no browser of today, and must carry the page's token in any case.
    """
    origins = frozenset(f"http://{host}" for host in hosts)

    def check(scope: Scope, headers: Headers) -> Refusal | None:
        if scope["method"] in ("GET", "HEAD"):
            return None
        site, origin = headers.getlist("sec-fetch-site"), set(headers.getlist("origin"))
        if (not site and origin <= origins) or (site == ["same-origin"] and origin <= origins | {"null"}):
            return None
        return Refusal(403, "This change was asked for by a page of another site, and nothing was done.")

    return check
