"""Writes one shard of a document set: the kept documents, the dropped ones, and last the record of both.

The record holds counts and digests and nothing about when or where, so the same shard gives the same three files. A
shard whose record is there, and whose files have the digests that it states, is done.
"""

import contextlib
import hashlib
from types import TracebackType
from typing import IO, Any

import zstandard

from marin.data.documents import Document, Dropped, encode_line, text_bytes
from marin.errors import StorageError
from marin.storage import files

DOCUMENTS, DROPPED, RECORDS = "documents", "dropped", "shards"
# Stages read and write a corpus several times: level 3 writes 225 MB/s where level 9 writes 41, for 15 % more bytes
# (9 MB of docstrings, n=1).
_LEVEL = 3
_NUM_EXAMPLES = 10

Record = dict[str, Any]


class ShardWriter:
    """`with ShardWriter(...) as shard: shard.add(...)`; afterwards `record` is what was written.

    Args:
        identity: digest of what decides the content apart from the input: the stage and its settings.
        input_digest: of the shard that it is made from; "" for a source.
    """

    def __init__(self, output_path: str, name: str, *, identity: str, input_digest: str = ""):
        self.name = name
        self.bytes_in = 0
        self.bytes_kept = 0
        self.num_changed = 0
        self.record: Record = {}
        self._output_path, self._identity, self._input_digest = output_path, identity, input_digest
        self._documents = _LineFile(_documents_path(output_path, name))
        self._dropped = _LineFile(_dropped_path(output_path, name))
        self._by_reason: dict[str, int] = {}
        self._examples: dict[str, list[str]] = {}
        self._stack = contextlib.ExitStack()

    def add(self, output: Document | Dropped) -> None:
        """Appends one document to what is kept or what is dropped.

        Raises:
            DataError: it cannot be written as UTF-8.
        """
        if isinstance(output, Document):
            self._documents.add(output)
            self.bytes_kept += text_bytes(output.text)
            return
        self._dropped.add(output)
        self._by_reason[output.reason] = self._by_reason.get(output.reason, 0) + 1
        examples = self._examples.setdefault(output.reason, [])
        if len(examples) < _NUM_EXAMPLES:
            examples.append(output.id)

    def __enter__(self) -> "ShardWriter":
        self._stack.enter_context(self._documents)
        self._stack.enter_context(self._dropped)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
        if kind is not None:
            return
        self.record = {
            "name": self.name,
            "identity": self._identity,
            "input_digest": self._input_digest,
            "documents": {
                "in": self._documents.count + self._dropped.count,
                "kept": self._documents.count,
                "changed": self.num_changed,
                "dropped": self._dropped.count,
            },
            "bytes": {"in": self.bytes_in, "kept": self.bytes_kept},
            "dropped_by_reason": dict(sorted(self._by_reason.items())),
            "examples": dict(sorted(self._examples.items())),
            "digests": {DOCUMENTS: self._documents.digest.hexdigest(), DROPPED: self._dropped.digest.hexdigest()},
        }
        files.write_json(_record_path(self._output_path, self.name), self.record)


def finished_record(output_path: str, name: str, *, identity: str, input_digest: str) -> Record | None:
    """The record of a shard that is done: made from this input in this way, with both files as it states them."""
    try:
        record = files.read_json(_record_path(output_path, name))
        if record["identity"] != identity or record["input_digest"] != input_digest:
            return None
        found = {
            DOCUMENTS: files.sha256_file(_documents_path(output_path, name)),
            DROPPED: files.sha256_file(_dropped_path(output_path, name)),
        }
    except (StorageError, KeyError, TypeError):
        return None
    return record if record["digests"] == found else None


def remove_others(output_path: str, names: list[str]) -> None:
    """Removes what is no part of these shards: remains of a killed writer, and shards of another input."""
    for folder, ending in ((DOCUMENTS, ".jsonl.zst"), (DROPPED, ".jsonl.zst"), (RECORDS, ".json")):
        wanted = {name + ending for name in names}
        for name in files.list_dir(files.join(output_path, folder)):
            if name not in wanted:
                files.remove_tree(files.join(output_path, folder, name))


def shard_name(index: int) -> str:
    return f"shard-{index:05d}"


def _documents_path(output_path: str, name: str) -> str:
    return files.join(output_path, DOCUMENTS, name + ".jsonl.zst")


def _dropped_path(output_path: str, name: str) -> str:
    return files.join(output_path, DROPPED, name + ".jsonl.zst")


def _record_path(output_path: str, name: str) -> str:
    return files.join(output_path, RECORDS, name + ".json")


class _LineFile:
    """A `.jsonl.zst` file that appears whole when its block ends; counts its lines and digests its bytes."""

    def __init__(self, path: str):
        self._path = path
        self._stack = contextlib.ExitStack()
        self._compressed: Any = None
        self.count = 0
        self.digest = hashlib.sha256()

    def __enter__(self) -> None:
        with contextlib.ExitStack() as stack:
            raw = _Digested(stack.enter_context(files.writing(self._path)), self.digest)
            compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
            self._compressed = stack.enter_context(compressor.stream_writer(raw, closefd=False))  # type: ignore[arg-type]
            self._stack = stack.pop_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def add(self, row: Document | Dropped) -> None:
        self._compressed.write(encode_line(row, self._path))
        self.count += 1


class _Digested:
    def __init__(self, raw: IO[bytes], digest: "hashlib._Hash"):
        self._raw, self._digest = raw, digest

    def write(self, data: bytes) -> int:
        self._digest.update(data)
        return self._raw.write(data)

    def flush(self) -> None:
        self._raw.flush()
