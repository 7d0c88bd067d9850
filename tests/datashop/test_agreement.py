"""Agreement of two annotators against scikit-learn and SciPy, and the balanced sample."""

import json
import pathlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import cohen_kappa_score

from marin.data.documents import Document
from marin.data.shards import DocumentSet, write_shards
from marin.datashop.agreement import compare_annotations, measure_agreement
from marin.datashop.balance import BalanceConfig, balance_labels
from marin.datashop.labels import read_labelled
from marin.errors import DataError

SCALE = (0.0, 5.0)


def by_id(labels: "list[int] | np.ndarray") -> dict[str, float | None]:
    return {str(i): float(label) for i, label in enumerate(labels)}


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=40))
def test_figures_are_those_of_the_libraries(pairs: list[tuple[int, int]]) -> None:
    a, b = np.array(pairs).T
    found = measure_agreement(by_id(a), by_id(b), scale=SCALE)
    assert found.exact.value == pytest.approx(np.mean(a == b))
    assert np.array(found.table).sum() == len(pairs)
    if len(set(a.tolist()) | set(b.tolist())) > 1:
        assert found.kappa.value == pytest.approx(cohen_kappa_score(a, b, labels=range(6)), abs=1e-12)
        assert found.weighted_kappa.value == pytest.approx(
            cohen_kappa_score(a, b, labels=range(6), weights="quadratic"), abs=1e-12
        )
    else:
        assert found.kappa.value is None
    if len(set(a.tolist())) > 1 and len(set(b.tolist())) > 1:
        assert found.spearman.value == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)
    else:
        assert found.spearman.value is None


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    covered = 0
    for trial in range(50):
        a = generator.integers(0, 6, 200)
        b = np.where(generator.random(200) < 0.7, a, generator.integers(0, 6, 200))
        found = measure_agreement(by_id(a), by_id(b), scale=SCALE, seed=trial)
        assert found.kappa.low is not None and found.kappa.high is not None
        covered += found.kappa.low <= 0.7 <= found.kappa.high  # chance agreement is taken out, so the truth is 0.7
    assert 43 <= covered <= 50


def test_same_labels_in_another_order_give_the_same_intervals() -> None:
    a, b = by_id([0, 1, 2, 3, 4, 5, 5, 3]), by_id([0, 1, 3, 3, 4, 4, 5, 1])
    again = measure_agreement(dict(reversed(a.items())), dict(reversed(b.items())), scale=SCALE)
    assert measure_agreement(a, b, scale=SCALE) == again


def test_documents_that_one_has_not_labelled_are_counted_apart() -> None:
    a, b = by_id([0, 5, 3, 2]) | {"x": 3.0, "n": None}, by_id([0, 5, 3, 2]) | {"0": None, "y": 1.0}
    found = measure_agreement(a, b, scale=SCALE)
    assert (found.num_documents, found.num_one_sided, found.exact.value) == (3, 3, 1.0)
    assert "weighted kappa    1.0000" in found.summary()
    with pytest.raises(DataError, match="no document has a label of both"):
        measure_agreement({"a": 1.0}, {"b": 1.0}, scale=SCALE)
    with pytest.raises(DataError, match="off the scale"):
        measure_agreement({"a": 9.0}, {"a": 1.0}, scale=SCALE)


def write_labels(folder: pathlib.Path, labels: list[float | None], scale: tuple[float, float] = SCALE) -> str:
    folder.mkdir()
    rows = [
        {"id": f"d{i}", "label": label, "answer": None, "why_null": None, "annotator": "a"}
        for i, label in enumerate(labels)
    ]
    (folder / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "labels.json").write_text(json.dumps({"scale": scale, "histogram": {}}))
    return str(folder)


def test_folders_of_two_annotations_are_compared(tmp_path: pathlib.Path) -> None:
    a, b = write_labels(tmp_path / "a", [1, 2, None, 4]), write_labels(tmp_path / "b", [1, 3, 3, 4])
    assert compare_annotations(a, b).num_documents == 3
    with pytest.raises(DataError, match="on the scale"):
        compare_annotations(a, write_labels(tmp_path / "c", [1.0], (1.0, 5.0)))
    (tmp_path / "b" / "labels.jsonl").write_text('{"id": "d0", "label": "4"}\n')
    with pytest.raises(DataError, match=r"labels\.jsonl:1 is no label"):
        compare_annotations(a, b)


def test_balanced_sample_has_as_many_of_each_label_and_can_be_learned_from(tmp_path: pathlib.Path) -> None:
    labels: list[float | None] = [float(i % 7 == 0) * 5 for i in range(300)] + [None] * 5
    write_shards(str(tmp_path / "set"), [Document(f"d{i}", f"t {i}", "s") for i in range(305)], stage="t", settings={})
    folder = write_labels(tmp_path / "labels", labels)
    output = str(tmp_path / "balanced")
    balance_labels(BalanceConfig(str(tmp_path / "set"), folder, at_least=10, output_path=output))
    found = read_labelled(output + "/sample", output, held_out_fraction=0.2, seed=0, threshold=2.5)
    assert sorted(found.labels.tolist()) == [0.0] * 43 + [5.0] * 43
    assert [document.id for document in found.documents] == sorted(
        (d.id for d in found.documents), key=lambda x: int(x[1:])
    )
    balance_labels(BalanceConfig(str(tmp_path / "set"), folder, at_least=100, output_path=output))
    assert DocumentSet.open(output + "/sample").num_documents == 143
    summary = json.loads((tmp_path / "balanced" / "labels.json").read_text())
    assert summary["histogram"]["0"] == 100 and summary["balanced"]["at_least"] == 100
