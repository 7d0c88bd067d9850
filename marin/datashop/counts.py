"""How many documents each stage of a run was given and gave on, checked to add up.

    kept + dropped of a stage = what it was given = what the stage before kept

from the pool to the last document set, and on to the scores, the labels and the token cache. A run whose counts do not add up
is an error: something was written between two stages.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marin.data.shards import DocumentSet, read_manifest
from marin.datashop.labels import read_summary
from marin.datashop.scoring import SCORES
from marin.errors import DataError
from marin.storage import files

_NEXT_STEP = "remove that output and run the same command again"


@dataclass(frozen=True)
class StageCounts:
    """Documents and bytes of text of one stage; `dropped` is by reason, the most frequent first."""

    name: str
    stage: str
    documents_in: int
    documents_kept: int
    bytes_in: int
    bytes_kept: int
    dropped: Mapping[str, int]
    digest: str


def count_stages(stages: Sequence[tuple[str, str]]) -> list[StageCounts]:
    """The counts of document sets, each made of the one before, by name and path.

    Raises:
        DataError: a set is not there, or the counts do not add up.
    """
    found = [_count(name, path) for name, path in stages]
    for before, after in itertools.pairwise(found):
        if after.documents_in != before.documents_kept:
            raise DataError(
                f"the counts do not add up: {before.name} kept {before.documents_kept:,} documents, {after.name} was given "
                f"{after.documents_in:,}: {_NEXT_STEP}"
            )
    return found


def check_scores(scores: str, pool: StageCounts) -> int:
    """The number of scores, which must be that of the pool's documents.

    Raises:
        DataError: it is not, or the scores are of another pool.
    """
    summary = files.read_json(files.join(scores, SCORES))
    if summary["num_documents"] != pool.documents_kept or summary["documents_digest"] != pool.digest:
        raise DataError(
            f"the counts do not add up: {scores} has {summary['num_documents']:,} scores, the pool has "
            f"{pool.documents_kept:,} documents: {_NEXT_STEP}"
        )
    return int(summary["num_documents"])


def check_labels(labels: str, sample: str) -> dict[str, Any]:
    """The summary of the labels, which must be of all documents of the sample.

    Raises:
        DataError: they are not.
    """
    summary, size = read_summary(labels), DocumentSet.open(sample).num_documents
    if summary["num_documents"] != size or summary["num_labelled"] + summary["num_unparsed"] != size:
        raise DataError(
            f"the counts do not add up: {labels} has {summary['num_labelled']:,} labels and {summary['num_unparsed']:,} "
            f"without one, the sample has {size:,} documents: {_NEXT_STEP}"
        )
    return summary


def check_cache(cache: str, last: StageCounts) -> dict[str, int]:
    """Documents and tokens of the token cache, which must be made of all documents of the last stage.

    Raises:
        DataError: it is not.
    """
    from marin.data.cache import TokenCache

    opened = TokenCache.open(cache)
    if opened.num_documents != last.documents_kept:
        raise DataError(
            f"the counts do not add up: {cache} has {opened.num_documents:,} documents, {last.name} kept "
            f"{last.documents_kept:,}: {_NEXT_STEP}"
        )
    return {"documents": opened.num_documents, "tokens": len(opened)}


def _count(name: str, path: str) -> StageCounts:
    manifest, opened = read_manifest(path), DocumentSet.open(path)
    documents, size, dropped = manifest["documents"], manifest["bytes"], manifest["dropped_by_reason"]
    if documents["kept"] + sum(dropped.values()) != documents["in"] or documents["kept"] != opened.num_documents:
        raise DataError(
            f"the counts do not add up: {path} was given {documents['in']:,} documents, kept {documents['kept']:,} and "
            f"dropped {sum(dropped.values()):,}: {_NEXT_STEP}"
        )
    return StageCounts(
        name,
        str(manifest["stage"]),
        documents["in"],
        documents["kept"],
        size["in"],
        size["kept"],
        dropped,
        opened.digest,
    )
