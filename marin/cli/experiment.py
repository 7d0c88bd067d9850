"""`marin experiment new SLUG`: a preregistration, as the body of an issue, and an experiment that runs as it stands."""

import argparse
import math
import pathlib
import re
import shlex
import sys

from marin.cli import checkout, experiment_skeleton
from marin.errors import ConfigError
from marin.speedrun.statistics.preregistration import check_slug
from marin.storage import exclusive, files

HELP = """\
Begin an experiment: write down what is asked and what decides, before anything runs.

`marin experiment new SLUG` writes experiments/expN_SLUG.py, which runs as it stands at CPU size, and beside it
expN_SLUG.md, the preregistration as the body of an issue. What no flag says is asked for on a terminal."""

_FIELDS = {  # flag -> what is asked
    "question": "What do you want to know",
    "hypothesis": "What do you expect, as a sentence that can be wrong",
    "metric": "Which figure decides, with its unit",
    "stopping_rule": "How many runs, and when do you stop",
}

_LARGEST_NUMBER = 9_999_999


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="new", required=True)
    new = actions.add_parser("new", help="write the two files", description=HELP)
    new.add_argument("slug", metavar="SLUG", help="small letters, digits and underscores, such as tied_head")
    new.add_argument("--question", help="what you want to know")
    new.add_argument("--hypothesis", help="what you expect, as a sentence that can be wrong")
    new.add_argument("--metric", help="the figure that decides, such as 'bits per byte'")
    new.add_argument("--stopping-rule", help="how many runs, and when you stop")
    new.add_argument("--effect", type=float, default=0.0, help="the least difference that counts; default: any")
    new.add_argument("--number", type=int, help="that of its issue; default: the next free one")


def run(args: argparse.Namespace) -> int:
    slug = check_slug(args.slug.strip().replace("-", "_"))
    root = checkout.require_checkout()
    folder = root / "experiments"
    number = _number(args.number, folder)
    if not math.isfinite(args.effect) or args.effect < 0:
        raise ConfigError(f"--effect is {args.effect}: give a number of at least 0, in the unit of the metric")
    plan = experiment_skeleton.Plan(number=number, slug=slug, effect=args.effect, **_answers(args))
    module, issue = folder / f"{plan.name}.py", folder / f"{plan.name}.md"
    same_slug = (path for path in existing_numbers(folder).values() if path.stem.partition("_")[2] == slug)
    for path in (module, issue, *same_slug):
        if path.exists():
            raise _there_already(path)
    with files.placed_by("clone"):
        _create(module, experiment_skeleton.module_text(plan))
        _create(issue, experiment_skeleton.issue_text(plan))
    print(
        f"created experiments/{module.name}\n"
        f"created experiments/{issue.name}\n\n"
        "next, from the repository's root:\n"
        "  # announce it before it runs\n"
        f"  gh issue create --title {shlex.quote(f'exp{number}: {plan.question}')} --body-file experiments/{issue.name}\n"
        "  # what would run; trains nothing\n"
        f"  python -m experiments.{plan.name} --dry_run true --prefix local_store\n"
        "  # run it; the same command resumes after an interruption\n"
        f"  python -m experiments.{plan.name} --prefix local_store\n"
        "  # its report, also while it runs\n"
        f"  marin report exp{number} --prefix local_store"
    )
    return 0


def existing_numbers(folder: pathlib.Path) -> dict[int, pathlib.Path]:
    """The experiments of a folder by their numbers."""
    found = {path: re.match(r"exp(\d+)_", path.name) for path in sorted(folder.glob("exp*_*.py"))}
    return {int(match[1]): path for path, match in found.items() if match}


def _number(wanted: int | None, folder: pathlib.Path) -> int:
    taken = existing_numbers(folder)
    if wanted is None:
        return max((number for number in taken if number <= _LARGEST_NUMBER), default=0) + 1
    if wanted < 1:
        raise ConfigError(f"--number is {wanted}: give that of the issue, at least 1")
    if wanted > _LARGEST_NUMBER:  # the next free one would have as many digits
        raise ConfigError(
            f"--number has {len(str(wanted))} digits: give that of the issue, at most {_LARGEST_NUMBER:,}"
        )
    if wanted in taken:
        raise ConfigError(f"--number {wanted} is taken by {taken[wanted].name}: leave it out for the next free one")
    return wanted


def _there_already(path: pathlib.Path) -> ConfigError:
    return ConfigError(f"{path} is there already: choose another slug, or edit that experiment")


def _answers(args: argparse.Namespace) -> dict[str, str]:
    """What the flags say; on a terminal the rest is asked for.

    Raises:
        ConfigError: a field is missing or empty; the message names its flag.
    """
    answers, missing = {}, []
    for field, question in _FIELDS.items():
        flag = "--" + field.replace("_", "-")
        text = getattr(args, field)
        if text is None and sys.stdin.isatty():
            text = _ask(question)
        text = " ".join((text or "").split())
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise ConfigError(f"{flag} is not valid UTF-8: type it again in a UTF-8 terminal") from None
        answers[field] = text
        if not text:
            missing.append(flag)
    if missing:
        raise ConfigError(
            f"a preregistration needs {', '.join(missing)}: what is not written down before the run cannot be held against it"
        )
    return answers


def _ask(question: str) -> str:
    try:
        return input(f"{question}? ")
    except EOFError:
        return ""


def _create(path: pathlib.Path, text: str) -> None:
    if not exclusive.create(str(path), text.encode()):
        raise _there_already(path)
