"""Document sets: a directory of shards that a stage wrote, with a record of what it kept, what it dropped, and why.

    documents/shard-00000.jsonl.zst   kept documents, in order
    dropped/shard-00000.jsonl.zst     `id`, `reason`, `detail` of each dropped document
    shards/shard-00000.json           record of the shard: counts, digests, and what it was made from
    report.json                       what people read: in, kept and dropped, by reason, with example ids
    manifest.json                     the stage, its settings, totals and all records; written last

A directory without a manifest is unfinished and is not read. One `.jsonl.zst` file alone is a set of one shard.

A stage reads a set and writes another, shard for shard and in order: `transform_shards` runs a function from a shard's index and
an iterator of its documents to an iterator of `Document | Dropped`, one for each document that went in. It counts: documents
in are documents kept and documents dropped, or the stage fails. Shards are done in parallel processes; one that is done
is not done again after a kill. The files do not depend on the number of processes, on kills or on the time.
"""

import functools
import hashlib
import json
import posixpath
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marin.data.documents import Document, Dropped, is_set_path, read_file, text_bytes
from marin.data.progress import StageProgress, totals_of
from marin.data.shard_writer import (
    DOCUMENTS,
    Record,
    ShardWriter,
    finished_record,
    remove_others,
    shard_name,
)
from marin.data.workers import run_in_processes
from marin.errors import DataError, MarinError, StorageError
from marin.storage import files

__all__ = ["Document", "DocumentSet", "Dropped", "Shard", "Transform", "transform_shards", "write_shards"]

MANIFEST, REPORT = "manifest.json", "report.json"
_FORMAT = "marin documents 1"
SHARD_BYTES = 32_000_000
"""Of text in a shard, unless somebody says otherwise: a few seconds of work for most stages."""
_NEXT_STEP = "run the step that writes it again"

Transform = Callable[[int, Iterator[Document]], Iterator[Document | Dropped]]


@dataclass(frozen=True)
class Shard:
    """One file of documents.

    Args:
        num_bytes: of text in UTF-8, not of the file.
        digest: SHA-256 of the file.
    """

    name: str
    path: str
    num_documents: int
    num_bytes: int
    digest: str

    def documents(self) -> Iterator[Document]:
        """The documents in order; there may be none.

        Raises:
            DataError: the file is damaged, or is not the one that the set's manifest names.
        """
        digest = hashlib.sha256()
        yield from read_file(self.path, digest)
        if digest.hexdigest() != self.digest:
            raise DataError(f"{self.path} is not the file that its set was finished with (digest): {_NEXT_STEP}")


@dataclass(frozen=True)
class DocumentSet:
    """A finished set, opened for reading."""

    path: str
    shards: tuple[Shard, ...]

    @staticmethod
    def open(path: str) -> "DocumentSet":
        """Opens the set in the directory `path`, or the `.jsonl.zst` file `path`, which is then read once to count.

        Raises:
            DataError: there is none, or it is unfinished or damaged.
        """
        if is_set_path(path):
            return DocumentSet(path, tuple(_shard(path, record) for record in read_manifest(path)["shards"]))
        digest = hashlib.sha256()
        num_documents = num_bytes = 0
        for document in read_file(path, digest):
            num_documents += 1
            num_bytes += text_bytes(document.text)
        name = posixpath.basename(path).removesuffix(".jsonl.zst")
        return DocumentSet(path, (Shard(name, path, num_documents, num_bytes, digest.hexdigest()),))

    @property
    def num_documents(self) -> int:
        return sum(shard.num_documents for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """Bytes of text in UTF-8."""
        return sum(shard.num_bytes for shard in self.shards)

    @functools.cached_property
    def digest(self) -> str:
        """See `digest_of_shards`."""
        return digest_of_shards(self.shards)

    def documents(self) -> Iterator[Document]:
        """All documents in order, one file at a time.

        Raises:
            DataError: a file is damaged, or the set holds no documents.
        """
        if self.num_documents == 0:
            raise DataError(f"{self.path} holds no documents: see what dropped them in {files.join(self.path, REPORT)}")
        for shard in self.shards:
            yield from shard.documents()


def is_document_set(path: str) -> bool:
    """Whether a finished set lies in the directory `path`."""
    return files.exists(files.join(path, MANIFEST)) and files.exists(files.join(path, DOCUMENTS))


def digest_of_shards(shards: Sequence[Shard]) -> str:
    """SHA-256 over the digests of the shards in order."""
    return hashlib.sha256("\n".join(shard.digest for shard in shards).encode()).hexdigest()


def read_manifest(path: str) -> dict[str, Any]:
    """The manifest of the set in the directory `path`.

    Raises:
        DataError: there is none, or it is of another format.
    """
    where = files.join(path, MANIFEST)
    if not files.exists(where):
        raise DataError(f"{path} is no finished document set ({MANIFEST} is missing): {_NEXT_STEP}")
    try:
        manifest = files.read_json(where)
    except StorageError as error:
        raise DataError(str(error)) from None
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != _FORMAT:
        raise DataError(f"{where}: `format` is {found!r}, expected {_FORMAT!r}: {_NEXT_STEP}")
    return dict(manifest)


def write_shards(
    output_path: str,
    documents: Iterable[Document | Dropped],
    *,
    stage: str,
    settings: Mapping[str, Any],
    shard_bytes: int = SHARD_BYTES,
    finished: Sequence[Record] = (),
    on_shard: Callable[[int], None] = lambda index: None,
) -> DocumentSet:
    """Writes what a source gives as a document set; what an earlier attempt left there is replaced.

    Args:
        stage: the name of what made them, for the report.
        settings: what else decides the content, as JSON values; for the manifest.
        shard_bytes: a shard ends with the document that brings its text to this size.
        finished: the first of `finished_shards`, which are kept; `documents` are those that come after them.
        on_shard: called with the index of a shard when it is done and one more of `documents` was taken.
    Raises:
        DataError: there are no documents, or one cannot be written as UTF-8.
    """
    records = list(finished)
    _begin(output_path, [record["name"] for record in records])
    identity = _identity(stage, settings)
    progress = StageProgress(stage, None)
    for record in records:
        progress.shard_done(record)
    source = iter(documents)
    output = next(source, None)
    while output is not None:
        with ShardWriter(output_path, shard_name(len(records)), identity=identity) as writer:
            while output is not None and writer.bytes_kept < shard_bytes:
                writer.add(output)
                output = next(source, None)
            writer.bytes_in = writer.bytes_kept
        records.append(writer.record)
        on_shard(len(records) - 1)
        progress.shard_done(writer.record)
    if not records:
        raise DataError(f"{stage}: there are no documents for {output_path}: check where they should come from")
    return _finish(output_path, records, progress, settings)


def finished_shards(output_path: str, *, stage: str, settings: Mapping[str, Any]) -> list[Record]:
    """The records of the first shards that `write_shards` with these arguments has done at `output_path`."""
    identity = _identity(stage, settings)
    records: list[Record] = []
    while record := finished_record(output_path, shard_name(len(records)), identity=identity, input_digest=""):
        records.append(record)
    return records


def transform_shards(
    source: DocumentSet | str,
    output_path: str,
    transform: Transform,
    *,
    stage: str,
    settings: Mapping[str, Any],
    num_workers: int = 0,
) -> DocumentSet:
    """Writes a document set from another, shard for shard, in parallel processes; goes on where a killed run stopped.

    Args:
        transform: called with a shard's index and documents where the shard is done. It gives one `Document` or `Dropped`
            for each document, with the same id and in the same order; it may read ahead.
        stage: the name of what is done, for the report.
        settings: all else that decides the content, as JSON values. A shard that was done with other settings is done
            again; so what a transform knows about other shards must be a function of `settings` (their digest).
        num_workers: processes; 0 is one a processor. One shard, or one worker, is done in this process.
    Raises:
        DataError: the source cannot be read, or the transform failed; the message names shard and document.
    """
    opened = DocumentSet.open(source) if isinstance(source, str) else source
    names = [shard_name(index) for index in range(len(opened.shards))]
    _begin(output_path, names)
    identity = _identity(stage, settings)
    progress = StageProgress(stage, len(names))
    records: dict[int, Record] = {}
    for index, shard in enumerate(opened.shards):
        record = finished_record(output_path, names[index], identity=identity, input_digest=shard.digest)
        if record is not None:
            records[index] = record
            progress.shard_done(record)
    todo = [index for index in range(len(names)) if index not in records]
    work = functools.partial(_transform_shard, opened, output_path, transform, stage, identity)
    for position, record in run_in_processes(work, todo, num_workers):
        records[todo[position]] = record
        progress.shard_done(record)
    return _finish(output_path, [records[index] for index in range(len(names))], progress, settings)


def _transform_shard(
    source: DocumentSet,
    output_path: str,
    transform: Transform,
    stage: str,
    identity: str,
    index: int,
) -> Record:
    shard = source.shards[index]
    pending: deque[Document] = deque()
    last_id = None
    with ShardWriter(output_path, shard_name(index), identity=identity, input_digest=shard.digest) as writer:

        def watched() -> Iterator[Document]:
            nonlocal last_id
            for document in shard.documents():
                last_id = document.id
                writer.bytes_in += text_bytes(document.text)
                pending.append(document)
                yield document

        documents = watched()
        try:
            for output in transform(index, documents):
                if not pending or pending[0].id != output.id:
                    expected = repr(pending[0].id) if pending else "no more"
                    raise DataError(f"the transform gave document {output.id!r}, expected {expected}")
                before = pending.popleft()
                writer.add(output)
                writer.num_changed += isinstance(output, Document) and output.text != before.text
            if pending or next(documents, None) is not None:
                raise DataError(f"the transform gave nothing for document {pending[0].id!r}")
        except MarinError as error:
            raise DataError(f"{stage}: {shard.path}, near document {last_id!r}: {error}") from error
        except Exception as error:  # a transform can raise anything; the person must learn for which document
            raise DataError(
                f"{stage}: {shard.path}, near document {last_id!r}: {type(error).__name__}: {error}"
            ) from error
    counts = writer.record["documents"]
    assert counts["in"] == counts["kept"] + counts["dropped"] == shard.num_documents, (shard, counts)
    return writer.record


def _begin(output_path: str, names: list[str]) -> None:
    """Makes the set unfinished, and removes what is no part of it."""
    files.remove_file(files.join(output_path, MANIFEST))
    files.remove_file(files.join(output_path, REPORT))
    files.remove_temporaries(output_path)
    remove_others(output_path, names)


def _finish(
    output_path: str, records: list[Record], progress: StageProgress, settings: Mapping[str, Any]
) -> DocumentSet:
    totals = totals_of(records)
    examples: dict[str, list[str]] = {}
    for record in records:
        for reason, ids in record["examples"].items():
            examples.setdefault(reason, []).extend(ids)
    report = {
        "stage": progress.stage,
        "settings": dict(settings),
        "documents": totals["documents"],
        "bytes": totals["bytes"],
        "dropped": {
            reason: {"documents": count, "examples": examples[reason][:10]}
            for reason, count in totals["dropped_by_reason"].items()
        },
    }
    files.write_json(files.join(output_path, REPORT), report)
    manifest = {"format": _FORMAT, "stage": progress.stage, "settings": dict(settings), **totals, "shards": records}
    files.write_json(files.join(output_path, MANIFEST), manifest)
    progress.finished(totals)
    return DocumentSet.open(output_path)


def _shard(path: str, record: Record) -> Shard:
    return Shard(
        name=record["name"],
        path=files.join(path, DOCUMENTS, record["name"] + ".jsonl.zst"),
        num_documents=record["documents"]["kept"],
        num_bytes=record["bytes"]["kept"],
        digest=record["digests"][DOCUMENTS],
    )


def _identity(stage: str, settings: Mapping[str, Any]) -> str:
    text = json.dumps([_FORMAT, stage, dict(settings)], sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
