"""Which files a source consists of, what they are called, and proof that one did not change while it was read.

A path names a file, a folder (every file below it with a known ending, in order of its path; hidden files and folders
and a disk's `lost+found` are not looked at), or a pattern with `*`, `**`, `?` or `[...]`. Links to files and folders are
followed; a file that several of its names lead to is read once. It may be a URL of any store that fsspec knows; http URLs
name single files.

A file's name in document ids is its path below the folder, or below the part of the pattern before its first special
character; for a single file it is the last part of its path. So ids do not depend on where a corpus lies.
"""

import contextlib
import dataclasses
import os
import posixpath
import re
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from marin.data import compression
from marin.errors import ConfigError, DataError, StorageError
from marin.storage import files

# The ending of a name, without that of its compression, and the format that it stands for.
FORMATS = {
    ".txt": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".html": "html",
    ".htm": "html",
    ".warc": "warc",
}
KNOWN_ENDINGS = f"{', '.join(FORMATS)}, each also packed: {', '.join(compression.NAMES)}"
_SPECIAL = r"[*?\[]"
_OF_THE_DISK = "lost+found"  # at the root of a disk, where only the system may look
# What stores call the things that change when a file does.
_STAMP_FIELDS = (
    *("size", "mtime", "ino", "created", "LastModified", "last_modified", "Last-Modified", "updated", "generation"),
    *("ETag", "etag", "VersionId", "md5Hash", "Content-MD5", "blob_id", "sha256"),
)


@dataclasses.dataclass(frozen=True)
class InputFile:
    """One file of a source.

    Args:
        path: a local path or a URL.
        name: what ids and reports call it.
        format: a value of `FORMATS`.
        compression: "" or a key of `marin.data.compression.NAMES`.
    """

    path: str
    name: str
    format: str
    compression: str


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The files of a source in order.

    Args:
        unknown: names of files in its folders whose ending is not known.
        again: other names, by links, of files among `files`: the one without links is read, else the first.
    """

    files: tuple[InputFile, ...]
    unknown: tuple[str, ...]
    again: tuple[InputFile, ...] = ()


def find_inputs(paths: Sequence[str]) -> Inputs:
    """The files that `paths` name, in the order of `paths`, within a folder or pattern by name.

    Raises:
        ConfigError: there are no paths, or one is empty.
        DataError: a path names nothing, a file of no known format, a finished document set, or a file of a name that
            another one has.
    """
    if not all(paths) or not paths:  # an empty path would be the working directory
        what = "has an empty path" if paths else "is empty"
        raise ConfigError(f"config field `paths` {what}: name at least one file, folder or pattern")
    found: dict[str, InputFile] = {}
    unknown: list[str] = []
    for path in paths:
        named = list(_expand(path))
        if not named:
            raise DataError(
                f"{path} names no file, as a pattern without a match or an empty folder: mend it, or leave it out"
            )
        for file, name in named:
            kind, packed = format_of(name)
            if kind is None:
                unknown.append(name)
                continue
            if name in found:
                raise DataError(
                    f"{file} and {found[name].path} would both be called {name!r} in document ids: import them in two "
                    "steps, or name the folder above both"
                )
            found[name] = InputFile(file, name, kind, packed)
    if not found:
        seen = ", ".join(unknown[:5])
        raise DataError(f"{', '.join(paths)}: there is no file of a known format (found: {seen}): use {KNOWN_ENDINGS}")
    once, again = _once(list(found.values()))
    return Inputs(tuple(once), tuple(unknown), tuple(again))


def _once(found: Sequence[InputFile]) -> tuple[list[InputFile], list[InputFile]]:
    """The files, each under one name, and the other names."""
    folders: dict[str, str] = {}
    reals = [_real(file.path, folders) for file in found]
    names: dict[str, str] = {}
    for file, real in zip(found, reals, strict=True):
        has_no_link = real.endswith(f"/{file.name}")
        if real not in names or (has_no_link and not real.endswith(f"/{names[real]}")):
            names[real] = file.name
    once: list[InputFile] = []
    again: list[InputFile] = []
    for file, real in zip(found, reals, strict=True):
        (once if names[real] == file.name else again).append(file)
    return once, again


def _real(path: str, folders: dict[str, str]) -> str:
    """Where a file of this machine lies, without links; `folders` keeps what was asked of each folder."""
    if not files.is_local(path):
        return path
    local = str(files.local_path(path))
    if os.path.islink(local):
        return os.path.realpath(local)
    folder, name = os.path.split(local)
    if folder not in folders:
        folders[folder] = os.path.realpath(folder)
    return os.path.join(folders[folder], name)


def say_left_out(inputs: Inputs, stage: str) -> None:
    """Prints which files are not read: nobody knows their format, or they are read under another name."""
    _say(stage, "as of no known format", inputs.unknown)
    _say(stage, "as another name of a file that is read", [file.name for file in inputs.again])


def _say(stage: str, why: str, names: Sequence[str]) -> None:
    if not names:
        return
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    counted = "1 file" if len(names) == 1 else f"{len(names):,} files"
    print(f"{stage}: left out {why}: {counted} ({shown})", flush=True)


def format_of(name: str) -> tuple[str | None, str]:
    """The format and the compression that the ending of a name says; format None is not known."""
    stem = name.lower()
    packed = next((suffix for suffix in compression.NAMES if stem.endswith(suffix)), "")
    stem = stem.removesuffix(packed)
    return FORMATS.get(posixpath.splitext(stem)[1]), packed


@contextlib.contextmanager
def opened_unchanged(path: str) -> Iterator[BinaryIO]:
    """The stream of `opened_stamped`."""
    with opened_stamped(path) as (stream, _):
        yield stream


@contextlib.contextmanager
def opened_stamped(path: str) -> Iterator[tuple[BinaryIO, dict[str, Any]]]:
    """`path` opened for reading, and its stamp; when the block ends it must be the file that it was.

    Size and time of the last change are compared on a local file system, what the store tells on another.

    Raises:
        DataError: the file cannot be opened or read, or was changed or replaced meanwhile.
    """
    failure = None
    try:
        before = stamp_of(path)
        with files.explained(path, "opened"):
            stream = files.open_for_reading(path)
        with stream, files.explained(path, "read"):
            try:
                yield stream, before
            except DataError as error:
                failure = error
        if stamp_of(path) != before:
            # What looked damaged may have been half of another file, so the change is what is told first.
            also = f"; it also looked damaged: {failure}" if failure else ""
            raise DataError(_changed(path, before) + also)
    except StorageError as error:
        raise DataError(_unreachable(path, error) if _is_http(path) else str(error)) from error
    if failure:
        raise failure


def _is_http(path: str) -> bool:
    return path.startswith(("http://", "https://"))


def _unreachable(url: str, error: BaseException) -> str:
    """What to say of an address: its driver calls whatever goes wrong with a request a missing file."""
    while (below := error.__cause__ or error.__context__) is not None:
        error = below
    what = " ".join(f"{type(error).__name__}: {error}".split())  # some drivers' messages have several lines
    return (
        f"{url} cannot be read ({what}): check the address and the network, or fetch it with `download_step` first, which "
        "tries again, goes on where it stopped, and checks a digest"
    )


def _changed(path: str, before: dict[str, Any]) -> str:
    after = stamp_of(path)
    what = next((name for name in _STAMP_FIELDS if before.get(name) != after.get(name)), "")
    return (
        f"{path} changed while it was read ({what} {before.get(what)} before, {after.get(what)} after): wait until it "
        "is written completely, then run the same command again"
    )


def stamp_of(path: str) -> dict[str, Any]:
    """What changes when the file does, as JSON values."""
    with files.explained(path, "looked up"):
        if files.is_local(path):
            status = files.local_path(path).stat()
            return {"size": status.st_size, "mtime": status.st_mtime_ns, "ino": status.st_ino}
        filesystem = files.filesystem_of(path)
        filesystem.invalidate_cache()
        known = filesystem.info(path)
        stamp = {name: known[name] for name in _STAMP_FIELDS if name in known}
        return {name: value if isinstance(value, int | str) else str(value) for name, value in stamp.items()}


def _expand(path: str) -> Iterator[tuple[str, str]]:
    """Path and name of each file that `path` names."""
    try:
        with files.explained(path, "listed"):
            if _is_http(path):
                yield path, posixpath.basename(urllib.parse.unquote(urllib.parse.urlsplit(path).path))
                return
            filesystem = files.filesystem_of(path)
            bare = filesystem._strip_protocol(path)
            if filesystem.isdir(bare):
                if filesystem.exists(f"{bare}/manifest.json") and filesystem.isdir(f"{bare}/documents"):
                    raise DataError(
                        f"{path} is a document set already: give it to the next stage as it is, or name "
                        f"{files.join(path, 'documents')} to import its documents under new settings"
                    )
                root, matches = bare, list(local_files(bare)) if files.is_local(path) else filesystem.find(bare)
            elif filesystem.isfile(bare):
                root, matches = posixpath.dirname(bare), [bare]
            elif re.search(_SPECIAL, path):
                root = _folder_before_pattern(bare)
                if files.is_local(path):
                    matches = list(local_files(bare))
                else:
                    found = filesystem.glob(bare, detail=True)
                    matches = [each for each, info in found.items() if info["type"] == "file"]
            else:
                raise DataError(f"{path} is no file and no folder: check the path, or run the step that makes it")
    except StorageError as error:
        raise DataError(str(error)) from error
    for match in sorted(str(match) for match in matches):
        name = posixpath.relpath(match, root) if root else match
        if matches == [bare] or not any(part.startswith(".") for part in name.split("/")):
            yield (match if files.is_local(path) else str(filesystem.unstrip_protocol(match))), name


def local_files(path: str) -> Iterator[str]:
    """The files below a folder of this machine, or those that fit a pattern, in no order; hidden ones are left out.

    Raises:
        DataError: a folder cannot be listed, so nobody knows what it holds.
    """
    if os.path.isdir(path):
        yield from _files_below(path, None, frozenset())
        return
    from fsspec.utils import glob_translate

    fits, folder = re.compile(glob_translate(path)), _folder_before_pattern(path)
    if os.path.isdir(folder):
        depth = None if "**" in path else path.removeprefix(folder).strip("/").count("/")
        yield from filter(fits.match, _files_below(folder, depth, frozenset()))


def _files_below(folder: str, depth: int | None, above: frozenset[str]) -> Iterator[str]:
    """Args:
    depth: of folders to go down; None for all.
    above: the folders that lead here, without links: a link to one of them would have no end.
    """
    real = os.path.realpath(folder)
    if real in above:
        return
    try:
        with os.scandir(folder) as scan:
            entries = list(scan)
    except OSError as error:
        raise DataError(
            f"{folder} cannot be listed ({error.strerror}): change its permissions, or name the folders beside it in its place"
        ) from None
    for entry in entries:
        if entry.name.startswith(".") or entry.name == _OF_THE_DISK:
            continue
        is_folder = os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()  # a link may be broken
        if not is_folder:
            yield entry.path
        elif depth != 0:
            yield from _files_below(entry.path, None if depth is None else depth - 1, above | {real})


def _folder_before_pattern(path: str) -> str:
    return posixpath.dirname(re.split(_SPECIAL, path, maxsplit=1)[0])
