"""Many files over HTTP into one directory, several at a time, each continued, retried and checked by `marin.data.fetch`.

`download_step` is for files at plain addresses. Its output holds the files, and `.fetched.json` with the address, size
and SHA-256 of each; a digest that the config does not name is printed, to be named there next time, as only then
is the step's output the same forever.

Into a store that is no local disk, each file goes through a temporary one, and an interrupted step starts over.
"""

import contextlib
import dataclasses
import os
import pathlib
import posixpath
import tempfile
import threading
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import ClassVar

from marin.data.fetch import RemoteFile, Transfer
from marin.data.pace import Pace
from marin.errors import ConfigError, DataError
from marin.execution.step import ExecutorStep, placement, this_output_path
from marin.storage import files

FETCHED = ".fetched.json"
_LONGEST_NAME = 255 - len("..part.json")  # beside the file lies the note of what has arrived


@dataclasses.dataclass(frozen=True)
class DownloadFilesConfig:
    """Args:
    urls: http or https addresses; the last part of each is the file's name.
    digests: SHA-256 in hex by address; those left out are not checked.
    num_workers: files fetched at a time.
    """

    marin_resumable: ClassVar[bool] = True

    urls: Sequence[str]
    digests: Mapping[str, str] = dataclasses.field(default_factory=dict)
    output_path: str = this_output_path()
    num_workers: int = placement(default=4)

    def __post_init__(self) -> None:
        if isinstance(self.urls, str):
            raise ConfigError(
                f"config field `urls` is the string {self.urls!r}: give a list of addresses, [{self.urls!r}]"
            )
        remote_files(self.urls, self.digests)


def download_step(name: str, urls: str | Sequence[str], digests: Mapping[str, str] | None = None) -> ExecutorStep:
    """The step `raw/{name}`, whose output holds the files at `urls` under the last part of their addresses.

    Args:
        urls: one address, or several.
        digests: SHA-256 in hex by address.
    """
    addresses = [urls] if isinstance(urls, str) else list(urls)
    return ExecutorStep(
        name=f"raw/{name}",
        fn=download_files,
        config=DownloadFilesConfig(addresses, dict(digests or {})),
        description=f"{len(addresses)} file{'s' if len(addresses) != 1 else ''} fetched as they are",
    )


def download_files(config: DownloadFilesConfig) -> None:
    """Fetches what is missing of the files, checks all, and writes `.fetched.json` last.

    Raises:
        DataError: a file cannot be fetched or is not what its digest says; the message says what to fetch by hand.
    """
    wanted = remote_files(config.urls, config.digests)
    digests = fetch_all(wanted, config.output_path, num_workers=config.num_workers)
    for file in wanted:
        if file.sha256 is None:
            print(
                f"the SHA-256 of {file.url} is {digests[file.name]}: name it in `digests` to have it checked",
                flush=True,
            )
    record = [{"name": file.name, "url": file.url, "sha256": digests[file.name]} for file in wanted]
    files.write_json(files.join(config.output_path, FETCHED), record)


def remote_files(urls: Sequence[str], digests: Mapping[str, str]) -> list[RemoteFile]:
    """The files at `urls`.

    Raises:
        ConfigError: an address is not http, has no name, or has the name of another; a digest is none, or of no address.
    """
    named: dict[str, RemoteFile] = {}
    for url in urls:
        try:
            parts = urllib.parse.urlsplit(url)
        except ValueError as error:
            raise ConfigError(f"config field `urls` names {url!r}, which is no address ({error}): correct it") from None
        name = posixpath.basename(urllib.parse.unquote(parts.path))
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(
                f"config field `urls` names {url!r}: use http or https; `import_step` reads other stores itself"
            )
        if parts.username is not None or parts.password is not None:
            raise ConfigError(
                f"config field `urls` names a user or password for {parts.hostname}: configs are written to the records of a "
                "run, use an address without"
            )
        if not name or name.startswith(".") or "\\" in name or "\0" in name:
            raise ConfigError(f"config field `urls` names {url!r}, whose last part is no file name: name a file")
        if len(name.encode()) > _LONGEST_NAME:
            raise ConfigError(
                f"config field `urls` names {url[:80]!r}..., whose last part has {len(name.encode())} bytes: file systems take"
                f" {_LONGEST_NAME} and what a download adds; fetch it by hand under a shorter name"
            )
        if name in named:
            raise ConfigError(f"config field `urls` names two files {name!r}: fetch them in two steps")
        named[name] = RemoteFile(url, name, sha256=digests.get(url))
    for url, digest in digests.items():
        if url not in urls:
            raise ConfigError(f"config field `digests` names {url!r}, which is not among `urls`")
        if len(digest) != 64 or set(digest.lower()) - set("0123456789abcdef"):
            raise ConfigError(f"config field `digests` has {digest!r} for {url}: expected a SHA-256, 64 hex digits")
    if not named:
        raise ConfigError("config field `urls` is empty: name at least one file")
    return list(named.values())


def fetch_all(
    wanted: Sequence[RemoteFile],
    directory: str,
    *,
    headers: Mapping[str, str] | None = None,
    num_workers: int = 4,
    by_hand: str | None = None,
) -> dict[str, str]:
    """Fetches all files below `directory`, a local path or a URL; returns their SHA-256 by name.

    Args:
        headers: sent to the hosts of the addresses, and to no other.
        by_hand: what to do without network; None says where to put each file.
    Raises:
        DataError: the first file that failed; the others are stopped, and go on in the next attempt.
    """
    files.remove_temporaries(directory)
    stopped = threading.Event()
    progress = _Progress(wanted)

    def fetch(file: RemoteFile) -> str:
        with _local_target(directory, file) as target:
            return Transfer(
                file,
                target,
                headers=headers,
                stopped=stopped,
                by_hand=by_hand,
                on_bytes=progress.add_bytes,
            ).run()

    digests: dict[str, str] = {}
    with ThreadPoolExecutor(max(1, min(num_workers, len(wanted))), thread_name_prefix="fetch") as pool:
        try:
            running = {pool.submit(fetch, file): file.name for file in wanted}
            for done in as_completed(running):
                digests[running[done]] = done.result()
                progress.add_file()
        except BaseException:  # Ctrl-C too: the threads must not go on
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    progress.finish()
    return digests


@contextlib.contextmanager
def _local_target(directory: str, file: RemoteFile) -> Iterator[pathlib.Path]:
    """Where to put the file: its place on a local disk, or a temporary one that is then put into the store.

    A file that the store has already with the expected size is taken from there, so that its digest is checked too.
    """
    place = files.join(directory, file.name)
    if any(part in ("", ".", "..") for part in file.name.split("/")) or os.path.isabs(file.name):
        raise DataError(
            f"the file name {file.name!r} leads out of {directory}: it is not fetched, check where it comes from"
        )
    if files.is_local(directory):
        yield files.local_path(place)
        return
    store = files.filesystem_of(directory)
    with tempfile.TemporaryDirectory() as scratch:
        local = pathlib.Path(scratch, posixpath.basename(file.name))
        before = None
        with files.explained(place, "read"):
            if store.exists(place):
                store.get_file(place, str(local))
                before = local.stat().st_ino
        yield local
        if local.stat().st_ino != before:
            with files.explained(place, "written"):
                store.put_file(str(local), place)


class _Progress:
    """Prints how far the transfers are, now and then, and once at the end if that took long."""

    def __init__(self, wanted: Sequence[RemoteFile]):
        self._lock = threading.Lock()
        self._num_files, self._files, self._bytes = len(wanted), 0, 0
        sizes = [file.size for file in wanted]
        self._total = sum(size for size in sizes if size is not None) if None not in sizes else None
        self._pace = Pace()

    def add_bytes(self, count: int) -> None:
        with self._lock:
            self._bytes += count
            if self._pace.is_due():
                self._print()

    def add_file(self) -> None:
        with self._lock:
            self._files += 1

    def finish(self) -> None:
        if self._pace.has_spoken:
            self._print()

    def _print(self) -> None:
        rate = max(self._bytes, 1) / self._pace.elapsed
        size, left = f"{self._bytes / 1e6:,.1f} MB", ""
        if self._total:
            size = f"{self._bytes / 1e6:,.1f} of {self._total / 1e6:,.1f} MB"
            left = f", about {max(0, self._total - self._bytes) / rate:,.0f} s left"
        print(f"fetched {self._files:,} of {self._num_files:,} files, {size}, {rate / 1e6:.1f} MB/s{left}", flush=True)
