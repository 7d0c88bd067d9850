"""Classifiers held against each other on the same documents."""

import json
from pathlib import Path

import numpy as np
import pytest

from marin.datashop.comparison import CompareConfig, _differences, _resamples, compare_classifiers
from marin.datashop.ngrams import NgramConfig
from marin.errors import ConfigError, DataError

from .made_texts import documents_by_first_word, write_labelled


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A sample whose labels are in the words, and classifiers that see much or little of them."""
    root = tmp_path_factory.mktemp("compared")
    documents, labels = documents_by_first_word(400, 0)
    generator = np.random.default_rng(1)
    labels = [label if generator.random() < 0.9 else 1 - label for label in labels]
    fields = write_labelled(root, documents, labels)
    configs = {"whole": {}, "same": {}, "narrow": {"num_hashes": 4}, "other split": {"held_out_fraction": 0.3}}
    for name, options in configs.items():
        options = {"held_out_fraction": 0.2, **options}
        NgramConfig(**fields, ngrams=(1, 1), **options, output_path=str(root / name)).train()
    return {**fields, **{name: str(root / name) for name in configs}}


def compare(folders: dict[str, str], output: Path, *names: str) -> dict:
    classifiers = {name: folders[name] for name in names}
    sample, labels = folders["sample"], folders["labels"]
    compare_classifiers(CompareConfig(sample, labels, classifiers, "Which?", output_path=str(output)))
    return json.loads((output / "comparison.json").read_text())


def test_difference_is_that_of_the_qualities_and_has_its_interval(folders: dict[str, str], tmp_path: Path) -> None:
    found = compare(folders, tmp_path, "whole", "same", "narrow")
    rows = found["classifiers"]
    auc = {name: row["quality"]["auc"]["value"] for name, row in rows.items()}
    assert found["num_documents"] == rows["whole"]["quality"]["num_documents"]
    assert rows["same"]["difference"]["auc"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    narrow = rows["narrow"]["difference"]["auc"]
    assert narrow["low"] <= narrow["value"] <= narrow["high"]
    assert abs(narrow["value"] - (auc["narrow"] - auc["whole"])) < 1e-9
    assert "difference" not in rows["whole"] and all(row["documents_per_second"] > 0 for row in rows.values())
    table = (tmp_path / "comparison.md").read_text()
    assert table.startswith("# Which?") and f"{auc['narrow']:.3f} (" in table and f"{narrow['value']:+.4f}" in table


def test_interval_of_a_difference_is_that_of_paired_resamples() -> None:
    from sklearn.metrics import roc_auc_score

    generator = np.random.default_rng(0)
    is_wanted = generator.random(60) < 0.4
    scores, others = (is_wanted + generator.normal(0, 1, 60) for _ in range(2))
    found = _differences(scores, others, is_wanted, seed=3)["auc"]
    draws = np.random.Generator(np.random.PCG64(3)).integers(0, 60, (500, 60))
    plain = [roc_auc_score(is_wanted[d], scores[d]) - roc_auc_score(is_wanted[d], others[d]) for d in draws[:40]]
    ours, theirs = (_resamples(each, is_wanted, 3)["auc"] for each in (scores, others))
    assert np.allclose((ours - theirs)[:40], plain)
    assert np.allclose([found["low"], found["high"]], np.quantile(ours - theirs, [0.025, 0.975]))


def test_notes_of_classifiers_stand_under_the_table(folders: dict[str, str], tmp_path: Path) -> None:
    path = Path(folders["same"]) / "classifier.json"
    before = path.read_text()
    path.write_text(json.dumps({**json.loads(before), "note": "CPU size, no evidence about BERT"}))
    compare(folders, tmp_path, "whole", "same")
    path.write_text(before)
    assert "**CPU size, no evidence about BERT.**" in (tmp_path / "comparison.md").read_text()


def test_classifiers_of_different_splits_are_not_compared(folders: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="held_out_fraction"):
        compare(folders, tmp_path, "whole", "other split")
    with pytest.raises(ConfigError, match="fewer than two"):
        compare(folders, tmp_path, "whole")
