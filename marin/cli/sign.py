"""`marin sign`: a signed statement about a submission, which anybody can check without a network."""

import argparse
import datetime
import hashlib
import pathlib

from marin.errors import ConfigError, ResultsError

HELP = """\
Sign a submission with an SSH key: writes DIR/statements/claim-....json, an in-toto statement that names the results and logs by digest.

With --measured FILE the statement is about another's submission: what you found when you scored its checkpoint again
(--kind re-evaluation) or trained it again (--kind re-run). FILE is JSON: [{"run": 0, "bits_per_byte": 1.234}, ...],
or "core" where the run claims CORE by v1.
Whether your word counts is decided by the repository's experiments/speedrun/allowed_signers."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="such as experiments/speedrun/my_run")
    parser.add_argument(
        "--key",
        required=True,
        metavar="FILE",
        help="an SSH key, such as ~/.ssh/id_ed25519, or the .pub file of one that ssh-agent holds",
    )
    parser.add_argument(
        "--kind",
        choices=("claim", "re-evaluation", "re-run"),
        default="claim",
        help="what you say: it is mine (the default), I scored its checkpoint again, or I trained it again",
    )
    parser.add_argument("--measured", metavar="FILE", help="what was found, for a re-evaluation or a re-run")
    parser.add_argument("--refuted", action="store_true", help="the claim was not confirmed")


def run(args: argparse.Namespace) -> int:
    from pydantic import ValidationError

    from marin.speedrun import results, strict_json
    from marin.speedrun.verification import Submission, statements
    from marin.speedrun.verification.submission import STATEMENTS
    from marin.storage import files

    if (args.kind == "claim") == bool(args.measured):
        raise ConfigError("give --measured FILE with --kind re-evaluation or re-run, and leave it out for a claim")
    if args.kind == "claim" and args.refuted:
        raise ConfigError(
            "--refuted is about another's claim: give --kind re-evaluation or re-run, and --measured FILE"
        )
    submission = Submission.read(args.directory)
    try:
        measured = strict_json.read_json(args.measured) if args.measured else []
    except ResultsError as error:
        said = str(error).rpartition(": ")[0]  # without the advice, which is about files that a run writes
        raise ConfigError(f'{said}: write what you found as [{{"run": 0, "bits_per_byte": 1.234}}]') from None
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    try:
        predicate = statements.Predicate.model_validate(
            {
                "date": today,
                "confirmed": not args.refuted,
                "measured": measured,
                "commit": submission.runs[0].git_commit,
            }
        )
    except ValidationError as error:
        raise ConfigError(f"{args.measured}: {results.explain(error)}") from None
    numbers = [item.run for item in predicate.measured]
    if args.measured and (not numbers or max(numbers) >= len(submission.runs)):
        said = f"names run {max(numbers)}" if numbers else "names no run"
        last = len(submission.runs) - 1
        raise ConfigError(
            f"{args.measured} {said}, so the statement would say nothing: {args.directory} has"
            f" {f'the runs 0 to {last}' if last else 'run 0 alone'}"
        )
    content = statements.make_statement(submission, args.kind, predicate)
    signed = statements.envelope(content, pathlib.Path(args.key).expanduser())
    # With the signature in it: another's statement of the same words stays beside this one.
    name = f"{args.kind}-{hashlib.sha256(signed).hexdigest()[:12]}.json"
    place = submission.directory / STATEMENTS / name
    with files.placed_by("DIR"):
        files.write_bytes(str(place), signed)
    print(f"signed: {place}; `marin verify {args.directory}` says what it counts for")
    return 0
