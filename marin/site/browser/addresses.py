"""`/experiment?path=...`: from a path as people and records write it to the page that shows it.

A path is absolute, or relative to a folder that is shown. That of an experiment's record leads to the experiment, that of a
step's output to the step, anything else to the file or folder. Reports link to steps this way, as they do not know in which
order folders are shown where they are read.
"""

import os

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from marin.site.browser import records, roots
from marin.site.browser.rendering import text_of
from marin.site.browser.roots import Place, Root
from marin.site.browser.site import Site


def lead(site: Site, request: Request) -> Response:
    """Raises:
    HTTPException: 400 without a path, 403 or 404 where it leads nowhere that is shown.
    """
    path = text_of(request, "path", 10_000)
    if not path:
        raise HTTPException(
            400, "Say what to show: /experiment?path=experiments/NAME.json, or the path of a step's output."
        )
    for root in site.roots:
        parts = _parts(root, path)
        if parts is None:
            continue
        place = roots.resolve(root, parts)
        if place.exists or parts in site.records(root).steps():
            return RedirectResponse(_address(site, root, place), 303)
    raise HTTPException(404, f"There is nothing at {path!r} in the folders that are shown here.")


def _parts(root: Root, path: str) -> tuple[str, ...] | None:
    """The parts of `path` below a root; None where it is an absolute path to somewhere else."""
    path = path.removeprefix("file://")
    if path.startswith("/") or "://" in path:
        inside = os.path.join(root.path, "")
        if not path.startswith(inside):
            return None
        path = path[len(inside) :]
    return tuple(part for part in path.split("/") if part)


def _address(site: Site, root: Root, place: Place) -> str:
    index, parts = site.records(root), place.parts
    if len(parts) == 2 and parts[0] == records.EXPERIMENTS and index.experiment(parts[1]) is not None:
        return roots.url_of(root, parts[1:], "experiment")
    return roots.url_of(root, parts, "step" if parts in index.steps() else "files")
