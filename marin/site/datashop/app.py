"""The page's routes, and what each form does.

Reading is GET, changing is POST with a form that carries the page's token; after each the browser is sent to the page that
shows what came of it, so that reloading repeats nothing. Handlers are plain functions that run in threads. An upload is the
one body that is no form: it is streamed to disk as it comes.
"""

import functools
from collections.abc import Callable
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from marin.errors import DataError, MarinError, StorageError
from marin.site.browser.rendering import error_answers, file_answer
from marin.site.datashop import draft_pages, rendering, run_pages
from marin.site.datashop.access import QUERY
from marin.site.datashop.shop import Form, Shop, value_of
from marin.web.guard import Guard, from_own_pages, loopback_hosts, policy

_MOST_FORM_BYTES = 1_000_000
_MOST_FIELDS = 5000
_TITLES = {
    400: "This cannot be done",
    401: "The key is missing",
    403: "Refused",
    404: "Nothing here",
    409: "Not at this moment",
    413: "Too large",
    507: "The disk does not take it",
}
_OURS = "The page met an error of its own. The terminal where it was started says more."
_LOOK = "free some space, or mend the permissions of the folder, and do it again"


Handler = Callable[[Shop, Request, Form], Response]


def build_app(shop: Shop, port: int) -> ASGIApp:
    """The app over a shop, for a server on `port`."""

    def get(path: str, handler: Callable[[Shop, Request], Response]) -> Route:
        async def endpoint(request: Request) -> Response:
            return await run_in_threadpool(_handled, functools.partial(handler, shop, request))

        return Route(path, endpoint, methods=["GET", "HEAD"])

    def post(path: str, handler: Handler) -> Route:
        async def endpoint(request: Request) -> Response:
            form = await _form(request)
            if not shop.access.is_token(value_of(form, "token")):
                raise HTTPException(
                    403, "The form is out of date, and nothing was done: reload the page and send it again."
                )
            return await run_in_threadpool(_handled, functools.partial(handler, shop, request, form))

        return Route(path, endpoint, methods=["POST"])

    routes = [
        get("/", _first_page),
        get("/static/{name}", _static),
        get("/favicon.ico", _no_icon),
        get("/files", draft_pages.files_page),
        get("/runs/{id}", run_pages.run_page),
        get("/runs/{id}/review", draft_pages.review_page),
        get("/runs/{id}/samples", run_pages.samples_page),
        get("/runs/{id}/report/{path:path}", run_pages.report_file),
        get("/runs/{id}/dataset.zip", run_pages.dataset),
        get("/runs/{id}/file/{name}", run_pages.one_file),
        get("/live/runs/{id}", run_pages.run_live),
        post("/runs", draft_pages.create),
        post("/runs/{id}", draft_pages.act),
        post("/files/remove", draft_pages.remove_file),
        Route("/uploads", functools.partial(_upload, shop), methods=["POST"]),
    ]
    error_page = functools.partial(rendering.page, "problem.html.j2", shop=shop, section="")
    app = Starlette(routes=routes, exception_handlers=error_answers(error_page, _TITLES, _OURS))
    app.router.redirect_slashes = False
    hosts = loopback_hosts(port)
    return Guard(app, hosts, policy=policy(forms="'self'"), rules=[from_own_pages(hosts), shop.access.rule])


def _handled(handler: Callable[[], Response]) -> Response:
    try:
        return handler()
    except MarinError as error:
        raise HTTPException(400, str(error)) from error
    except FileNotFoundError:
        raise HTTPException(404, "It was removed while it was read.") from None
    except OSError as error:
        raise HTTPException(507, f"The page's folder cannot be used ({error.strerror or error}): {_LOOK}.") from error


def _first_page(shop: Shop, request: Request) -> Response:
    given = request.query_params.get(QUERY)
    if given is None:
        return run_pages.home(shop)
    if not shop.access.is_key(given):
        raise HTTPException(401, "This key is not the page's: open the address that `marin datashop` printed.")
    return shop.access.let_in(RedirectResponse("/", 303))


def _static(shop: Shop, request: Request) -> Response:
    return file_answer(rendering.static_files(), request.path_params["name"])


def _no_icon(shop: Shop, request: Request) -> Response:
    """For the report, which has no icon of its own."""
    return Response(status_code=204)


async def _upload(shop: Shop, request: Request) -> Response:
    """A file as the whole body; answers with what was found, or why it is refused, as JSON."""
    if not shop.access.is_token(request.headers.get("x-token", "")):
        return JSONResponse({"problem": "the page is out of date: reload it"}, 403)
    query, length = request.query_params, request.headers.get("content-length", "")
    size = int(length) if length.isascii() and length.isdigit() and len(length) < 16 else None
    try:
        upload = await shop.uploads.receive(
            query.get("name", "")[:1000],
            request.stream(),
            size=size,
            text_field=query.get("text_field", "")[:200],
            split=query.get("split", "blank"),
        )
    except DataError as error:
        return JSONResponse({"problem": str(error)}, 422, {"connection": "close"})
    except StorageError as error:
        return JSONResponse({"problem": str(error)}, 507, {"connection": "close"})
    except OSError as error:
        problem = f"it cannot be kept ({error.strerror or error}): {_LOOK}"
        return JSONResponse({"problem": problem}, 507, {"connection": "close"})
    except ClientDisconnect:
        return Response(status_code=499)
    return JSONResponse(
        {"id": upload.id, "name": upload.name, "documents": upload.documents, "left_out": upload.num_left_out}
    )


async def _form(request: Request) -> dict[str, list[str]]:
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise HTTPException(400, "This is no form.")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_FORM_BYTES:
            raise HTTPException(413, f"The form has more than {_MOST_FORM_BYTES:,} bytes.")
    try:
        return parse_qs(body.decode("ascii"), keep_blank_values=True, errors="replace", max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise HTTPException(400, "The form cannot be read.") from None
