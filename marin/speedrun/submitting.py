"""From the runs below a prefix to a submission's directory: results and logs gathered, read back, and placed on the board.

`gather` takes every finished run whose name is that of the directory, `{name}` or `{name}_...`, the newest of each name; it
copies logs byte for byte, since a hash chain binds them. Nothing here executes what the directory holds, and nothing that
holds a secret is written.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import sys
import urllib.error
import urllib.request
from collections.abc import Collection, Iterable, Mapping, Sequence

from marin.errors import ConfigError, ResultsError
from marin.execution.redaction import secrets_in
from marin.speedrun import results, signers, strict_json
from marin.speedrun.arithmetic import form
from marin.speedrun.board import leaderboard
from marin.speedrun.board.entries import Entry
from marin.speedrun.board.leaderboard import TrackBoard
from marin.speedrun.evaluation_record import EVALUATION_FILE, EvaluationRecord
from marin.speedrun.results import FILE_NAME, Author, RunInfo, dump_results
from marin.speedrun.verification.submission import LOGS
from marin.storage import files
from marin.tracking.run_record import METRICS_FILE, RUN_FILE

_LOOKED_AT = (".py", ".json", ".jsonl", ".md", ".txt", ".yaml", ".yml", ".toml", ".sh")
_LARGEST_LOOKED_AT = 64 * 2**20
_TIMEOUT = 10.0
RUN_DIRECTORY = "give the directory in which the run trained, such as PREFIX/checkpoints/speedrun/NAME-HASH"


@dataclasses.dataclass(frozen=True)
class FoundRun:
    """A finished run: its results, where its log lies, and its evaluation's file, if that is there."""

    name: str
    directory: pathlib.Path
    info: RunInfo
    evaluation: pathlib.Path | None


@dataclasses.dataclass(frozen=True)
class Gathered:
    """What was put into a submission's directory, and the older runs of the same names that were not."""

    runs: tuple[FoundRun, ...]
    left_out: tuple[pathlib.Path, ...]


def find_runs(prefix: str | os.PathLike[str], name: str, other_names: Iterable[str] = ()) -> Gathered:
    """The finished runs of a submission below a prefix, by name and seed.

    Args:
        other_names: of other submissions; a run that begins with a longer one of them is theirs.
    Raises:
        ResultsError: if a run's files cannot be read.
    """
    runs: dict[str, list[FoundRun]] = {}
    root = pathlib.Path(prefix) / "checkpoints" / "speedrun"
    longer = [other for other in other_names if other.startswith(f"{name}_")]
    for directory in sorted(root.glob("*/")):
        if not (directory / FILE_NAME).is_file() or not (directory / RUN_FILE).is_file():
            continue
        run_name = run_name_of((directory / RUN_FILE).read_bytes())
        if run_name is None:  # another's run, perhaps: this submission does not depend on it
            print(f"warning: {directory / RUN_FILE} is damaged, so its run is left out", file=sys.stderr)
            continue
        theirs = any(run_name == other or run_name.startswith(f"{other}_") for other in longer)
        if theirs or (run_name != name and not run_name.startswith(f"{name}_")):
            continue
        runs.setdefault(run_name, []).append(read_run(directory, prefix))
    chosen, left_out = [], []
    for found in runs.values():
        found.sort(key=lambda run: run.info.run_completion_timestamp or "")
        chosen.append(found[-1])
        left_out += [run.directory for run in found[:-1]]
    chosen.sort(key=lambda run: (run.info.seed or 0, run.name))
    return Gathered(tuple(chosen), tuple(left_out))


def read_run(directory: pathlib.Path, prefix: str | os.PathLike[str] | None) -> FoundRun:
    """A run directory that holds its results.

    Raises:
        ResultsError: if it is no directory or has none, they are of several runs, or its `run.json` is missing or damaged.
    """
    if not directory.is_dir():
        what = "is a file" if directory.exists() else "is not there"
        raise ResultsError(f"{directory} {what}: {RUN_DIRECTORY}")
    if not (directory / FILE_NAME).is_file():
        raise ResultsError(f"{directory} has no {FILE_NAME}: run the same command again, it ends with the results")
    if not (directory / RUN_FILE).is_file():
        raise _no_run(directory, RUN_FILE)
    infos = results.load_results(directory / FILE_NAME)
    if len(infos) != 1:
        raise ResultsError(f"{directory / FILE_NAME} holds {len(infos)} runs, expected 1")
    name = run_name_of((directory / RUN_FILE).read_bytes())
    if name is None:
        raise ResultsError(f"{directory / RUN_FILE} is damaged: copy it again from where the run trained")
    return FoundRun(name, directory, infos[0], None if prefix is None else _evaluation_of(infos[0], prefix))


def run_name_of(content: bytes) -> str | None:
    """The name that a `run.json` gives its run, "" where it gives none; None where it cannot be read."""
    try:
        return str(json.loads(content).get("run_name") or "")
    except (ValueError, AttributeError, RecursionError):
        return None


def _no_run(directory: pathlib.Path, missing: str) -> ResultsError:
    return ResultsError(f"{directory} has results but no {missing}: {RUN_DIRECTORY}")


def _evaluation_of(info: RunInfo, prefix: str | os.PathLike[str]) -> pathlib.Path | None:
    """The evaluation step's file that says what the results say; runs that came out alike still differ in what their probes took."""
    stated = dataclasses.replace(EvaluationRecord.of(info), core=None).parts()
    for path in sorted(pathlib.Path(prefix).glob(f"evaluation/speedrun/*/{EVALUATION_FILE}")):
        try:
            found = EvaluationRecord.parse(strict_json.read_json(path), str(path)).parts()
        except (ValueError, ResultsError):
            # Another's, perhaps, as in `find_runs`; or a pipe, where code of a submission wrote here.
            print(f"warning: {path} is damaged, so it is not looked at", file=sys.stderr)
            continue
        if found == stated:
            return path
    return None


def signed_by(runs: Sequence[FoundRun], author: Author | None, description: str | None) -> tuple[FoundRun, ...]:
    """The runs under an author's name and a description; what is None stays as it is.

    Raises:
        ConfigError: if a run's results name another author already.
    """
    found = []
    for run in runs:
        changes: dict[str, object] = {} if description is None else {"description": description}
        if author is not None:
            stated = run.info.author
            if stated.name != author.name and not form.is_placeholder(stated.name):
                raise ConfigError(f"the results of {run.name} name {stated.name!r} as their author: leave --author out")
            changes["author"] = author
        found.append(dataclasses.replace(run, info=run.info.model_copy(update=changes)))
    return tuple(found)


def gather(runs: Sequence[FoundRun], directory: pathlib.Path) -> list[str]:
    """Writes the results of all runs into one file, their logs beside it; returns the paths written, relative.

    Raises:
        ConfigError: if there is no run, or a file to be written holds a secret; then nothing is written.
        ResultsError: if a run has no log; nothing is written then either.
    """
    if not runs:
        raise ConfigError("there is no finished run to gather")
    content = {FILE_NAME: dump_results([run.info for run in runs])}
    for number, run in enumerate(runs):
        sources = {RUN_FILE: run.directory / RUN_FILE, METRICS_FILE: run.directory / METRICS_FILE}
        if run.evaluation is not None:
            sources[EVALUATION_FILE] = run.evaluation
        for part, source in sources.items():
            if not source.is_file():
                raise _no_run(run.directory, part)
            content[f"{LOGS}/{number}/{part}"] = source.read_bytes()
    for name, data in content.items():
        if found := secrets_in(data.decode("utf-8", "replace")):
            raise ConfigError(
                f"{name} would hold {', '.join(found)}, so nothing was written: revoke that secret, and train again with it in the"
                " environment, not on the command line or in a config; the log cannot be edited, as its chain binds it"
            )
    still_true = _evaluations_of_the_same_runs(directory, content)
    for name, data in content.items():
        files.write_bytes(str(directory / name), data)
    _remove_other_logs(directory, content.keys() | still_true)
    return list(content)


def _evaluations_of_the_same_runs(directory: pathlib.Path, content: Mapping[str, bytes]) -> set[str]:
    """Evaluations that an earlier gathering left, of runs that are gathered at the same places again."""
    found = set()
    for path in directory.glob(f"{LOGS}/*/{EVALUATION_FILE}"):
        log = path.with_name(METRICS_FILE)
        if log.is_file() and log.read_bytes() == content.get(f"{LOGS}/{path.parent.name}/{METRICS_FILE}"):
            found.add(f"{LOGS}/{path.parent.name}/{EVALUATION_FILE}")
    return found


def _remove_other_logs(directory: pathlib.Path, written: Collection[str]) -> None:
    """Removes what an earlier gathering, of more or of other runs, left of logs and evaluations; other files stay."""
    for path in directory.glob(f"{LOGS}/*/"):
        if path.is_symlink() or not path.name.isdecimal():
            continue
        for part in (RUN_FILE, METRICS_FILE, EVALUATION_FILE):
            if f"{LOGS}/{path.name}/{part}" not in written:
                (path / part).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # something else lies there
            path.rmdir()


def names_of(infos: Iterable[RunInfo], directory: pathlib.Path, prefix: str | os.PathLike[str]) -> set[str]:
    """The names of a submission's runs: by the logs that lie with it, and by the runs below a prefix that the results are of."""
    logs = {info.log_digest for info in infos if info.log_digest}
    names = gathered_names(directory)
    for path in (pathlib.Path(prefix) / "checkpoints" / "speedrun").glob(f"*/{FILE_NAME}") if logs else ():
        with contextlib.suppress(ResultsError):  # another's, perhaps, as in `find_runs`
            if any(info.log_digest in logs for info in results.load_results(path)):
                names |= _names_in([path.with_name(RUN_FILE)])
    return names


def gathered_names(directory: pathlib.Path) -> set[str]:
    """The names of the runs whose logs lie in a submission's directory; those that cannot be read are left out."""
    return _names_in(directory.glob(f"{LOGS}/*/{RUN_FILE}"))


def _names_in(run_files: Iterable[pathlib.Path]) -> set[str]:
    names = set()
    for path in run_files:
        with contextlib.suppress(OSError):
            names.add(run_name_of(path.read_bytes()) if path.is_file() else None)
    return {name for name in names if name}


def secrets_below(directory: pathlib.Path) -> list[str]:
    """What in the directory's texts is, or looks like, a secret: "path: what"."""
    found = []
    for path in sorted(directory.rglob("*")):
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _LARGEST_LOOKED_AT:
            continue
        if path.suffix in _LOOKED_AT or path.name.startswith(".env"):
            text = path.read_text(encoding="utf-8", errors="replace")
            found += [f"{path.relative_to(directory)}: {what}" for what in secrets_in(text)]
    return found


# --- the row as it will stand -------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Placed:
    """A submission's entry on a track, with the entries around it."""

    board: TrackBoard
    entry: Entry
    neighbours: tuple[Entry, ...]  # the entry among them, best first


def place(
    directory: pathlib.Path, repository_results: pathlib.Path, rows_files: Sequence[str], around: int = 2
) -> list[Placed]:
    """Where the submission's entries stand on each track, beside the nearest ones on the frontier and in rank.

    Args:
        repository_results: the directory of all submissions, this one among them.
    """
    board = leaderboard.collect([repository_results], rows_files, allowed_signers=signers.ALLOWED_SIGNERS)
    own = (directory / FILE_NAME).resolve().relative_to(repository_results.resolve()).as_posix()
    found = []
    for track_board in board.tracks:
        for index, entry in enumerate(track_board.entries):
            if not any(own in (row.source, *row.also_at) for row in entry.rows):
                continue
            near = set(range(max(0, index - around), index + around + 1))
            frontier = [i for i, other in enumerate(track_board.entries) if other.on_frontier and i != index]
            near |= set([i for i in frontier if i < index][-around:] + [i for i in frontier if i > index][:around])
            neighbours = tuple(track_board.entries[i] for i in sorted(near) if i < len(track_board.entries))
            found.append(Placed(track_board, entry, neighbours))
    return found


# --- the linked page ----------------------------------------------------------------------------------------------------


def page_problem(url: str) -> str | None:
    """Why a linked run page cannot be seen by everyone, asked for without any login; None where it loads."""
    if not url.startswith(("https://", "http://")):
        return f"{url[:80]!r} is no web address: link a page that starts with https://"
    request = urllib.request.Request(url, headers={"User-Agent": "marin-submit"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as reply:
            if "login" in reply.geturl().rpartition("/")[2].lower():
                return f"{url} leads to a login: make the project public"
            return None
    except urllib.error.HTTPError as error:
        if error.code in (401, 403, 404):
            return f"{url} answers {error.code} without a login: make the project public"
        return f"{url} could not be checked: it answers {error.code}"
    except (OSError, ValueError) as error:
        return f"{url} could not be checked ({getattr(error, 'reason', error)})"
