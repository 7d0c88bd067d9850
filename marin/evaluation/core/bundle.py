"""Reading an `eval_bundle`: which of CORE's tasks it holds, and their items.

    core.yaml              icl_tasks: label, dataset_uri, num_fewshot [n], icl_task_type, continuation_delimiter (a space if not given)
    eval_meta_data.csv     "Eval Task", "Random baseline" in percent, by v1
    eval_data/<uri>        one JSON object a line

A task whose data is not there, or is not whole, is reported with its source; it is never left out in silence.
"""

import csv
import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from marin.data.core_tasks import (
    ARCHIVE,
    CORE_TASKS,
    KINDS,
    LANGUAGE_MODELING,
    MULTIPLE_CHOICE,
    SCHEMA,
    CoreTask,
)
from marin.errors import DataError
from marin.number_checks import is_whole

CONFIG_FILE, BASELINE_FILE, DATA_FOLDER = "core.yaml", "eval_meta_data.csv", "eval_data"

Item = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class BundledTask:
    """A task as the bundle describes it. `delimiter` stands between a context and its continuation."""

    known: CoreTask
    kind: str
    num_shots: int
    delimiter: str
    baseline: float
    path: Path

    @property
    def label(self) -> str:
        return self.known.label

    @functools.cached_property
    def items(self) -> tuple[Item, ...]:
        """All items, in the order of the file.

        Raises:
            DataError: naming the line that is not an item of this kind.
        """
        items = []
        for number, line in enumerate(self._content.decode().split("\n"), start=1):
            if line.strip():
                items.append(_item(line, self.kind, f"{self.path}:{number}"))
        return tuple(items)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the data file, in hex."""
        return hashlib.sha256(self._content).hexdigest()

    @functools.cached_property
    def _content(self) -> bytes:
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise DataError(f"{self.path} cannot be read ({error}): it is `{self.label}`'s data") from None


@dataclasses.dataclass(frozen=True)
class MissingTask:
    """A task of CORE that the bundle does not hold."""

    label: str
    expected: Path
    source: str

    def __str__(self) -> str:
        return f"{self.label}: {self.expected} is not there; its source is {self.source}"


@dataclasses.dataclass(frozen=True)
class Bundle:
    """An opened bundle; tasks are in CORE's order."""

    path: Path
    tasks: tuple[BundledTask, ...]
    missing: tuple[MissingTask, ...]

    @staticmethod
    def open(path: str | Path) -> "Bundle":
        """Reads what the bundle says of its tasks.

        Raises:
            DataError: it is no bundle, or says something of a task that CORE does not know.
        """
        root = Path(path)
        entries = _entries(root / CONFIG_FILE)
        baselines = _baselines(root / BASELINE_FILE)
        tasks, missing = [], []
        for label, known in CORE_TASKS.items():
            entry = entries.pop(label, None)
            if entry is None:
                missing.append(MissingTask(label, root / DATA_FOLDER / known.uri, known.source))
                continue
            task = _task(root, known, entry, baselines)
            if task.path.is_file():
                tasks.append(task)
            else:
                missing.append(MissingTask(label, task.path, known.source))
        if entries:
            raise DataError(
                f"{root / CONFIG_FILE} has a task {next(iter(entries))!r}, which is none of CORE's 22: remove it, or correct its label"
            )
        if not tasks:
            raise DataError(f"{root} holds no task's data: unpack {ARCHIVE} there, so that {root / DATA_FOLDER} exists")
        return Bundle(root, tuple(tasks), tuple(missing))


def _entries(path: Path) -> dict[str, dict[str, Any]]:
    try:
        content = yaml.safe_load(path.read_text())
    except OSError:
        raise DataError(
            f"{path} is not there: give the folder of an unpacked eval bundle (from {ARCHIVE}), which holds {CONFIG_FILE},"
            f" {BASELINE_FILE} and {DATA_FOLDER}, or fetch one with `python -m scripts.eval_bundle`"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not YAML ({' '.join(str(error).split())}): unpack the bundle again") from None
    entries = content.get("icl_tasks") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and "label" in entry for entry in entries):
        raise DataError(f"{path} has no list `icl_tasks` of tasks with a `label`: unpack the bundle again")
    return {str(entry["label"]): entry for entry in entries}


def _baselines(path: Path) -> dict[str, float]:
    try:
        with path.open(newline="") as lines:
            return {row["Eval Task"]: float(row["Random baseline"]) for row in csv.DictReader(lines)}
    except OSError:
        raise DataError(f"{path} is not there: it says what guessing scores; unpack the bundle again") from None
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} has no numbers in the columns 'Eval Task' and 'Random baseline' ({error}): unpack the bundle again"
        ) from None


def _task(root: Path, known: CoreTask, entry: dict[str, Any], baselines: dict[str, float]) -> BundledTask:
    where = f"{root / CONFIG_FILE}, task `{known.label}`"
    kind, uri, shots = entry.get("icl_task_type"), entry.get("dataset_uri"), entry.get("num_fewshot")
    delimiter = entry.get("continuation_delimiter", " ")
    if kind not in KINDS:
        raise DataError(f"{where}: `icl_task_type` is {kind!r}, expected one of {', '.join(KINDS)}")
    if not isinstance(uri, str) or Path(uri).is_absolute() or ".." in Path(uri).parts:
        raise DataError(f"{where}: `dataset_uri` is {uri!r}, expected a path below {DATA_FOLDER}")
    if not isinstance(shots, list) or len(shots) != 1 or not isinstance(shots[0], int) or shots[0] < 0:
        raise DataError(f"{where}: `num_fewshot` is {shots!r}, expected a list of one whole number")
    if not isinstance(delimiter, str):
        raise DataError(f"{where}: `continuation_delimiter` is {delimiter!r}, expected text")
    if not 0 <= baselines.get(known.label, -1) < 100:
        raise DataError(
            f"{root / BASELINE_FILE} gives no baseline from 0 to 100 for `{known.label}`: unpack the bundle again"
        )
    return BundledTask(known, kind, shots[0], delimiter, baselines[known.label], root / DATA_FOLDER / uri)


# The fields of an item: those with texts, those with lists of texts.
_FIELDS = {
    MULTIPLE_CHOICE: (("query",), ("choices",)),
    SCHEMA: (("continuation",), ("context_options",)),
    LANGUAGE_MODELING: (("context", "continuation"), ()),
}


def _item(line: str, kind: str, where: str) -> Item:
    try:
        item = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where} is not JSON ({error}): restore the file") from None
    texts, lists = _FIELDS[kind]
    if not isinstance(item, dict):
        raise DataError(f"{where} is not an object: restore the file")
    for name in texts:
        if not isinstance(item.get(name), str):
            raise DataError(f"{where}: `{name}` is {item.get(name)!r}, expected text, as the task is {kind}")
    for name in lists:
        options, gold = item.get(name), item.get("gold")
        if not isinstance(options, list) or len(options) < 2 or not all(isinstance(text, str) for text in options):
            raise DataError(f"{where}: `{name}` is {options!r}, expected two texts or more, as the task is {kind}")
        if not is_whole(gold, 0) or gold >= len(options):
            raise DataError(f"{where}: `gold` is {gold!r}, expected the number of one of {len(options)} options from 0")
    return item
