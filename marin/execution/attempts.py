"""Where the attempts at a step write, and how one of them becomes the step's output.

Every attempt has a directory of its own, `{parent}/.attempts/{base}/{n}/{base}` for the output path `{parent}/{base}`, where n is
the number of its claim in the ledger beside it (see `marin.storage.lease`). An owner that was stopped, overtaken, and
wakes up late thus writes where nobody reads, and its commit fails, as the ledger has moved on.

On a local store the usual path is a symlink to the newest attempt's directory until one is committed, so that people
see a run where they expect it. The commit is one conditional put into the ledger; after it the directory gets its
SUCCESS and is renamed to the usual path. A crash between the two is rolled forward by whoever looks next under the
lease. On other stores the output stays where the attempt wrote it, and `.executor_commit` at the usual path says where. Its copy
beside the output says that it was put there once: what is no longer at the usual path was then removed by hand.
"""

import contextlib
import os
import pathlib
import posixpath
import re
import shutil

from marin.errors import StorageError
from marin.execution.status import ATTEMPTS_NAME, COMMIT_NAME, INFO_NAME, Status, read_info, read_status, write_status
from marin.storage import files, lease
from marin.storage.lease import Lease

_OWN_PATH = re.compile(rf"/{re.escape(ATTEMPTS_NAME)}/([^/]+)/\d+/\1(?=/|$)")
# A larger file is one that is written once, such as a part of a checkpoint; a smaller one may be a log that grows.
_COPIED_UP_TO = 64 << 20


def ledger_directory(output_path: str) -> str:
    """Where the ledger and the attempts of the step with this output path lie."""
    parent, base = posixpath.split(output_path)
    return files.join(parent, ATTEMPTS_NAME, base)


def attempt_directory(output_path: str, number: int) -> str:
    """Where the attempt with this claim number writes."""
    return files.join(ledger_directory(output_path), str(number), posixpath.basename(output_path))


def check_directory(output_path: str) -> str:
    """Where a finished step runs once more to be compared (see `marin.execution.checking`)."""
    return files.join(ledger_directory(output_path), "check", posixpath.basename(output_path))


def usual_path(path: str) -> str:
    """`path` with every attempt's directory replaced by the output path that it is for: what to show to people."""
    return _OWN_PATH.sub(r"/\1", path)


def read_step_status(output_path: str) -> Status | None:
    """How the step with this usual path fares: what stands there, else what its newest attempt says of itself.

    An attempt writes its status beside its files, where no other attempt writes, so an owner that was overtaken cannot
    write over the status of the output that was committed. On a local store the usual path is a link to the newest
    attempt; on others only `publish` writes there.

    Raises:
        ExecutionError: the status file holds something else.
    """
    status = read_status(output_path)
    if status is not None or files.is_local(output_path):
        return status
    newest = _newest_attempt(output_path)
    return None if newest is None or _was_published(newest) else read_status(newest)


def interrupted(output_path: str) -> str | None:
    """The directory of the newest attempt, if that began and neither ended nor was committed. For the holder of the lease."""
    if unpublished(output_path) is not None or read_step_status(output_path) is not Status.RUNNING:
        return None
    return _newest_attempt(output_path)


def _newest_attempt(output_path: str) -> str | None:
    numbers = _attempt_numbers(output_path)
    return attempt_directory(output_path, numbers[-1]) if numbers else None


def _attempt_numbers(output_path: str) -> list[int]:
    return sorted(int(name) for name in files.list_dir(ledger_directory(output_path)) if name.isdecimal())


def is_held(output_path: str) -> bool:
    """Whether a process has the step's lease, as far as this machine can tell."""
    state = lease.read_state(ledger_directory(output_path))
    return state is not None and state.kind == "claim" and (state.holder is None or not state.holder.is_dead())


def location(output_path: str) -> str:
    """Where the committed output with this usual path can be read."""
    if files.is_local(output_path):
        return output_path
    commit_path = files.join(output_path, COMMIT_NAME)
    if not files.exists(commit_path):  # not committed, or written by the reference
        return output_path
    commit = files.read_json(commit_path)
    try:
        return str(commit["location"])
    except (TypeError, KeyError):
        raise StorageError(f"{commit_path} names no location: remove {output_path} to run the step again") from None


def begin(output_path: str, number: int, *, adopted_fingerprint: str | None = None) -> str:
    """Makes the directory of attempt `number`, points the usual path to it, and returns it.

    Args:
        adopted_fingerprint: start from the files of the newest earlier attempt with this fingerprint, where
            `can_continue` says so; None starts empty. Either way the directories of earlier attempts are removed.
    """
    own = attempt_directory(output_path, number)
    if files.is_local(output_path):
        with files.explained(output_path, "prepared"):
            _begin_local(output_path, number, adopted_fingerprint)
    else:
        _remove_earlier(output_path, number)
    return own


def can_continue(output_path: str) -> bool:
    """Whether an attempt can start from the files of an earlier one: where directories can be renamed."""
    return files.is_local(output_path)


def is_unfinished(output_path: str) -> bool:
    """Whether what stands at this usual path is an attempt that was not committed; False where that cannot be seen from here."""
    return files.is_local(output_path) and files.local_path(output_path).is_symlink()


def _remove_earlier(output_path: str, number: int) -> None:
    """Removes what earlier attempts left on a store without renames; what was committed stays, as somebody may read it."""
    state = lease.read_commit(ledger_directory(output_path))
    for other in _attempt_numbers(output_path):
        if other < number and (state is None or other != state.attempt):
            files.remove_tree(posixpath.dirname(attempt_directory(output_path, other)))


def _begin_local(output_path: str, number: int, adopted_fingerprint: str | None) -> None:
    directory, usual = (files.local_path(path) for path in (attempt_directory(output_path, number), output_path))
    _set_aside(output_path)
    earlier = _earlier_attempts(output_path, number)
    directory.parent.mkdir(parents=True, exist_ok=True)
    if adopted_fingerprint is not None:
        fitting = [
            other for other in earlier if (read_info(str(other)) or {}).get("fingerprint") == adopted_fingerprint
        ]
        if fitting:
            make_links_relative(str(fitting[-1]))
            os.rename(fitting[-1], directory)
            if not lease.is_over(ledger_directory(output_path), int(fitting[-1].parent.name)):
                _part_from_open_files(directory)
    directory.mkdir(exist_ok=True)
    _point(usual, directory)
    for other in earlier:
        shutil.rmtree(other.parent, ignore_errors=True)


def make_links_relative(own: str) -> None:
    """Links of an attempt to places of its own, such as `latest`, go on leading there when its directory is renamed."""
    if not files.is_local(own):
        return
    root = str(files.local_path(own))
    roots = dict.fromkeys((root, os.path.realpath(root)))
    with files.explained(own, "looked through"):
        for directory, folders, names in os.walk(root):
            for path in (os.path.join(directory, name) for name in (*folders, *names)):
                if not os.path.islink(path):
                    continue
                target = os.readlink(path)
                inside = next((one for one in roots if target == one or target.startswith(f"{one}/")), None)
                if inside is not None:
                    there = os.path.relpath(os.path.join(root, os.path.relpath(target, inside)), directory)
                    link = os.path.join(directory, files.temporary_name(os.path.basename(path)))
                    os.symlink(there, link)
                    os.replace(link, path)


def commit(held: Lease, output_path: str) -> bool:
    """Makes the attempt of the holder the step's output; False if somebody has taken the lease over.

    The attempt's files must have been flushed to the disk.
    """
    number = held.token
    if not held.commit({"attempt": number, "location": attempt_directory(output_path, number)}):
        return False
    publish(output_path, number)
    return True


def publish(output_path: str, number: int) -> None:
    """Puts the output of the committed attempt at the usual path; doing so again does nothing."""
    if not files.is_local(output_path):
        own_path = attempt_directory(output_path, number)
        commit = {"location": own_path, "attempt": number}
        files.write_bytes(files.join(output_path, INFO_NAME), files.read_bytes(files.join(own_path, INFO_NAME)))
        files.write_json(files.join(output_path, COMMIT_NAME), commit)
        write_status(output_path, Status.SUCCESS)
        # Last, or a kill before SUCCESS would lose the commit. Without it, a removal by hand is undone, and all else is as it is.
        with contextlib.suppress(StorageError):
            files.write_json(files.join(own_path, COMMIT_NAME), commit)
        return
    own, usual = _kept(output_path, number), files.local_path(output_path)
    if not _is_at_usual_path(output_path, number):
        # The commit has freed the lease, so another process may do the same at the same time. Whoever is slower fails
        # at one of these calls, as none of them makes or removes a directory. The link goes first: a SUCCESS that could be
        # read through it would have later runs leave it in place.
        try:
            with files.explained(output_path, "put in place"):
                if usual.is_symlink():
                    usual.unlink(missing_ok=True)
                write_status(str(own), Status.SUCCESS, durable=False, make_parents=False)
                os.rename(own, usual)
                files.sync_path(usual.parent)
        except StorageError:
            if not _is_at_usual_path(output_path, number):
                raise
    if read_status(output_path) is not Status.SUCCESS:  # the status had not reached the disk
        write_status(output_path, Status.SUCCESS)
    try:
        os.rmdir(own.parent)  # as a rule it is empty, and this is several times faster than a look for what is in it
    except OSError:
        shutil.rmtree(own.parent, ignore_errors=True)


def unpublished(output_path: str) -> int | None:
    """The number of the attempt that was committed, but whose output is not yet at the usual path; None if all is well.

    None also when a committed output was removed by hand: then there is nothing to publish.
    """
    state = lease.read_commit(ledger_directory(output_path))
    if state is None:
        return None
    own = attempt_directory(output_path, state.attempt)
    if not files.is_local(output_path):
        is_published = read_status(output_path) is Status.SUCCESS and location(output_path) == own
        return state.attempt if not is_published and files.list_dir(own) and not _was_published(own) else None
    if _is_at_usual_path(output_path, state.attempt):
        return None if read_status(output_path) is Status.SUCCESS else state.attempt
    return state.attempt if _kept(output_path, state.attempt).is_dir() else None


def _was_published(own: str) -> bool:
    """Whether the output in this directory of a store without renames has been made known at the usual path."""
    return files.exists(files.join(own, COMMIT_NAME))


def _is_at_usual_path(output_path: str, number: int) -> bool:
    """Whether the local output of this attempt has taken the place of the link."""
    if files.local_path(output_path).is_symlink():
        return False
    return (read_info(output_path) or {}).get("attempt") == number


def _kept(output_path: str, number: int) -> pathlib.Path:
    """Where the local output of a committed attempt waits: in its own directory, or where `_set_aside` took it by mistake."""
    aside = files.local_path(attempt_directory(output_path, 0))
    if (read_info(str(aside)) or {}).get("attempt") == number:
        return aside
    return files.local_path(attempt_directory(output_path, number))


def _set_aside(output_path: str) -> None:
    """Makes a directory at the usual path that no attempt put there (the reference's, or a person's) attempt number 0.

    An owner that was stopped in here and overtaken could meet the committed output instead. It must not take it; and if it
    was stopped between look and rename, it puts it back, which others also do (see `_kept`), should it be killed before.

    Raises:
        StorageError: it was overtaken.
    """
    usual, aside = files.local_path(output_path), files.local_path(attempt_directory(output_path, 0))
    if usual.is_symlink() or not usual.is_dir():
        return
    _refuse_if_committed(output_path, usual)
    aside.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(aside, ignore_errors=True)
    os.rename(usual, aside)
    try:
        _refuse_if_committed(output_path, aside)
    except StorageError:
        number = unpublished(output_path)
        if number is not None:
            publish(output_path, number)
        raise


def _refuse_if_committed(output_path: str, directory: pathlib.Path) -> None:
    state = lease.read_commit(ledger_directory(output_path))
    if state is not None and (read_info(str(directory)) or {}).get("attempt") == state.attempt:
        raise StorageError(
            f"{output_path} was finished by somebody else while this process was stopped: run the same command again"
        )


def _earlier_attempts(output_path: str, number: int) -> list[pathlib.Path]:
    """Directories that earlier attempts left, oldest first."""
    ledger, usual = files.local_path(ledger_directory(output_path)), files.local_path(output_path)
    found = [ledger / str(other) / usual.name for other in _attempt_numbers(output_path) if other < number]
    return [directory for directory in found if directory.is_dir()]


def _point(usual: pathlib.Path, directory: pathlib.Path) -> None:
    """Makes the usual path a symlink to the attempt's directory, which stays right when the prefix is moved.

    A directory that stands there is an error: it can only be the output of somebody who has overtaken us.
    """
    link = usual.with_name(files.temporary_name(usual.name))
    os.symlink(os.path.relpath(directory, usual.parent), link)
    try:
        os.replace(link, usual)
    except OSError:
        link.unlink(missing_ok=True)
        raise


def _part_from_open_files(directory: pathlib.Path) -> None:
    """Copies files that the earlier owner, which may still live, may have open for appending, so that it appends elsewhere."""
    for file in directory.rglob("*"):
        if file.is_file() and not file.is_symlink() and file.stat().st_size <= _COPIED_UP_TO:
            copy = file.with_name(files.temporary_name(file.name))
            shutil.copy2(file, copy)
            os.replace(copy, file)
