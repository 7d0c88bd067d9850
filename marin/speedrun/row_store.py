"""Rows that were verified before, kept by the digest of all that was verified, so that a site is built again in moments.

A directory of our own holds one file of JSON lines; nothing that was submitted lies in it as it was. A row is taken from it only
if every byte that verification reads is the same, by the same checks: the digest covers the submission's evidence, the names and
sizes of its other files, the keys whose statements count, and the source of the checks themselves. What depends on today's date,
such as a run that has not been completed yet, is not kept. Each line carries a digest of itself: one that was damaged is not there.
"""

import dataclasses
import datetime
import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

from marin.speedrun import results
from marin.speedrun.rows import Row, Unreadable
from marin.speedrun.verdict import Finding, Outcome, Rung, RungVerdict, Verdict
from marin.speedrun.verification import Context
from marin.storage import files

FILE_NAME = "rows.jsonl"
_EVIDENCE = (results.FILE_NAME, "run.json", "metrics.jsonl", "evaluation.json", "challenge.json", "withdrawn.json")
_MOST_FILES = 2_000
_BETWEEN = "\t"  # the parts of a line: JSON writes it otherwise
_TUPLES = ("also_at",)


class RowStore:
    """The kept rows of one site; `save` writes those that this build used."""

    def __init__(self, directory: str | os.PathLike[str], context: Context | None = None) -> None:
        self._path = files.join(os.fspath(directory), FILE_NAME)
        self._checks = _checks_digest() + _context_digest(context)
        self._kept = self._read()
        self._used: dict[str, str] = {}

    def rows_of(
        self, path: pathlib.Path, root: pathlib.Path, verify: Callable[[], list[Row | Unreadable]]
    ) -> list[Row | Unreadable]:
        """The rows of the submission with the results file `path`: kept ones, or those that `verify` gives."""
        evidence = _evidence_digest(path.parent)
        return verify() if evidence is None else self._found(f"{path.relative_to(root).as_posix()}\0{evidence}", verify)

    def rows_of_list(
        self, path: str | os.PathLike[str], read: Callable[[], list[Row | Unreadable]]
    ) -> list[Row | Unreadable]:
        """The rows of a list, a file: kept ones, or those that `read` gives."""
        if not os.path.isfile(path):
            return read()
        with open(path, "rb") as file:
            evidence = hashlib.file_digest(file, "sha256").hexdigest()
        return self._found(f"list {pathlib.PurePath(path).name}\0{evidence}", read)

    def _found(self, evidence: str, verify: Callable[[], list[Row | Unreadable]]) -> list[Row | Unreadable]:
        key = hashlib.sha256(evidence.encode("utf-8", "surrogatepass")).hexdigest()
        line = self._kept.get(key)
        if line is not None and line == _line(key, text := line.rpartition(_BETWEEN)[0].partition(_BETWEEN)[2]):
            self._used[key] = line
            return [_from_json(item) for item in json.loads(text)]
        found = verify()
        today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
        if all(isinstance(item, Row) and (item.date or "") <= f"{today} 99" for item in found):
            self._used[key] = _line(key, json.dumps([_to_json(item) for item in found if isinstance(item, Row)]))
        return found

    def save(self) -> None:
        """Writes what was used, whole or not at all; nothing where nothing changed."""
        if self._used != self._kept:
            lines = [json.dumps(self._checks), *(self._used[key] for key in sorted(self._used))]
            files.write_bytes(self._path, ("\n".join(lines) + "\n").encode())

    def _read(self) -> dict[str, str]:
        """Lines by their digests; empty where there are none, or where the checks were others."""
        if not files.exists(self._path):
            return {}
        first, *lines = files.read_bytes(self._path).decode("utf-8", "replace").splitlines() or [""]
        if first != json.dumps(self._checks):
            return {}
        return {line.partition(_BETWEEN)[0]: line for line in lines}


def _line(key: str, text: str) -> str:
    """A line of the store: a key, what is kept under it as JSON, and the digest of both."""
    return f"{key}{_BETWEEN}{text}{_BETWEEN}{hashlib.sha256(f'{key}{text}'.encode()).hexdigest()}"


def _to_json(row: Row) -> dict[str, Any]:
    value = {field.name: getattr(row, field.name) for field in dataclasses.fields(Row)}
    return value | {
        "findings": [dataclasses.astuple(finding) for finding in row.findings],
        "verdict": [
            [[rung.rung, rung.outcome, [dataclasses.astuple(finding) for finding in rung.findings]] for rung in row.verdict.rungs],
            row.verdict.challenged,
            row.verdict.withdrawn,
        ],
    }  # fmt: skip


def _from_json(value: dict[str, Any]) -> Row:
    rungs, challenged, withdrawn = value["verdict"]
    value["verdict"] = Verdict.model_construct(
        rungs=tuple(_rung(*rung) for rung in rungs), challenged=challenged, withdrawn=withdrawn
    )
    value["findings"] = tuple(Finding(*parts) for parts in value["findings"])
    for name in _TUPLES:
        value[name] = tuple(value[name])
    return Row(**value)


def _rung(rung: Rung, outcome: Outcome, findings: list[list[Any]]) -> RungVerdict:
    if not findings:
        return _empty_rung(rung, outcome)
    return RungVerdict.model_construct(
        rung=rung, outcome=outcome, findings=tuple(Finding(*parts) for parts in findings)
    )


@functools.cache
def _empty_rung(rung: Rung, outcome: Outcome) -> RungVerdict:
    return RungVerdict(rung=rung, outcome=outcome)


def _evidence_digest(directory: pathlib.Path) -> str | None:
    """SHA-256 of all that verifying a submission looks at; None where it is too much, or cannot be read."""
    state = hashlib.sha256()
    pending, count = [directory], 0
    try:
        while pending:
            parent = pending.pop()
            with os.scandir(parent) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
            for entry in entries:
                count += 1
                if count > _MOST_FILES:
                    return None
                name = os.path.relpath(entry.path, directory)
                status = entry.stat(follow_symlinks=False)
                state.update(f"{name}\0{status.st_mode:o} {status.st_size}\0".encode("utf-8", "surrogatepass"))
                if entry.is_symlink():
                    return None
                if entry.is_dir(follow_symlinks=False):
                    pending.append(pathlib.Path(entry.path))
                elif entry.name in _EVIDENCE or "statements" in name.split(os.sep):
                    with open(entry.path, "rb") as file:
                        state.update(hashlib.file_digest(file, "sha256").digest())
    except OSError:
        return None
    return state.hexdigest()


def _context_digest(context: Context | None) -> str:
    signers = context.allowed_signers if context else None
    content = pathlib.Path(signers).read_bytes() if signers and os.path.isfile(signers) else b""
    known = (
        repr([(run.source, run.info.model_dump_json()) for run in context.known]) if context and context.known else ""
    )
    return hashlib.sha256(content + known.encode("utf-8", "surrogatepass")).hexdigest()


@functools.lru_cache(maxsize=1)
def _checks_digest() -> str:
    """Of the source of everything that decides what a row says."""
    here = pathlib.Path(__file__).parent
    state = hashlib.sha256()
    for path in sorted([*here.rglob("*.py"), here.parent / "hardware.py"]):
        state.update(path.relative_to(here.parent).as_posix().encode() + path.read_bytes())
    return state.hexdigest()
