"""What the filter did, to look at: score histograms, hundreds of kept and dropped documents, and what was planted.

    selection.json   the limit, counts, a histogram of the scores of kept and of dropped documents, and `planted`
    samples.jsonl    documents with `id`, `source`, `score`, `kept`, `drawn` and the beginning of the text

Half of the samples of each side are drawn at random, half are those nearest to the limit, where a filter errs. Where the pool
holds documents that are known to be wanted (`planted_sources`), scores are measured against that: no document whose text is in
the labelled sample counts.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from marin.data.documents import Document, text_digest
from marin.data.formats import json_line
from marin.data.shards import REPORT, DocumentSet
from marin.datashop.quality import measure_quality
from marin.datashop.scoring import SCORES, read_scores
from marin.errors import ConfigError, DataError
from marin.execution.step import Input, this_output_path
from marin.storage import files

SELECTION, SAMPLES = "selection.json", "samples.jsonl"
_BINS = 50
_SHOWN_CHARS = 2000
RANDOM, NEAR = "at random", "nearest to the limit"


@dataclass(frozen=True)
class SelectionConfig:
    """Args:
    documents: the pool.
    scores: of the pool.
    filtered: what was kept of it.
    labelled: the sample that the classifier learned from.
    planted_sources: documents of these sources are known to be wanted, and all others not to be.
    num_samples: of the kept and of the dropped documents, each.
    seed: of the random samples.
    """

    documents: Input
    scores: Input
    filtered: Input
    labelled: Input
    planted_sources: tuple[str, ...] = ()
    num_samples: int = 200
    seed: int = 0
    output_path: str = this_output_path()

    def __post_init__(self) -> None:
        if self.num_samples < 2:
            raise ConfigError(f"config field `num_samples` is {self.num_samples}: use at least 2")


def look_at_selection(config: SelectionConfig) -> None:
    """Writes `samples.jsonl` and `selection.json`.

    Raises:
        DataError: nothing was kept, pool, scores and kept documents do not belong together, or no document is of a planted
            source.
    """
    pool, kept_set = DocumentSet.open(str(config.documents)), DocumentSet.open(str(config.filtered))
    settings = files.read_json(files.join(str(config.filtered), REPORT))["settings"]
    scale = [float(end) for end in files.read_json(files.join(str(config.scores), SCORES))["scale"]]
    kept_all: list[np.ndarray] = []
    scores_all: list[np.ndarray] = []
    for part_scores, part_kept in _scores_by_shard(pool, kept_set, str(config.scores)):
        scores_all.append(part_scores)
        kept_all.append(part_kept)
    scores, is_kept = np.concatenate(scores_all), np.concatenate(kept_all)
    limit = float(settings["limit"])
    if not is_kept.any():
        raise DataError(
            f"no document of {len(scores):,} scores {limit:g} or more, the highest score is {scores.max():.4g}: set a lower "
            f"`threshold`, or a `keep_fraction`"
        )
    # A cascade ranks what its cheap part dropped below the scale.
    edges = np.linspace(min(scale[0], scores.min()), max(scale[1], scores.max()), _BINS + 1)
    chosen = _chosen(scores, is_kept, limit, config)
    rows, places, is_planted = _read_chosen(pool, scores, is_kept, chosen, config)
    with files.writing(files.join(config.output_path, SAMPLES)) as stream:
        for row in rows:
            stream.write(json_line(row))
    content: dict[str, Any] = {
        "num_documents": len(scores),
        "num_kept": int(is_kept.sum()),
        "kept_fraction": float(is_kept.mean()),
        "limit": limit,
        "scale": scale,
        "edges": edges.tolist(),
        "kept": np.histogram(scores[is_kept], edges)[0].tolist(),
        "dropped": np.histogram(scores[~is_kept], edges)[0].tolist(),
        "planted": _planted(scores[places], is_kept[places], is_planted, (scale[0], scale[1]), config),
    }
    files.write_json(files.join(config.output_path, SELECTION), content)
    print(
        f"selection: {content['num_kept']:,} of {len(scores):,} documents kept, {len(rows)} of them to look at",
        flush=True,
    )


def _scores_by_shard(
    pool: DocumentSet, kept: DocumentSet, scores: str
) -> Iterator[tuple[Float64[np.ndarray, " n"], Bool[np.ndarray, " n"]]]:
    """For each shard of the pool the scores of its documents, and which of them were kept."""
    if len(kept.shards) != len(pool.shards):
        raise DataError(f"{kept.path} has {len(kept.shards)} shards, {pool.path} has {len(pool.shards)}: filter again")
    for shard, kept_shard in zip(pool.shards, kept.shards, strict=True):
        part = np.fromiter(read_scores(scores, shard), np.float64)
        if len(part) != shard.num_documents:
            raise DataError(
                f"{scores} has {len(part):,} scores for {shard.path} with {shard.num_documents:,} documents"
            )
        is_kept = np.zeros(len(part), bool)
        remaining = kept_shard.documents()
        following = next(remaining, None)
        for row, document in enumerate(shard.documents()):
            if document == following:  # all of it, as ids may not be unique
                is_kept[row] = True
                following = next(remaining, None)
        if following is not None:
            raise DataError(
                f"{kept_shard.path} holds document {following.id!r}, which is not in {shard.path} in that place"
            )
        yield part, is_kept


def _chosen(
    scores: Float64[np.ndarray, " N"], is_kept: Bool[np.ndarray, " N"], limit: float, config: SelectionConfig
) -> dict[int, str]:
    """Which rows to show, and how they were drawn."""
    generator = np.random.Generator(np.random.PCG64(config.seed))
    chosen: dict[int, str] = {}
    for side in (True, False):
        rows = np.flatnonzero(is_kept == side)
        near = heapq.nsmallest(config.num_samples // 2, rows.tolist(), key=lambda row: (abs(scores[row] - limit), row))
        rest = np.setdiff1d(rows, near)
        drawn = generator.choice(rest, min(config.num_samples - len(near), len(rest)), replace=False)
        chosen |= dict.fromkeys(near, NEAR) | dict.fromkeys(drawn.tolist(), RANDOM)
    return chosen


def _read_chosen(
    pool: DocumentSet,
    scores: Float64[np.ndarray, " N"],
    is_kept: Bool[np.ndarray, " N"],
    chosen: dict[int, str],
    config: SelectionConfig,
) -> tuple[list[dict[str, Any]], Int64[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """The rows to show; and, where something is planted, the documents outside the labelled sample, and which were planted."""
    labelled = _texts_of(str(config.labelled)) if config.planted_sources else set()
    rows: list[dict[str, Any]] = []
    places: list[int] = []
    truth: list[bool] = []
    for row, document in enumerate(pool.documents()):
        if row in chosen:
            rows.append(_shown(document, float(scores[row]), bool(is_kept[row]), chosen[row]))
        if config.planted_sources and text_digest(document.text) not in labelled:
            places.append(row)
            truth.append(document.source in config.planted_sources)
    rows.sort(key=lambda row: (not row["kept"], -row["score"], row["id"]))
    return rows, np.array(places, np.int64), np.array(truth, bool)


def _texts_of(path: str) -> set[bytes]:
    return {text_digest(document.text) for document in DocumentSet.open(path).documents()}


def _shown(document: Document, score: float, is_kept: bool, drawn: str) -> dict[str, Any]:
    return {
        "id": document.id,
        "source": document.source,
        "score": score,
        "kept": is_kept,
        "drawn": drawn,
        "characters": len(document.text),
        "text": document.text[:_SHOWN_CHARS],
    }


def _planted(
    scores: Float64[np.ndarray, " n"],
    is_kept: Bool[np.ndarray, " n"],
    is_planted: Bool[np.ndarray, " n"],
    scale: tuple[float, float],
    config: SelectionConfig,
) -> dict[str, Any] | None:
    if not config.planted_sources:
        return None
    if not is_planted.any() or is_planted.all():
        raise DataError(
            f"{config.documents}: {int(is_planted.sum()):,} of {len(is_planted):,} documents are of the sources "
            f"{', '.join(config.planted_sources)}: `planted_sources` needs documents of both kinds outside the sample"
        )
    truth = is_planted.astype(np.float64)
    quality = measure_quality(
        (scores - scale[0]) / (scale[1] - scale[0]), truth, 0.5, scale=(0.0, 1.0), seed=config.seed
    )
    return {
        "sources": list(config.planted_sources),
        "num_planted": int(is_planted.sum()),
        "num_kept": int((is_kept & is_planted).sum()),
        "precision_of_kept": float(is_planted[is_kept].mean()) if is_kept.any() else None,
        "recall_of_kept": float(is_kept[is_planted].mean()),
        "quality": quality.to_json(),
    }
