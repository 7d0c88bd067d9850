"""Small pools with documents that are wanted, and a labelled sample of one."""

import json
import pathlib
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from marin.data.documents import Document
from marin.data.shards import DocumentSet, write_shards

from .annotated import document

WANTED_WORDS = ("borrow", "lifetime", "trait", "cargo", "crate", "unsafe", "ownership", "macro")
OTHER_WORDS = tuple(f"word{number}" for number in range(300))


def made_documents(num: int, *, wanted_every: int = 5, seed: int = 0, prefix: str = "d") -> list[Document]:
    """Random words; every `wanted_every`-th document has a few that say so, and the source "rust"."""
    generator = np.random.default_rng(seed)
    documents = []
    for number in range(num):
        words = list(generator.choice(OTHER_WORDS, 40))
        is_wanted = number % wanted_every == 0
        if is_wanted:
            words[::8] = generator.choice(WANTED_WORDS, 5)
        documents.append(Document(f"{prefix}{number}", " ".join(words), "rust" if is_wanted else "web"))
    return documents


def write_labels(
    folder: pathlib.Path, ids: Iterable[str], labels: Iterable[float | None], scale: tuple[float, float]
) -> None:
    """`labels.jsonl` and `labels.json` as the datashop's stages exchange them."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs = list(zip(ids, labels, strict=True))
    rows = [
        {
            "id": name,
            "label": label,
            "answer": None,
            "why_null": None if label is not None else "no score",
            "annotator": "t",
        }
        for name, label in pairs
    ]
    (folder / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    labelled = sum(label is not None for _, label in pairs)
    summary = {"scale": list(scale), "num_documents": len(pairs), "num_labelled": labelled}
    (folder / "labels.json").write_text(json.dumps(summary | {"num_unparsed": len(pairs) - labelled}))


@pytest.fixture
def sample(tmp_path: pathlib.Path) -> str:
    """Sixty documents to label."""
    write_shards(
        str(tmp_path / "sample"), [document(i) for i in range(60)], stage="test", settings={}, shard_bytes=2000
    )
    return str(tmp_path / "sample")


@pytest.fixture
def labelled(tmp_path: pathlib.Path) -> Callable[..., tuple[str, str]]:
    """A function that writes a sample with labels and returns where both are."""

    def make(
        documents: list[Document], labels: list[float | None], scale: tuple[float, float] = (0.0, 1.0)
    ) -> tuple[str, str]:
        write_shards(str(tmp_path / "sample"), documents, stage="made", settings={})
        write_labels(tmp_path / "labels", [document.id for document in documents], labels, scale)
        return str(tmp_path / "sample"), str(tmp_path / "labels")

    return make


@pytest.fixture
def pool(tmp_path: pathlib.Path) -> DocumentSet:
    """300 documents in several shards, every fifth of them wanted."""
    return write_shards(str(tmp_path / "pool"), made_documents(300), stage="made", settings={}, shard_bytes=20_000)
