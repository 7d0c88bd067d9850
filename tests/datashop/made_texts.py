"""Made documents, their labels, and encoders small enough for a test."""

from pathlib import Path

import numpy as np

from marin.data.documents import Document, write_documents

from .conftest import write_labels

_WORDS = [
    "river",
    "stone",
    "cloud",
    "engine",
    "paper",
    "silver",
    "window",
    "garden",
    "letter",
    "market",
    "bridge",
    "forest",
    "candle",
    "mirror",
    "thunder",
    "velvet",
    "copper",
    "meadow",
    "lantern",
    "harbor",
    "winter",
    "summer",
    "basket",
    "hammer",
    "needle",
    "pocket",
    "ribbon",
    "saddle",
    "tunnel",
    "valley",
]


def documents_by_first_word(count: int, seed: int) -> tuple[list[Document], list[float]]:
    """Short texts that are wanted if their first word is one of half of the words; the others say nothing.

    The mean of the vectors of a text's words hardly tells which of them came first.
    """
    generator = np.random.default_rng(seed)
    documents, labels = [], []
    for index in range(count):
        chosen = generator.integers(0, len(_WORDS), int(generator.integers(6, 11)))
        documents.append(Document(f"doc-{index:05d}", " ".join(_WORDS[word] for word in chosen), "made"))
        labels.append(float(chosen[0] < len(_WORDS) // 2))
    return documents, labels


def write_labelled(
    folder: Path, documents: list[Document], labels: list[float], scale: tuple[float, float] = (0, 1)
) -> dict:
    """The sample and its labels on disk, as the fields `sample` and `labels` of a classifier's config."""
    sample = str(folder / "sample.jsonl.zst")
    write_documents(sample, documents)
    write_labels(folder / "labels", [document.id for document in documents], labels, scale)
    return {"sample": sample, "labels": str(folder / "labels")}
