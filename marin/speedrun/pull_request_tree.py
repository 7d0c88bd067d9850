"""The submissions of a pull request, taken out of git as data: `python -m marin.speedrun.pull_request_tree --base B --head H --into DIR`.

Run in a clone of the base branch that has the head's commits as objects. The head is never checked out: each file below a
changed `experiments/speedrun/NAME/` is read from its blob and written as a plain file, never executable, below `DIR/tree/`. Links,
submodules, odd names, rows that are taken out and too much of anything are refused. What the next command needs is written beside:

    DIR/tree/NAME/...     the files of each changed submission, whole, as the pull request has them
    DIR/known/NAME/...    the results and logs of the base branch's submissions, against which repetitions are found
    DIR/submissions       each directory within them that has results, as a path ended by a NUL

What a request changes is what merging it changes: a path is its own where it differs both from the base branch and from one of the
commits at which the two parted, of which a history of merges may have several.

The exit status is 1 where something is refused. What no program can judge is named for a person to look at: changes to submissions
that stand already, to whose word counts, and to anything that is no submission. Nothing of the head is imported, and no git filter or
hook of it runs.
"""

import argparse
import dataclasses
import os
import pathlib
import subprocess
import sys

from marin.errors import ResultsError, clean_exit
from marin.speedrun.importers.results_tree import run_name_of
from marin.speedrun.results import FILE_NAME, RunInfo, load_results, plain_name
from marin.speedrun.standing_rows import changed_figures, missing_runs
from marin.speedrun.verification.submission import MAX_TREE_BYTES, MAX_TREE_DEPTH, MAX_TREE_FILES
from marin.speedrun.verification.texts import mixed_scripts, printable, skeleton
from marin.tracking.run_record import METRICS_FILE, RUN_FILE

ROOT = "experiments/speedrun"
_SIGNERS = f"{ROOT}/allowed_signers"
_OBJECTIONS = ("challenge.json", "withdrawn.json")
_EVIDENCE = (FILE_NAME, METRICS_FILE, RUN_FILE)  # all that a run is recognised by
# What git reads in a checkout: the board would read other bytes than were validated.
_OBEYED = (".git", ".gitattributes", ".gitmodules")
# NAME#1 is how the board calls the first of several runs of a file.
_NO_SIGNS = "\\:#"
_MOST_NAMED = 5
_AT_ONCE = 200  # files that are read from git together
MAX_FILE_BYTES = 32 * 2**20
_PLAIN_FILES = ("100644", "100755")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A file of a commit's tree."""

    mode: str
    digest: str
    size: int
    path: str


@dataclasses.dataclass(frozen=True)
class Extracted:
    """The names of the changed submissions, what was refused, and what a person has to look at."""

    names: list[str]
    refused: list[str]
    to_look_at: list[str]


def extract(base: str, head: str, into: pathlib.Path, repository: pathlib.Path) -> Extracted:
    """Writes what the module says.

    Raises:
        ResultsError: if git does not know the commits.
    """
    changed = _changed_paths(repository, base, head)
    names = sorted({name for path in changed if (name := _submission_of(path))})
    in_base = {entry.path: entry for entry in _tree(repository, base, ROOT)}
    in_head = {entry.path: entry for entry in _tree(repository, head, ROOT)}
    problems = [
        f"{shown(path)} is {'changed' if path in in_head else 'removed'}: {why}"
        for path in changed
        if path in in_base and (why := _why_it_stays(path, removed=path not in in_head))
    ]
    problems += [
        f"{shown(path)} {why}" for path in changed if path in in_head and (why := _why_no_row(path)) is not None
    ]
    wanted = [entry for entry in in_head.values() if _submission_of(entry.path) in names]
    taken, refused = _choose(wanted)
    problems += refused
    _write(repository, taken, into / "tree")
    # Those that change as well: a copy must not pass because the same request changes what it copies.
    known = [e for e in in_base.values() if e.path.rpartition("/")[2] in _EVIDENCE and _problem(e) is None]
    _write(repository, known, into / "known")
    # Only of files that the request changes: the base branch may have had new runs since the request began.
    results = [path.removeprefix(f"{ROOT}/") for path in changed if path in in_base and path.endswith(f"/{FILE_NAME}")]
    changes = []
    with_results = _results_below(into / "tree")
    standing = _authors_in(into / "known")
    for name in names:
        before = _runs_in([into / "known" / path for path in results if path.startswith(f"{name}/")])
        after = _runs_in([path for path in with_results if path.relative_to(into / "tree").parts[0] == name])
        if after is None:  # what cannot be read fails where it is verified
            continue
        changes += _of_known_authors(name, after, standing)
        if not before:
            continue
        if problem := _rows_taken_out(name, before, after):
            problems.append(problem)
        if figures := changed_figures(before, after):
            changes.append(f"{shown(name)}: rows of the board say otherwise: {_named(figures)}")
    listing = b"".join(os.fsencode(path.parent) + b"\0" for path in with_results)
    (into / "submissions").write_bytes(listing)
    rows = {path.parent.relative_to(into / "tree").as_posix() for path in with_results}
    return Extracted(names, problems, [*_to_look_at(changed, set(in_base), rows), *changes])


def _changed_paths(repository: pathlib.Path, base: str, head: str) -> list[str]:
    """The paths that merging the request would change, in git's order.

    Raises:
        ResultsError: if git does not know the commits, or they share none.
    """
    parted = _git(repository, "merge-base", "--all", base, head).split()
    # With several, as after a merge of a merge, git's own three dots look at one of them alone.
    by_request = {path for commit in parted for path in _differing(repository, commit, head)}
    return [path for path in _differing(repository, base, head) if path in by_request]


def _differing(repository: pathlib.Path, one: str, other: str) -> list[str]:
    said = _git(repository, "diff", "--name-only", "-z", "--no-renames", one, other)
    return [path for path in said.split("\0") if path]


def _results_below(directory: pathlib.Path) -> list[pathlib.Path]:
    """Results files at any depth, as the board searches for them; a directory may have their name too."""
    return sorted(path for path in directory.rglob(FILE_NAME) if path.is_file())


def _submission_of(path: str) -> str | None:
    """The name of the submission in whose directory a path of the repository lies."""
    parts = path.split("/")
    return parts[2] if path.startswith(f"{ROOT}/") and len(parts) > 3 else None


def _why_it_stays(path: str, *, removed: bool) -> str | None:
    """Why a file of the base branch may not be removed or changed; None where it may."""
    name = path.rpartition("/")[2]
    if name == FILE_NAME and removed:
        return f"rows are never deleted; a submission is withdrawn with {ROOT}/NAME/withdrawn.json"
    if name in _OBJECTIONS or "statements" in path.split("/")[3:-1]:
        return "what was said of a submission stays; maintainers take it back in a commit of their own"
    return None


def _why_no_row(path: str) -> str | None:
    """Why results are not where the board and this validation both look for a submission; None where they are."""
    *directories, name = path.split("/")
    if name != FILE_NAME or not path.startswith(f"{ROOT}/"):
        return None
    if _submission_of(path) is None:
        return f"lies in no directory of its own: put it into {ROOT}/NAME/"
    if any(part.startswith(".") for part in directories):
        return "lies in a hidden directory, where the board does not look: rename it"
    return None


def _rows_taken_out(name: str, before: list[RunInfo], after: list[RunInfo]) -> str | None:
    gone = len(missing_runs(before, after))
    if not gone:
        return None
    return (
        f"{shown(name)}: {gone:,} of the {len(before):,} runs that stand on the board are gone from its results: rows are never"
        " deleted; put new runs beside them, or under a name of their own"
    )


def _runs_in(files: list[pathlib.Path]) -> list[RunInfo] | None:
    try:
        return [info for path in files for info in load_results(path)]
    except ResultsError:
        return None


def _authors_in(known: pathlib.Path) -> dict[str, set[str]]:
    """The directories of the board's submissions by their authors' plain names."""
    found: dict[str, set[str]] = {}
    for path in sorted(known.rglob(FILE_NAME)):
        for info in _runs_in([path]) or ():
            found.setdefault(plain_name(info.author.name), set()).add(path.relative_to(known).parts[0])
    return found


def _of_known_authors(name: str, runs: list[RunInfo], standing: dict[str, set[str]]) -> list[str]:
    """Authors of a submission who stand on the board with others alone: anybody can write a name into a file."""
    found = []
    for author in sorted({run.author.name for run in runs}):
        others = standing.get(plain_name(author), set())
        if others and name not in others:
            found.append(
                f"{shown(name)} is by {shown(author)}, as {shown(min(others))} of the board: does that author ask for this?"
            )
    return found


def _to_look_at(changed: list[str], in_base: set[str], rows: set[str]) -> list[str]:
    """Args:
    rows: the directories below `ROOT` that have results in the request.
    """
    found = []
    inside: dict[str, list[str]] = {}
    others = []
    for path in changed:
        if name := _submission_of(path):
            inside.setdefault(name, []).append(path.split("/", 3)[3])
        elif path != _SIGNERS:
            others.append(path)
    standing = {name for path in in_base if path.endswith(f"/{FILE_NAME}") and (name := _submission_of(path))}
    for name in sorted(inside.keys() & standing):
        said = f"{shown(name)} stands on the board already: does its author ask for this? {_named(inside[name])}"
        found.append(said)
    on_board = {path.removeprefix(f"{ROOT}/").rpartition("/")[0] for path in in_base if path.endswith(f"/{FILE_NAME}")}
    looks = {skeleton(run_name_of(place)): place for place in on_board}
    for place in sorted((rows | (inside.keys() - standing)) - on_board):
        if (other := looks.get(skeleton(run_name_of(place)))) is not None:
            found.append(f"{shown(place)} looks like {shown(other)}, which stands on the board already")
    if _SIGNERS in changed:
        found.append(f"{_SIGNERS} says whose word counts")
    if others:
        found.append(f"files that belong to no submission: {_named(_by_directory(others))}")
    return found


def _by_directory(paths: list[str]) -> list[str]:
    """Paths as they are where they are few, else by their first directory, the one with the fewest first: a lone one is not to be lost."""
    if len(paths) <= _MOST_NAMED:
        return paths
    groups: dict[str, list[str]] = {}
    for path in paths:
        groups.setdefault(path.partition("/")[0], []).append(path)
    ordered = sorted(groups.items(), key=lambda group: (len(group[1]), group[0]))
    return [inside[0] if len(inside) == 1 else f"{top}/ ({len(inside):,} files)" for top, inside in ordered]


def _named(paths: list[str]) -> str:
    more = f" and {len(paths) - _MOST_NAMED:,} more" if len(paths) > _MOST_NAMED else ""
    return ", ".join(map(shown, paths[:_MOST_NAMED])) + more


def _choose(entries: list[Entry]) -> tuple[list[Entry], list[str]]:
    """The entries that can be written as plain files, and why the others cannot."""
    taken: list[Entry] = []
    problems: list[str] = []
    size = 0
    for entry in sorted(entries, key=lambda entry: entry.path):
        if problem := _problem(entry):
            problems.append(f"{shown(entry.path)} {problem}")
            continue
        size += entry.size
        taken.append(entry)
    if len(taken) > MAX_TREE_FILES or size > MAX_TREE_BYTES:
        limit = f"at most {MAX_TREE_FILES:,} and {MAX_TREE_BYTES // 2**20} MiB: leave checkpoints and data out"
        return [], [*problems, f"{len(taken):,} files of {size / 2**20:,.1f} MiB in all, {limit}"]
    return taken, problems


def _problem(entry: Entry) -> str | None:
    if entry.mode == "120000":
        return "is a symbolic link: put the file itself there"
    if entry.mode not in _PLAIN_FILES:
        return "is no plain file (a submodule?): leave it out"
    parts = entry.path.split("/")
    if len(parts) > MAX_TREE_DEPTH:
        return f"lies more than {MAX_TREE_DEPTH} directories deep"
    if any(part in ("", ".", "..") for part in parts):
        return "has a path that leads elsewhere"
    if any(part.lower() in _OBEYED for part in parts):
        return "is obeyed by git, which then checks out other bytes: leave it out"
    if (
        not entry.path.isprintable()
        or any(sign in entry.path for sign in _NO_SIGNS)
        or any(len(os.fsencode(part)) > 200 for part in parts)
    ):
        return (
            "has a name with control characters, a backslash, a colon or a number sign, or a very long one: rename it"
        )
    if (mixed := mixed_scripts(entry.path)) is not None:
        return f"has a name whose word {mixed[0].encode('unicode_escape').decode()} mixes {mixed[1]} letters: rename it"
    if entry.size > MAX_FILE_BYTES:
        return f"has {entry.size / 2**20:,.0f} MiB, at most {MAX_FILE_BYTES // 2**20}"
    return None


def _write(repository: pathlib.Path, entries: list[Entry], directory: pathlib.Path) -> None:
    """Writes blobs as plain files; `experiments/speedrun/` is left off their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    for start in range(0, len(entries), _AT_ONCE):
        _write_at_once(repository, entries[start : start + _AT_ONCE], directory)


def _write_at_once(repository: pathlib.Path, entries: list[Entry], directory: pathlib.Path) -> None:
    wanted = "".join(f"{entry.digest}\n" for entry in entries).encode()
    done = subprocess.run(
        ["git", "cat-file", "--batch"], cwd=repository, input=wanted, capture_output=True, timeout=300, check=True
    )
    position = 0
    for entry in entries:
        end = done.stdout.index(b"\n", position)
        size = int(done.stdout[position:end].split()[2])
        path = directory.joinpath(*entry.path.split("/")[2:])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(done.stdout[end + 1 : end + 1 + size])
        position = end + size + 2


def _tree(repository: pathlib.Path, commit: str, under: str) -> list[Entry]:
    entries = []
    for line in _git(repository, "ls-tree", "-r", "-z", "-l", "--full-tree", commit, "--", f"{under}/").split("\0"):
        if line:
            facts, _, path = line.partition("\t")
            mode, _, digest, size = facts.split()
            entries.append(Entry(mode, digest, 0 if size == "-" else int(size), path))
    return [entry for entry in entries if entry.path.count("/") > 1]


def _git(repository: pathlib.Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=repository, capture_output=True, timeout=300, check=True)
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        raise ResultsError(f"git {arguments[0]} failed ({said}): fetch the pull request's commits first") from None
    return done.stdout.decode("utf-8", "surrogateescape")


def shown(path: str) -> str:
    return printable(path)[:200]


def main() -> int:
    parser = argparse.ArgumentParser(description="Take the submissions of a pull request out of git, as data.")
    parser.add_argument("--base", required=True, help="commit of the base branch")
    parser.add_argument("--head", required=True, help="commit of the pull request")
    parser.add_argument("--into", required=True, type=pathlib.Path, help="a new directory")
    args = parser.parse_args()
    if args.into.exists():
        raise ResultsError(f"{args.into} is there already: give a new directory")
    extracted = extract(args.base, args.head, args.into.resolve(), pathlib.Path.cwd())
    print(f"submissions that change: {', '.join(map(shown, extracted.names)) or 'none'}")
    for change in extracted.to_look_at:
        print(f"look at: {change}")
    for problem in extracted.refused:
        print(f"refused: {problem}")
    return 1 if extracted.refused else 0


if __name__ == "__main__":
    with clean_exit():
        sys.exit(main())
