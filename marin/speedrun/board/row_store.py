"""Rows that were verified before, kept by the digest of all that was verified, so that a site is built again in moments.

A directory of our own holds one file of JSON lines; nothing that was submitted lies in it as it was. A row is taken from it only
if every byte that verification reads is the same, by the same checks: the digest covers the submission's evidence, the names and
sizes of its other files, the keys whose statements count, and the source of the checks themselves. What depends on today's date,
such as a run that has not been completed yet or a key that is valid for a time, is not kept.
"""

import dataclasses
import datetime
import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import marin
from marin.speedrun import results
from marin.speedrun.board.kept_lines import KeptLines, key_of
from marin.speedrun.board.rows import Row, Unreadable
from marin.speedrun.evaluation_record import EVALUATION_FILE
from marin.speedrun.verdict import Finding, RungVerdict, Verdict
from marin.storage import files
from marin.tracking.run_record import METRICS_FILE, RUN_FILE

FILE_NAME = "rows.jsonl"
_PACKAGE = pathlib.Path(marin.__file__).parent
_STATEMENTS = "statements"
# The rules, and of other parts what verification asks: peaks, batches, CORE's baselines, the log's chain and times.
_DECIDING = (
    "speedrun/**/*.py",
    "hardware.py",
    "number_checks.py",
    "data/batch_schedule.py",
    "data/core_tasks.py",
    "tracking/*.py",
)
_EVIDENCE = (results.FILE_NAME, RUN_FILE, METRICS_FILE, EVALUATION_FILE, "challenge.json", "withdrawn.json")
_MOST_FILES = 2_000
_SMALL_FILE = 1 << 16  # bytes; read at once
_FIELDS = tuple(field.name for field in dataclasses.fields(Row))
_FINDING = tuple(field.name for field in dataclasses.fields(Finding))
_TUPLES = ("also_at",)


class RowStore:
    """The kept rows of one site; `save` writes those that this build used."""

    def __init__(
        self, directory: str | os.PathLike[str], allowed_signers: str | os.PathLike[str] | None = None
    ) -> None:
        path = files.join(os.fspath(directory), FILE_NAME)
        signers = _signers_of(allowed_signers)
        self._lines = KeptLines(path, program_digest() + hashlib.sha256(signers).hexdigest())
        self._signers_expire = b"valid-" in signers.lower()  # `valid-after` and `valid-before` of ALLOWED SIGNERS

    def key_of(self, directory: str, source: str, listing: Sequence[os.DirEntry[str]]) -> str | None:
        """What the rows of the submission in `directory` are kept under; None where it cannot be told.

        Args:
            source: its results file, relative to what was searched.
            listing: what the directory holds, from `list_directory`.
        """
        if self._signers_expire and any(entry.name == _STATEMENTS for entry in listing):
            return None
        evidence = _evidence_digest(directory, listing)
        if evidence is None:
            return None
        # A run whose file lies right in what was searched is named by that directory.
        name = os.path.basename(os.path.realpath(directory)) if "/" not in source else ""
        return key_of(f"{name}\0{source}\0{evidence}".encode("utf-8", "surrogatepass"))

    def rows_of_list(
        self, path: str | os.PathLike[str], read: Callable[[], Sequence[Row | Unreadable]]
    ) -> Sequence[Row | Unreadable]:
        """The rows of a list, a file: kept ones, or those that `read` gives."""
        if not os.path.isfile(path):
            return read()
        with open(path, "rb") as file:
            evidence = hashlib.file_digest(file, "sha256").hexdigest()
        # A log of modded-nanogpt is named and dated by its directory.
        folder = pathlib.Path(path).resolve().parent.name
        name = f"{folder}/{pathlib.PurePath(path).name}"
        return self.rows_of(f"list {name}\0{evidence}".encode("utf-8", "surrogatepass"), read)

    def rows_of(self, evidence: bytes, read: Callable[[], Sequence[Row | Unreadable]]) -> Sequence[Row | Unreadable]:
        """The rows that `evidence` alone decides: kept ones, or those that `read` gives."""
        key = key_of(evidence)
        kept = self.kept(key)
        if kept is not None:
            return kept
        found = read()
        self.keep(key, found)
        return found

    def kept(self, key: str) -> list[Row] | None:
        """What is kept under a key; None where nothing is."""
        kept = self._lines.get(key)
        return None if kept is None else _from_json(kept)

    def keep(self, key: str, found: Sequence[Row | Unreadable]) -> None:
        """Keeps rows; not where one could not be read, or is of the future."""
        today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
        if all(isinstance(item, Row) and (item.date or "") <= f"{today} 99" for item in found):
            self._lines.put(key, _to_json([item for item in found if isinstance(item, Row)]))

    def save(self) -> None:
        """Writes the rows that this build used; nothing where nothing changed."""
        self._lines.save()


def _to_json(rows: Sequence[Row]) -> list[Any]:
    """Rows as lists in the order of their fields: with names they would be twice as long.

    What was found of many rows is the same. It comes first, each as a text of its own, and rows say which is theirs.
    """
    texts: dict[str, int] = {}

    def place(value: object) -> int:
        return texts.setdefault(json.dumps(value), len(texts))

    written = []
    for row in rows:
        rungs = [[rung.rung, rung.outcome, _findings_json(rung.findings)] for rung in row.verdict.rungs]
        places = {
            "findings": place(_findings_json(row.findings)),
            "verdict": place([rungs, row.verdict.challenged, row.verdict.withdrawn]),
        }
        written.append([places.get(name, value) for name, value in ((name, getattr(row, name)) for name in _FIELDS)])
    return [list(texts), written]


def _findings_json(findings: tuple[Finding, ...]) -> list[tuple[Any, ...]]:
    # `dataclasses.astuple` copies each text, and takes twenty times as long.
    return [tuple([getattr(finding, name) for name in _FINDING]) for finding in findings]


def _from_json(kept: list[Any]) -> list[Row]:
    texts, written = kept
    rows = []
    for values in written:
        row = object.__new__(Row)
        # What `Row(*values)` comes to, which takes ten times as long for a frozen class of so many fields.
        fields = row.__dict__
        fields.update(zip(_FIELDS, values, strict=True))
        fields["verdict"] = _verdict(texts[fields["verdict"]])
        fields["findings"] = _findings(texts[fields["findings"]])
        for name in _TUPLES:
            fields[name] = tuple(fields[name])
        rows.append(row)
    return rows


@functools.lru_cache(maxsize=4096)
def _findings(text: str) -> tuple[Finding, ...]:
    return tuple(Finding(*parts) for parts in json.loads(text))


@functools.lru_cache(maxsize=4096)
def _verdict(text: str) -> Verdict:
    rungs, challenged, withdrawn = json.loads(text)
    return Verdict(
        rungs=tuple(
            RungVerdict(rung=rung, outcome=outcome, findings=tuple(Finding(*parts) for parts in findings))
            for rung, outcome, findings in rungs
        ),
        challenged=challenged,
        withdrawn=withdrawn,
    )


def _evidence_digest(directory: str, listing: Sequence[os.DirEntry[str]]) -> str | None:
    """SHA-256 of all that verifying a submission looks at; None where it is too much, or cannot be read."""
    state = hashlib.sha256()
    pending: list[str | None] = [None]
    count = 0
    try:
        while pending:
            folder = pending.pop()
            entries = listing if folder is None else list_directory(folder)
            count += len(entries)
            if count > _MOST_FILES:
                return None
            for entry in entries:
                if entry.is_symlink():
                    return None
                name = entry.path[len(directory) :].lstrip(os.sep)
                status = entry.stat(follow_symlinks=False)
                state.update(f"{name}\0{status.st_mode:o} {status.st_size}\0".encode("utf-8", "surrogatepass"))
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif entry.name in _EVIDENCE or _STATEMENTS in name.split(os.sep):
                    state.update(_file_digest(entry.path, status.st_size))
    except OSError:
        return None
    return state.hexdigest()


def list_directory(directory: str) -> list[os.DirEntry[str]]:
    """What a directory holds, by name.

    Raises:
        OSError: if it cannot be listed.
    """
    with os.scandir(directory) as listing:
        return sorted(listing, key=lambda entry: entry.name)


def _file_digest(path: str, size: int) -> bytes:
    with open(path, "rb", buffering=0) as file:
        if size > _SMALL_FILE:
            return hashlib.file_digest(file, "sha256").digest()
        return hashlib.sha256(file.read()).digest()


def _signers_of(allowed_signers: str | os.PathLike[str] | None) -> bytes:
    if allowed_signers is None or not os.path.isfile(allowed_signers):
        return b""
    return pathlib.Path(allowed_signers).read_bytes()


def program_files() -> list[pathlib.Path]:
    """The source of everything that decides what a row or a fit says."""
    found = [path for part in _DECIDING for path in _PACKAGE.glob(part)]
    return sorted(path for path in found if path.is_file())


@functools.lru_cache(maxsize=1)
def program_digest() -> str:
    """Of `program_files`."""
    state = hashlib.sha256()
    for path in program_files():
        state.update(path.relative_to(_PACKAGE).as_posix().encode() + path.read_bytes())
    return state.hexdigest()
