"""Files that a person uploads: streamed to disk, checked by `taking` in a process of its own, and kept as clean documents.

    {folder}/{id}/upload.json                what was found
    {folder}/{id}/{stem}-{id:.8}.jsonl.zst   its documents, which is all that a run reads
    {folder}/.incoming/                      what is on its way; of a server that died it is removed at the next start

The id is a digest of content and reading, so the same file uploaded twice is there once, and a run's identity covers what
its files hold. A folder appears under its id whole or not at all. Names come from strangers: what is kept of one has only
plain letters, digits, dots and dashes, and no name leads anywhere.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import os
import pathlib
import re
import shutil
import sys
import unicodedata
from collections.abc import AsyncIterator
from typing import Any, BinaryIO

import psutil

from marin.data import compression
from marin.data.documents import is_unicode
from marin.errors import DataError, StorageError
from marin.site.datashop.taking import EXPECTED_ENDINGS, SPLITS, SUMMARY, reading_digest
from marin.storage import files

MOST_BYTES = 4_000_000_000
_SPARE_BYTES = 500_000_000
_PIECE = 1 << 20
_ID = re.compile(r"[0-9a-f]{16}")
_ENDINGS = re.compile(
    r"(\.(?:jsonl|ndjson|parquet|txt|md))(" + "|".join(map(re.escape, compression.NAMES)) + ")?$", re.IGNORECASE
)
_LONGEST_STEM = 60


@dataclasses.dataclass(frozen=True)
class Upload:
    """A file that was taken in; `path` is the file of its documents, `summary` what `upload.json` says."""

    id: str
    path: pathlib.Path
    summary: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.summary["name"])

    @property
    def documents(self) -> int:
        return int(self.summary["documents"])

    @property
    def num_left_out(self) -> int:
        return sum(self.summary["left_out"].values())


def clean_name(name: str) -> str:
    """What is kept of a file's name.

    Raises:
        DataError: its ending names no format.
    """
    last = unicodedata.normalize("NFKD", re.split(r"[/\\]", name)[-1])
    ending = _ENDINGS.search(last.strip())
    if ending is None:
        raise DataError(EXPECTED_ENDINGS)
    stem = last.strip()[: ending.start()].encode("ascii", "ignore").decode()
    stem = re.sub(r"[^A-Za-z0-9]+", "-", stem).strip("-")[:_LONGEST_STEM].rstrip("-") or "file"
    return stem + ending[0].lower()


class Uploads:
    """The uploaded files below a folder.

    Args:
        most_bytes: of one file, as it is sent.
    """

    def __init__(self, folder: pathlib.Path, most_bytes: int = MOST_BYTES) -> None:
        self.folder, self.most_bytes = folder, most_bytes
        self._incoming = folder / ".incoming"
        self._incoming.mkdir(parents=True, exist_ok=True)
        self._reading = asyncio.Semaphore(2)  # processes that may each take the memory that `taking` allows
        self._remove_leftovers()

    def all(self) -> list[Upload]:
        """The latest first."""
        found = [(path.stat().st_mtime, path.name) for path in self.folder.iterdir() if _ID.fullmatch(path.name)]
        uploads = (self.get(name) for _, name in sorted(found, reverse=True))
        return [upload for upload in uploads if upload is not None]

    def get(self, number: str) -> Upload | None:
        """The upload with this id; None if there is none."""
        if not _ID.fullmatch(number):
            return None
        try:
            summary = files.read_json(str(self.folder / number / SUMMARY))
            return Upload(number, self.folder / number / str(summary["file"]), summary)
        except (StorageError, DataError, KeyError, TypeError):
            return None

    def remove(self, number: str) -> bool:
        """Forgets the file; whether there was one. What was made of it stays."""
        upload = self.get(number)
        if upload is None:
            return False
        going = self._incoming / f"{os.getpid()}-removed-{number}"
        os.rename(self.folder / number, going)
        shutil.rmtree(going)
        return True

    async def receive(
        self, name: str, body: AsyncIterator[bytes], *, size: int | None, text_field: str = "", split: str = "blank"
    ) -> Upload:
        """Takes in a file, as the body of a request brings it.

        Args:
            size: that was announced, in bytes.
        Raises:
            DataError: the file is refused, with the reason for the person.
        """
        kept_name = clean_name(name)
        if split not in SPLITS:
            raise DataError("say how the text file is parted into documents")
        if "\0" in text_field or not is_unicode(text_field):
            raise DataError("the name of the field with the text is no text: type it again, or leave it empty")
        self._check_room(size or 0)
        work = self._incoming / f"{os.getpid()}-{os.urandom(8).hex()}"
        work.mkdir()
        try:
            raw = work / "raw"
            digest = await self._store(raw, body)
            reading = reading_digest(digest, kept_name, text_field, split)[:16]
            known = self.get(reading)
            if known is not None:
                return known
            made = work / "made"
            made.mkdir()
            async with self._reading:
                await _taken(raw, kept_name, made, text_field, split)
            await asyncio.to_thread(files.sync_tree, str(made))  # both take seconds where the file is large
            with contextlib.suppress(OSError):  # another request may have brought the same file
                os.rename(made, self.folder / reading)
            upload = self.get(reading)
            if upload is None:
                raise DataError("it could not be kept: look at the disk, and upload it again")
            return upload
        finally:
            await asyncio.to_thread(shutil.rmtree, work, ignore_errors=True)

    async def _store(self, path: pathlib.Path, body: AsyncIterator[bytes]) -> str:
        """Writes the body, and returns its digest."""
        digest, size = hashlib.sha256(), 0
        waiting = bytearray()  # written in larger pieces, as each costs a change of thread
        with open(path, "xb", buffering=0) as stream:
            async for block in body:
                size += len(block)
                if size > self.most_bytes:
                    raise DataError(self._too_large())
                digest.update(block)
                waiting += block
                if len(waiting) >= _PIECE:
                    await asyncio.to_thread(_write, stream, bytes(waiting))
                    waiting.clear()
            await asyncio.to_thread(_write, stream, bytes(waiting))
        if not size:
            raise DataError("it is empty")
        return digest.hexdigest()

    def _check_room(self, size: int) -> None:
        if size > self.most_bytes:
            raise DataError(self._too_large())
        free = shutil.disk_usage(self.folder).free
        if size + _SPARE_BYTES > free:
            raise DataError(f"the disk has {free / 1e9:.1f} GB left, which is too little: free some space first")

    def _too_large(self) -> str:
        return (
            f"it is larger than {self.most_bytes / 1e9:g} GB: put it into a folder that this page may read "
            "(`marin datashop --data DIR`), and name its path instead"
        )

    def _remove_leftovers(self) -> None:
        for path in self._incoming.iterdir():
            number = path.name.partition("-")[0]
            if not (number.isdigit() and psutil.pid_exists(int(number)) and int(number) != os.getpid()):
                shutil.rmtree(path, ignore_errors=True)


def _write(stream: BinaryIO, block: bytes) -> None:
    try:
        while block:
            block = block[stream.write(block) :]
    except OSError as error:
        raise DataError(f"it cannot be written ({error.strerror}): free some space, and upload it again") from None


async def _taken(raw: pathlib.Path, name: str, folder: pathlib.Path, text_field: str, split: str) -> None:
    """Reads the file in a process of its own.

    Raises:
        DataError: it is refused, or reading it took too much memory or time.
    """
    command = [sys.executable, "-m", "marin.site.datashop.taking", str(raw), name, str(folder)]
    told = raw.with_name("errors")
    # A file, as a pipe would be given back only some time after the process has ended: a server that stops in between never does.
    with told.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *command,
            f"--text-field={text_field}",
            f"--split={split}",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=errors,
        )
    try:
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    said = told.read_text(errors="replace").strip()
    if process.returncode == 2:
        raise DataError(said.removeprefix("error: "))
    if process.returncode:
        last = said.splitlines()[-1:] or [f"status {process.returncode}"]
        raise DataError(f"it could not be read within the limits of memory and time ({last[0][:200]})")
