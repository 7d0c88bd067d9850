"""`marin verify`: a verdict on each rung of the ladder for each run of a submission, with reasons."""

import argparse
import contextlib
import json
import pathlib
from typing import TYPE_CHECKING, Any

from marin.cli import recheck
from marin.errors import ConfigError, ResultsError

if TYPE_CHECKING:
    from marin.speedrun.results import RunInfo
    from marin.speedrun.verdict import Verdict
    from marin.speedrun.verification import KnownRun

HELP = """\
Say of each run of a submission how far it can be trusted, rung by rung, and why. Nothing of the submission is executed, but
for --evaluate and --rerun with --trust-code.

PATH is a directory with speedrun_results.json and the logs of its runs (logs/0/run.json, logs/0/metrics.jsonl), or such a file.
The exit status is 0 when no rung failed, 1 when one did or the form is not right, 2 on bad usage."""

_MARKS = {"passed": ("passed", "green"), "failed": ("FAILED", "bold red"), "open": ("open", "yellow")}
_SIGNS = {"error": ("x", "bold red"), "warning": ("!", "yellow"), "unchecked": ("?", "yellow"), "note": ("-", "dim")}
_MOST_SHOWN = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", nargs="+", metavar="PATH", help="such as experiments/speedrun/my_run")
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the table")
    parser.add_argument(
        "--known", action="append", default=[], metavar="DIR",
        help="runs that the submission must not repeat: every speedrun_results.json below; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--tree", metavar="DIR",
        help="what the PATHs lie in, as --known has it from before: they are held against each other, and each not against its own"
        " earlier version",
    )  # fmt: skip
    parser.add_argument(
        "--allowed-signers", metavar="FILE",
        help="whose signed statements count (default: experiments/speedrun/allowed_signers, if it is there)",
    )  # fmt: skip
    parser.add_argument(
        "--repository", metavar="DIR", help="a git clone in which the time of a run's commit is looked up"
    )
    recheck.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from marin.speedrun.signers import chosen_signers
    from marin.speedrun.verification import Context, Submission, commits, verify_read

    for path in args.path:
        if not pathlib.Path(path).exists():
            raise ConfigError(
                f"{path}: no such file or directory: give a submission, such as experiments/speedrun/my_run"
            )
    _refuse_idle(args)
    if args.repository and not commits.is_clone(args.repository):
        raise ConfigError(f"{args.repository}: no git repository: give the clone that has the commits of the runs")
    if recheck.asked_for(args):
        return recheck.run(args)
    allowed = chosen_signers(args.allowed_signers)
    commit_time = commits.commit_times(args.repository) if args.repository else None
    reports: list[tuple[str, str | None, list[tuple[RunInfo, Verdict]]]] = []
    runs = _Known(args.known, args.tree, args.path)
    for path in args.path:
        try:
            submission = Submission.read(path)
            known = runs.of_others(submission.directory)
            verdicts = verify_read(submission, Context(known=known, allowed_signers=allowed, commit_time=commit_time))
            reports.append((path, None, verdicts))
        except ResultsError as error:
            reports.append((path, str(error), []))
    if args.json:
        print(json.dumps({"submissions": [_as_json(*report) for report in reports]}, indent=2))
    else:
        for report in reports:
            _show(*report)
    return int(any(problem or any(not verdict.sound for _, verdict in verdicts) for _, problem, verdicts in reports))


def _refuse_idle(args: argparse.Namespace) -> None:
    """Raises:
    ConfigError: if a flag would change nothing: a verdict and what runs the code have flags of their own.
    """
    of_verdicts = {
        "--json": args.json, "--known": args.known, "--tree": args.tree, "--allowed-signers": args.allowed_signers,
    }  # fmt: skip
    of_both = {
        "--trust-code": args.trust_code, "--data": args.data, "--statement": args.statement,
        "--timeout": args.timeout != recheck.DEFAULT_TIMEOUT,
    }  # fmt: skip
    of_evaluate = {"--eval-bundle": args.eval_bundle}
    if args.evaluate is not None:
        given, where = of_verdicts, "with --evaluate"
    elif args.rerun is not None:
        given, where = of_verdicts | of_evaluate, "with --rerun"
    else:
        given, where = of_both | of_evaluate, "without --evaluate or --rerun"
    if idle := [flag for flag, value in given.items() if value]:
        raise ConfigError(
            f"{where}, {' and '.join(idle)} would change nothing: leave {'it' if len(idle) == 1 else 'them'} out"
        )


class _Known:
    """The runs that submissions are held against; what cannot be read is no known run.

    Raises:
        ConfigError: if a directory is not there, or a submission does not lie in the tree.
    """

    def __init__(self, directories: list[str], tree: str | None, paths: list[str]) -> None:
        from marin.speedrun.results import FILE_NAME

        self._tree = None if tree is None else pathlib.Path(tree).resolve()
        self._found: list[tuple[pathlib.Path, str, list[KnownRun]]] = []  # directory, name, runs
        for path in paths if self._tree and self._tree.is_dir() else ():
            if self._tree and not pathlib.Path(path).resolve().is_relative_to(self._tree):
                raise ConfigError(f"{path} does not lie in {tree}: give --tree the directory that holds all PATHs")
        for directory in [*directories, *([] if tree is None else [tree])]:
            root = pathlib.Path(directory)
            if not root.is_dir():
                raise ConfigError(f"{directory}: no such directory: give the one that holds the runs")
            for place in sorted(root.rglob(FILE_NAME)):
                self._add(place, place.parent.relative_to(root).as_posix())

    def _add(self, place: pathlib.Path, name: str) -> None:
        from marin.speedrun.verification import known_runs_of

        with contextlib.suppress(ResultsError):
            self._found.append((place.parent.resolve(), name, known_runs_of(place, name)))

    def of_others(self, directory: pathlib.Path) -> "list[KnownRun]":
        """Every known run but those of the submission in a directory, and of its earlier version."""
        own = directory.resolve()
        name = own.relative_to(self._tree).as_posix() if self._tree else None
        return [run for place, other, runs in self._found if place != own and other != name for run in runs]


def _as_json(path: str, problem: str | None, verdicts: "list[tuple[RunInfo, Verdict]]") -> dict[str, Any]:
    from marin.speedrun.verdict import DOES_NOT_PROVE

    runs = [
        {
            "author": info.author.name,
            "seed": info.seed,
            "level": verdict.level,
            "counts": verdict.counts,
            "sound": verdict.sound,
            **verdict.model_dump(mode="json"),
        }
        for info, verdict in verdicts
    ]
    return {"path": path, "unreadable": problem, "runs": runs, "does_not_prove": DOES_NOT_PROVE}


def _show(path: str, problem: str | None, verdicts: "list[tuple[RunInfo, Verdict]]") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from marin.speedrun.verdict import DOES_NOT_PROVE
    from marin.speedrun.verification.texts import printable

    console = Console(highlight=False)
    if problem is not None:
        # The terminal wraps these: a path that we fold is one that cannot be copied.
        console.print(Text.assemble((f"{printable(path)}: not even parsed", "bold red")), soft_wrap=True)
        console.print(Text(f"  x {printable(problem)}"), soft_wrap=True)
        return
    for number, (info, verdict) in enumerate(verdicts):
        name = path if len(verdicts) == 1 else f"{path}, run {number}"
        console.print(Text.assemble((printable(name), "bold"), f"  by {printable(info.author.name)}"), soft_wrap=True)
        for word, said in (("withdrawn", verdict.withdrawn), ("challenged", verdict.challenged)):
            if said is not None:
                console.print(Text(f"  {word}: {printable(said)}", "bold yellow"))
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
        table.add_column(width=14)
        table.add_column(width=7)
        table.add_column(overflow="fold")
        for rung in verdict.rungs:
            mark, style = _MARKS.get(rung.word, (rung.word, "bold red"))
            lines = Text()
            for finding in rung.findings[:_MOST_SHOWN]:
                sign, color = _SIGNS[finding.severity]
                corrected = "" if finding.corrected is None else f" (corrected: {finding.corrected:.6g})"
                lines.append(f"{sign} ", color)
                lines.append(f"{printable(finding.message)}{corrected}\n")
            if len(rung.findings) > _MOST_SHOWN:
                lines.append(f"and {len(rung.findings) - _MOST_SHOWN} more: --json shows all\n")
            if rung.outcome == "passed":
                lines.append(f"does not prove {DOES_NOT_PROVE[rung.rung]}", "dim")
            elif rung.rung == "statistics":
                lines.append(
                    "judged beside the other entries of a track: `marin submit` and the leaderboard say how", "dim"
                )
            elif not rung.findings:
                lines.append(f"not checked; would not prove {DOES_NOT_PROVE[rung.rung]}", "dim")
            lines.rstrip()
            table.add_row(Text(f"  {rung.rung}"), Text(mark, style), lines)
        console.print(table)
        reached = f"reached: {verdict.level}" if verdict.level else "reached: no rung"
        if passed_over := verdict.passed_over:
            reached += f", with {' and '.join(passed_over)} open"
        console.print(Text(f"  {reached}{'' if verdict.sound else '; not sound as it stands'}\n", "bold"))
