"""`marin verify --evaluate` and `--rerun`: what executes submitted code, and writes down what came out to be signed."""

import argparse
import datetime
import json
import pathlib
import sys
import tempfile
from typing import TYPE_CHECKING

from marin.errors import ConfigError

if TYPE_CHECKING:
    from marin.speedrun.verification import Submission
    from marin.speedrun.verification.statements import Kind, Measured

DEFAULT_TIMEOUT = 24 * 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what runs the submission's code, in a sandbox, never in CI")
    group.add_argument("--evaluate", metavar="RUN_DIR", help="score the checkpoint in the run's directory again")
    group.add_argument(
        "--rerun",
        type=int,
        metavar="N",
        help="train again from the same commit: the claimed seed for 1, else N further seeds",
    )
    group.add_argument(
        "--trust-code", action="store_true", help="needed for both: you have read the code and let it run"
    )
    group.add_argument(
        "--data", metavar="PREFIX", help="a store of yours with the corpora, tokenizers and caches that need a network"
    )
    group.add_argument(
        "--eval-bundle",
        metavar="DIR",
        help="CORE's data, with --evaluate of a run that claims CORE, see scripts.eval_bundle",
    )
    group.add_argument(
        "--statement", metavar="FILE", help="where to write the unsigned statement (default: NAME-KIND.json here)"
    )
    group.add_argument("--timeout", type=float, default=DEFAULT_TIMEOUT, metavar="SECONDS", help="default: a day")


def asked_for(args: argparse.Namespace) -> bool:
    return args.evaluate is not None or args.rerun is not None


def run(args: argparse.Namespace) -> int:
    """Returns 0 where the figures found confirm the claim, 1 where they do not, or do not decide."""
    from marin.cli import checkout
    from marin.speedrun import sandbox
    from marin.speedrun.verification import Submission
    from marin.speedrun.verification.texts import printable

    _check(args)
    sandbox.require()
    repository = pathlib.Path(args.repository) if args.repository else checkout.find_checkout()
    if repository is None:
        raise ConfigError("this is not inside a clone of Marin: give --repository DIR")
    submission = Submission.read(args.path[0])
    kind: Kind = "re-evaluation" if args.evaluate is not None else "re-run"
    print(f"sandbox: {sandbox.ISOLATION}")
    measured = _measure(submission, repository, args)
    outcomes, words = _outcomes(submission, measured, kind)
    confirmed = "differs" not in outcomes
    place, figures = _write(submission, measured, kind, confirmed, args.statement)
    for item in measured:
        figures_found = ((item.bits_per_byte, "bits per byte"), (item.core, "CORE"))
        said = ", ".join(f"{json.dumps(value)} {name}" for value, name in figures_found if value is not None)
        print(f"run {item.run}, seed {item.seed}: {said}")
    decided = outcomes == {"agrees"}
    print(f"{'confirmed' if decided else 'NOT decided' if confirmed else 'NOT confirmed'}: {printable(words)}")
    print(f"unsigned statement: {place}")
    refuted = "" if confirmed else " --refuted"
    print(f"sign it: marin sign {args.path[0]} --key ~/.ssh/id_ed25519 --kind {kind} --measured {figures}{refuted}")
    return 0 if decided else 1


def _check(args: argparse.Namespace) -> None:
    if not args.trust_code:
        raise ConfigError("this runs the submission's code: read it, then add --trust-code")
    if len(args.path) != 1 or (args.evaluate is not None and args.rerun is not None):
        raise ConfigError("give one submission, and one of --evaluate RUN_DIR and --rerun N")
    if args.rerun is not None and not 1 <= args.rerun <= 100:
        raise ConfigError(f"--rerun is {args.rerun}: use a number from 1 to 100")
    for flag, value, what in (
        ("--evaluate", args.evaluate, "the author's run, such as local_store/checkpoints/speedrun/NAME-1a2b3c4d"),
        ("--data", args.data, "a prefix of yours, such as local_store"),
        ("--eval-bundle", args.eval_bundle, "what `python -m scripts.eval_bundle` made"),
    ):
        if value is not None and not pathlib.Path(value).is_dir():
            raise ConfigError(f"{flag} is {value!r}: no such directory: give {what}")


def _measure(submission: "Submission", repository: pathlib.Path, args: argparse.Namespace) -> "list[Measured]":
    """What the submission's code gives in the sandbox."""
    from marin.speedrun import rechecks

    with tempfile.TemporaryDirectory(prefix="marin-recheck-") as folder:
        data = None if args.data is None else pathlib.Path(args.data).resolve()
        workspace = rechecks.prepare(submission, repository, data, pathlib.Path(folder).resolve(), args.timeout)
        if warning := rechecks.warning_of_own_framework(repository, submission.runs[0].git_commit):
            print(warning, file=sys.stderr)
        if args.evaluate is None:
            return rechecks.rerun(submission, args.rerun, workspace)
        bundle = None if args.eval_bundle is None else pathlib.Path(args.eval_bundle).resolve()
        return rechecks.reevaluate(submission, pathlib.Path(args.evaluate), workspace, bundle)


def _outcomes(submission: "Submission", measured: "list[Measured]", kind: "Kind") -> tuple[set[str], str]:
    """What the figures say of the claims, and why in words."""
    from marin.speedrun.verification.judgement import judge

    judgements = [judge(submission.runs, number, measured, kind) for number in sorted({item.run for item in measured})]
    outcomes: set[str] = {judgement.outcome for judgement in judgements if judgement is not None}
    words = "; ".join(judgement.words for judgement in judgements if judgement is not None)
    for item in measured:
        claimed = submission.runs[item.run].evaluation
        stated = None if claimed is None else claimed.digest
        if item.bits_per_byte is None:
            continue
        if stated is None:  # which documents are read says the submission's code
            outcomes, words = outcomes | {"undecided"}, f"{words}, on documents of which the claim has no digest"
        elif stated != item.evaluation_digest:
            return {"differs"}, f"{words}, on other evaluation documents than the claim's"
    return outcomes, words


def _write(
    submission: "Submission", measured: "list[Measured]", kind: "Kind", confirmed: bool, statement: str | None
) -> tuple[pathlib.Path, pathlib.Path]:
    """Writes the unsigned statement and the figures beside it, and says where."""
    from marin.speedrun.verification.statements import Predicate, make_statement
    from marin.storage import files

    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    commit = submission.runs[measured[0].run].git_commit
    predicate = Predicate(date=today, confirmed=confirmed, commit=commit, measured=measured)
    place = pathlib.Path(statement or f"{submission.directory.resolve().name}-{kind}.json")
    figures = place.with_name(f"{place.stem}-measured.json")
    with files.placed_by("--statement"):
        files.write_bytes(str(place), make_statement(submission, kind, predicate) + b"\n")
        files.write_json(str(figures), [item.model_dump(mode="json", exclude_none=True) for item in measured])
    return place, figures
