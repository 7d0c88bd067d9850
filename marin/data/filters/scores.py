"""Filter by score: keeps documents whose score reaches a threshold, or the best fraction of all.

Scores come from whatever judged the documents, as rows of JSON lines with an `id` and the score, one for each document
and in its order: for a document set a folder with one file a shard, named as the shard (`shard-00000.jsonl.zst`, or
`.jsonl`, or `.jsonl.gz`), for a single file of documents one file. A score that is missing, that is no finite number,
or that belongs to another document is an error, with file and line.

The best fraction is exact: of n documents round(fraction n) are kept, but at least one, among equal scores the earlier ones. The limit is
found by counting scores by their leading 16 bits, then within one such class by the next 16, and so on, so memory does
not grow with the number of documents.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float64, UInt64

from marin.data.documents import Document, Dropped, is_set_path
from marin.data.formats import BadRow, Row, json_line_rows
from marin.data.inputs import InputFile, format_of, opened_unchanged
from marin.data.scratch import Scratch
from marin.data.shards import DocumentSet, Shard, transform_shards
from marin.errors import ConfigError, DataError
from marin.execution.step import ExecutorStep, Input, placement, this_output_path
from marin.number_checks import is_finite
from marin.storage import files

_BLOCK = 1 << 20


@dataclass(frozen=True)
class FilterByScoreConfig:
    """Args:
    documents: a document set.
    scores: a folder with a file of scores for each shard; for a single file of documents, one file.
    threshold: keep documents with at least this score. Either this or `keep_fraction`.
    keep_fraction: keep this fraction of all documents, those with the highest scores; above 0, at most 1.
    field: where a row has the score; dots lead into objects, as in "attributes.quality.score".
    num_workers: processes; 0 is one a processor.
    """

    marin_resumable: ClassVar[bool] = True

    documents: Input
    scores: Input
    threshold: float | None = None
    keep_fraction: float | None = None
    field: str = "score"
    output_path: str = this_output_path()
    num_workers: int = placement(default=0)

    def __post_init__(self) -> None:
        if (self.threshold is None) == (self.keep_fraction is None):
            raise ConfigError(
                f"config fields `threshold` is {self.threshold} and `keep_fraction` is {self.keep_fraction}: "
                f"set exactly one of them"
            )
        if self.keep_fraction is not None and not 0 < self.keep_fraction <= 1:
            raise ConfigError(f"config field `keep_fraction` is {self.keep_fraction}: use one above 0 and at most 1")
        if self.threshold is not None and not np.isfinite(self.threshold):
            raise ConfigError(f"config field `threshold` is {self.threshold}: use a finite number")


def filter_by_score_step(
    name: str,
    documents: Input,
    scores: Input,
    *,
    threshold: float | None = None,
    keep_fraction: float | None = None,
    field: str = "score",
) -> ExecutorStep:
    """The step `filtered/{name}`: the documents with a high score."""
    return ExecutorStep(
        name=f"filtered/{name}",
        fn=filter_by_score,
        config=FilterByScoreConfig(documents, scores, threshold, keep_fraction, field),
        description="documents with a high score",
    )


def filter_by_score(config: FilterByScoreConfig) -> None:
    """Writes the documents whose score is high enough.

    Raises:
        DataError: documents or scores cannot be read, or do not belong together.
    """
    source = DocumentSet.open(str(config.documents))
    paths = [_scores_path(source, str(config.scores), shard) for shard in source.shards]
    digests = [files.sha256_file(path) for path in paths]
    with Scratch(config.output_path, "scores", source, f"scores {config.field} {digests}") as scratch:
        scratch.compute(
            lambda shard, index: {"scores": _scores_of(shard, paths[index], config.field)}, config.num_workers
        )
        if config.threshold is not None or not source.num_documents:
            limit, num_equal = config.threshold or 0.0, source.num_documents
        else:
            limit, num_equal = _limit(scratch, max(round((config.keep_fraction or 0) * source.num_documents), 1))
        equal_before = np.cumsum(
            [0] + [int((scratch.read(i, "scores") == limit).sum()) for i in range(len(source.shards))]
        )
        transform_shards(
            source,
            config.output_path,
            functools.partial(_kept, scratch, limit, [max(num_equal - int(before), 0) for before in equal_before]),
            stage="filter_by_score",
            settings={
                "field": config.field,
                "threshold": config.threshold,
                "keep_fraction": config.keep_fraction,
                "limit": limit,
                "source_digest": source.digest,
                "scores_digests": digests,
            },
            num_workers=config.num_workers,
        )


def _kept(
    scratch: Scratch, limit: float, num_equal: list[int], index: int, documents: Iterator[Document]
) -> Iterator[Document | Dropped]:
    """Keeps what is above the limit, and of what is equal to it the first `num_equal[index]`."""
    scores = scratch.read(index, "scores").tolist()
    num_left = num_equal[index]
    for score, document in zip(scores, documents, strict=True):
        if score == limit:
            num_left -= 1
        if score > limit or (score == limit and num_left >= 0):
            yield document
        else:
            yield Dropped(document.id, "low score", f"{score:.6g}, the limit is {limit:.6g}")


def _limit(scratch: Scratch, num_kept: int) -> tuple[float, int]:
    """The score of the last of the `num_kept` best documents, and how many with just that score are among them."""
    prefix = 0
    for level in range(4):
        shift = np.uint64(48 - 16 * level)
        counts = np.zeros(1 << 16, np.int64)
        for index in range(len(scratch.source.shards)):
            for start in range(0, scratch.length(index, "scores"), _BLOCK):
                keys = _ordered(scratch.read(index, "scores", start, start + _BLOCK)) >> shift
                keys = keys[keys >> np.uint64(16) == np.uint64(prefix)]
                counts += np.bincount((keys & np.uint64(0xFFFF)).astype(np.int64), minlength=1 << 16)
        above = np.concatenate([np.cumsum(counts[::-1])[::-1], [0]])
        place = int(np.flatnonzero(above >= num_kept)[-1])
        num_kept -= int(above[place + 1])
        prefix = (prefix << 16) | place
    key = np.array([prefix], np.uint64)
    is_positive = key >> np.uint64(63) == 1
    bits = np.where(is_positive, key ^ np.uint64(1 << 63), ~key)
    return float(bits.view(np.float64)[0]), num_kept


def _ordered(scores: Float64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """Integers in the same order as the numbers: the sign bit inverted, negative numbers inverted as a whole."""
    bits = (scores + 0.0).view(np.uint64)  # -0.0 becomes 0.0
    return np.where(bits >> np.uint64(63) == 1, ~bits, bits | np.uint64(1 << 63))


def _scores_path(source: DocumentSet, path: str, shard: Shard) -> str:
    if not is_set_path(source.path):
        return path
    candidates = [files.join(path, shard.name + ending) for ending in (".jsonl.zst", ".jsonl", ".jsonl.gz")]
    for candidate in candidates:
        if files.exists(candidate):
            return candidate
    raise DataError(f"{path} has no scores for {shard.path}: expected {candidates[0]}, or .jsonl or .jsonl.gz")


def _scores_of(shard: Shard, path: str, field: str) -> Float64[np.ndarray, " n"]:
    kind, packed = format_of(path)
    if kind != "jsonl":
        raise DataError(f"{path}: scores are read from .jsonl, .jsonl.gz or .jsonl.zst files: write them as one")
    scores: list[float] = []
    with opened_unchanged(path) as stream:
        rows = json_line_rows(InputFile(path, path, kind, packed), stream)
        for document in shard.documents():
            row = next(rows, None)
            if row is None:
                raise DataError(
                    f"{path} has {len(scores):,} scores, {shard.path} has {shard.num_documents:,} documents"
                )
            scores.append(_score(path, row, document.id, field))
        if next(rows, None) is not None:
            raise DataError(f"{path} has more scores than {shard.path} has documents ({shard.num_documents:,})")
    return np.array(scores, np.float64)


def _score(path: str, row: Row | BadRow, document_id: str, field: str) -> float:
    where = f"{path}:{row.number}"
    if isinstance(row, BadRow):
        raise DataError(f"{where}: {row.reason}: {row.detail}")
    if row.fields.get("id") != document_id:
        raise DataError(
            f"{where} is the score of document {row.fields.get('id')!r}, expected {document_id!r}: scores stand in the "
            f"order of the documents; score this document set again"
        )
    value: Any = row.fields
    for name in field.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if not is_finite(value):
        raise DataError(
            f"{where}: `{field}` is {value!r}, expected a number (fields: {', '.join(row.fields)}): score the document "
            f"again, or name another field"
        )
    return float(value)
