"""A copy of a run's metrics for TensorBoard, where it is asked for; never needed, never the truth.

`MARIN_TENSORBOARD=1` writes event files to `tensorboard/` in the run directory, `MARIN_TENSORBOARD=DIR` to
`DIR/{run}`, so that one TensorBoard shows many runs. A fault never stops training: it is reported once.
"""

import importlib.util
import math
import os
import socket
import time
import uuid
from pathlib import Path
from typing import Any

_NO = ("", "0", "false", "no")
_HERE = ("1", "true", "yes")
_FLUSH_SECONDS = 10.0


def is_wanted() -> bool:
    return os.environ.get("MARIN_TENSORBOARD", "").lower() not in _NO


def log_directory(run_directory: Path) -> Path:
    """Where the event files of a run go."""
    asked = os.environ.get("MARIN_TENSORBOARD", "")
    return run_directory / "tensorboard" if asked.lower() in _HERE else Path(asked) / run_directory.name


class TensorboardMirror:
    """An event file that follows a run; a resumed run goes on in one of its own beside the first.

    The loop writes it itself: the thread of tensorboardX's own writer ends with the first error, after which whoever logs waits for it
    for ever. Nor is that faster: 5 numbers took 1.2 ms here and 3.9 ms there (median of 3 times 500, on 2 busy cores).
    """

    url: str | None = None

    def __init__(self, folder: Path) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        # By convention the name has the second and the host; a run that is resumed at once needs another.
        name = f"events.out.tfevents.{int(now)}.{socket.gethostname()}.{uuid.uuid4().hex[:8]}"
        self._file: Any = RecordWriter(str(folder / name))
        self._failed = False
        self._write(Event(wall_time=now, file_version="brain.Event:2"))
        self._flush()

    def log(self, step: int, metrics: dict[str, Any]) -> None:
        if self._failed:
            return
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary
        from tensorboardX.summary import scalar

        try:
            values: list[Any] = []
            for name, value in metrics.items():
                summary = _histogram(name, value) if isinstance(value, dict) else scalar(name, value)
                values.extend([] if summary is None else summary.value)
            self._write(Event(step=step, wall_time=time.time(), summary=Summary(value=values)))
            if time.monotonic() - self._flushed > _FLUSH_SECONDS:
                self._flush()
        except Exception as error:  # a full disk, a missing folder: training does not need TensorBoard
            self._failed = True
            print(f"TensorBoard stopped taking metrics ({error}); training goes on, metrics.jsonl is complete")

    def finish(self) -> None:
        try:
            self._file.close()
        except Exception as error:
            if not self._failed:
                print(f"TensorBoard's last events could not be written ({error}); metrics.jsonl is complete")

    def _write(self, event: Any) -> None:
        self._file.write(event.SerializeToString())

    def _flush(self) -> None:
        self._file.flush()
        self._flushed = time.monotonic()


def _histogram(name: str, histogram: dict[str, Any]) -> Any | None:
    """The histogram as TensorBoard has it; None for one that is not finite."""
    from tensorboardX.summary import histogram_raw

    low, high, counts = histogram["min"], histogram["max"], histogram["counts"]
    if not math.isfinite(high - low):
        return None
    width = (high - low) / len(counts)
    middles = [low + (i + 0.5) * width for i in range(len(counts))]
    return histogram_raw(
        name,
        min=low,
        max=high,
        num=sum(counts),
        sum=sum(n * x for n, x in zip(counts, middles, strict=True)),
        sum_squares=sum(n * x * x for n, x in zip(counts, middles, strict=True)),
        bucket_limits=[low + (i + 1) * width for i in range(len(counts))],
        bucket_counts=counts,
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
        return TensorboardMirror(log_directory(run_directory))
    except Exception as error:  # a folder that cannot be written
        print(f"TensorBoard's files could not be opened ({error}); training goes on without them")
        return None
