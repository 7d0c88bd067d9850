"""The routes and the error pages.

Paths are matched as they came, percent-encoded, and decoded once by `roots`. Handlers are plain functions that run in
threads: they read files. An error that we did not foresee is logged where the server was started, and a person sees only
that it happened.
"""

import functools
from collections.abc import Callable, Sequence

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from marin.errors import MarinError
from marin.site.browser import addresses, file_pages, rendering, run_pages
from marin.site.browser.roots import Root
from marin.site.browser.site import Site
from marin.web.guard import Guard, loopback_hosts, policy, read_only

Handler = Callable[[Site, Request], Response]

_TITLES = {
    400: "This cannot be shown",
    403: "Refused",
    404: "Nothing here",
    405: "Not possible",
    422: "This cannot be read",
}
_OURS = "The browser met an error of its own. The terminal where it was started says more."


def build_app(folders: Sequence[Root], port: int) -> ASGIApp:
    """The app over these folders, for a server on `port`."""
    site = Site(folders)

    def route(path: str, handler: Handler) -> Route:
        async def endpoint(request: Request) -> Response:
            return await run_in_threadpool(_handled, site, handler, request)

        return Route(path, endpoint, methods=["GET", "HEAD"])

    def under(prefix: str, handler: Handler) -> list[Route]:
        return [route(f"/{prefix}/{{root:int}}{rest}", handler) for rest in ("", "/{path:path}")]

    routes = [
        route("/", run_pages.home),
        route("/steps", run_pages.steps),
        route("/static/{name}", _static),
        *under("files", file_pages.show),
        *under("raw", file_pages.download),
        route("/experiment", addresses.lead),
        *under("experiment", run_pages.experiment),
        *under("step", run_pages.step),
        *under("live/experiment", run_pages.experiment_live),
        *under("live/step", run_pages.step_live),
    ]
    error_page = functools.partial(rendering.page, "error.html.j2", site=site, folder=None)
    answers = rendering.error_answers(
        error_page, _TITLES, _OURS, beside=lambda request: {"folder": site.nearest_folder(request)}
    )
    app = Starlette(routes=routes, exception_handlers=answers)
    app.router.redirect_slashes = False
    return Guard(_Undecoded(app), loopback_hosts(port), policy=policy(forms="'self'"), rules=[read_only])


class _Undecoded:
    """Gives the router the path as it came, so that nothing is decoded before it was split."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": scope["raw_path"].decode("ascii", "replace"), "root_path": ""}
        await self._app(scope, receive, send)


def _handled(site: Site, handler: Handler, request: Request) -> Response:
    try:
        return handler(site, request)
    except MarinError as error:
        raise HTTPException(422, str(error)) from error
    except PermissionError:
        raise HTTPException(403, "The permissions do not let you read this.") from None
    except (FileNotFoundError, NotADirectoryError):
        raise HTTPException(404, "It was moved or removed while it was read.") from None


def _static(site: Site, request: Request) -> Response:
    return rendering.file_answer(rendering.static_files(), request.path_params["name"])
