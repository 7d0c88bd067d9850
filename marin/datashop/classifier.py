"""What every classifier of the datashop is: a config that trains one into a folder, and an object that scores texts.

    classifier.json   the kind, what it was trained with, the labels' scale and the threshold
    quality.json      what it is worth on the held-out labels (see `quality`)
    ...               its weights: NumPy `.npz` or safetensors, never pickle

Scores lie on the labels' scale and do not depend on which texts are scored together. A kind that needs JAX imports it where
it is trained or loaded, so an n-gram classifier runs where there is none.
"""

import importlib
import io
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from jaxtyping import Float64

from marin.datashop.labels import LabelledSample, as_scale, read_labelled, read_scale
from marin.datashop.quality import Quality, measure_quality
from marin.errors import ConfigError, DataError, StorageError
from marin.execution.step import Input, this_output_path
from marin.storage import files

CLASSIFIER, QUALITY = "classifier.json", "quality.json"

# kind -> the module that has `load(folder, record) -> Classifier`
_KINDS = {
    "ngram": "marin.datashop.ngrams",
    "encoder": "marin.datashop.encoder",
    "cascade": "marin.datashop.cascade",
}


class Classifier(Protocol):
    """Scores texts. One that is slow to begin may say how many texts it wants at once, as `documents_at_once`."""

    @property
    def kind(self) -> str: ...

    def scores(self, texts: Sequence[str]) -> Float64[np.ndarray, " N"]:
        """A score for each text, on the labels' scale; deterministic, and independent of what else is in `texts`."""
        ...


@dataclass(frozen=True, kw_only=True)
class TrainClassifierConfig:
    """What all kinds need; each kind has a subclass with `train`.

    Args:
        sample: the document set that was labelled; in a `DatashopRunnerConfig` the pipeline fills it in, as `labels`.
        labels: the folder with its `labels.jsonl`.
        held_out_fraction: of the labelled documents, to measure on and never to learn from.
        seed: of the split and of whatever else is drawn.
        threshold: a label, and a score, of at least this is a wish fulfilled; None is the middle of the scale.
    """

    kind: ClassVar[str]

    sample: Input = ""
    labels: Input = ""
    held_out_fraction: float = 0.1
    seed: int = 0
    threshold: float | None = None
    output_path: str = this_output_path()

    def __post_init__(self) -> None:
        if not 0 < self.held_out_fraction < 1:
            raise ConfigError(
                f"config field `held_out_fraction` is {self.held_out_fraction}: use a fraction between 0 and 1, such as 0.1"
            )

    def train(self) -> None:
        """Writes the classifier's folder to `output_path`."""
        raise AssertionError(f"{type(self).__name__} defines train")


def train_classifier(config: TrainClassifierConfig) -> None:
    """What a step runs to train a classifier of any kind.

    Raises:
        DataError: sample and labels do not belong together, or the labels cannot be learned from.
    """
    config.train()


def load_classifier(folder: str) -> Classifier:
    """The classifier in a folder, of whatever kind.

    Raises:
        DataError: there is none, or it is of an unknown kind or damaged.
    """
    record = read_record(folder)
    loaded: Classifier = importlib.import_module(_KINDS[record["kind"]]).load(folder, record)
    return loaded


def read_record(folder: str) -> dict[str, Any]:
    """What `classifier.json` in a folder says.

    Raises:
        DataError: there is none, or it names no known kind or no scale.
    """
    path = files.join(folder, CLASSIFIER)
    if not files.exists(path):
        raise DataError(f"{folder} is no classifier ({CLASSIFIER} is missing): run the step that trains it again")
    record = files.read_json(path)
    kind = record.get("kind") if isinstance(record, dict) else None
    if kind not in _KINDS:
        raise DataError(f"{path}: `kind` is {kind!r}, expected one of {', '.join(_KINDS)}: train the classifier again")
    if as_scale(record.get("scale")) is None:
        raise DataError(
            f"{path}: `scale` is {record.get('scale')!r}, expected the lowest and the highest label: train the classifier again"
        )
    return dict(record)


def write_arrays(path: str, **arrays: np.ndarray) -> None:
    """An `.npz` file for `read_arrays`."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    files.write_bytes(path, buffer.getvalue())


def read_arrays(path: str) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file that `write_arrays` wrote.

    Raises:
        DataError: the file is not there or damaged.
    """
    try:
        with np.load(io.BytesIO(files.read_bytes(path)), allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (
        OSError,
        ValueError,
        TypeError,
        AttributeError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
        StorageError,
    ) as error:
        raise DataError(
            f"{path} holds no arrays ({error or type(error).__name__}): train the classifier again"
        ) from None


def read_sample(config: TrainClassifierConfig) -> tuple[LabelledSample, float]:
    """The labelled documents that a config names, and the threshold between its two sides.

    Raises:
        DataError: see `read_labelled`.
    """
    labels = str(config.labels)
    scale = read_scale(labels)
    threshold = (scale[0] + scale[1]) / 2 if config.threshold is None else config.threshold
    if not scale[0] < threshold <= scale[1]:
        raise ConfigError(
            f"config field `threshold` is {threshold:g}: use one above {scale[0]:g} and at most {scale[1]:g}"
        )
    found = read_labelled(
        str(config.sample), labels, held_out_fraction=config.held_out_fraction, seed=config.seed, threshold=threshold
    )
    return found, threshold


def finish_classifier(
    config: TrainClassifierConfig,
    classifier: Classifier,
    sample: LabelledSample,
    threshold: float,
    record: dict[str, Any],
) -> Quality:
    """Measures a trained classifier, whose weights are written, and writes `quality.json` and last `classifier.json`.

    Args:
        record: what the kind itself needs to load the classifier, and what people should know of it.
    """
    texts, labels = sample.part(held_out=True)
    quality = measure_quality(classifier.scores(texts), labels, threshold, scale=sample.scale, seed=config.seed)
    files.write_json(files.join(config.output_path, QUALITY), quality.to_json())
    content = {
        "kind": config.kind,
        "scale": list(sample.scale),
        "threshold": threshold,
        "held_out_fraction": config.held_out_fraction,
        "seed": config.seed,
        "num_learned": int((~sample.is_held_out).sum()),
        "num_held_out": int(sample.is_held_out.sum()),
        "num_unlabelled": sample.num_unlabelled,
        **record,
    }
    files.write_json(files.join(config.output_path, CLASSIFIER), content)
    print(f"{config.kind} classifier: {quality.summary()}", flush=True)
    return quality
