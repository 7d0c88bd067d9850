"""Exact deduplication: documents with the same text, and paragraphs that stand in the corpus before.

The first in the order of the input is kept, whatever the shards and workers. A first pass writes the 128-bit BLAKE2b
hashes of all documents or paragraphs; equal ones are found part by part of the hash range (`buckets`), so memory does
not grow with the corpus; a second pass writes the result. Two different texts with the same hash are not expected in
any corpus (10^12 paragraphs: one chance in 10^15).

A paragraph is what stands between blank lines. Two are the same if they differ only in white space. Paragraphs of fewer
than `min_chars` characters are kept always: headings, "}" and list items are repeated in good documents. What remains
of a document keeps its blank lines; a document of which nothing remains is dropped.
"""

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from marin.data.deduplication.buckets import buckets, first_of_equals, sorted_hashes
from marin.data.deduplication.repeats import Repeats, drop_repeats
from marin.data.documents import Document, Dropped, text_digest
from marin.data.scratch import Arrays, Scratch, string_arrays
from marin.data.shards import DocumentSet, Shard, Transform, transform_shards
from marin.execution.step import ExecutorStep, Input, placement, this_output_path

_BLANK_LINES = re.compile(r"(\n\s*\n)")


@dataclass(frozen=True)
class ExactDocumentsConfig:
    """Args:
    documents: a document set.
    num_workers: processes; 0 is one a processor.
    """

    marin_resumable: ClassVar[bool] = True

    documents: Input
    output_path: str = this_output_path()
    num_workers: int = placement(default=0)


@dataclass(frozen=True)
class ExactParagraphsConfig:
    """Args:
    documents: a document set.
    min_chars: shorter paragraphs are kept, counted with single spaces for white space.
    num_workers: processes; 0 is one a processor.
    """

    marin_resumable: ClassVar[bool] = True

    documents: Input
    min_chars: int = 100
    output_path: str = this_output_path()
    num_workers: int = placement(default=0)


def dedup_exact_documents_step(name: str, documents: Input) -> ExecutorStep:
    """The step `deduplicated/{name}`: of documents with the same text, the first."""
    return ExecutorStep(
        name=f"deduplicated/{name}",
        fn=dedup_exact_documents,
        config=ExactDocumentsConfig(documents),
        description="exact deduplication of documents",
    )


def dedup_exact_paragraphs_step(name: str, documents: Input, *, min_chars: int = 100) -> ExecutorStep:
    """The step `deduplicated/{name}`: documents without the paragraphs that stand in the corpus before."""
    return ExecutorStep(
        name=f"deduplicated/{name}",
        fn=dedup_exact_paragraphs,
        config=ExactParagraphsConfig(documents, min_chars),
        description="exact deduplication of paragraphs",
    )


def dedup_exact_documents(config: ExactDocumentsConfig) -> None:
    """Writes the documents whose text is not that of an earlier one.

    Raises:
        DataError: the documents cannot be read.
    """
    _deduplicate(
        config,
        "dedup_exact_documents",
        {},
        _document_hashes,
        lambda repeats: functools.partial(drop_repeats, repeats, "same text"),
    )


def dedup_exact_paragraphs(config: ExactParagraphsConfig) -> None:
    """Writes the documents without the paragraphs that stand in the corpus before.

    Raises:
        DataError: the documents cannot be read.
    """
    _deduplicate(
        config,
        "dedup_exact_paragraphs",
        {"min_chars": config.min_chars},
        lambda shard, index: _paragraph_hashes(shard, config.min_chars),
        lambda repeats: functools.partial(_drop_paragraphs, repeats, config.min_chars),
    )


def _deduplicate(
    config: ExactDocumentsConfig | ExactParagraphsConfig,
    stage: str,
    settings: dict[str, Any],
    hashes_of: Callable[[Shard, int], Arrays],
    dropping: Callable[[Repeats], Transform],
) -> None:
    source = DocumentSet.open(str(config.documents))
    with Scratch(config.output_path, "hashes", source, f"{stage} {settings}") as scratch:
        scratch.compute(hashes_of, config.num_workers)
        counts = [int(scratch.read(index, "num-rows")[0]) for index in range(len(source.shards))]
        repeats = Repeats(scratch, counts)
        repeats.begin()
        for bucket in buckets(scratch, 0, repeats.bases, has_extras=True):
            is_repeat, firsts = first_of_equals(bucket)
            repeats.add(bucket.positions[is_repeat], bucket.positions[firsts[is_repeat]])
        transform_shards(
            source,
            config.output_path,
            dropping(repeats),
            stage=stage,
            settings=settings | {"source_digest": source.digest},
            num_workers=config.num_workers,
        )


def _document_hashes(shard: Shard, index: int) -> Arrays:
    hashes, ids = bytearray(), []
    for document in shard.documents():
        hashes += text_digest(document.text)
        ids.append(document.id)
    return _hash_arrays(hashes) | string_arrays("ids", ids)


def _paragraph_hashes(shard: Shard, min_chars: int) -> Arrays:
    hashes = bytearray()
    for document in shard.documents():
        for paragraph in _BLANK_LINES.split(document.text)[::2]:
            normalized = _normalized(paragraph)
            if len(normalized) >= min_chars:
                hashes += text_digest(normalized)
    return _hash_arrays(hashes)


def _hash_arrays(hashes: bytearray) -> dict[str, np.ndarray]:
    halves = np.frombuffer(bytes(hashes), "<u8").reshape(-1, 2)
    return sorted_hashes(halves[:, :1].T, extras=halves[:, 1:].T) | {"num-rows": np.array([len(halves)])}


def _normalized(paragraph: str) -> str:
    return " ".join(paragraph.split())


def _drop_paragraphs(
    repeats: Repeats, min_chars: int, index: int, documents: Iterator[Document]
) -> Iterator[Document | Dropped]:
    first_of = repeats.of_shard(index)
    row = 0
    for document in documents:
        parts = _BLANK_LINES.split(document.text)
        kept: list[str] = []
        num_removed = 0
        for position in range(0, len(parts), 2):
            if len(_normalized(parts[position])) >= min_chars:
                row += 1
                if row - 1 in first_of:
                    num_removed += 1
                    continue
            kept += parts[max(position - 1, 0) : position + 1] if kept else parts[position : position + 1]
        text = "".join(kept)
        if num_removed and not text.strip():
            yield Dropped(document.id, "all paragraphs repeated", f"{num_removed} paragraphs")
        elif num_removed:
            yield Document(document.id, text, document.source)
        else:
            yield document
