"""The copies of a run's metrics that are wanted: on Weights & Biases, for TensorBoard. None can stop training."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from marin.tracking.tensorboard_mirror import open_tensorboard
from marin.tracking.wandb_mirror import WandbMirror, wandb_mirror


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
def open_mirrors(directory: Path, info: dict[str, Any], tags: Sequence[str] = ()) -> Iterator[Mirrors]:
    """The mirrors of the run in `directory`; a resumed run continues them.

    Args:
        info: what its `run.json` says.
    """
    with _on_wandb(directory, info, tags) as wandb:
        tensorboard = open_tensorboard(directory)
        try:
            yield Mirrors([mirror for mirror in (wandb, tensorboard) if mirror is not None])
        finally:
            if tensorboard is not None:
                tensorboard.finish()


def summarize(directory: Path, info: dict[str, Any], figures: dict[str, float]) -> None:
    """Adds figures of a finished run to the summary of its mirror on W&B, where one is wanted; the others as of `open_mirrors`."""
    with _on_wandb(directory, info) as wandb:
        if wandb is not None:
            wandb.summarize(figures)


def _on_wandb(
    directory: Path, info: dict[str, Any], tags: Sequence[str] = ()
) -> contextlib.AbstractContextManager[WandbMirror | None]:
    run_id, name = names_of(directory, info)
    return wandb_mirror(run_id, info["config"], str(directory), tags, name)


def names_of(directory: Path, info: dict[str, Any]) -> tuple[str, str]:
    """An id for the run that is its config's own, and what people call it.

    Most directories are named after a step and its fingerprint, which serves as both. Others, such as `d12`, get the digest
    of the config, and go by the run's name where it has one.
    """
    if re.search(r"-[0-9a-f]{8}$", directory.name):
        return directory.name, directory.name
    return f"{directory.name}-{info['digests']['config'][:8]}", info.get("run_name") or directory.name
