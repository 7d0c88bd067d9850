"""What a person who submits may have overlooked: signs in git and in other submissions, each a note and never a refusal."""

import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from marin.cli import checkout
from marin.errors import ResultsError

if TYPE_CHECKING:
    from marin.speedrun.results import RunInfo


def slips(
    root: pathlib.Path, directory: pathlib.Path, infos: "Sequence[RunInfo]", run_names: Iterable[str]
) -> Iterator[str]:
    """Notes on a submission that is about to be pushed.

    Args:
        run_names: those of its runs, where they are known.
    """
    yield from _of_another_directory(directory, run_names)
    yield from _of_another_author(root, directory, infos)
    if any(info.git_dirty for info in infos):
        yield "a run was made with uncommitted changes: commit the experiment as it ran"
    for commit, dirty in sorted({(info.git_commit, bool(info.git_dirty)) for info in infos if info.git_commit}):
        yield from _since(root, directory, str(commit), dirty)


def _of_another_directory(directory: pathlib.Path, run_names: Iterable[str]) -> Iterator[str]:
    """Runs whose name is that of another submission's directory: results that were copied to the wrong place."""
    others = sorted((path.name for path in directory.parent.iterdir() if path.is_dir()), key=len, reverse=True)
    for name in sorted(run_names):
        whose = next((other for other in others if name == other or name.startswith(f"{other}_")), None)
        if whose is not None and whose != directory.name:
            yield (
                f"the run {name!r} is by its name one of {whose}, not of {directory.name}: are these results in the right directory?"
            )


def _of_another_author(root: pathlib.Path, directory: pathlib.Path, infos: "Sequence[RunInfo]") -> Iterator[str]:
    """Authors who have another submission here and are not who git says is at work: a file that was copied with its author."""
    from marin.speedrun.results import FILE_NAME, load_results

    git_name = checkout.git_config("user.name", root)
    names = {info.author.name for info in infos} - {git_name}
    if git_name is None or not names:
        return
    for path in sorted(directory.parent.glob(f"*/{FILE_NAME}")):
        if path.parent == directory:
            continue
        try:
            theirs = {info.author.name for info in load_results(path)}
        except ResultsError:
            continue
        for name in sorted(names & theirs):
            names.discard(name)
            yield (
                f"the author is {name!r}, as of {path.parent.name}, and git knows you as {git_name!r}: if the file was copied, put your"
                " name into it and run the experiment again: only the results are written anew"
            )


def _since(root: pathlib.Path, directory: pathlib.Path, commit: str, dirty: bool) -> Iterator[str]:
    """Whether the experiment is what a run's commit has, and that commit will be there for others."""
    if checkout.run_quietly(["git", "rev-parse", "--is-shallow-repository"], root) != "false":
        return  # no clone, or one that does not know its history
    if checkout.run_quietly(["git", "merge-base", "--is-ancestor", commit, "HEAD"], root) is None:
        yield (
            f"the commit {commit[:12]} of a run is not part of this branch, so nobody could check it out: push what has it, or say why"
            " in the approach"
        )
    elif not dirty and (changed := _changed(root, directory, commit)):
        yield (
            f"{', '.join(changed[:4])} {'is' if len(changed) == 1 else 'are'} not what the run's commit {commit[:12]} has: hand in the"
            " experiment as it ran, or train again"
        )


def _changed(root: pathlib.Path, directory: pathlib.Path, commit: str) -> list[str]:
    """The Python files of a submission that differ from a commit, or are not in it."""
    own = directory.relative_to(root.resolve()).as_posix()
    tracked = checkout.run_quietly(["git", "diff", "--name-only", "--relative", commit, "--", f"{own}/*.py"], root)
    new = checkout.run_quietly(["git", "ls-files", "--others", "--exclude-standard", "--", f"{own}/*.py"], root)
    return sorted(pathlib.PurePath(line).name for text in (tracked, new) if text for line in text.splitlines())
