"""A run directory's two files, opened for appending (`RunWriter`) or reading (`RunRecord`).

`run.json` says what ran and is written once. `metrics.jsonl` is append-only, one JSON object a line, each with an `event`:

    start      a process began: host, devices, compile_time, the step it began from, `from_step`, what it measures how often, and of
               its programs what they call out of themselves by (calls_out) and how many bytes they hold of their own (held_bytes), and
               names behind which there is other code than their files have (replaced)
    clock      the clock of the process starts: all that follows is steps and pauses
    step       one training step: step, loss, grad_norm, learning_rate, tokens, step_time, data_wait (seconds in which the
               loop waited for the batch, part of the time of this step or the one before), and what was watched
    pause      time that training does not count: reason (one of `PAUSES`), step, seconds
    checkpoint a checkpoint is in place: step, bytes, seconds that it took in the background
    evaluation a measurement at a step
    mirror     where a copy of the run can be seen: wandb_url
    end        the last step is done and its checkpoint is safe

Every line has `time`, seconds since 1970, and `chain`, which binds it to `run.json` and the lines before it (see `log_chain`).
Nothing is ever removed: steps that a killed process took beyond its last checkpoint stay in the file, and a later
`start` with `from_step` supersedes them. `RunRecord.steps()` gives the steps that the parameters went through;
`RunRecord.superseded()` those whose work was lost.
"""

import contextlib
import dataclasses
import functools
import json
import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from marin.errors import ResultsError
from marin.storage import files
from marin.tracking import log_chain

RUN_FILE = "run.json"
METRICS_FILE = "metrics.jsonl"
MEASURES = ("evaluation", "task evaluation", "CORE", "samples")
PAUSES = ("checkpoint", *MEASURES, "hf export", "profiler")  # all that may stop the clock
# Bytes of a program that are neither parameters nor data, above which a person is to read the code. The models and optimizers of this
# repository have 70 to 540 (24 layers, Muon); 2 KiB of a text are 0.05 bits per byte of hello world's set.
MOST_HELD = 2**11
_MEASURE = re.compile(r"(.+) every (\d{1,15})")


def plan_of_measures(measures: Iterable[tuple[str, int]]) -> dict[str, str]:
    """What a process's `start` line says of what it measures, by (name, steps between two): `CORE every 2000, ...`."""
    said = ", ".join(f"{name} every {every}" for name, every in measures)
    return {"measures": said} if said else {}


def measures_of(start: Mapping[str, Any]) -> list[tuple[str, int]]:
    """The same, read back; what is written otherwise is left out."""
    found = (_MEASURE.fullmatch(part) for part in str(start.get("measures") or "").split(", "))
    return [(match[1], int(match[2])) for match in found if match and int(match[2]) > 0]


def _encode(event: dict[str, Any]) -> bytes:
    """One line; NaN and infinities become strings, since JSON has none."""

    def plain(value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            return repr(value)
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return value

    return json.dumps(plain(event), separators=(",", ":"), allow_nan=False).encode() + b"\n"


class RunWriter:
    """Appends to a run's record. A torn last line, left by a kill, is cut off when the file is opened.

    Where the disk is full or a quota used up, appending and closing raise a `StorageError` that names the file.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / METRICS_FILE
        if path.exists():
            content = path.read_bytes()
            if content and not content.endswith(b"\n"):
                with path.open("r+b") as torn:
                    torn.truncate(content.rfind(b"\n") + 1)
        # Lines are as far apart as the steps between them, which the same clock measures: neither a time server that sets the time of day
        # nor a computer that slept comes in between.
        self._began = time.time() - time.perf_counter()
        self._file = path.open("ab")
        self._chain: log_chain.LogChain | None = None

    def write_info(self, info: dict[str, Any]) -> None:
        """Writes `run.json`, once: an existing one is kept, since it says what the first process began."""
        if not (self.directory / RUN_FILE).exists():
            files.write_json(str(self.directory / RUN_FILE), info)

    def append(self, event: str, **fields: Any) -> None:
        chain = self._chain or self._continued_chain()
        line = _encode(
            {"event": event, **fields, "time": round(self._began + time.perf_counter(), 3), log_chain.KEY: chain.link}
        )
        with self._explained():
            self._file.write(line)
            self._file.flush()
        chain.add(line)

    def _continued_chain(self) -> log_chain.LogChain:
        """The chain over what stands in the files: the lines of the processes before this one too."""
        info = self.directory / RUN_FILE
        self._chain = log_chain.LogChain(info.read_bytes() if info.exists() else b"")
        with (self.directory / METRICS_FILE).open("rb") as lines:
            for line in lines:
                self._chain.add(line)
        return self._chain

    def sync(self) -> None:
        """Makes every appended line survive a power cut."""
        with self._explained():
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self.sync()
        self._file.close()

    def _explained(self) -> contextlib.AbstractContextManager[None]:
        return files.explained(str(self.directory / METRICS_FILE), "written")


class SilentRunWriter(RunWriter):
    """For the processes of a multi-host run that leave the record to the first of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write_info(self, info: dict[str, Any]) -> None:
        pass

    def append(self, event: str, **fields: Any) -> None:
        pass

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """A run directory opened for reading."""

    directory: Path
    info: dict[str, Any]
    events: tuple[dict[str, Any], ...]

    @staticmethod
    def open(directory: str | Path) -> "RunRecord":
        """Reads both files.

        Raises:
            ResultsError: naming the file and line that is missing or is not what this module writes.
        """
        directory = Path(directory)
        return RunRecord(directory, read_info(directory / RUN_FILE), tuple(_read_events(directory / METRICS_FILE)))

    def require(self, *fields: str) -> None:
        """See `require_fields`."""
        require_fields(self.info, self.directory / RUN_FILE, *fields)

    def steps(self) -> list[dict[str, Any]]:
        """The steps that led to the final parameters, in order."""
        return list(self._split[0])

    def superseded(self) -> list[dict[str, Any]]:
        """Steps that were taken and lost: a kill came before the next checkpoint."""
        return list(self._split[1])

    def of(self, event: str) -> list[dict[str, Any]]:
        return list(self._by_event.get(event, ()))

    @property
    def is_complete(self) -> bool:
        return "end" in self._by_event

    @functools.cached_property
    def _by_event(self) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {}
        for entry in self.events:
            found.setdefault(entry["event"], []).append(entry)
        return found

    @functools.cached_property
    def _split(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        kept: list[dict[str, Any]] = []
        lost: list[dict[str, Any]] = []
        for entry in self.events:
            if entry["event"] == "start":
                first = entry.get("from_step", 0)
                lost += [step for step in kept if step["step"] >= first]
                kept = [step for step in kept if step["step"] < first]
            elif entry["event"] == "step":
                kept.append(entry)
        return kept, lost


def read_info(path: Path) -> dict[str, Any]:
    """What stands in a `run.json`.

    Raises:
        ResultsError: it is not there, or not an object of JSON.
    """
    try:
        info = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise ResultsError(f"{path} is not there, or no file: give the output directory of a training run") from None
    except OSError as error:
        raise _unreadable(path, error) from None
    except ValueError as error:
        raise ResultsError(f"{path} is not JSON ({error}): run the training step again") from None
    if not isinstance(info, dict):
        raise ResultsError(f"{path} holds {type(info).__name__}, expected an object")
    return info


def require_fields(info: Mapping[str, Any], path: Path, *fields: str) -> None:
    """Looks for fields of a `run.json`, such as "config.model", before they are used.

    Raises:
        ResultsError: naming the first that is not there.
    """
    for field in fields:
        found: Any = info
        for name in field.split("."):
            if not isinstance(found, Mapping) or name not in found:
                raise ResultsError(
                    f"{path} has no `{field}`: it is not the record of a training run, or part of it is lost"
                )
            found = found[name]


def _unreadable(path: Path, error: OSError) -> ResultsError:
    return ResultsError(
        f"{path} cannot be read ({error.strerror}): see to its permissions, or copy the run to where it can"
    )


def _read_events(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_bytes().split(b"\n")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise ResultsError(f"{path} is not there, or no file: give the output directory of a training run") from None
    except OSError as error:
        raise _unreadable(path, error) from None
    for number, line in enumerate(lines[:-1], start=1):
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise ResultsError(
                f"{path}:{number} is not JSON ({error}): the file was changed after it was written"
            ) from None
        if not isinstance(entry, dict) or not isinstance(entry.get("event"), str):
            raise ResultsError(f'{path}:{number} is {line[:60]!r}, expected an object with an "event"')
        entry.pop(log_chain.KEY, None)
        yield entry
