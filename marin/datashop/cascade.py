"""Two classifiers in a row: a cheap one drops what is plainly not wanted, a dear one judges the rest.

    CascadeConfig(cheap=NgramConfig(), dear=EncoderConfig(encoder=folder), recall=0.95)

    cheap/, dear/     each a classifier's folder, trained on the cascade's sample and labels
    classifier.json   where the cheap one's limit lies, and how many it lets through

The limit is the highest at which so much of what is wanted passes, on documents that the cheap one has not learned from. A
document that passes has the dear one's score. One that does not gets a score more than one below the scale, by the order of
the cheap one: it ranks behind all that passed, whatever fraction is kept, and is seen to have been judged by the cheap one alone.
"""

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float64

from marin.datashop.classifier import (
    CLASSIFIER,
    Classifier,
    TrainClassifierConfig,
    finish_classifier,
    load_classifier,
    read_record,
    read_sample,
)
from marin.datashop.labels import held_out
from marin.datashop.ngrams import NgramConfig
from marin.errors import ConfigError, DataError
from marin.execution.step import Input
from marin.storage import files

CHEAP, DEAR = "cheap", "dear"

Stage = TrainClassifierConfig | Input


@dataclass(frozen=True, kw_only=True)
class CascadeConfig(TrainClassifierConfig):
    """Args:
    cheap, dear: configs, which are trained on the cascade's sample, labels, seed and threshold; or for `dear` the folder of a
        trained classifier, or the step that trains it.
    recall: the share of wanted documents that the cheap one must let through.
    selection_fraction: of the labelled documents, those on which its limit is chosen; it does not learn from them.
    """

    kind: ClassVar[str] = "cascade"
    marin_resumable: ClassVar[bool] = True

    cheap: TrainClassifierConfig = field(default_factory=NgramConfig)
    dear: Stage = ""
    recall: float = 0.95
    selection_fraction: float = 0.15

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.cheap, TrainClassifierConfig):
            raise ConfigError(
                f"config field `cheap` is {self.cheap!r}: use a classifier's config, such as NgramConfig()"
            )
        if not self.dear:
            raise ConfigError(
                "config field `dear` is empty: use a classifier's config, such as EncoderConfig(...), or a trained one's folder"
            )
        if not 0 < self.recall <= 1:
            raise ConfigError(
                f"config field `recall` is {self.recall!r}: use a share above 0 and at most 1, such as 0.95"
            )
        if not (self.selection_fraction > 0 and self.held_out_fraction + self.selection_fraction < 1):
            raise ConfigError(
                f"config fields `held_out_fraction` {self.held_out_fraction} and `selection_fraction`"
                f" {self.selection_fraction}: both must be above 0 and leave documents to learn from"
            )

    def train(self) -> None:
        train_cascade(self)


def train_cascade(config: CascadeConfig) -> None:
    """Writes the cascade's folder; a part that is finished is not trained again after a kill.

    Raises:
        DataError: sample and labels do not belong together, or one of the two cannot learn them.
    """
    if files.exists(files.join(config.output_path, CLASSIFIER)):
        return
    sample, threshold = read_sample(config)
    folders = {name: files.join(config.output_path, name) for name in (CHEAP, DEAR)}
    # A larger part of the same order of hashes: the cascade's held-out documents and more.
    unseen = config.held_out_fraction + config.selection_fraction
    cheap = _trained(config.cheap, config, folders[CHEAP], unseen, sample.scale)
    dear = _trained(config.dear, config, folders[DEAR], config.held_out_fraction, sample.scale)
    ids = [document.id for document in sample.documents]
    selects = held_out(ids, unseen, config.seed) & ~sample.is_held_out
    wanted = selects & (sample.labels >= threshold)
    if not wanted.any():
        raise DataError(
            f"none of the {int(selects.sum()):,} documents on which the cheap classifier's limit is chosen is wanted: label"
            " more documents, or raise `selection_fraction`"
        )
    limit = limit_for_recall(cheap.scores([sample.documents[i].text for i in np.flatnonzero(wanted)]), config.recall)
    cascade = Cascade(cheap, dear, limit, sample.scale)
    texts, labels = sample.part(held_out=True)
    passes = cheap.scores(texts) >= limit
    is_wanted = labels >= threshold
    record = {
        "limit": limit,
        "asked_recall": config.recall,
        "num_selected_on": int(selects.sum()),
        "held_out_passed": int(passes.sum()),
        "held_out_wanted": int(is_wanted.sum()),
        "held_out_wanted_passed": int((passes & is_wanted).sum()),
        CHEAP: read_record(folders[CHEAP])["kind"],
        DEAR: read_record(folders[DEAR])["kind"],
        **{key: value for key, value in read_record(folders[DEAR]).items() if key in ("note", "num_processes")},
    }
    finish_classifier(config, cascade, sample, threshold, record)
    print(
        f"cascade: {record['held_out_passed']:,} of {len(texts):,} held-out documents pass the {record[CHEAP]} classifier, of"
        f" {record['held_out_wanted']:,} wanted ones {record['held_out_wanted_passed']:,}",
        flush=True,
    )


def load(folder: str, record: dict[str, Any]) -> "Cascade":
    """The cascade in a folder; `record` is what its `classifier.json` says.

    Raises:
        DataError: a part is damaged or missing.
    """
    try:
        limit, (low, high) = float(record["limit"]), record["scale"]
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(f"{folder} says no whole cascade ({error!r}): train it again") from None
    parts = [load_classifier(files.join(folder, name)) for name in (CHEAP, DEAR)]
    return Cascade(parts[0], parts[1], limit, (float(low), float(high)))


@dataclass(frozen=True)
class Cascade:
    """A trained cascade; see the module's docstring."""

    cheap: Classifier
    dear: Classifier
    limit: float
    scale: tuple[float, float]

    kind: ClassVar[str] = "cascade"

    @property
    def documents_at_once(self) -> int:
        """Enough that what passes fills the dear one's batches."""
        return 2 * int(getattr(self.dear, "documents_at_once", 512))

    def scores(self, texts: Sequence[str]) -> Float64[np.ndarray, " N"]:
        """See `Classifier`."""
        cheap = self.cheap.scores(texts)
        passes = np.flatnonzero(cheap >= self.limit)
        behind = self.scale[0] - 1.0
        # At least a rounding step below `behind`, which a document that passed can have.
        scores = np.minimum(
            behind - (self.limit - cheap) / (self.scale[1] - self.scale[0]), np.nextafter(behind, -np.inf)
        )
        if len(passes):
            scores[passes] = np.maximum(self.dear.scores([texts[index] for index in passes.tolist()]), behind)
        return scores


def limit_for_recall(wanted_scores: Float64[np.ndarray, " n"], recall: float) -> float:
    """The highest limit that at least `recall` of these scores reach."""
    needed = max(1, math.ceil(recall * len(wanted_scores) - 1e-9))
    return float(np.sort(wanted_scores)[::-1][needed - 1])


def _copy_whole(source: str, folder: str) -> None:
    """Copies a local folder under another name, and gives it its own when all is there."""
    target = files.local_path(folder)
    files.remove_temporaries(str(target.parent))  # what a kill in the middle of copying has left
    target.parent.mkdir(parents=True, exist_ok=True)
    copy = target.with_name(files.temporary_name(target.name))
    with files.explained(folder, "written"):
        shutil.copytree(files.local_path(source), copy)
        files.sync_tree(str(copy))
        files.remove_tree(folder)
        copy.rename(target)


def _trained(
    stage: Stage, config: CascadeConfig, folder: str, held_out_fraction: float, scale: tuple[float, float]
) -> Classifier:
    """The classifier of a stage, trained into `folder` or copied there, that the cascade's folder is whole by itself."""
    if files.exists(files.join(folder, CLASSIFIER)):
        return load_classifier(folder)
    if isinstance(stage, TrainClassifierConfig):
        own = replace(
            stage,
            sample=config.sample,
            labels=config.labels,
            seed=config.seed,
            threshold=config.threshold,
            held_out_fraction=held_out_fraction,
            output_path=folder,
        )
        own.train()
    else:
        found = read_record(str(stage))
        if (found.get("seed"), found.get("held_out_fraction")) != (config.seed, held_out_fraction):
            raise ConfigError(
                f"`dear` of the cascade was trained with `seed` {found.get('seed')} and `held_out_fraction`"
                f" {found.get('held_out_fraction')}, the cascade has {config.seed} and {held_out_fraction:g}: use the same, or"
                " it would be measured on documents that it has learned from"
            )
        if tuple(found["scale"]) != scale:
            raise ConfigError(
                f"`dear` of the cascade was trained on labels from {found['scale'][0]:g} to {found['scale'][1]:g}, the cascade's"
                f" go from {scale[0]:g} to {scale[1]:g}: use labels of the same scale, or train `dear` with the cascade"
            )
        _copy_whole(str(stage), folder)
    return load_classifier(folder)
