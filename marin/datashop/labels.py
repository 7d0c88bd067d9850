"""A labelled sample: what stands in `labels.jsonl` and `labels.json`, and how a classifier reads both.

`labels.jsonl` has a row for each document of the sample, in its order:

    {"id": "...", "label": 4.0, "answer": "... Final Score: 4", "why_null": null, "annotator": "llama-3.1-8b"}

`label` null says that there is none, and `why_null` why: such documents are counted and never guessed. `labels.json` is the
summary beside it: the scale, the counts, the histogram, and what labelling cost.

Which documents are held out of training depends on their ids and the seed alone, so every classifier of one sample is
measured on the same documents.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from marin.data.documents import Document
from marin.data.formats import BadRow, json_line, rows_of_json_lines
from marin.data.shards import DocumentSet
from marin.errors import DataError
from marin.number_checks import is_finite
from marin.storage import files

LABELS, SUMMARY = "labels.jsonl", "labels.json"
EXAMPLES_SCALE = (0.0, 1.0)
"""Labels of examples: what is not wanted, and what is."""
FEW = 20
"""A side of the threshold with fewer labels than this, or with less than `RARE` of all, is called lopsided."""
RARE = 0.02
_NEXT_STEP = "run the step that labels the sample again"
_READ_ANSWERS = f"read the answers in {LABELS}, and mend the prompt"


@dataclass(frozen=True)
class LabelledSample:
    """The labelled documents of a sample; those without a label are left out and counted.

    Args:
        scale: the lowest and the highest label that can be given.
        is_held_out: which documents no classifier may learn from.
    """

    documents: tuple[Document, ...]
    labels: Float64[np.ndarray, " N"]
    scale: tuple[float, float]
    is_held_out: Bool[np.ndarray, " N"]
    num_unlabelled: int

    def part(self, held_out: bool) -> tuple[list[str], Float64[np.ndarray, " n"]]:
        """Texts and labels of the held-out documents, or of those to learn from."""
        chosen = self.is_held_out == held_out
        return [self.documents[index].text for index in np.flatnonzero(chosen)], self.labels[chosen]


def read_labelled(sample: str, labels: str, *, held_out_fraction: float, seed: int, threshold: float) -> LabelledSample:
    """The documents of the set `sample` with the labels in the folder `labels`.

    Args:
        threshold: a label of at least this is a wish fulfilled; both sides must be there to learn from and to measure on.
    Raises:
        DataError: rows and documents do not belong together, a label is off the scale, or one side of the threshold is
            missing in the held-out part or in the other one.
    """
    scale = read_scale(labels)
    documents: list[Document] = []
    values: list[float] = []
    num_unlabelled = 0
    path = files.join(labels, LABELS)
    rows = rows_of_json_lines(path)
    for document in DocumentSet.open(sample).documents():
        row = next(rows, None)
        if row is None or isinstance(row, BadRow) or row.fields.get("id") != document.id:
            found = "nothing" if row is None else row.detail if isinstance(row, BadRow) else row.fields.get("id")
            raise DataError(f"{path}: the label of document {document.id!r} should follow, found {found}: {_NEXT_STEP}")
        value = row.fields.get("label")
        if value is None:
            num_unlabelled += 1
            continue
        documents.append(document)
        values.append(_label(value, scale, f"{path}:{row.number}"))
    if next(rows, None) is not None:
        raise DataError(f"{path} has more labels than the sample {sample} has documents: {_NEXT_STEP}")
    is_held_out = held_out([document.id for document in documents], held_out_fraction, seed)
    labelled = LabelledSample(tuple(documents), np.array(values, np.float64), scale, is_held_out, num_unlabelled)
    _check_both_sides(labelled, threshold, path)
    return labelled


def held_out(ids: Sequence[str], fraction: float, seed: int) -> Bool[np.ndarray, " N"]:
    """Which of the ids are held out: each on its own, by a hash, so that a larger sample holds out the same ones and more."""
    limit = int(fraction * 2.0**64)
    hashes = (hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest() for name in ids)
    return np.array([int.from_bytes(digest, "big") < limit for digest in hashes], bool)


def read_scale(labels: str) -> tuple[float, float]:
    """The scale of the labels in the folder `labels`.

    Raises:
        DataError: there is no summary, or it states none.
    """
    summary = read_summary(labels)
    scale = as_scale(summary.get("scale"))
    if scale is None:
        raise DataError(
            f"{files.join(labels, SUMMARY)}: `scale` is {summary.get('scale')!r}, expected [lowest, highest]: {_NEXT_STEP}"
        )
    return scale


def as_scale(value: object) -> tuple[float, float] | None:
    """The lowest and the highest label, as a record has them in a list; None if it is something else."""
    if not isinstance(value, list) or len(value) != 2 or not all(map(is_finite, value)) or not value[0] < value[1]:
        return None
    return float(value[0]), float(value[1])


def read_summary(labels: str) -> dict[str, Any]:
    """What `labels.json` in the folder `labels` says.

    Raises:
        DataError: there is none.
    """
    path = files.join(labels, SUMMARY)
    if not files.exists(path):
        raise DataError(f"{labels} has no finished labels ({SUMMARY} is missing): {_NEXT_STEP}")
    summary = files.read_json(path)
    if not isinstance(summary, dict):
        raise DataError(f"{path} holds a {type(summary).__name__}, expected an object: {_NEXT_STEP}")
    return summary


def label_line(
    document_id: str, label: float | None, annotator: str, *, answer: str | None = None, why_null: str | None = None
) -> bytes:
    """A line of `labels.jsonl`."""
    return json_line(
        {"id": document_id, "label": label, "answer": answer, "why_null": why_null, "annotator": annotator}
    )


def counts_of(
    labels: Sequence[float], scale: tuple[float, float], why_null: Mapping[str, int] = MappingProxyType({})
) -> dict[str, Any]:
    """What every summary says of its labels.

    Args:
        why_null: how many documents have none, by the reason.
    """
    values, num_null = np.array(labels, np.float64), sum(why_null.values())
    return {
        "scale": list(scale),
        "num_documents": len(values) + num_null,
        "num_labelled": len(values),
        "num_unparsed": num_null,
        "unparsed": dict(sorted(why_null.items(), key=lambda item: (-item[1], item[0]))),
        "histogram": histogram_of(values, scale),
        "lopsided": lopsided_warning(values, sum(scale) / 2),
    }


def histogram_of(labels: Float64[np.ndarray, " N"], scale: tuple[float, float]) -> dict[str, int]:
    """How many labels there are of each whole number of the scale, by the number; labels between two are rounded."""
    low, high = math.floor(scale[0]), math.ceil(scale[1])
    rounded = np.clip(np.rint(labels), low, high).astype(np.int64)
    return {str(value): int((rounded == value).sum()) for value in range(low, high + 1)}


def lopsided_warning(labels: Float64[np.ndarray, " N"], threshold: float) -> str | None:
    """What is wrong with the balance of the labels; None if nothing is."""
    if not len(labels):
        return f"no document has a label: {_READ_ANSWERS}"
    wanted = int((labels >= threshold).sum())
    sides = {f"of {threshold:g} and more": wanted, f"below {threshold:g}": len(labels) - wanted}
    for side, count in sides.items():
        if count < FEW or count < RARE * len(labels):
            return (
                f"only {count:,} of {len(labels):,} labels are {side}: what a classifier learns of them is uncertain; label "
                f"more documents, or move the threshold"
            )
    return None


def _label(value: Any, scale: tuple[float, float], where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not scale[0] <= value <= scale[1]:
        raise DataError(
            f"{where}: `label` is {value!r}, expected null or a number from {scale[0]:g} to {scale[1]:g}: {_NEXT_STEP}"
        )
    return float(value)


def _check_both_sides(found: LabelledSample, threshold: float, path: str) -> None:
    if not len(found.labels) and found.num_unlabelled:
        raise DataError(f"{path}: none of {found.num_unlabelled:,} documents has a label: {_READ_ANSWERS}")
    for is_held_out, what in ((False, "to learn from"), (True, "held out to measure on")):
        labels = found.part(is_held_out)[1]
        wanted = int((labels >= threshold).sum())
        if wanted in (0, len(labels)):
            raise DataError(
                f"{path}: of the {len(labels):,} labels {what}, {wanted:,} are at least the threshold of {threshold:g}: both "
                f"sides are needed; {_more_labels(found.documents)}"
            )


def _more_labels(documents: Sequence[Document]) -> str:
    """What to do where one side is missing. Documents of one id are held out together, or not at all."""
    num_ids = len({document.id for document in documents})
    if num_ids < len(documents):
        return (
            f"the {len(documents):,} labelled documents have only {num_ids:,} different ids: give each an id of its own"
        )
    return "label more documents, give more examples, or set another `threshold`"
