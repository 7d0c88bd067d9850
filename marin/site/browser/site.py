"""What every handler knows: the roots, their indices, and where a place stands among steps."""

import dataclasses
from collections.abc import Iterator, Sequence

from starlette.exceptions import HTTPException
from starlette.requests import Request

from marin.data.tokenizer import TOKENIZER_FILE
from marin.site.browser import roots
from marin.site.browser.records import Records, State, Step
from marin.site.browser.roots import Place, Root


@dataclasses.dataclass(frozen=True)
class StepLink:
    """A step as other pages name it."""

    name: str
    relative: str
    url: str
    state: State
    description: str = ""


class Site:
    """The folders that this server shows."""

    def __init__(self, folders: Sequence[Root]) -> None:
        self.roots = tuple(folders)
        self._records = {root.number: Records(root) for root in folders}

    def place(self, request: Request) -> Place:
        """The place that a request's path names.

        Raises:
            HTTPException: 404 for an unknown root, 403 for a path that is refused.
        """
        return roots.resolve(self._root(request), roots.decode_parts(request.path_params.get("path", "").encode()))

    def nearest_folder(self, request: Request) -> Place | None:
        """The folder that is there and nearest to what a request's path names; None where the path names nothing of ours."""
        try:
            root = self._root(request)
            parts = roots.decode_parts(request.path_params.get("path", "").encode())
        except (HTTPException, KeyError):
            return None
        found = Place(root, (), root.path)
        for depth in range(1, len(parts) + 1):
            try:
                place = roots.resolve(root, parts[:depth])
                if not place.is_dir:
                    return found
            except HTTPException:
                return found
            found = place
        return found

    def records(self, place_or_root: Place | Root) -> Records:
        root = place_or_root.root if isinstance(place_or_root, Place) else place_or_root
        return self._records[root.number]

    def link(self, records: Records, step: Step) -> StepLink:
        description = step.info.get("description")
        return StepLink(
            step.name,
            step.relative,
            roots.url_of(records.root, step.parts, "step"),
            records.state(step.parts),
            description if isinstance(description, str) else "",
        )

    def maker(self, place: Place) -> StepLink | None:
        """The step that made `place`."""
        records = self.records(place)
        step = records.maker(place)
        return self.link(records, step) if step else None

    def readers(self, place: Place) -> list[StepLink]:
        """The steps that read the output that holds `place`."""
        records = self.records(place)
        step = records.maker(place)
        return [self.link(records, reader) for reader in records.readers(step.parts)] if step else []

    def tokenizers(self, place: Place) -> Iterator[Place]:
        """`tokenizer.json` files that may have made the cache at `place`, the likeliest first."""
        records = self.records(place)
        step = records.maker(place)
        likely: list[tuple[str, ...]] = []
        if step:
            config = step.info.get("config")
            named = config.get("tokenizer") if isinstance(config, dict) else None
            direct = records.relative(named, records.prefixes(step))
            likely += [direct] if direct else []
            likely += step.reads
        likely += [other for other in records.steps() if other not in likely]
        for parts in likely:
            whole = parts if parts and parts[-1].endswith(".json") else (*parts, TOKENIZER_FILE)
            try:
                found = roots.resolve(records.root, whole)
            except HTTPException:
                continue
            if found.exists:
                yield found

    def _root(self, request: Request) -> Root:
        number = request.path_params["root"]
        if number >= len(self.roots):
            raise HTTPException(404, "There is no such folder here.")
        return self.roots[number]
