"""Experiments and steps of one root: what the executor recorded, who read what, and how far each step is.

The index is made of two sources: the experiment records in `experiments/*.json`, and every step output, which is a
directory with `.executor_info`. Directories are walked from the root down to the first step output on each way. What was
read is kept until its file's time or size changes, and a directory is listed again only when its own time changed, so
that a page after the first costs a `stat` per directory and step.

Records hold absolute paths of the machine that wrote them. A path counts as one below the root if it begins with the
root's own path or with the prefix that the record was written under, so that a copied prefix keeps its links.
"""

import dataclasses
import json
import os
import threading
import time
from collections.abc import Iterable
from typing import Any

from starlette.exceptions import HTTPException

from marin.errors import StorageError
from marin.execution.status import ATTEMPTS_NAME, INFO_NAME, STATUS_NAME
from marin.site.browser import roots, shown
from marin.site.browser.roots import Place, Root
from marin.storage.lease import LEDGER_NAME, STALE_AFTER, read_state

EXPERIMENTS = "experiments"

_LOCK_NAME = ".executor_status.lock"  # the reference's heartbeat
_RECORD_BYTES = 64_000_000
_REFRESH_SECONDS = 1.0
_MOST_DIRECTORIES = 50_000
_DEPTH = 8


@dataclasses.dataclass(frozen=True)
class State:
    """How far a step is: `word` is one of the keys of `WORDS`; `since` is when that was written."""

    word: str
    since: float | None = None

    @property
    def is_live(self) -> bool:
        return self.word == "running"

    @property
    def css(self) -> str:
        return self.word.replace(" ", "-")


WORDS = {
    "success": "its output is complete",
    "running": "a process is at work",
    "interrupted": "it says RUNNING, but its process has ended or was silent for 90 seconds; the next run continues it",
    "failed": "its function raised an error",
    "blocked": "a step that it needs failed",
    "not run": "nothing was recorded yet",
    "unreadable": "its status file holds something else",
}
"""The words for a step's state, in the order in which people care."""


@dataclasses.dataclass(frozen=True)
class Step:
    """A step output at `parts` below the root; `reads` are others' outputs there, `reads_elsewhere` other paths."""

    parts: tuple[str, ...]
    name: str
    info: dict[str, Any]
    reads: tuple[tuple[str, ...], ...]
    reads_elsewhere: tuple[str, ...]
    experiments: tuple[str, ...] = ()

    @property
    def relative(self) -> str:
        return "/".join(self.parts)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One record; `steps` are outputs below the root in the record's order. `problem` is why it could not be read."""

    file: str
    info: dict[str, Any]
    steps: tuple[tuple[str, ...], ...]
    created: float | None
    problem: str = ""

    @property
    def title(self) -> str:
        return self.file.removesuffix(".json")

    @property
    def description(self) -> str:
        return str(self.info.get("description") or "")


class Records:
    """The index of one root. Every method may be called from several threads."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.truncated = False
        self._lock = threading.Lock()
        self._read_at = -1e9
        self._keep_seconds = _REFRESH_SECONDS
        self._listed: dict[tuple[str, ...], tuple[int, tuple[str, ...]]] = {}
        self._files: dict[tuple[str, ...], tuple[tuple[int, int, int], Any]] = {}
        self._tokens: dict[tuple[str, ...], tuple[tuple[int, int, int], str]] = {}
        self._experiments: list[Experiment] = []
        self._steps: dict[tuple[str, ...], Step] = {}
        self._readers: dict[tuple[str, ...], list[tuple[str, ...]]] = {}

    # --- asking ---------------------------------------------------------------------------------------------------

    def experiments(self) -> list[Experiment]:
        """Newest first."""
        self._refresh()
        return self._experiments

    def experiment(self, file: str) -> Experiment | None:
        return next((item for item in self.experiments() if item.file == file), None)

    def steps(self) -> dict[tuple[str, ...], Step]:
        """Every step that is known, run or not, by its output's parts."""
        self._refresh()
        return self._steps

    def readers(self, parts: tuple[str, ...]) -> list[Step]:
        """The steps that name this output as a dependency."""
        self._refresh()
        return [self._steps[reader] for reader in self._readers.get(parts, ())]

    def maker(self, place: Place) -> Step | None:
        """The step whose output holds `place`: the nearest directory above it with a record."""
        self._refresh()
        for depth in range(len(place.parts), -1, -1):
            parts = place.parts[:depth]
            if parts in self._steps:
                return self._steps[parts]
            info = self._info(parts)
            if info is not None:
                return self._step(parts, info)
        return None

    def state(self, parts: tuple[str, ...]) -> State:
        """How far the step at `parts` is at this moment."""
        try:
            found = os.stat(self._path((*parts, STATUS_NAME)))
        except (OSError, ValueError):
            return State("not run")
        key = (found.st_mtime_ns, found.st_size, found.st_ino)
        kept = self._tokens.get(parts)
        if kept is None or kept[0] != key:
            kept = self._tokens[parts] = (key, self._status_token(parts))
        word = {"SUCCESS": "success", "FAILED": "failed", "DEP_FAILED": "blocked", "": "not run", "WAITING": "not run"}
        if kept[1] == "RUNNING":
            beat = self._heartbeat(parts)
            fresh = beat is not None and time.time() - beat < STALE_AFTER and not self._holder_is_dead(parts)
            return State("running" if fresh else "interrupted", beat or found.st_mtime)
        return State(word.get(kept[1], "unreadable"), found.st_mtime)

    def attempts(self, parts: tuple[str, ...]) -> list[tuple[int, tuple[str, ...]]]:
        """(claim number, parts of its directory) of the attempts that still have one, newest first."""
        if not parts:
            return []
        above = (*parts[:-1], ATTEMPTS_NAME, parts[-1])
        numbers = [int(name) for name in self._names(above) if name.isascii() and name.isdigit() and len(name) < 12]
        found = [(number, (*above, str(number), parts[-1])) for number in sorted(numbers, reverse=True)]
        return [(number, attempt) for number, attempt in found if os.path.isdir(self._path(attempt))]

    def relative(self, path: object, prefixes: Iterable[str] = ()) -> tuple[str, ...] | None:
        """The parts of a recorded path below the root; None for anything else."""
        if not isinstance(path, str):
            return None
        path = path.removeprefix("file://")
        for prefix in (self.root.path, *prefixes):
            base = prefix.removeprefix("file://").rstrip("/") + "/"
            if len(base) > 1 and path.startswith(base):
                parts = tuple(path[len(base) :].rstrip("/").split("/"))
                return parts if all(roots.is_addressable(part) for part in parts) else None
        return None

    # --- reading --------------------------------------------------------------------------------------------------

    def _status_token(self, parts: tuple[str, ...]) -> str:
        try:
            data = roots.read_start(roots.resolve(self.root, (*parts, STATUS_NAME)), 4096)
        except HTTPException:
            return "?"
        text = (data or b"").decode(errors="replace").strip()
        token = text.splitlines()[-1].strip() if text else ""
        if token.startswith("{"):  # the reference's older form: one JSON object a line, the last counts
            try:
                return str(json.loads(token).get("status"))
            except (ValueError, AttributeError, RecursionError):
                return "?"
        return token

    def _refresh(self) -> None:
        with self._lock:
            started = time.monotonic()
            if started - self._read_at < self._keep_seconds:
                return
            steps: dict[tuple[str, ...], Step] = {}
            for parts, info in self._walk():
                steps[parts] = self._step(parts, info)
            experiments = self._read_experiments(steps)
            readers: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
            for step in steps.values():
                for parts in step.reads:
                    readers.setdefault(self._output_of(parts, steps), []).append(step.parts)
            self._steps, self._experiments, self._readers = steps, experiments, readers
            self._read_at = time.monotonic()
            # A large prefix takes longer to look through, so it is looked through less often.
            self._keep_seconds = max(_REFRESH_SECONDS, 5 * (self._read_at - started))

    def _walk(self) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
        found: list[tuple[tuple[str, ...], dict[str, Any]]] = []
        waiting: list[tuple[str, ...]] = [()]
        seen = 0
        while waiting and seen < _MOST_DIRECTORIES:
            parts = waiting.pop()
            seen += 1
            info = self._info(parts)
            if info is not None:
                found.append((parts, info))
            elif len(parts) < _DEPTH and not (parts and os.path.islink(self._path(parts))):
                waiting += [(*parts, name) for name in self._folders(parts) if parts or name != EXPERIMENTS]
        self.truncated = bool(waiting)
        return found

    def _read_experiments(self, steps: dict[tuple[str, ...], Step]) -> list[Experiment]:
        found = []
        for name in self._names((EXPERIMENTS,)):
            if not name.endswith(".json"):
                continue
            parts = (EXPERIMENTS, name)
            info = self._record(parts)
            if not isinstance(info, dict) or not isinstance(info.get("steps"), list):
                found.append(Experiment(name, {}, (), self._modified(parts), "It is no readable experiment record."))
                continue
            prefix = info.get("prefix")
            prefixes = [prefix] if isinstance(prefix, str) else []
            outputs: dict[tuple[str, ...], None] = {}
            for item in info["steps"]:
                output = self.relative(item.get("output_path"), prefixes) if isinstance(item, dict) else None
                if output is None or output in outputs:
                    continue
                outputs[output] = None
                known = steps.get(output) or self._step(output, item, prefixes)
                steps[output] = dataclasses.replace(known, experiments=(*known.experiments, name))
            created = shown.timestamp(info.get("created_date"))
            found.append(Experiment(name, info, tuple(outputs), created or self._modified(parts)))
        return sorted(found, key=lambda item: (item.created or 0, item.file), reverse=True)

    def _step(self, parts: tuple[str, ...], info: dict[str, Any], prefixes: Iterable[str] = ()) -> Step:
        known = [*prefixes, *_recorded_prefix(info, parts)]
        dependencies = info.get("dependencies")
        reads, elsewhere = [], []
        for path in dependencies if isinstance(dependencies, list) else []:
            inside = self.relative(path, known)
            if inside is not None:
                reads.append(inside)
            elif isinstance(path, str):
                elsewhere.append(path)
        name = info.get("name")
        return Step(
            parts,
            name if isinstance(name, str) else "/".join(parts),
            info,
            tuple(dict.fromkeys(reads)),
            tuple(elsewhere),
        )

    @staticmethod
    def _output_of(parts: tuple[str, ...], steps: dict[tuple[str, ...], Step]) -> tuple[str, ...]:
        for depth in range(len(parts), 0, -1):
            if parts[:depth] in steps:
                return parts[:depth]
        return parts

    def prefixes(self, step: Step) -> list[str]:
        """The prefix under which the step was recorded, where its record shows it."""
        return _recorded_prefix(step.info, step.parts)

    def _info(self, parts: tuple[str, ...]) -> dict[str, Any] | None:
        info = self._record((*parts, INFO_NAME))
        return info if isinstance(info, dict) else None

    def _record(self, parts: tuple[str, ...]) -> Any:
        """The JSON at `parts`, kept until the file changes; None where there is none that can be read."""
        try:
            found = os.stat(self._path(parts))
        except (OSError, ValueError):
            self._files.pop(parts, None)
            return None
        key = (found.st_mtime_ns, found.st_size, found.st_ino)
        kept = self._files.get(parts)
        if kept is not None and kept[0] == key:
            return kept[1]
        value = None
        if found.st_size <= _RECORD_BYTES:
            try:
                data = roots.read_start(roots.resolve(self.root, parts), _RECORD_BYTES)
                value = json.loads(data) if data is not None else None
            except (HTTPException, ValueError, RecursionError):
                value = None
        self._files[parts] = (key, value)
        return value

    def _folders(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        try:
            changed = os.stat(self._path(parts)).st_mtime_ns
        except OSError:
            return ()
        kept = self._listed.get(parts)
        # A directory that changed within the clock's grain of its listing may have changed again unseen.
        if kept is not None and kept[0] == changed and time.time_ns() - changed > 2_000_000_000:
            return kept[1]
        try:
            with os.scandir(self._path(parts)) as scan:
                names = tuple(
                    entry.name
                    for entry in scan
                    if not entry.name.startswith(".") and (entry.is_symlink() or entry.is_dir(follow_symlinks=False))
                )
        except OSError:
            names = ()
        names = tuple(name for name in names if roots.is_addressable(name) and self._is_folder_inside((*parts, name)))
        self._listed[parts] = (changed, names)
        return names

    def _is_folder_inside(self, parts: tuple[str, ...]) -> bool:
        if not os.path.islink(self._path(parts)):
            return True
        try:
            return os.path.isdir(roots.resolve(self.root, parts).real)
        except HTTPException:
            return False

    def _names(self, parts: tuple[str, ...]) -> list[str]:
        try:
            with roots.open_dir(roots.resolve(self.root, parts)) as descriptor:
                return sorted(name for name in os.listdir(descriptor) if roots.is_addressable(name))
        except (HTTPException, OSError):
            return []

    def _heartbeat(self, parts: tuple[str, ...]) -> float | None:
        """When the process that runs the step was last heard of, by the times of the files that it renews."""
        beats = [self._modified((*parts, _LOCK_NAME))]
        if parts:
            above = self._above(parts)
            beats += [self._modified((*above, name)) for name in self._names(above) if name.startswith("heartbeat-")]
            ledger = self._names((*above, LEDGER_NAME))
            beats += [self._modified((*above, LEDGER_NAME, name)) for name in ledger[-1:]]
        return max((beat for beat in beats if beat is not None), default=None)

    def _holder_is_dead(self, parts: tuple[str, ...]) -> bool:
        """Whether the step's lease is held by a process of this machine that has ended, so that nothing need be waited for."""
        try:
            state = read_state(self._path(self._above(parts))) if parts else None
        except StorageError:
            return False
        return state is not None and state.holder is not None and state.holder.is_dead()

    def _above(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        """The directory of a step's ledger and attempts, for its output or one of the attempts."""
        return parts[:-2] if self._is_attempt(parts) else (*parts[:-1], ATTEMPTS_NAME, parts[-1])

    @staticmethod
    def _is_attempt(parts: tuple[str, ...]) -> bool:
        return len(parts) >= 4 and parts[-4] == ATTEMPTS_NAME

    def _modified(self, parts: tuple[str, ...]) -> float | None:
        try:
            return os.stat(self._path(parts)).st_mtime
        except (OSError, ValueError):
            return None

    def _path(self, parts: tuple[str, ...]) -> str:
        return os.path.join(self.root.path, *parts)


def _recorded_prefix(info: dict[str, Any], parts: tuple[str, ...]) -> list[str]:
    """What stands before `parts` in a record's output path; nothing where they do not end it."""
    output, ending = info.get("output_path"), "/" + "/".join(parts)
    if not parts or not isinstance(output, str) or not output.rstrip("/").endswith(ending):
        return []
    return [output.rstrip("/").removesuffix(ending)]
