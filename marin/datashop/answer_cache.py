"""Answers that were paid for, kept so that no question is paid for twice.

    {cache}/{16 hex of model, prompt and parameters}/about.json       what the answers are to
    {cache}/{16 hex}/answers.jsonl                                    a journal, only ever appended to

On a store that cannot append, each batch of rows is a file of its own, `rows-00000001.jsonl` and so on, and what was sent is
noted with the next answer, so a kill can lose such notes. A row is one of

    {"sent": digest, "tokens": [read, written]}     about to be sent; the tokens are its worst case
    {"unpaid": digest}                              what was sent last was turned away without an answer
    {"answer": digest, "text": ..., "cut_off": ..., "tokens": [read, written], "estimated": ..., "crc32": of all before it}

An answer counts when its row is on the disk. What was sent and neither answered nor turned away may have been paid for:
such a request was under way when its process was killed, or its time was up, or its connection broke. A last row without
its end is what a kill leaves, and is cut off. One process at a time writes to a folder, held by a lease.
"""

import hashlib
import json
import os
import re
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from marin.datashop.ask_config import AskConfig
from marin.datashop.question import Answer, Question, family
from marin.errors import DataError, LeaseHeldError
from marin.execution.step import InputName
from marin.storage import files
from marin.storage.lease import Lease
from marin.storage.prefix import resolve_prefix

ABOUT, JOURNAL = "about.json", "answers.jsonl"
_BATCH = re.compile(r"rows-\d{8}\.jsonl")
_OLDER_FIELDS = {"answer", "text", "cut_off", "tokens", "estimated"}
_encode = json.JSONEncoder(separators=(",", ":")).encode


@dataclass
class Tokens:
    """Of some requests: how many there are, and what was read and written, or at most may have been."""

    requests: int = 0
    input: int = 0
    output: int = 0

    def add(self, input_tokens: int, output_tokens: int, times: int = 1) -> None:
        self.requests += times
        self.input += times * input_tokens
        self.output += times * output_tokens


class AnswerCache:
    """The answers of one family of questions, opened for reading and writing; a context manager that ends the lease.

    Args:
        folder: of all families.
        family: what the questions share (`question.family`), as JSON values.
        wait: for another process that writes to the folder; it is said whom one waits for.
    Raises:
        LeaseHeldError: another process writes to it, and `wait` is False.
        DataError: a row in the middle of the journal is damaged.
    """

    def __init__(self, folder: str, family: Mapping[str, Any], *, wait: bool = True):
        about = json.dumps(family, sort_keys=True, ensure_ascii=False)
        self.folder = files.join(folder, hashlib.sha256(about.encode()).hexdigest()[:16])
        self._lease = Lease(self.folder).acquire(wait, announce=lambda text: print(text, flush=True))
        try:
            if not files.exists(files.join(self.folder, ABOUT)):
                files.write_json(files.join(self.folder, ABOUT), dict(family))
            self._journal = _Journal(self.folder)
            self._places: dict[str, tuple[int, int]] = {}
            self._under_way: dict[str, list[tuple[int, int]]] = {}
            self.paid = Tokens()
            """What the answers took."""
            self.perhaps_paid = Tokens()
            """What was sent and neither answered nor turned away, each at its worst case."""
            for place, row in self._journal.rows():
                self._apply(place, row)
        except BaseException:
            self._lease.release()
            raise

    def __contains__(self, digest: str) -> bool:
        return digest in self._places

    def get(self, digest: str) -> Answer | None:
        """The answer to a question, if it was paid for."""
        place = self._places.get(digest)
        if place is None:
            return None
        row = json.loads(self._journal.read(*place))
        return Answer(row["text"], row["cut_off"], row["tokens"][0], row["tokens"][1], row["estimated"])

    def sending(self, question: Question) -> None:
        """Notes that a question is about to be sent. A kill of this process cannot lose the note; a power failure can.

        Raises:
            LeaseHeldError: another process has taken over, as this one was stopped for long.
        """
        if self._lease.lost:
            raise LeaseHeldError(
                f"another process has taken over {self.folder}, as this one stood still: let it finish, then run this again"
            )
        self._write({"sent": question.digest, "tokens": [question.most_input_tokens, question.most_output_tokens]})

    def turned_away(self, question: Question) -> None:
        """Notes that what was sent last was not answered, and not paid for."""
        self._write({"unpaid": question.digest})

    def keep(self, question: Question, answer: Answer) -> None:
        """Adds an answer; it is on the disk when `flush` has returned."""
        self._write(
            {
                "answer": question.digest,
                "text": answer.text,
                "cut_off": answer.was_cut_off,
                "tokens": [answer.input_tokens, answer.output_tokens],
                "estimated": answer.is_estimated,
            }
        )

    def flush(self) -> None:
        """Waits until all that was added before is on the disk; may be called from another thread."""
        self._journal.flush()

    def close(self) -> None:
        try:
            self._journal.close()
        finally:
            self._lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, row: dict[str, Any]) -> None:
        self._apply(self._journal.append(row), row)

    def _apply(self, place: tuple[int, int], row: Mapping[str, Any]) -> None:
        if "sent" in row:
            read, written = row["tokens"]
            self._under_way.setdefault(row["sent"], []).append((read, written))
            self.perhaps_paid.add(read, written)
            return
        digest = row["answer"] if "answer" in row else row["unpaid"]
        if digest in self._under_way:
            self.perhaps_paid.add(*self._under_way[digest].pop(), times=-1)
            if not self._under_way[digest]:
                del self._under_way[digest]
        if "answer" in row:
            self.paid.add(*row["tokens"])
            self._places.setdefault(digest, place)


def open_cache(config: AskConfig, purpose: str, *, wait: bool = True) -> AnswerCache:
    """The cache of a config's answers to questions that share a purpose, such as a prompt.

    Raises:
        LeaseHeldError: another process writes to it, and `wait` is False.
    """
    folder = config.cache
    if isinstance(folder, InputName):  # outside of a step
        folder = files.join(resolve_prefix(), folder.name or "")
    if folder is None:
        folder = files.join(config.output_path, "answers")
    return AnswerCache(folder, family(config, purpose), wait=wait)


class _Journal:
    """Lines that are only appended. On another store they are collected in a temporary file of this machine as well."""

    def __init__(self, folder: str):
        self._folder = folder
        self._is_local = files.is_local(folder)
        self._num_batches = 0
        self._waiting: list[bytes] = []  # rows for the next file on another store
        if self._is_local:
            self._path = str(files.local_path(files.join(folder, JOURNAL)))
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            with files.explained(self._path, "opened"):
                self._file = os.open(self._path, flags, 0o666)
                _cut_torn_line(self._file)
        else:
            self._path = folder
            with tempfile.TemporaryFile() as spool:
                self._file = os.dup(spool.fileno())
            names = [name for name in files.list_dir(folder) if _BATCH.fullmatch(name)]
            self._num_batches = int(names[-1][5:13]) if names else 0
            for name in names:
                os.write(self._file, files.read_bytes(files.join(folder, name)))
        self._size = os.lseek(self._file, 0, os.SEEK_END)

    def rows(self) -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
        """Each row with its place, which is its offset and its length.

        Raises:
            DataError: a row is damaged.
        """
        offset = 0
        with open(os.dup(self._file), "rb") as stream:
            stream.seek(0)
            for number, line in enumerate(stream, start=1):
                yield (offset, len(line)), _parse(line, f"{self._path}:{number}")
                offset += len(line)

    def append(self, row: Mapping[str, Any]) -> tuple[int, int]:
        """Adds a row and gives its place."""
        line = _line(row)
        offset, rest = self._size, memoryview(line)
        with files.explained(self._path, "written"):
            try:
                while rest:
                    rest = rest[os.write(self._file, rest) :]
            except OSError:
                os.ftruncate(self._file, offset)  # a full disk must not leave half a row before the next one
                raise
        if not self._is_local:
            self._waiting.append(line)
        self._size += len(line)
        return offset, len(line)

    def flush(self) -> None:
        if self._is_local:
            with files.explained(self._path, "flushed to the disk"):
                os.fsync(self._file)
        elif self._waiting:
            lines, self._waiting = self._waiting, []
            try:
                files.write_bytes(files.join(self._folder, f"rows-{self._num_batches + 1:08}.jsonl"), b"".join(lines))
            except BaseException:
                # The answers among them were paid for: the next flush tries again, under the same name.
                self._waiting[:0] = lines  # in one go, as another thread may be adding
                raise
            self._num_batches += 1

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(self._file, length, offset)

    def close(self) -> None:
        try:
            self.flush()
        finally:
            os.close(self._file)


def _cut_torn_line(file: int) -> None:
    """Removes what stands behind the last end of a line."""
    end = size = os.lseek(file, 0, os.SEEK_END)
    while end > 0:
        start = max(end - (1 << 16), 0)
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    if end < size:
        os.ftruncate(file, end)


def _line(row: Mapping[str, Any]) -> bytes:
    """A row as it stands in the journal; an answer with its checksum at the end."""
    encoded = _encode(row).encode()
    if "answer" not in row:
        return encoded + b"\n"
    return b'%b,"crc32":%d}\n' % (encoded[:-1], zlib.crc32(encoded))


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        kind = next(name for name in ("sent", "unpaid", "answer") if name in row)
        is_whole = isinstance(row[kind], str)
        if kind != "unpaid":
            is_whole &= len(row["tokens"]) == 2 and all(type(count) is int and count >= 0 for count in row["tokens"])
        if kind == "answer":
            is_whole &= isinstance(row["text"], str) and all(
                type(row[name]) is bool for name in ("cut_off", "estimated")
            )
            # A row without a checksum is an older one, and is read. With one, the row must be what would be written, bit by bit.
            is_whole &= row.keys() == _OLDER_FIELDS or line == _line(
                {name: row[name] for name in row if name != "crc32"}
            )
        if is_whole:
            return dict(row)
    except (ValueError, KeyError, TypeError, StopIteration):
        pass
    raise DataError(
        f"{where} is no row of a journal of answers: remove the line (if it was an answer, it will be paid for again)"
    )
