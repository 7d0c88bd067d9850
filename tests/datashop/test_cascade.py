"""The cascade: what passes, in which order scores lie, and what its folder holds."""

import functools
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from marin.data.documents import Document
from marin.datashop.cascade import Cascade, CascadeConfig, limit_for_recall
from marin.datashop.classifier import load_classifier
from marin.datashop.ngrams import NgramConfig
from marin.errors import ConfigError, DataError

from .made_texts import write_labelled


@dataclass
class ByLength:
    """Scores a text by its length over ten, and notes what it was asked."""

    kind: ClassVar[str] = "made"

    def __post_init__(self) -> None:
        self.asked: list[str] = []

    def scores(self, texts: Sequence[str]) -> np.ndarray:
        self.asked += texts
        return np.array([len(text) / 10 for text in texts])


class ByVowels(ByLength):
    def scores(self, texts: Sequence[str]) -> np.ndarray:
        self.asked += texts
        return np.array([text.count("a") - 3.0 for text in texts])


def fruit_documents(count: int) -> tuple[list[Document], list[float]]:
    """Wanted documents speak of fruit."""
    generator = np.random.default_rng(0)
    fruit, tools = ["apple", "pear", "plum", "cherry", "quince"], ["hammer", "saw", "drill", "chisel", "file"]
    documents, labels = [], []
    for index in range(count):
        is_wanted = bool(generator.random() < 0.3)
        words = generator.choice(fruit if is_wanted else tools, 8)
        documents.append(Document(f"doc-{index}", " ".join(words), "made"))
        labels.append(float(is_wanted))
    return documents, labels


def test_dear_classifier_sees_only_what_passes_and_ranks_before_the_rest() -> None:
    cheap, dear = ByLength(), ByVowels()
    cascade = Cascade(cheap, dear, limit=0.5, scale=(0.0, 1.0))
    texts = ["aaaaa", "bbbbb", "bb", "a", "aaaaaaaaaa", ""]
    scores = cascade.scores(texts)
    assert dear.asked == ["aaaaa", "bbbbb", "aaaaaaaaaa"]
    assert scores[0] == 2.0 and scores[4] == 7.0
    assert scores[1] == -1.0  # the dear one says -3, and still it passed
    assert np.argsort(-scores).tolist() == [4, 0, 1, 2, 3, 5]
    assert (scores[[2, 3, 5]] < -1).all()
    assert np.array_equal(cascade.scores(texts[::-1])[::-1], scores)
    assert len(cascade.scores([])) == 0


def test_limit_lets_the_asked_share_through() -> None:
    scores = np.random.default_rng(0).normal(size=101)
    for recall in (0.01, 0.5, 0.95, 1.0):
        limit = limit_for_recall(scores, recall)
        passed = (scores >= limit).sum()
        assert passed >= recall * 101 - 1e-6 and (scores > limit).sum() < recall * 101
    assert limit_for_recall(np.array([0.2, 0.7]), 1.0) == 0.2


def test_cascade_is_trained_from_one_sample_and_loaded_from_its_folder(tmp_path: Path) -> None:
    fields = write_labelled(tmp_path, *fruit_documents(400))
    config = CascadeConfig(
        **fields, cheap=NgramConfig(ngrams=(1, 1), num_hashes=1 << 10), dear=NgramConfig(), recall=0.9,
        held_out_fraction=0.2, output_path=str(tmp_path / "cascade"),
    )  # fmt: skip
    config.train()
    record = json.loads((tmp_path / "cascade" / "classifier.json").read_text())
    quality = json.loads((tmp_path / "cascade" / "quality.json").read_text())
    assert record["kind"] == "cascade" and (record["cheap"], record["dear"]) == ("ngram", "ngram")
    assert record["held_out_wanted_passed"] >= 0.8 * record["held_out_wanted"]
    assert record["held_out_passed"] < quality["num_documents"] == record["num_held_out"]
    cheap = json.loads((tmp_path / "cascade" / "cheap" / "classifier.json").read_text())
    dear = json.loads((tmp_path / "cascade" / "dear" / "classifier.json").read_text())
    # What the limit is chosen on was learned by the dear one, not by the cheap one.
    assert cheap["num_learned"] + record["num_selected_on"] == dear["num_learned"]
    texts = [document.text for document in fruit_documents(20)[0]]
    first = load_classifier(str(tmp_path / "cascade")).scores(texts)
    before = (tmp_path / "cascade" / "cheap" / "classifier.json").stat().st_mtime_ns
    (tmp_path / "cascade" / "classifier.json").unlink()
    config.train()  # goes on with the parts that are there
    assert (tmp_path / "cascade" / "cheap" / "classifier.json").stat().st_mtime_ns == before
    assert np.array_equal(load_classifier(str(tmp_path / "cascade")).scores(texts), first)


def test_trained_dear_classifier_is_copied_if_it_holds_out_the_same(tmp_path: Path) -> None:
    fields = write_labelled(tmp_path, *fruit_documents(300))
    folders = {fraction: str(tmp_path / f"dear-{fraction}") for fraction in (0.1, 0.2)}
    for fraction, folder in folders.items():
        NgramConfig(**fields, held_out_fraction=fraction, output_path=folder).train()
    options = {**fields, "held_out_fraction": 0.2}
    CascadeConfig(**options, dear=folders[0.2], output_path=str(tmp_path / "good")).train()
    assert (tmp_path / "good" / "dear" / "weights.npz").is_file()
    with pytest.raises(ConfigError, match="learned from"):
        CascadeConfig(**options, dear=folders[0.1], output_path=str(tmp_path / "bad")).train()


def test_kill_in_the_middle_of_copying_leaves_no_half_classifier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    fields = write_labelled(tmp_path, *fruit_documents(300))
    NgramConfig(**fields, held_out_fraction=0.2, output_path=str(tmp_path / "dear")).train()
    config = CascadeConfig(
        **fields, held_out_fraction=0.2, dear=str(tmp_path / "dear"), output_path=str(tmp_path / "cascade")
    )
    real = shutil.copy2
    with monkeypatch.context() as patched:

        def dies_before_the_weights(source: str, target: str, **options: object) -> str:
            if source.endswith("weights.npz"):
                raise Killed
            return real(source, target)

        patched.setattr(shutil, "copytree", functools.partial(shutil.copytree, copy_function=dies_before_the_weights))
        with pytest.raises(Killed):
            config.train()
    assert not (tmp_path / "cascade" / "dear").exists()
    config.train()
    assert {path.name for path in (tmp_path / "cascade").iterdir()} == {
        "cheap", "dear", "classifier.json", "quality.json",
    }  # fmt: skip
    load_classifier(str(tmp_path / "cascade"))


def test_dear_classifier_of_another_scale_is_refused(tmp_path: Path) -> None:
    documents, labels = fruit_documents(300)
    for name in ("graded", "examples"):
        (tmp_path / name).mkdir()
    examples = write_labelled(tmp_path / "examples", documents, labels)
    graded = write_labelled(tmp_path / "graded", documents, [5.0 * label for label in labels], (0, 5))
    NgramConfig(**graded, output_path=str(tmp_path / "dear")).train()
    with pytest.raises(ConfigError, match="labels from 0 to 5, the cascade's go from 0 to 1"):
        CascadeConfig(**examples, dear=str(tmp_path / "dear"), output_path=str(tmp_path / "cascade")).train()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"dear": ""}, "dear"),
        ({"cheap": "folder"}, "cheap"),
        ({"recall": 0.0}, "recall"),
        ({"selection_fraction": 0.95}, "selection_fraction"),
    ],
)
def test_config_that_cannot_work_is_refused(fields: dict, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        CascadeConfig(**{"dear": "folder", **fields})


def test_damaged_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "classifier.json").write_text('{"kind": "cascade", "scale": [0, 1]}')
    with pytest.raises(DataError, match="limit"):
        load_classifier(str(tmp_path))
