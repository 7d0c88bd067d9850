"""Scaling laws that were fitted before, kept by the points that they are of: a fit with its bootstrap takes five milliseconds."""

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any

from marin.speedrun.board.kept_lines import KeptLines, key_of
from marin.speedrun.board.row_store import program_digest
from marin.speedrun.statistics.scaling import Interval, Point, ScalingFit, in_order
from marin.storage import files

FILE_NAME = "fits.jsonl"


class KeptFits:
    """The kept fits of one site; `save` writes those that this build used."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._lines = KeptLines(files.join(os.fspath(directory), FILE_NAME), program_digest())

    def fit(self, family: str, points: Sequence[Point], budget: float) -> ScalingFit:
        """`scaling_fit.fit_family`, kept or made.

        Raises:
            ValueError: if a cost or a quality is not positive and finite.
        """
        ordered = in_order(points)
        # Not by the points' keys, which change with what is said of a run: the fit is of their figures.
        evidence = json.dumps([family, [(point.cost, point.quality) for point in ordered], budget])
        key = key_of(evidence.encode())
        kept = self._lines.get(key)
        if kept is not None:
            return _from_json(kept, ordered)
        from marin.speedrun.statistics.scaling_fit import fit_family

        found = fit_family(family, points, budget)
        self._lines.put(key, _to_json(found))
        return found

    def save(self) -> None:
        self._lines.save()


def _to_json(fit: ScalingFit) -> dict[str, Any]:
    return dataclasses.asdict(dataclasses.replace(fit, points=()))


def _from_json(value: dict[str, Any], points: tuple[Point, ...]) -> ScalingFit:
    intervals = {
        name: Interval(**item) for name, item in value.items() if name.endswith("_interval") and item is not None
    }
    return ScalingFit(**value | intervals | {"points": points})
