"""Classifiers side by side: which is worth its price on the same held-out documents.

    comparison.json   for each classifier its quality, what it cost to train and how fast it scores; and the difference to the
                      first one in AUC and average precision, with its interval
    comparison.md     the same as a table to read

The interval of a difference is a bootstrap over documents in which all classifiers see the same draws, so that what makes a
document hard for all of them does not widen it. Speeds are of this machine, measured one after the other on held-out texts.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from marin.datashop.classifier import QUALITY, load_classifier, read_record
from marin.datashop.labels import read_labelled
from marin.datashop.quality import estimate_text
from marin.datashop.resampling import Resampled, interval_of
from marin.errors import ConfigError, DataError
from marin.execution.step import Input, this_output_path
from marin.storage import files

COMPARISON, TABLE = "comparison.json", "comparison.md"
_RESAMPLES = 500


@dataclass(frozen=True)
class CompareConfig:
    """Args:
    sample, labels: what all of them were trained on.
    classifiers: their folders by name; the first is what the others are compared with.
    question: what the comparison is to answer, for the table.
    """

    sample: Input
    labels: Input
    classifiers: Mapping[str, Input]
    question: str = ""
    seed: int = 0
    output_path: str = this_output_path()

    def __post_init__(self) -> None:
        if len(self.classifiers) < 2:
            raise ConfigError("config field `classifiers` has fewer than two: give the folders of two or more by name")


def compare_classifiers(config: CompareConfig) -> None:
    """Writes `comparison.json` and `comparison.md`, and prints the table.

    Raises:
        DataError: the classifiers were not held against the same documents and threshold.
    """
    records = {name: read_record(str(folder)) for name, folder in config.classifiers.items()}
    shared = {(each["held_out_fraction"], each["seed"], each["threshold"]) for each in records.values()}
    if len(shared) != 1:
        raise DataError(
            f"the classifiers differ in `held_out_fraction`, `seed` or `threshold`: {sorted(shared)}; train them with the same, or"
            " they are measured on different documents"
        )
    fraction, seed, threshold = shared.pop()
    sample = read_labelled(
        str(config.sample), str(config.labels), held_out_fraction=fraction, seed=seed, threshold=threshold
    )
    texts, labels = sample.part(held_out=True)
    is_wanted = labels >= threshold
    scores, speeds = {}, {}
    for name, folder in config.classifiers.items():
        classifier = load_classifier(str(folder))
        scores[name] = classifier.scores(texts)  # compiles
        started = time.perf_counter()
        classifier.scores(texts)
        speeds[name] = len(texts) / (time.perf_counter() - started)
    first = next(iter(scores))
    rows = {
        name: {
            "kind": record["kind"],
            "note": record.get("note"),
            "quality": files.read_json(files.join(str(config.classifiers[name]), QUALITY)),
            "training_seconds": record.get("training_seconds"),
            "documents_per_second": round(speeds[name], 1),
            **(
                {"difference": _differences(scores[name], scores[first], is_wanted, config.seed)}
                if name != first
                else {}
            ),
        }
        for name, record in records.items()
    }
    content = {
        "question": config.question,
        "num_documents": len(texts),
        "num_wanted": int(is_wanted.sum()),
        "compared_with": first,
        "classifiers": rows,
        "notes": sorted({row["note"] for row in rows.values() if row["note"]}),
    }
    table = as_markdown(content)
    files.write_json(files.join(config.output_path, COMPARISON), content)
    files.write_bytes(files.join(config.output_path, TABLE), table.encode())
    print(table, flush=True)


def as_markdown(content: Mapping[str, Any]) -> str:
    """The comparison as a table, with what must be said of it."""
    lines = [f"# {content['question'] or 'Classifiers compared'}", ""]
    lines += [f"{content['num_documents']:,} held-out documents, of which {content['num_wanted']:,} are wanted.", ""]
    header = ("classifier", "AUC", "average precision", "F1", "Spearman", "AUC less that of the first", "documents/s")
    lines += [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for name, row in content["classifiers"].items():
        found = [estimate_text(row["quality"][figure], 3) for figure in ("auc", "average_precision", "f1", "spearman")]
        less = row.get("difference", {}).get("auc")
        is_known = less is not None and less["low"] is not None
        compared = f"{less['value']:+.4f} ({less['low']:+.4f} to {less['high']:+.4f})" if is_known else ""
        lines.append(f"| {' | '.join([name, *found, compared, format(row['documents_per_second'], ',.0f')])} |")
    lines += ["", "Intervals are 95 %, by a bootstrap over documents."]
    lines += [f"**{note}.**" for note in content["notes"]]
    return "\n".join(lines) + "\n"


def _differences(
    scores: Float64[np.ndarray, " N"], others: Float64[np.ndarray, " N"], is_wanted: Bool[np.ndarray, " N"], seed: int
) -> dict[str, dict[str, float | None]]:
    """Figure by figure: this classifier's less the other's, and the 95 % interval over resampled documents."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    ours, theirs = (_resamples(each, is_wanted, seed) for each in (scores, others))
    exact = {"auc": roc_auc_score, "average_precision": average_precision_score}
    found: dict[str, dict[str, float | None]] = {}
    for figure, of in exact.items():
        low, high = interval_of(ours[figure] - theirs[figure]) or (None, None)
        found[figure] = {"value": float(of(is_wanted, scores) - of(is_wanted, others)), "low": low, "high": high}
    return found


def _resamples(
    scores: Float64[np.ndarray, " N"], is_wanted: Bool[np.ndarray, " N"], seed: int
) -> dict[str, Float64[np.ndarray, " R"]]:
    """Each figure of all resamples, which are the same for all classifiers."""
    order = np.argsort(scores, kind="stable")
    wanted = is_wanted[order]
    drawn = Resampled(scores[order], wanted.astype(np.float64), _RESAMPLES, seed, order)
    return {"auc": drawn.auc(wanted), "average_precision": drawn.average_precision(wanted)}
