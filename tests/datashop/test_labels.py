"""Labels are read with the documents that they belong to, and refused where they do not fit."""

import dataclasses
import json
import pathlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin.data.documents import Document
from marin.datashop.labels import LabelledSample, held_out, histogram_of, lopsided_warning, read_labelled
from marin.errors import DataError

from .conftest import made_documents, write_labels

Labelled = Callable[..., tuple[str, str]]


def read(sample: str, labels: str, threshold: float = 0.5) -> LabelledSample:
    return read_labelled(sample, labels, held_out_fraction=0.4, seed=0, threshold=threshold)


def test_documents_without_a_label_are_left_out_and_counted(labelled: Labelled) -> None:
    documents = made_documents(60)
    labels = [
        None if number % 7 == 3 else float(document.source == "rust") for number, document in enumerate(documents)
    ]
    found = read(*labelled(documents, labels))
    assert found.num_unlabelled == labels.count(None)
    assert [document.id for document in found.documents] == [
        d.id for d, y in zip(documents, labels, strict=True) if y is not None
    ]
    assert found.labels.tolist() == [label for label in labels if label is not None]
    (learned, learned_labels), (measured, measured_labels) = found.part(False), found.part(True)
    assert not set(learned) & set(measured) and len(learned) + len(measured) == len(found.documents)
    assert len(learned_labels) == len(learned) and len(measured_labels) == len(measured)


@given(ids=st.lists(st.text(), unique=True, max_size=50), seed=st.integers(0, 99))
def test_held_out_documents_stay_held_out_in_a_larger_sample_and_fraction(ids: list[str], seed: int) -> None:
    few, more = held_out(ids, 0.2, seed), held_out(ids, 0.5, seed)
    assert not (few & ~more).any()
    assert held_out(ids[:10], 0.2, seed).tolist() == few[:10].tolist()


def test_held_out_fraction_is_about_what_was_asked_for() -> None:
    ids = [f"document {number}" for number in range(20_000)]
    assert held_out(ids, 0.1, 3).mean() == pytest.approx(0.1, abs=0.01)
    assert (held_out(ids, 0.5, 3) != held_out(ids, 0.5, 4)).mean() == pytest.approx(0.5, abs=0.02)


def edited(change: Callable[[list[dict[str, object]]], object]) -> Callable[[pathlib.Path], None]:
    def edit(folder: pathlib.Path) -> None:
        rows = [json.loads(line) for line in (folder / "labels.jsonl").read_text().splitlines()]
        change(rows)
        (folder / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    return edit


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (edited(lambda rows: rows.pop()), "'d59' should follow, found nothing"),
        (edited(lambda rows: rows.append(rows[0])), "more labels than the sample"),
        (edited(lambda rows: rows.reverse()), "'d0' should follow, found d59"),
        (edited(lambda rows: rows[3].update(label=7)), r":4: `label` is 7, expected null or a number from 0 to 1"),
        (edited(lambda rows: rows[3].update(label=True)), r"`label` is True"),
        (edited(lambda rows: rows[3].update(label="good")), r"`label` is 'good'"),
        (lambda folder: (folder / "labels.json").unlink(), "labels.json is missing"),
        (lambda folder: (folder / "labels.json").write_text('{"scale": [1, 0]}'), "`scale` is"),
        (lambda folder: (folder / "labels.json").write_text("[]"), "holds a list"),
    ],
)
def test_labels_that_do_not_fit_are_refused_with_their_place(
    labelled: Labelled, damage: Callable[[pathlib.Path], None], said: str
) -> None:
    documents = made_documents(60)
    sample, labels = labelled(documents, [float(document.source == "rust") for document in documents])
    damage(pathlib.Path(labels))
    with pytest.raises(DataError, match=said):
        read(sample, labels)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_labels_on_one_side_of_the_threshold_cannot_be_learned(labelled: Labelled, label: float) -> None:
    with pytest.raises(DataError, match="both sides are needed"):
        read(*labelled(made_documents(60), [label] * 60))


def test_sample_without_any_label_asks_for_another_prompt_and_not_for_more_documents(labelled: Labelled) -> None:
    with pytest.raises(DataError, match=r"none of 60 documents has a label: read the answers"):
        read(*labelled(made_documents(60), [None] * 60))
    warning = lopsided_warning(np.array([]), 0.5)
    assert warning is not None and "mend the prompt" in warning


def test_labels_of_documents_with_one_id_are_refused_for_their_ids(labelled: Labelled) -> None:
    documents = [dataclasses.replace(document, id="same") for document in made_documents(60)]
    with pytest.raises(DataError, match="60 labelled documents have only 1 different ids"):
        read(*labelled(documents, [0.0, 1.0] * 30))


def test_histogram_counts_every_label_at_the_nearest_whole_number() -> None:
    labels = np.array([0, 0.4, 0.6, 2, 4.9, 5])
    assert histogram_of(labels, (0.0, 5.0)) == {"0": 2, "1": 1, "2": 1, "3": 0, "4": 0, "5": 2}


def test_rare_side_of_many_labels_is_lopsided_although_it_has_enough_documents() -> None:
    labels = np.array([1.0] * 30 + [0.0] * 5000)
    assert lopsided_warning(labels, 0.5) is not None
    assert lopsided_warning(labels[:500], 0.5) is None


def test_labels_written_by_the_fixture_are_those_that_are_read(tmp_path: pathlib.Path, labelled: Labelled) -> None:
    """Unicode ids and texts come through."""
    documents = [Document(f"ïd\u2028{n}", f"text {n}", "s") for n in range(30)]
    sample, _ = labelled(documents, [0.0] * 30)
    write_labels(tmp_path / "other", [d.id for d in documents], [float(n % 2) for n in range(30)], (0.0, 1.0))
    assert read(sample, str(tmp_path / "other")).labels.sum() == 15
