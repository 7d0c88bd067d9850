"""The n-gram classifier learns what is in the words, gives the same scores however texts are batched, and refuses damage."""

import json
import pathlib
from collections.abc import Callable

import numpy as np
import pytest

from marin.data.documents import Document
from marin.datashop.classifier import load_classifier, train_classifier
from marin.datashop.ngrams import NgramConfig
from marin.errors import ConfigError, DataError

from .conftest import OTHER_WORDS, WANTED_WORDS, made_documents

Labelled = Callable[..., tuple[str, str]]
SMALL = 1 << 14


def trained(labelled: Labelled, folder: pathlib.Path, **fields: object) -> str:
    documents = made_documents(300)
    sample, labels = labelled(documents, [float(document.source == "rust") for document in documents])
    config = NgramConfig(
        sample=sample, labels=labels, output_path=str(folder), held_out_fraction=0.3, num_hashes=SMALL, **fields
    )
    train_classifier(config)
    return str(folder)


def test_wanted_words_are_learned_and_unseen_documents_are_told_apart(
    labelled: Labelled, tmp_path: pathlib.Path
) -> None:
    folder = trained(labelled, tmp_path / "c")
    quality = json.loads(pathlib.Path(folder, "quality.json").read_text())
    assert quality["auc"]["value"] > 0.97
    assert quality["average_precision"]["value"] > 0.9 > quality["prior"]
    scores = load_classifier(folder).scores([" ".join(WANTED_WORDS), " ".join(OTHER_WORDS[:40]), ""])
    assert scores[0] > 0.5 > scores[1] and 0 < scores[2] < 0.5
    record = json.loads(pathlib.Path(folder, "classifier.json").read_text())
    assert record["num_learned"] + record["num_held_out"] == 300 and record["link"] == "logistic"


@pytest.mark.parametrize("ngrams", [(1, 1), (1, 3), (3, 6)])
def test_features_of_many_words_are_learned_without_a_warning(
    labelled: Labelled, tmp_path: pathlib.Path, ngrams: tuple[int, int]
) -> None:
    folder = trained(labelled, tmp_path / "c", ngrams=ngrams)  # a warning is an error here
    scores = load_classifier(folder).scores(["a b c d e f g", "a b"])
    assert np.isfinite(scores).all() and scores.shape == (2,)


def test_scores_do_not_depend_on_what_else_is_scored(labelled: Labelled, tmp_path: pathlib.Path) -> None:
    classifier = load_classifier(trained(labelled, tmp_path / "c"))
    texts = [document.text for document in made_documents(40, seed=3)] + ["", "x", "Ünïcode 文字", "borrow " * 5000]
    together = classifier.scores(texts)
    assert np.array_equal(together, np.concatenate([classifier.scores([text]) for text in texts]))
    assert np.array_equal(together[::-1], classifier.scores(texts[::-1]))
    assert classifier.scores([]).shape == (0,)


def test_training_again_gives_the_same_bytes(labelled: Labelled, tmp_path: pathlib.Path) -> None:
    first, again = trained(labelled, tmp_path / "a"), trained(labelled, tmp_path / "b")
    for name in ("classifier.json", "quality.json", "weights.npz"):
        assert pathlib.Path(first, name).read_bytes() == pathlib.Path(again, name).read_bytes()


def test_grades_are_learned_on_their_scale(labelled: Labelled, tmp_path: pathlib.Path) -> None:
    """The more wanted words, the higher the grade; one document in ten has none."""
    generator = np.random.default_rng(0)
    documents, labels = [], []
    for number in range(400):
        grade = int(generator.integers(0, 6))
        words = [*generator.choice(OTHER_WORDS, 20), *generator.choice(WANTED_WORDS, 2 * grade)]
        documents.append(Document(str(number), " ".join(words), "s"))
        labels.append(None if number % 10 == 0 else float(grade))
    sample, folder = labelled(documents, labels, (0.0, 5.0))
    config = NgramConfig(
        sample=sample, labels=folder, output_path=str(tmp_path / "c"), held_out_fraction=0.3, num_hashes=SMALL
    )
    train_classifier(config)
    record = json.loads((tmp_path / "c" / "classifier.json").read_text())
    assert (record["link"], record["num_unlabelled"], record["threshold"]) == ("identity", 40, 2.5)
    quality = json.loads((tmp_path / "c" / "quality.json").read_text())
    assert quality["spearman"]["value"] > 0.8
    scores = load_classifier(str(tmp_path / "c")).scores([" ".join(WANTED_WORDS * 9), "word1 word2"])
    assert scores[0] > 4 and scores[1] < 1.5 and scores.max() <= 5 and scores.min() >= 0


def test_long_documents_are_judged_by_their_beginning(labelled: Labelled, tmp_path: pathlib.Path) -> None:
    classifier = load_classifier(trained(labelled, tmp_path / "c", max_chars=200))
    beginning = "word1 word2 " * 20
    same = classifier.scores([beginning, beginning + " ".join(WANTED_WORDS) * 10])
    assert same[0] == same[1]


@pytest.mark.parametrize("damage", ["weights.npz", "classifier.json", "shape", "scale"])
def test_damaged_classifiers_are_refused_with_their_place(
    labelled: Labelled, tmp_path: pathlib.Path, damage: str
) -> None:
    folder = pathlib.Path(trained(labelled, tmp_path / "c"))
    if damage == "scale":
        record = json.loads((folder / "classifier.json").read_text())
        (folder / "classifier.json").write_text(json.dumps({key: record[key] for key in record if key != "scale"}))
    elif damage == "shape":
        record = json.loads((folder / "classifier.json").read_text())
        (folder / "classifier.json").write_text(json.dumps(record | {"num_hashes": 2 * SMALL}))
    else:
        (folder / damage).write_bytes((folder / damage).read_bytes()[:100])
    with pytest.raises(Exception, match=str(folder)) as caught:
        load_classifier(str(folder))
    assert isinstance(caught.value, DataError | OSError)


def test_folder_without_a_classifier_says_so(tmp_path: pathlib.Path) -> None:
    with pytest.raises(DataError, match=r"no classifier \(classifier.json is missing\)"):
        load_classifier(str(tmp_path))
    (tmp_path / "classifier.json").write_text('{"kind": "pickle"}')
    with pytest.raises(DataError, match="`kind` is 'pickle'"):
        load_classifier(str(tmp_path))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_hashes": 1000}, "num_hashes"),
        ({"ngrams": (2, 1)}, "ngrams"),
        ({"held_out_fraction": 1.0}, "held_out_fraction"),
        ({"regularization": 0.0}, "regularization"),
        ({"regularization": float("inf")}, "regularization"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(fields: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=f"`{named}`"):
        NgramConfig(**fields)  # type: ignore[arg-type]


def test_threshold_off_the_scale_is_refused(labelled: Labelled, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match="`threshold` is 3"):
        trained(labelled, tmp_path / "c", threshold=3.0)
