"""The list of runs, and of each run how far it is, what was kept and dropped, its report, and its dataset to download."""

import pathlib
import re
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse

from marin.datashop.card import CARD, README
from marin.datashop.selection import SELECTION
from marin.site.browser import roots
from marin.site.browser.rendering import number_of, with_query
from marin.site.datashop import downloads, rendering, samples, stages
from marin.site.datashop.draft_pages import draft_page, run_of
from marin.site.datashop.runs import CONFIG, Run, read_json
from marin.site.datashop.shop import Shop
from marin.site.datashop.stages import Progress
from marin.site.datashop.wishes import WAYS

_PICTURES = ("labels", "scores")
_REPORT_TYPES = {".html": "text/html", ".svg": "image/svg+xml", ".md": "text/plain", ".json": "application/json"}
# The report carries its style and allows it by its hash; no script may run in any case.
_REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def home(shop: Shop) -> Response:
    listed = [(run, stages.summary_of(run, shop.records)) for run in shop.runs.all()]
    return rendering.page("home.html.j2", shop=shop, section="home", listed=listed, ways=WAYS, words=stages.WORDS)


def run_page(shop: Shop, request: Request) -> Response:
    run = run_of(shop, request)
    if run.is_draft:
        return draft_page(shop, request, run)
    return rendering.page("run.html.j2", shop=shop, section="", **_shown(shop, run))


def run_live(shop: Shop, request: Request) -> Response:
    """The part of a run's page that changes."""
    run = run_of(shop, request)
    return rendering.page("run_live.html.j2", shop=shop, **_shown(shop, run))


def samples_page(shop: Shop, request: Request) -> Response:
    run, drawn = run_of(shop, request), request.query_params.get("drawn", "near")
    if drawn not in samples.DRAWN:
        raise HTTPException(404, "Samples are `near` the limit or `random`.")
    folder = _output(shop, run, "selection")
    sides = samples.read_sides(folder, drawn, number_of(request, "page", 1))
    selection = read_json(folder / SELECTION) or {}
    return rendering.page(
        "samples.html.j2",
        shop=shop,
        section="",
        run=run,
        sides=sides,
        drawn=drawn,
        number=sides.number,
        limit=selection.get("limit"),
        page_link=lambda page: with_query(f"/runs/{run.id}/samples", drawn=drawn, page=page),
    )


def report_file(shop: Shop, request: Request) -> Response:
    """A file of the report, which is a folder that opens from disk."""
    folder = _output(shop, run_of(shop, request), "report")
    asked = request.path_params["path"] or "index.html"
    kind = _REPORT_TYPES.get(pathlib.PurePosixPath(asked).suffix)
    if kind is None or not re.fullmatch(r"[a-z0-9_.-]+(/[a-z0-9_.-]+)?", asked) or ".." in asked:
        raise HTTPException(404, "The report has no such file.")
    with roots.open_file(roots.resolve(roots.Root(0, str(folder)), asked.split("/"))) as file:
        content = file.readall()
    return Response(content, media_type=kind, headers={"content-security-policy": _REPORT_POLICY})


def dataset(shop: Shop, request: Request) -> Response:
    """The dataset with its card, as one archive."""
    run = run_of(shop, request)
    folder = _output(shop, run, "card")
    headers = {"content-disposition": f'attachment; filename="{run.wish.name}.zip"'}
    if request.method == "HEAD":
        return Response(headers=headers, media_type="application/zip")
    return StreamingResponse(downloads.archive(folder, run.wish.name), headers=headers, media_type="application/zip")


def one_file(shop: Shop, request: Request) -> Response:
    """The card, its record or the config, as a file to save."""
    run, name = run_of(shop, request), request.path_params["name"]
    if name in (README, CARD):
        path = _output(shop, run, "card") / name
    elif name == CONFIG and not run.is_draft:
        path = run.folder / name
    else:
        raise HTTPException(404, "There is no such file.")
    return FileResponse(path, media_type="text/plain", filename=f"{run.wish.name}-{name}", stat_result=path.stat())


def _shown(shop: Shop, run: Run) -> dict[str, Any]:
    progress = stages.progress_of(run, shop.records)
    return {
        "run": run,
        "wish": run.wish,
        "ways": WAYS,
        "progress": progress,
        "words": stages.WORDS,
        "pictures": _pictures(progress),
        "has_samples": progress.stage("selection") is not None,
        "archive_bytes": downloads.size_of(card.output) if (card := progress.stage("card")) else None,
    }


def _pictures(progress: Progress) -> list[tuple[str, str]]:
    """Name and description of the report's pictures that stand on the run's page."""
    report = progress.stage("report")
    if report is None:
        return []
    titles = {"labels": "How often each label was given", "scores": "Scores of kept and dropped documents"}
    return [
        (name, titles[name]) for name in _PICTURES if (report.output / "pictures" / f"{name}-wide-light.svg").is_file()
    ]


def _output(shop: Shop, run: Run, key: str) -> pathlib.Path:
    """Where a finished stage lies, links followed: an attempt's own directory.

    Raises:
        HTTPException: 404, if the stage is not finished.
    """
    output = stages.output_of(run, shop.records, key)
    if output is None:
        raise HTTPException(404, "This stage of the run is not finished yet.")
    return output.resolve()
