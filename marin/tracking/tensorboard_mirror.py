"""A copy of a run's metrics for TensorBoard, where it is asked for; never needed, never the truth.

`MARIN_TENSORBOARD=1` writes event files to `tensorboard/` in the run directory, `MARIN_TENSORBOARD=DIR` to
`DIR/{run}`, so that one TensorBoard shows many runs. A fault never stops training: it is reported once.
"""

import importlib.util
import math
import os
import uuid
from pathlib import Path
from typing import Any

_NO = ("", "0", "false", "no")
_HERE = ("1", "true", "yes")


def is_wanted() -> bool:
    return os.environ.get("MARIN_TENSORBOARD", "").lower() not in _NO


def log_directory(run_directory: Path) -> Path:
    """Where the event files of a run go."""
    asked = os.environ.get("MARIN_TENSORBOARD", "")
    return run_directory / "tensorboard" if asked.lower() in _HERE else Path(asked) / run_directory.name


class TensorboardMirror:
    """Event files that follow a run; a resumed run goes on in a file of its own beside the first."""

    url: str | None = None

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._failed = False

    def log(self, step: int, metrics: dict[str, Any]) -> None:
        if self._failed:
            return
        try:
            for name, value in metrics.items():
                if isinstance(value, dict):
                    self._add_histogram(name, value, step)
                else:
                    self._writer.add_scalar(name, value, step)
        except Exception as error:  # a full disk, a missing folder: training does not need TensorBoard
            self._failed = True
            print(f"TensorBoard stopped taking metrics ({error}); training goes on, metrics.jsonl is complete")

    def finish(self) -> None:
        try:
            self._writer.close()
        except Exception as error:
            print(f"TensorBoard's last events could not be written ({error}); metrics.jsonl is complete")

    def _add_histogram(self, name: str, histogram: dict[str, Any], step: int) -> None:
        low, high, counts = histogram["min"], histogram["max"], histogram["counts"]
        if not math.isfinite(high - low):
            return
        width = (high - low) / len(counts)
        middles = [low + (i + 0.5) * width for i in range(len(counts))]
        self._writer.add_histogram_raw(
            name,
            min=low,
            max=high,
            num=sum(counts),
            sum=sum(n * x for n, x in zip(counts, middles, strict=True)),
            sum_squares=sum(n * x * x for n, x in zip(counts, middles, strict=True)),
            bucket_limits=[low + (i + 1) * width for i in range(len(counts))],
            bucket_counts=counts,
            global_step=step,
        )


def open_tensorboard(run_directory: Path) -> TensorboardMirror | None:
    """The mirror of this run, or None where it is not wanted or cannot be."""
    if not is_wanted():
        return None
    if importlib.util.find_spec("tensorboardX") is None:
        print(
            "MARIN_TENSORBOARD is set but tensorboardX is not installed; training goes on without it:"
            " `pip install 'marin[tensorboard]'` adds it"
        )
        return None
    try:
        from tensorboardX import SummaryWriter

        # The library names a file by the second and the host, and would write over that of a run resumed at once.
        suffix = f".{uuid.uuid4().hex[:8]}"
        return TensorboardMirror(
            SummaryWriter(str(log_directory(run_directory)), flush_secs=10, filename_suffix=suffix)
        )
    except Exception as error:  # a folder that cannot be written
        print(f"TensorBoard's files could not be opened ({error}); training goes on without them")
        return None
