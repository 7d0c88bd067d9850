"""A submission directory, read as data: results, logs, statements and notices; nothing in it is executed.

    speedrun_results.json        {"runs": [...]}, the claims
    logs/{k}/run.json            what ran, of the k-th run of the file, from 0
    logs/{k}/metrics.jsonl       what happened in it
    logs/{k}/evaluation.json     what the evaluation step wrote, if it is there
    statements/*.json            signed statements, each a DSSE envelope or a statement with an `.sig` beside it
    challenge.json, withdrawn.json

Where the file holds one run its log may lie beside it, as in a run directory. Only these files are opened. Each must be a
regular file of a limited size that lies in the directory itself: a link that leads out of it is refused. The rest of a
directory is looked at by name and size alone (`tree_problems`).
"""

import dataclasses
import hashlib
import os
import pathlib
import stat

from marin.errors import ResultsError
from marin.speedrun import results, strict_json
from marin.speedrun.evaluation_record import EVALUATION_FILE
from marin.speedrun.results import RunInfo
from marin.speedrun.verdict import Finding
from marin.speedrun.verification.texts import printable
from marin.tracking.run_record import METRICS_FILE, RUN_FILE

LOGS, STATEMENTS = "logs", "statements"
NOTICES = ("challenge.json", "withdrawn.json")

MAX_LOG_BYTES = 16 * 2**20
MAX_LINES = 50_000  # of a log
MAX_RUN_BYTES = 2 * 2**20
MAX_STATEMENTS = 64
MAX_STATEMENT_BYTES = 256 * 2**10
MAX_TREE_FILES = 2_000
MAX_TREE_DEPTH = 12
MAX_TREE_BYTES = 256 * 2**20
_MAX_LISTED = 8  # problems of one kind that are named
# What only an executor's output has: such a directory may hold checkpoints, whose number and size have no limit.
_STORE_MARKS = (".executor_status", ".executor_info", ".executor_attempts", "checkpoints", "tokenized")


@dataclasses.dataclass(frozen=True)
class LogFiles:
    """The bytes of one run's evidence; `name` is the directory that holds it, relative to the submission."""

    name: str
    run: bytes
    metrics: bytes
    evaluation: bytes | None

    @property
    def optimizer_class(self) -> str | None:
        """As `run.json` names it; None where it cannot be read, or does not say it."""
        try:
            info = strict_json.parse_json(self.run, RUN_FILE, MAX_RUN_BYTES, results.MAX_VALUES)
        except ResultsError:
            return None
        named = info.get("optimizer_class") if isinstance(info, dict) else None
        return named if isinstance(named, str) else None


@dataclasses.dataclass(frozen=True)
class Statement:
    """A statement as it lies in the directory; `signature` is that of the `.sig` beside it, None for an envelope."""

    name: str
    content: bytes
    signature: bytes | None


@dataclasses.dataclass(frozen=True)
class Submission:
    """What a directory says; `findings[k]` is about reading the k-th run's evidence, `problems` about the directory."""

    directory: pathlib.Path
    results_digest: str
    runs: tuple[RunInfo, ...]
    logs: tuple[LogFiles | None, ...]
    findings: tuple[tuple[Finding, ...], ...]
    problems: tuple[Finding, ...]
    statements: tuple[Statement, ...]
    challenged: str | None
    withdrawn: str | None

    @staticmethod
    def read(path: str | os.PathLike[str]) -> "Submission":
        """Reads the submission in a directory, or that of a results file.

        Raises:
            ResultsError: if its results file is missing, leads out of the directory, or is not strict JSON of the schema.
        """
        given = pathlib.Path(path)
        directory = given.parent if given.name == results.FILE_NAME and not given.is_dir() else given
        if not directory.is_dir():
            what = "is another file" if given.exists() else "no such directory"
            raise ResultsError(f"{given}: {what}: give the directory that holds {results.FILE_NAME}")
        place = _inside(directory, results.FILE_NAME)
        if place is None:
            raise ResultsError(
                f"{directory / results.FILE_NAME}: a symbolic link that leads outside the directory: put the file itself there"
            )
        content = strict_json.read_limited(str(place), results.MAX_BYTES)
        shown = str(directory / results.FILE_NAME)
        runs = results.parse_results(
            strict_json.parse_json(content, shown, results.MAX_BYTES, results.MAX_VALUES), shown
        )
        evidence = [_read_log(directory, number, len(runs)) for number in range(len(runs))]
        problems = [] if is_store(directory) else tree_problems(directory)
        statements, unread = _read_statements(directory)
        return Submission(
            directory,
            hashlib.sha256(content).hexdigest(),
            tuple(runs),
            tuple(log for log, _ in evidence),
            tuple(tuple(findings) for _, findings in evidence),
            (*problems, *unread),
            statements,
            _read_notice(directory, NOTICES[0]),
            _read_notice(directory, NOTICES[1]),
        )


def is_store(directory: pathlib.Path) -> bool:
    """Whether the directory is an output of the executor, or the prefix of such, rather than a submission."""
    return any(os.path.lexists(directory / mark) for mark in _STORE_MARKS)


def tree_problems(directory: str | os.PathLike[str]) -> list[Finding]:
    """What a submission's tree may not hold: links out of it, files that are none, too much of anything, odd names."""
    root = pathlib.Path(directory)
    found: list[Finding] = []
    count = size = 0
    pending: list[tuple[pathlib.Path, int]] = [(root, 1)]
    while pending:
        parent, depth = pending.pop()
        try:
            with os.scandir(parent) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            found.append(_problem(os.path.relpath(parent, root), f"the directory cannot be listed ({error.strerror})"))
            continue
        for entry in entries:
            name = os.path.relpath(entry.path, root)
            count += 1
            if count > MAX_TREE_FILES:
                return [
                    *found[:_MAX_LISTED],
                    _problem(".", f"over {MAX_TREE_FILES:,} files: submit code and logs alone"),
                ]
            status = entry.stat(follow_symlinks=False)
            if not entry.name.isprintable() or "\\" in entry.name:
                found.append(_problem(name, "a file name with control characters or a backslash: rename it"))
            if stat.S_ISLNK(status.st_mode):
                if _inside(root, os.path.relpath(entry.path, root)) is None:
                    found.append(
                        _problem(name, "a symbolic link that leads outside the directory: put the file itself there")
                    )
            elif stat.S_ISDIR(status.st_mode):
                if depth >= MAX_TREE_DEPTH:
                    found.append(_problem(name, f"directories nested more than {MAX_TREE_DEPTH} deep"))
                else:
                    pending.append((pathlib.Path(entry.path), depth + 1))
            elif not stat.S_ISREG(status.st_mode):
                found.append(
                    _problem(
                        name, "neither a file nor a directory: a pipe, socket or device is no part of a submission"
                    )
                )
            else:
                size += status.st_size
    if size > MAX_TREE_BYTES:
        found.append(
            _problem(".", f"{size / 2**20:,.0f} MiB in all, at most {MAX_TREE_BYTES // 2**20}: leave checkpoints out")
        )
    return (
        found
        if len(found) <= _MAX_LISTED
        else [*found[:_MAX_LISTED], _problem(".", f"and {len(found) - _MAX_LISTED} more")]
    )


def _problem(path: str, message: str) -> Finding:
    name = printable(path)[:200]
    return Finding("parsed", "error", name, f"{name}: {message}")


def _inside(directory: pathlib.Path, name: str) -> pathlib.Path | None:
    """The place of a file by its relative name, links followed; None where they lead out of the directory."""
    try:
        root = directory.resolve()
        place = (root / name).resolve()
    except (OSError, RuntimeError):  # a loop of links
        return None
    return place if place.is_relative_to(root) else None


def _read(directory: pathlib.Path, name: str, max_bytes: int) -> bytes:
    """Raises:
    ResultsError: if it cannot be read, leads out of the directory or is too large.
    """
    content = _read_more(directory, name, max_bytes)
    if len(content) > max_bytes:
        raise ResultsError(f"{name}: over {max_bytes / 2**20:g} MiB, which is more than is read")
    return content


def _read_more(directory: pathlib.Path, name: str, max_bytes: int) -> bytes:
    """The same, of a larger file a byte more."""
    place = _inside(directory, name)
    if place is None:
        raise ResultsError(f"{name}: a symbolic link that leads outside the directory: put the file itself there")
    try:
        return strict_json.read_limited(str(place), max_bytes)
    except ResultsError as error:
        raise ResultsError(str(error).replace(str(place), name)) from None


def _read_log(directory: pathlib.Path, number: int, num_runs: int) -> tuple[LogFiles | None, list[Finding]]:
    place = f"{LOGS}/{number}"
    if not os.path.lexists(directory / LOGS) and num_runs == 1 and os.path.lexists(directory / METRICS_FILE):
        place = "."
    names = {part: f"{place}/{part}".removeprefix("./") for part in (RUN_FILE, METRICS_FILE, EVALUATION_FILE)}
    there = {part for part, name in names.items() if os.path.lexists(directory / name)}
    if not there & {RUN_FILE, METRICS_FILE}:
        return None, [Finding("log", "unchecked", names[METRICS_FILE], "no log is given: the figures are as stated")]
    try:
        run = _read(directory, names[RUN_FILE], MAX_RUN_BYTES)
        metrics = _read_more(directory, names[METRICS_FILE], MAX_LOG_BYTES)
        evaluation = _read(directory, names[EVALUATION_FILE], MAX_RUN_BYTES) if EVALUATION_FILE in there else None
    except ResultsError as error:
        return None, [Finding("log", "error", place, str(error))]
    if size := _too_long(metrics):  # a run of many short steps has such a log, and is no worse for it
        name = names[METRICS_FILE]
        return None, [Finding("log", "unchecked", name, f"{name}: {size}: it is not checked, as if it were not there")]
    return LogFiles(place, run, metrics, evaluation), []


def _too_long(metrics: bytes) -> str | None:
    if len(metrics) > MAX_LOG_BYTES:
        return f"over {MAX_LOG_BYTES / 2**20:g} MiB"
    num_lines = metrics.count(b"\n")
    return f"{num_lines:,} lines, of which at most {MAX_LINES:,} are read" if num_lines > MAX_LINES else None


def _read_statements(directory: pathlib.Path) -> tuple[tuple[Statement, ...], list[Finding]]:
    folder = _inside(directory, STATEMENTS)
    if folder is None or not folder.is_dir():
        return (), []
    found: list[Statement] = []
    findings: list[Finding] = []
    names = sorted(name for name in os.listdir(folder) if name.endswith(".json") and name.isprintable())
    if len(names) > MAX_STATEMENTS:
        findings.append(
            Finding(
                "submission",
                "error",
                STATEMENTS,
                f"{len(names)} statements, of which {MAX_STATEMENTS} are read: a maintainer has to take out those that say nothing",
            )
        )
    for name in names[:MAX_STATEMENTS]:
        shown = f"{STATEMENTS}/{name}"
        try:
            content = _read(directory, shown, MAX_STATEMENT_BYTES)
            beside = [other for other in (f"{shown}.sig", f"{shown[:-5]}.sig") if os.path.lexists(directory / other)]
            signatures: list[bytes | None] = [_read(directory, other, MAX_STATEMENT_BYTES) for other in beside]
        except ResultsError as error:
            findings.append(Finding("submission", "warning", shown, str(error)))
            continue
        # Of two signatures each counts for itself: who is refuted could otherwise lay a false one before the true one.
        found += [Statement(shown, content, signature) for signature in signatures or [None]]
    return tuple(found), findings


def _read_notice(directory: pathlib.Path, name: str) -> str | None:
    """What a challenge or a withdrawal says, in a line; one that cannot be read still stands."""
    if not os.path.lexists(directory / name):
        return None
    try:
        notice = strict_json.parse_json(_read(directory, name, MAX_STATEMENT_BYTES), name)
    except ResultsError as error:
        return f"no reason can be read ({error})"
    fields = notice if isinstance(notice, dict) else {}
    reason, by, date, url = (str(fields.get(key) or "")[:1000] for key in ("reason", "by", "date", "url"))
    signed = ", ".join(part for part in (by, date, url) if part)
    return (reason or "no reason is given") + (f" ({signed})" if signed else "")
