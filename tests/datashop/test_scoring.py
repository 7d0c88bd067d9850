"""Scores stand in the filter's layout, go on after a kill, and are made anew by another classifier."""

import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np
import pytest
import zstandard

from marin.data.documents import read_documents
from marin.data.filters.scores import FilterByScoreConfig, filter_by_score
from marin.data.shards import DocumentSet
from marin.datashop import scoring
from marin.datashop.classifier import load_classifier
from marin.datashop.ngrams import NgramClassifier
from marin.datashop.scoring import ScoreConfig, read_scores, score_documents
from marin.errors import DataError


@pytest.fixture
def classifier(tmp_path: pathlib.Path) -> str:
    """An n-gram classifier with random weights."""
    return write_classifier(tmp_path / "classifier", seed=0)


def write_classifier(folder: pathlib.Path, seed: int, scale: float = 1.0) -> str:
    folder.mkdir()
    weights = np.random.default_rng(seed).normal(0, scale, 1 << 12).astype(np.float32)
    np.savez(folder / "weights.npz", weights=weights, bias=np.zeros(1))
    record = {
        "kind": "ngram",
        "ngrams": [1, 2],
        "num_hashes": 1 << 12,
        "max_chars": 1000,
        "link": "logistic",
        "scale": [0, 1],
    }
    (folder / "classifier.json").write_text(json.dumps(record))
    return str(folder)


def test_scores_are_the_classifiers_in_the_documents_order_and_the_filter_takes_them(
    pool: DocumentSet, classifier: str, tmp_path: pathlib.Path
) -> None:
    score_documents(ScoreConfig(pool.path, classifier, str(tmp_path / "scores"), num_workers=1))
    expected = load_classifier(classifier).scores([document.text for document in pool.documents()])
    found = [score for shard in pool.shards for score in read_scores(str(tmp_path / "scores"), shard)]
    assert found == expected.tolist()
    summary = json.loads((tmp_path / "scores" / "scores.json").read_text())
    assert summary["num_documents"] == sum(summary["histogram"]) == 300
    assert summary["mean"] == pytest.approx(expected.mean())
    filter_by_score(
        FilterByScoreConfig(
            pool.path, str(tmp_path / "scores"), None, 0.1, output_path=str(tmp_path / "kept"), num_workers=1
        )
    )
    kept = [document.id for document in read_documents(str(tmp_path / "kept"))]
    ids = np.array([document.id for document in pool.documents()])
    assert sorted(kept) == sorted(ids[np.argsort(-expected, kind="stable")[:30]])


def test_classifier_that_fills_the_machine_is_not_loaded_by_several_processes(
    pool: DocumentSet, classifier: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = pathlib.Path(classifier, "classifier.json")
    record.write_text(json.dumps(json.loads(record.read_text()) | {"num_processes": 1}))
    loaded: list[str] = []
    monkeypatch.setattr(scoring, "_loaded", lambda folder, digest: loaded.append(folder) or load_classifier(folder))
    score_documents(ScoreConfig(pool.path, classifier, str(tmp_path / "scores"), num_workers=2))
    assert len(loaded) == len(pool.shards) > 1  # all of them in this process


@pytest.mark.slow
def test_number_of_workers_changes_no_byte(pool: DocumentSet, classifier: str, tmp_path: pathlib.Path) -> None:
    for workers in (1, 2):
        score_documents(ScoreConfig(pool.path, classifier, str(tmp_path / str(workers)), num_workers=workers))
    for path in (tmp_path / "1").rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "2" / path.relative_to(tmp_path / "1")).read_bytes()


def test_finished_shards_are_not_scored_again_and_damaged_ones_are(
    pool: DocumentSet, classifier: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ScoreConfig(pool.path, classifier, str(tmp_path / "scores"), num_workers=1)
    score_documents(config)
    before = (tmp_path / "scores" / "scores.json").read_bytes()
    (tmp_path / "scores" / "shard-00001.jsonl.zst").write_bytes(b"damaged")
    asked: list[int] = []
    scores = NgramClassifier.scores

    def counted(self: NgramClassifier, texts: Sequence[str]) -> np.ndarray:
        asked.append(len(texts))
        return scores(self, texts)

    monkeypatch.setattr(NgramClassifier, "scores", counted)
    score_documents(config)
    assert sum(asked) == pool.shards[1].num_documents
    assert (tmp_path / "scores" / "scores.json").read_bytes() == before
    other = write_classifier(tmp_path / "other", seed=1)
    asked.clear()
    score_documents(ScoreConfig(pool.path, other, config.output_path, num_workers=1))
    assert sum(asked) == 300 and (tmp_path / "scores" / "scores.json").read_bytes() != before


def test_scoring_that_was_killed_goes_on_and_ends_with_the_same_files(
    pool: DocumentSet, classifier: str, tmp_path: pathlib.Path
) -> None:
    whole, output = tmp_path / "whole", tmp_path / "killed"
    score_documents(ScoreConfig(pool.path, classifier, str(whole), num_workers=1))
    # It stays before its second shard, so that the kill comes between two.
    program = f"""
import time
from marin.datashop import scoring
plain, begun = scoring.score_shard, []
def slow(*arguments):
    begun.append(arguments)
    time.sleep(600 * (len(begun) == 2))
    return plain(*arguments)
scoring.score_shard = slow
scoring.score_documents(scoring.ScoreConfig({pool.path!r}, {classifier!r}, {str(output)!r}, num_workers=1))
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(output.glob("records/*.json")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    done = {path.name: path.stat().st_mtime_ns for path in output.glob("records/*.json")}
    assert len(done) == 1 < len(pool.shards) and not (output / "scores.json").exists()
    score_documents(ScoreConfig(pool.path, classifier, str(output), num_workers=1))
    assert all((output / "records" / name).stat().st_mtime_ns == when for name, when in done.items())
    for path in whole.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (output / path.relative_to(whole)).read_bytes()


def test_score_that_is_no_number_is_refused_with_the_document(pool: DocumentSet, tmp_path: pathlib.Path) -> None:
    folder = write_classifier(tmp_path / "bad", seed=0, scale=np.inf)
    with np.errstate(invalid="ignore"), pytest.raises(DataError, match=r"score of document 'd\d+' is not finite"):
        score_documents(ScoreConfig(pool.path, folder, str(tmp_path / "scores"), num_workers=1))


def test_missing_scores_are_named(pool: DocumentSet, tmp_path: pathlib.Path) -> None:
    with pytest.raises(DataError, match=r"shard-00000\.jsonl\.zst is missing"):
        list(read_scores(str(tmp_path), pool.shards[0]))


@pytest.mark.parametrize("row", ["no JSON", '{"id": "a"}', '{"id": "a", "score": "high"}', '{"id": "a", "score": NaN}'])
def test_row_that_is_no_score_is_named(pool: DocumentSet, tmp_path: pathlib.Path, row: str) -> None:
    shard = pool.shards[0]
    (tmp_path / f"{shard.name}.jsonl.zst").write_bytes(
        zstandard.compress(f'{{"id": "0", "score": 1}}\n{row}\n'.encode())
    )
    with pytest.raises(DataError, match=rf"{shard.name}\.jsonl\.zst:2 is no score"):
        list(read_scores(str(tmp_path), shard))


def test_odd_ids_come_back_as_they_were(classifier: str, tmp_path: pathlib.Path) -> None:
    from marin.data.documents import Document
    from marin.data.formats import Row, json_line_rows
    from marin.data.inputs import InputFile, opened_unchanged
    from marin.data.shards import write_shards

    ids = ['quote " and \\', "new\nline", "\u2028 \x07 ünï", "</script>"]
    odd = write_shards(str(tmp_path / "odd"), [Document(name, "text", "s") for name in ids], stage="made", settings={})
    score_documents(ScoreConfig(odd.path, classifier, str(tmp_path / "scores"), num_workers=1))
    path = str(tmp_path / "scores" / "shard-00000.jsonl.zst")
    with opened_unchanged(path) as stream:
        rows = list(json_line_rows(InputFile(path, path, "jsonl", ".zst"), stream))
    assert [row.fields["id"] for row in rows if isinstance(row, Row)] == ids


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of Ray itself
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra `ray`)")
def test_ray_tasks_give_the_files_of_local_processes(
    pool: DocumentSet, classifier: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score_documents(ScoreConfig(pool.path, classifier, str(tmp_path / "local"), num_workers=2))
    monkeypatch.setenv("MARIN_SHARDS", "ray")  # as in a step of a cluster
    monkeypatch.setenv("RAY_ADDRESS", "local")
    score_documents(ScoreConfig(pool.path, classifier, str(tmp_path / "ray"), num_workers=2))
    assert scoring.SCORES in os.listdir(tmp_path / "ray")
    for path in (tmp_path / "local").rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "ray" / path.relative_to(tmp_path / "local")).read_bytes()
