"""Scores of a document set: shard by shard, each whole or not there, in the layout that filters by score read.

    shard-00000.jsonl.zst    a row `{"id", "score"}` for each document of the shard, in order
    records/shard-00000.json what the file was made from: digests of shard and classifier, and of the file
    scores.json              totals: documents, a histogram, the mean

`score_shard` does one shard and is all that a worker needs, wherever it runs: in a process of this machine, or as a task on a
Ray cluster whose machines see the same files. A shard whose record is there is done.
"""

import functools
import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import zstandard
from jaxtyping import Float64

from marin.data import ray_workers
from marin.data.documents import Document
from marin.data.formats import Row, rows_of_json_lines
from marin.data.pace import Pace
from marin.data.shards import DocumentSet, Shard
from marin.data.workers import run_in_processes
from marin.datashop.classifier import Classifier, load_classifier, read_record
from marin.errors import DataError, StorageError
from marin.execution.status import OWN_PREFIX
from marin.execution.step import Input, placement, this_output_path
from marin.number_checks import is_finite
from marin.storage import files

SCORES = "scores.json"
_RECORDS = "records"
_BINS = 50
_DOCUMENTS_AT_ONCE = 512
_NEXT_STEP = "run the step that scores the documents again"

Record = dict[str, Any]


@dataclass(frozen=True)
class ScoreConfig:
    """Args:
    documents: a document set.
    classifier: a folder that `train_classifier` wrote.
    num_workers: processes, or tasks of a cluster at once; 0 is one a processor. For a classifier that uses all of them, or an
        accelerator, by itself it is one (`num_processes` in its `classifier.json`), and on one machine never more.
    """

    marin_resumable: ClassVar[bool] = True

    documents: Input
    classifier: Input
    output_path: str = this_output_path()
    num_workers: int = placement(default=0)


def score_documents(config: ScoreConfig) -> None:
    """Writes a file of scores for each shard, and last `scores.json`.

    Raises:
        DataError: documents or classifier cannot be read, or a score is not finite; the message names the shard.
    """
    source, folder = DocumentSet.open(str(config.documents)), str(config.classifier)
    classifier = read_record(folder)
    scale = [float(end) for end in classifier["scale"]]
    num_workers = _num_workers(config.num_workers, int(classifier.get("num_processes", 0)))
    digest = folder_digest(folder)
    files.remove_file(files.join(config.output_path, SCORES))
    files.remove_temporaries(config.output_path)
    records: dict[int, Record] = {}
    for index, shard in enumerate(source.shards):
        record = _finished(config.output_path, shard, digest)
        if record is not None:
            records[index] = record
    todo = [index for index in range(len(source.shards)) if index not in records]
    work = functools.partial(score_shard, folder, digest, config.output_path, (scale[0], scale[1]))
    progress = _Progress(source, sum(records[index]["documents"] for index in records))
    for position, record in run_in_processes(work, [source.shards[index] for index in todo], num_workers):
        records[todo[position]] = record
        progress.add(record["documents"])
    counts = np.sum([records[index]["histogram"] for index in range(len(source.shards))], axis=0)
    total = sum(records[index]["sum"] for index in range(len(source.shards)))
    summary = {
        "num_documents": source.num_documents,
        "documents_digest": source.digest,
        "classifier_digest": digest,
        "scale": scale,
        "mean": total / source.num_documents if source.num_documents else None,
        "histogram": counts.tolist(),
    }
    files.write_json(files.join(config.output_path, SCORES), summary)
    progress.finished()


def _num_workers(asked: int, most: int) -> int:
    """Args:
    most: processes that a machine has room for; 0 where the classifier does not say.
    """
    if not most or (asked and ray_workers.is_on_cluster()):
        return asked
    return min(asked or most, most)


def score_shard(folder: str, digest: str, output_path: str, scale: tuple[float, float], shard: Shard) -> Record:
    """Scores one shard, and writes its file and then its record.

    Args:
        folder: the classifier's; `digest` names its content.
        scale: the ends of the histogram.
    Raises:
        DataError: the shard cannot be read, or a score is not finite.
    """
    classifier = _loaded(folder, digest)
    histogram, total, num = np.zeros(_BINS, np.int64), 0.0, 0
    path = _path(output_path, shard)
    compressor = zstandard.ZstdCompressor(level=3, write_checksum=True)
    with files.writing(path) as raw, compressor.stream_writer(raw, closefd=False) as stream:
        for documents, scores in _scored(classifier, shard.documents()):
            if not np.isfinite(scores).all():
                bad = documents[int(np.flatnonzero(~np.isfinite(scores))[0])]
                raise DataError(
                    f"{shard.path}: the score of document {bad.id!r} is not finite: train the classifier again"
                )
            stream.write(_rows(documents, scores))
            histogram += np.histogram(np.clip(scores, *scale), _BINS, scale)[0]
            total += float(scores.sum())
            num += len(documents)
    record = {
        "documents": num,
        "shard_digest": shard.digest,
        "classifier_digest": digest,
        "digest": files.sha256_file(path),
        "sum": total,
        "histogram": histogram.tolist(),
    }
    files.write_json(_record_path(output_path, shard), record)
    return record


def read_scores(scores: str, shard: Shard) -> Iterator[float]:
    """The scores of a shard's documents, in order, from the folder that `score_documents` wrote.

    Raises:
        DataError: there are none, or they are damaged.
    """
    path = _path(scores, shard)
    if not files.exists(path):
        raise DataError(f"{path} is missing: {_NEXT_STEP}")
    for row in rows_of_json_lines(path):
        score = row.fields.get("score") if isinstance(row, Row) else None
        if not is_finite(score):
            raise DataError(f"{path}:{row.number} is no score of a document: {_NEXT_STEP}")
        yield float(score)


def folder_digest(folder: str) -> str:
    """SHA-256 over names and contents of a folder's files, but for what the executor keeps there."""
    digest = hashlib.sha256()
    for name in sorted(files.files_below(folder)):
        if not name.startswith(OWN_PREFIX) and "/.work/" not in f"/{name}":
            digest.update(f"{name}\0{files.sha256_file(files.join(folder, name))}\n".encode())
    return digest.hexdigest()


def _scored(
    classifier: Classifier, documents: Iterator[Document]
) -> Iterator[tuple[list[Document], Float64[np.ndarray, " n"]]]:
    at_once = getattr(classifier, "documents_at_once", _DOCUMENTS_AT_ONCE)
    while block := list(itertools.islice(documents, at_once)):
        yield block, classifier.scores([one.text for one in block])


def _rows(documents: Sequence[Document], scores: Float64[np.ndarray, " n"]) -> bytes:
    # 17 digits are the number itself. A score is one of few fields, so the row is put together here.
    encode = json.encoder.encode_basestring
    lines = [
        f'{{"id":{encode(document.id)},"score":{score!r}}}\n'
        for document, score in zip(documents, scores.tolist(), strict=True)
    ]
    return "".join(lines).encode()


@functools.lru_cache(maxsize=1)
def _loaded(folder: str, digest: str) -> Classifier:
    """One classifier stays in a worker's memory; the digest is there so that another one of that name is loaded anew."""
    return load_classifier(folder)


def _finished(output_path: str, shard: Shard, digest: str) -> Record | None:
    try:
        record = files.read_json(_record_path(output_path, shard))
        if (record["shard_digest"], record["classifier_digest"]) != (shard.digest, digest):
            return None
        return dict(record) if record["digest"] == files.sha256_file(_path(output_path, shard)) else None
    except (StorageError, KeyError, TypeError):
        return None


def _path(output_path: str, shard: Shard) -> str:
    return files.join(output_path, shard.name + ".jsonl.zst")


def _record_path(output_path: str, shard: Shard) -> str:
    return files.join(output_path, _RECORDS, shard.name + ".json")


class _Progress:
    """Prints how far scoring is: now and then, and one line at the end."""

    def __init__(self, source: DocumentSet, num_before: int):
        self._total, self._before, self._done = source.num_documents, num_before, 0
        self._pace = Pace()

    def add(self, num_documents: int) -> None:
        self._done += num_documents
        if self._pace.is_due():
            print(f"score: {self._before + self._done:,} of {self._total:,} documents, {self._rate()}", flush=True)

    def finished(self) -> None:
        before = f"; {self._before:,} were there" if self._before else ""
        print(f"score: {self._done:,} documents, {self._rate()}{before}", flush=True)

    def _rate(self) -> str:
        return f"{self._done / self._pace.elapsed:,.0f} documents/s"
