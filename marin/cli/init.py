"""`marin init NAME`: a speedrun of your own, ready to edit, from the hackable transformer template.

The author's name, page and branch come from git and gh where they are known; the rest is asked for when a person is at the
terminal. Without one nothing is asked: what stays open is listed with its line.
"""

import argparse
import dataclasses
import itertools
import keyword
import pathlib
import re
import sys
from typing import TextIO

from marin.cli import checkout, starter
from marin.errors import ConfigError, StorageError
from marin.storage import files

HELP = "Copy the starter template to experiments/speedrun/NAME/main.py and fill in the author."

TEMPLATE = "experiments/hackable_transformer_starter_template.py"
_DEFAULT_AFFILIATION = "Independent"
_LONGEST_NAME = 64  # run names are cut there


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a Python identifier such as my_idea; dashes become underscores")
    parser.add_argument("--author-name", help="default: git's user.name")
    parser.add_argument("--affiliation", help=f"asked for; default: {_DEFAULT_AFFILIATION}")
    parser.add_argument("--url", help="your page; default: your GitHub profile where git or gh names it")
    parser.add_argument("--description", help="one line on the idea; asked for")
    parser.add_argument("--template", type=pathlib.Path, metavar="PATH", help=f"default: {TEMPLATE}")
    parser.add_argument("--force", action="store_true", help="replace an existing main.py (kept as main.py.bak)")


@dataclasses.dataclass(frozen=True)
class Answer:
    """One value for the template and where it came from; a text of None leaves the field to the user."""

    text: str | None
    source: str


def submission_name(name: str) -> str:
    """`name` as a Python package name.

    Raises:
        ConfigError: if it cannot be one.
    """
    cleaned = name.strip().replace("-", "_")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", cleaned) or keyword.iskeyword(cleaned) or cleaned.strip("_") == "":
        raise ConfigError(
            f"NAME is {name!r}, which cannot name a Python package: use letters, digits and underscores, "
            f"starting with a letter, such as `marin init my_idea`"
        )
    if len(cleaned) > _LONGEST_NAME:
        raise ConfigError(f"NAME has {len(cleaned)} characters: use at most {_LONGEST_NAME}")
    return cleaned


def _checked(text: str, field: str) -> str:
    text = " ".join(text.split())  # one line
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigError(f"{field} is not valid UTF-8: type it again in a UTF-8 terminal") from None
    if not text:
        raise ConfigError(f"{field} is empty: give a value, or leave the flag out")
    if text in {starter.AUTHOR_NAME, starter.AFFILIATION, starter.URL, starter.DESCRIPTION}:
        raise ConfigError(f"{field} is still the placeholder {text!r}: give the real one")
    return text


def _checked_url(text: str) -> str:
    text = _checked(text, "--url")
    if not re.fullmatch(r"https?://[^\s\"'<>\\]+", text):
        raise ConfigError(f"--url is {text!r}: give a web address that starts with https://, or leave it out")
    return text


def _ask(question: str, default: str) -> str:
    suffix = f" [{default}]" if default else " [leave for later]"
    try:
        return input(f"{question}{suffix}: ").strip() or default
    except EOFError:
        return default


def _answer(flag: str | None, field: str, question: str, found: Answer, ask: bool) -> Answer:
    if flag is not None:
        return Answer(_checked(flag, field), "given")
    if ask:
        reply = _ask(question, found.text or "")
        return Answer(_checked(reply, field), "given") if reply and reply != found.text else found
    return found


def _known_author(root: pathlib.Path) -> Answer:
    name = checkout.git_config("user.name", root)
    return Answer(name, "git config user.name") if name else Answer(None, "git config user.name is unset")


def _known_url(root: pathlib.Path) -> Answer:
    email = checkout.git_config("user.email", root) or ""
    login = re.fullmatch(r"(?:\d+\+)?([A-Za-z0-9-]+)@users\.noreply\.github\.com", email)
    if login:
        return Answer(f"https://github.com/{login[1]}", "git config user.email")
    fork = re.search(r"github\.com[:/]([A-Za-z0-9-]+)/", checkout.git_config("remote.origin.url", root) or "")
    if fork and fork[1] != "marin-community":
        return Answer(f"https://github.com/{fork[1]}", "your fork")
    profile = checkout.run_quietly(["gh", "api", "user", "--jq", ".html_url"], root, seconds=5)
    if profile and profile.startswith("https://"):
        return Answer(profile, "gh")
    return Answer(None, "none; --url or edit")


def _collect(args: argparse.Namespace, root: pathlib.Path, ask: bool) -> dict[str, Answer]:
    author = _known_author(root) if args.author_name is None else Answer(None, "")
    url = _known_url(root) if args.url is None else Answer(_checked_url(args.url), "given")
    if ask and args.url is None and url.text is None:
        reply = _ask("Your web page", "")
        url = Answer(_checked_url(reply), "given") if reply else url
    affiliation = Answer(_DEFAULT_AFFILIATION, "default; --affiliation or edit")
    return {
        # What git knows is not asked again.
        starter.AUTHOR_NAME: _answer(args.author_name, "--author-name", "Your name", author, ask and not author.text),
        starter.AFFILIATION: _answer(args.affiliation, "--affiliation", "Your affiliation", affiliation, ask),
        starter.URL: url,
        starter.DESCRIPTION: _answer(args.description, "--description", "Your idea in one line", Answer(None, ""), ask),
    }


def _read_template(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(
            f"the template {path} cannot be read ({error.__class__.__name__}): "
            f"restore it with `git checkout -- {TEMPLATE}`, or pass --template PATH"
        ) from None


def _free_backup(target: pathlib.Path) -> pathlib.Path:
    candidates = (target.with_name(f"{target.name}.bak{number or ''}") for number in itertools.count())
    return next(path for path in candidates if not path.exists())


def _write(directory: pathlib.Path, text: str) -> None:
    """Writes the package's files, each whole or not at all; an older main.py is kept beside."""
    target = directory / "main.py"
    data = text.encode("utf-8")
    if target.exists() and target.read_bytes() != data:
        files.write_bytes(str(_free_backup(target)), target.read_bytes())
    files.write_bytes(str(target), data)
    if not (directory / "__init__.py").exists():
        files.write_bytes(str(directory / "__init__.py"), b"")


def _report(name: str, text: str, answers: dict[str, Answer], out: TextIO) -> None:
    module, directory = f"experiments.speedrun.{name}.main", f"experiments/speedrun/{name}"
    lines = [f"created {directory}/main.py"]
    open_lines = dict(reversed(starter.remaining_placeholders(text)))  # the first line of each
    labels = {starter.AUTHOR_NAME: "author", starter.AFFILIATION: "affiliation", starter.URL: "url"}
    for placeholder, label in {**labels, starter.DESCRIPTION: "description"}.items():
        answer = answers[placeholder]
        if placeholder in open_lines:
            shown, note = "left for you to fill", f"line {open_lines[placeholder]}"
        else:
            shown, note = answer.text or "None", answer.source
        lines.append(f"  {label:<12} {shown}" + (f"  ({note})" if note not in {"", "given"} else ""))
    if "TODO" in text:
        lines.append("  the sections to change are marked TODO")
    lines += [
        "",
        "next, from the repository's root:",
        "  # parameters, FLOPs, cost, and where every output will go; trains nothing",
        f"  python -m {module} --dry_run true --prefix local_store",
        "  # train; the same command resumes after an interruption",
        f"  python -m {module} --force_run_failed true --prefix local_store",
        "  # gather the results, check them, and write the pull request",
        f"  marin submit {directory} --prefix local_store",
    ]
    print("\n".join(lines), file=out)


def run(args: argparse.Namespace) -> int:
    name = submission_name(args.name)
    root = checkout.require_checkout()
    if name != args.name:
        print(f"NAME {args.name!r} becomes {name!r}, so that Python can import it", file=sys.stderr)
    directory = root / "experiments" / "speedrun" / name
    if not args.force and directory.is_dir() and any(path.name != "__init__.py" for path in directory.iterdir()):
        raise ConfigError(f"{directory} has files already: choose another NAME, or write main.py there with --force")
    template = args.template or root / TEMPLATE
    source = _read_template(template)
    answers = _collect(args, root, ask=sys.stdin.isatty())

    values = {placeholder: answer.text for placeholder, answer in answers.items() if answer.text is not None}
    values[starter.BRANCH] = checkout.run_quietly(["git", "branch", "--show-current"], root) or "main"
    values[starter.IMPORT_PATH] = f"experiments.speedrun.{name}.main"
    text = starter.fill_template(source, {starter.URL: None, **values}, str(template))
    with files.placed_by("clone"):
        _write(directory, text)

    if not pathlib.Path.cwd().is_relative_to(root):
        print(f"using the clone at {root}")
    _report(name, text, answers, sys.stdout)
    return 0
