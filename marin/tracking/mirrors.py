"""The copies of a run's metrics that are wanted: on Weights & Biases, for TensorBoard. None can stop training."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from marin.tracking.tensorboard_mirror import open_tensorboard
from marin.tracking.wandb_mirror import wandb_mirror


class Mirror(Protocol):
    """A place that metrics are copied to."""

    @property
    def url(self) -> str | None: ...

    def log(self, step: int, metrics: dict[str, Any]) -> None: ...


class Mirrors:
    """All mirrors of a run; values are numbers, or histograms as `metrics.jsonl` has them."""

    def __init__(self, mirrors: Sequence[Mirror]) -> None:
        self._mirrors = tuple(mirrors)

    @property
    def url(self) -> str | None:
        """Where a copy can be seen, if one has an address."""
        return next((mirror.url for mirror in self._mirrors if mirror.url), None)

    def log(self, group: str, step: int, values: dict[str, Any]) -> None:
        """Copies the values under "{group}/{name}"."""
        for mirror in self._mirrors:
            mirror.log(step, {f"{group}/{name}": value for name, value in values.items()})


@contextlib.contextmanager
def open_mirrors(directory: Path, config: dict[str, Any], tags: Sequence[str] = ()) -> Iterator[Mirrors]:
    """The mirrors of the run in `directory`, whose name is unique to its config; a resumed run continues them."""
    with wandb_mirror(directory.name, config, str(directory), tags=tags) as wandb:
        tensorboard = open_tensorboard(directory)
        try:
            yield Mirrors([mirror for mirror in (wandb, tensorboard) if mirror is not None])
        finally:
            if tensorboard is not None:
                tensorboard.finish()
