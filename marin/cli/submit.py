"""`marin submit`: everything between a finished run and an opened pull request."""

import argparse
import contextlib
import dataclasses
import difflib
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from marin.errors import ConfigError, ResultsError

if TYPE_CHECKING:
    from marin.speedrun.results import Author, RunInfo
    from marin.speedrun.submitting import Gathered, Placed
    from marin.speedrun.verdict import Verdict

HELP = """\
Gather the results and logs of a speedrun into its directory, check them, show the row as it will stand on the leaderboard, and
write the pull request's title and body. With gh on the PATH it offers to open the pull request.

Run it again whenever something changed; nothing is asked when no person is at the terminal. The exit status is 0 when all is
ready, 1 when a check failed, 2 on bad usage."""

_MOST_SHOWN = 8
_SIGNED_BY = {
    "author": "your name, for runs whose results name nobody, such as those of the Time-to-GPT-2 pipeline",
    "affiliation": "of that author; empty for none",
    "url": "of that author",
    "description": "what these runs are, in a line (default: what their results say)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="such as experiments/speedrun/my_run")
    parser.add_argument("--prefix", metavar="PATH", help="where the runs lie (default: MARIN_PREFIX, else local_store)")
    parser.add_argument(
        "--run", action="append", default=[], metavar="RUN_DIR",
        help="take exactly this run directory, in place of the newest run of each name; may be given several times",
    )  # fmt: skip
    for name, text in _SIGNED_BY.items():
        parser.add_argument(f"--{name}", metavar="TEXT", help=text)
    parser.add_argument("--no-gather", action="store_true", help="check what lies in DIR as it is")
    parser.add_argument(
        "--rows", action="append", default=[], metavar="FILE",
        help="the runs.json of the public leaderboard, for the neighbours; may be given several times",
    )  # fmt: skip
    parser.add_argument("--approach", metavar="TEXT", help="what is new and why (default: the description)")
    parser.add_argument("--open", action="store_true", help="open the pull request with gh without asking")


def run(args: argparse.Namespace) -> int:
    from marin.cli import checkout, slips
    from marin.speedrun import pull_request, submitting
    from marin.speedrun.importers.results_tree import module_of
    from marin.storage.prefix import resolve_prefix

    root = checkout.require_checkout()
    submissions = root / "experiments" / "speedrun"
    directory = _submission(args.directory, submissions)
    if not any(directory.glob("*.py")):
        raise ConfigError(f"{args.directory} has no Python file: the experiment that made the results belongs there")
    if args.no_gather and any(getattr(args, name) is not None for name in _SIGNED_BY):
        raise ConfigError(
            "with --no-gather the results are taken as they lie there: leave out " + _flags_of(_SIGNED_BY)
        )
    if args.no_gather and args.run:
        raise ConfigError("with --no-gather no run is taken: leave out --run, or --no-gather")
    prefix = resolve_prefix(args.prefix)
    gathered = None if args.no_gather else _gather(args, prefix, directory)
    if gathered:
        _report_gathered(gathered, prefix, directory)
    problems = [f"{found}: remove it, and revoke it" for found in submitting.secrets_below(directory)]
    verdicts, found = _verify(directory, submissions)
    problems += found
    placed = submitting.place(directory, submissions, args.rows)
    _show_places(placed)
    infos = [info for info, _ in verdicts]
    names = (
        {run.name for run in gathered.runs}
        if gathered and gathered.runs
        else submitting.names_of(infos, directory, prefix)
    )
    notes = [*slips.slips(root, directory, infos, names), *_notes(infos)]
    _print_list("note", notes)
    _print_list("error", problems)
    title = pull_request.title(directory.name, verdicts[0][0])
    command = f"python -m experiments.speedrun.{directory.name}.{module_of(directory)} --force_run_failed true --prefix local_store"
    text = pull_request.body(directory.name, verdicts, placed, command, args.approach)
    place = root / ".submit" / f"{directory.name}.md"
    from marin.execution.redaction import secrets_in
    from marin.storage import files

    if secret := secrets_in(text):
        raise ConfigError(f"the pull request's text would hold {', '.join(secret)}: take it out of the configs")
    with files.placed_by("clone"):
        files.write_bytes(str(place), text.encode())
    print(f"\ntitle: {title}\n\n{text}")
    print(f"written to {place.relative_to(root)}")
    if not any(item.entry.rank is not None for item in placed) and placed:
        print(
            "note: it gets no rank on any track, for the reasons above; a pull request may say why it is worth a look"
        )
    if problems:
        print("not ready: fix the errors above, then run the same command again")
        return 1
    return _offer(args, root, directory, title, place)


def _submission(given: str, submissions: pathlib.Path) -> pathlib.Path:
    """The directory that is meant.

    Raises:
        ConfigError: if it is none of `submissions`; the message names the one that a wrong path, place or name comes close to.
    """
    directory = pathlib.Path(given).resolve()
    if directory.is_dir() and directory.parent == submissions.resolve():
        return directory
    names = [path.name for path in submissions.iterdir() if path.is_dir()]
    asked = directory.parent.name if directory.is_file() else directory.name
    meant = next(iter(difflib.get_close_matches(asked, names, n=1, cutoff=0.7)), "NAME")
    here = pathlib.Path.cwd()
    shown = submissions.relative_to(here) if submissions.is_relative_to(here) else submissions
    wrong = "a file" if directory.is_file() else "not there" if not directory.exists() else f"no directory of {shown}"
    raise ConfigError(f"{given} is {wrong}: give {shown / meant}")


def _flags_of(names: Iterable[str]) -> str:
    return ", ".join(f"--{name}" for name in names)


def _gather(args: argparse.Namespace, prefix: str, directory: pathlib.Path) -> "Gathered":
    from marin.speedrun import submitting
    from marin.speedrun.results import FILE_NAME
    from marin.speedrun.standing_rows import missing_runs
    from marin.storage import files

    if args.run:
        with_evaluations = prefix if files.is_local(prefix) else None
        given = [submitting.read_run(pathlib.Path(run), with_evaluations) for run in args.run]
        gathered = submitting.Gathered(tuple(given), ())
    else:
        if not files.is_local(prefix):
            raise ConfigError(
                f"the prefix {prefix} is not on this machine: copy the run directories, and give them with --run"
            )
        names = [path.name for path in directory.parent.iterdir() if path.is_dir()]
        gathered = submitting.find_runs(prefix, directory.name, names)
        if not gathered.runs and (directory / FILE_NAME).is_file():
            if idle := [name for name in _SIGNED_BY if getattr(args, name) is not None]:
                raise ConfigError(
                    f"no run below {prefix}, so nothing is gathered and {_flags_of(idle)} would change nothing: give --prefix or --run, or"
                    " leave it out"
                )
            return gathered  # what was gathered before, on a machine without the runs
        if not gathered.runs:
            raise ConfigError(
                f"no finished run named {directory.name!r} or {directory.name}_... below {prefix}/checkpoints/speedrun: train first,"
                " give --prefix, or name the run directories with --run"
            )
    runs = submitting.signed_by(gathered.runs, _author(args), args.description)
    before, taken = submitting.gathered_names(directory), {run.name for run in runs}
    gone = missing_runs(_results_in(directory), [run.info for run in runs])
    with files.placed_by("clone"):
        submitting.gather(runs, directory)
    if replaced := sorted(before - taken):
        print(
            f"note: {', '.join(replaced)}, gathered here before, made room for {', '.join(sorted(taken))}; give --run for each of"
            " them to keep all"
        )
    if gone:
        print(
            f"note: {len(gone):,} of the runs that the results here held are not among these. If they stand on the board, they must stay:"
            " a pull request without them is refused. Give --run for each of them too (a seed counts once), or submit these under a name of"
            " their own"
        )
    return dataclasses.replace(gathered, runs=runs)


def _results_in(directory: pathlib.Path) -> "list[RunInfo]":
    from marin.speedrun.results import FILE_NAME, load_results

    with contextlib.suppress(ResultsError):  # what cannot be read is no row
        if (directory / FILE_NAME).is_file():
            return load_results(directory / FILE_NAME)
    return []


def _author(args: argparse.Namespace) -> "Author | None":
    from marin.speedrun import web_address
    from marin.speedrun.results import Author

    if args.author is None:
        if args.affiliation is not None or args.url is not None:
            raise ConfigError("--affiliation and --url are of an author: give --author too")
        return None
    if args.url and (problem := web_address.problem_of(args.url)):
        raise ConfigError(f"--url {args.url!r} {problem}, or leave it out")
    return Author(name=args.author, affiliation=args.affiliation or "", url=args.url)


def _report_gathered(gathered: "Gathered", prefix: str, directory: pathlib.Path) -> None:
    if gathered.runs:
        print(f"gathered into {directory.name}: " + ", ".join(run.name for run in gathered.runs))
    else:
        print(f"no run below {prefix}; checking what lies in {directory.name}")
    for path in gathered.left_out:
        print(
            f"note: an older run of the same name was left out: {path.name}; say so in the approach if it is a repetition"
        )


def _verify(directory: pathlib.Path, submissions: pathlib.Path) -> "tuple[list[tuple[RunInfo, Verdict]], list[str]]":
    """The verdict on each run, and what stands in the way."""
    from marin.speedrun import signers
    from marin.speedrun.results import FILE_NAME
    from marin.speedrun.verification import Context, Submission, known_runs_of, verify_read

    known = []
    for path in sorted(submissions.rglob(FILE_NAME)):
        if path.parent != directory:
            try:
                known += known_runs_of(path, path.parent.relative_to(submissions).as_posix())
            except ResultsError:
                continue  # another's file that cannot be read is no reason to hold this one
    context = Context(known=tuple(known), allowed_signers=signers.ALLOWED_SIGNERS)
    verdicts = verify_read(Submission.read(directory), context)
    problems = []
    for number, (_, verdict) in enumerate(verdicts):
        print(f"run {number}: reached {verdict.level or 'no rung'}")
        shown = [finding for rung in verdict.rungs for finding in rung.findings]
        problems += [f"run {number}: {finding.message}" for finding in shown if finding.severity == "error"]
        _print_list("warning", [finding.message for finding in shown if finding.severity == "warning"])
        _print_list("open", [finding.message for finding in shown if finding.severity == "unchecked"])
    return verdicts, problems


def _show_places(placed: "list[Placed]") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from marin.speedrun.pull_request import entry_cells, gain_in, one_line, statistics_of, why_unranked

    console = Console(highlight=False)
    for item in placed:
        track = item.board.track
        table = Table(box=None, title=f"as it will stand: {track.title}", title_justify="left")
        for column in (
            "rank",
            "run",
            "author",
            track.metric.replace("_", " "),
            track.cost.replace("_", " "),
            "frontier",
        ):
            table.add_column(column)
        for entry in item.neighbours:
            cells = entry_cells(item, entry)
            cells.insert(2, one_line(entry.author))
            style = "bold" if entry is item.entry else ""
            table.add_row(*(Text(cell, style) for cell in cells))
        console.print(table)
        if reason := why_unranked(item):
            console.print(Text(f"without a rank: {reason}"))
        if gain := gain_in(item):
            console.print(Text(f"gain: {gain}"))
        for line in statistics_of(item):
            console.print(Text(f"statistics: {line}"))


def _notes(infos: "list[RunInfo]") -> list[str]:
    from marin.speedrun.submitting import page_problem

    links = sorted({info.wandb_run_link for info in infos if info.wandb_run_link})
    notes = [problem for problem in map(page_problem, links) if problem]
    if any("wandb.ai" in link for link in links):
        notes.append("a page of wandb.ai loads for everyone, also a private one: look at it in a private window")
    notes.append('leave "Allow edits by maintainers" on when you open the pull request')
    return notes


def _print_list(kind: str, lines: list[str]) -> None:
    from marin.speedrun.pull_request import one_line

    for line in lines[:_MOST_SHOWN]:
        print(f"{kind}: {one_line(line)}")
    if len(lines) > _MOST_SHOWN:
        print(f"{kind}: and {len(lines) - _MOST_SHOWN} more; `marin verify` shows all")


def _offer(
    args: argparse.Namespace, root: pathlib.Path, directory: pathlib.Path, title: str, place: pathlib.Path
) -> int:
    from marin.speedrun.verification.commits import is_clone

    own = directory.relative_to(root).as_posix() if directory.is_relative_to(root) else str(directory)
    begun, remote = _where_to_push(root, directory.name)
    if pathlib.Path.cwd() != root:
        begun.insert(0, ["cd", str(root)])
    steps = [*begun, ["git", "add", own]]
    if ignored := _ignored_evidence(root, directory):  # which git leaves out without a word
        steps.append(["git", "add", "--force", *ignored])
    steps.append(["git", "commit", "-m", f"speedrun: {directory.name}"])
    steps.append(["git", "push", "-u", remote, "HEAD"])
    if shutil.which("git") is None or is_clone(root):
        print(f"ready. Commit and push it:\n  {' && '.join(map(shlex.join, steps))}")
    else:
        print(f"ready, but {root} is no git clone: copy {own} into one, and commit and push it there")
    command = ["gh", "pr", "create", "--title", title, "--body-file", str(place)]
    if shutil.which("gh") is None:
        print("then open the pull request on GitHub with the title and body above (or install gh and run this again)")
        return 0
    wanted = args.open
    if not wanted and sys.stdin.isatty():
        wanted = input("Open the pull request with gh? The branch must be pushed. [y/N]: ").strip().lower() in (
            "y",
            "yes",
        )
    if not wanted:
        print(f"then: marin submit {shlex.join(_again(args, directory, root))} --no-gather --open")
        return 0
    return 0 if subprocess.run(command, cwd=root, check=False).returncode == 0 else 1


def _again(args: argparse.Namespace, directory: pathlib.Path, root: pathlib.Path) -> list[str]:
    """The arguments that make the same text once more, also from the root, where the commands that are printed before lead."""
    is_elsewhere = pathlib.Path.cwd() != root
    given = [str(directory) if is_elsewhere else args.directory]
    given += [part for row in args.rows for part in ("--rows", os.path.abspath(row) if is_elsewhere else row)]
    return given + ([] if args.approach is None else ["--approach", args.approach])


def _ignored_evidence(root: pathlib.Path, directory: pathlib.Path) -> list[str]:
    """What the verdict is made from and git would not add: many people ignore `logs/` in all of their repositories."""
    from marin.speedrun.results import FILE_NAME
    from marin.speedrun.verification.submission import LOGS, STATEMENTS

    own = [
        path.relative_to(root).as_posix()
        for path in (directory / n for n in (FILE_NAME, LOGS, STATEMENTS))
        if path.exists()
    ]
    files = [path for name in own for path in (root / name, *(root / name).rglob("*")) if path.is_file()]
    if shutil.which("git") is None:
        return []
    done = subprocess.run(
        ["git", "check-ignore", "-z", "--stdin"], cwd=root, capture_output=True, text=True, check=False,
        input="".join(f"{path.relative_to(root).as_posix()}\0" for path in files),
    )  # fmt: skip
    ignored = done.stdout.split("\0")[:-1]
    return [name for name in own if any(path == name or path.startswith(f"{name}/") for path in ignored)]


def _where_to_push(root: pathlib.Path, name: str) -> tuple[list[list[str]], str]:
    """Commands before a commit that can be pushed, and the remote: not every clone has a branch or calls its fork origin."""
    if shutil.which("git") is None:
        return [], "origin"

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    branch, remotes = git("rev-parse", "--abbrev-ref", "HEAD"), git("remote").split()
    configured = [git("config", key) for key in (f"branch.{branch}.pushRemote", "remote.pushDefault")]
    # A branch that begins at upstream's main tracks that, and is not to be pushed there; one that was pushed tracks its own name.
    if git("config", f"branch.{branch}.merge") == f"refs/heads/{branch}":
        configured.append(git("config", f"branch.{branch}.remote"))
    remote = next((one for one in (*configured, "origin", *remotes) if one in remotes), "origin")
    return [["git", "switch", "-c", name]] if branch == "HEAD" else [], remote
