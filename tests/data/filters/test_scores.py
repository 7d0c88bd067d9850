import json
import random

import pytest
import zstandard

from marin.data import shards
from marin.data.documents import Document, read_documents, write_documents
from marin.data.filters import scores
from marin.data.filters.scores import FilterByScoreConfig, filter_by_score, filter_by_score_step
from marin.errors import ConfigError, DataError
from marin.execution import Executor, ExecutorMainConfig
from marin.execution.step import InputName


def prepare(tmp_path, values, field="score", shard_bytes=40):
    """A document set with a score for each document; gives both paths."""
    documents = [Document(f"d{i}", f"text {i}", "s") for i in range(len(values))]
    made = shards.write_shards(str(tmp_path / "in"), documents, stage="make", settings={}, shard_bytes=shard_bytes)
    (tmp_path / "scores").mkdir(exist_ok=True)
    number = 0
    for shard in made.shards:
        lines = []
        for _ in range(shard.num_documents):
            value = values[number]
            row = {"score": value} if field == "score" else {"attributes": {"quality": value}}
            lines.append(json.dumps({"id": f"d{number}", **row}))
            number += 1
        data = "".join(line + "\n" for line in lines).encode()
        (tmp_path / "scores" / f"{shard.name}.jsonl.zst").write_bytes(zstandard.compress(data))
    return str(tmp_path / "in"), str(tmp_path / "scores")


def kept(path):
    return [int(document.id[1:]) for document in read_documents(str(path))]


def test_filter_by_threshold_keeps_scores_from_it_on(tmp_path):
    values = [0.5, 0.2, 0.9, 0.49999, 1, -3, 0.5]
    paths = prepare(tmp_path, values)
    filter_by_score(FilterByScoreConfig(*paths, threshold=0.5, output_path=str(tmp_path / "out"), num_workers=1))
    assert kept(tmp_path / "out") == [0, 2, 4, 6]


@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.34, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("kind", ["different", "few values", "equal", "negative"])
def test_filter_by_fraction_keeps_exactly_the_best(tmp_path, monkeypatch, fraction, kind):
    monkeypatch.setattr(scores, "_BLOCK", 7)
    generator = random.Random(kind)
    make = {
        "different": lambda: generator.gauss(0, 1e-3),
        "few values": lambda: generator.choice([0.0, -0.0, 1.5, 2]),
        "equal": lambda: 3.25,
        "negative": lambda: -generator.random() * 10 ** generator.randrange(-300, 300),
    }[kind]
    values = [make() for _ in range(60)]
    paths = prepare(tmp_path, values, shard_bytes=150)
    config = FilterByScoreConfig(*paths, keep_fraction=fraction, output_path=str(tmp_path / "out"), num_workers=1)
    filter_by_score(config)
    best = sorted(range(60), key=lambda i: (-values[i], i))[: max(round(60 * fraction), 1)]
    assert kept(tmp_path / "out") == sorted(best)


def test_filter_by_score_reads_a_field_inside_objects(tmp_path):
    paths = prepare(tmp_path, [1, 2, 3], field="attributes")
    step = filter_by_score_step("good", *map(InputName.hardcoded, paths), threshold=2, field="attributes.quality")
    Executor(ExecutorMainConfig(prefix=str(tmp_path / "store"))).run([step])
    (out,) = (tmp_path / "store" / "filtered").glob("good-*")
    assert kept(out) == [1, 2]


def test_filter_by_score_of_a_single_file(tmp_path):
    write_documents(str(tmp_path / "a.jsonl.zst"), [Document("d0", "x", "s"), Document("d1", "y", "s")])
    (tmp_path / "a.scores.jsonl").write_text('{"id": "d0", "score": 1}\n{"id": "d1", "score": 2}\n')
    config = FilterByScoreConfig(
        str(tmp_path / "a.jsonl.zst"), str(tmp_path / "a.scores.jsonl"), threshold=2, output_path=str(tmp_path / "out")
    )
    filter_by_score(config)
    assert kept(tmp_path / "out") == [1]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"id": "d0", "score": 1}'], "has 1 scores, .* has 2 documents"),
        (['{"id": "d0", "score": 1}', '{"id": "d1", "score": 1}', '{"id": "d2", "score": 1}'], "more scores than"),
        (['{"id": "d1", "score": 1}', '{"id": "d0", "score": 1}'], r":1 is the score of document 'd1', expected 'd0'"),
        (['{"id": "d0", "score": 1}', '{"id": "d1", "score": "1"}'], r":2: `score` is '1', expected a number"),
        (['{"id": "d0", "score": 1}', '{"id": "d1", "scores": 1}'], r":2: `score` is None.*fields: id, scores"),
        (['{"id": "d0", "score": 1}', '{"id": "d1", "score": NaN}'], r":2"),
        (['{"id": "d0", "score": 1}', '{"id": "d1", "score": 1%s}' % ("0" * 400)], r":2"),
        (['{"id": "d0", "score": 1}', '{"id": "d1", "score": true}'], r":2: `score` is True"),
        (['{"id": "d0", "score": 1}', "{oops"], r":2"),
    ],
)
def test_filter_by_score_with_bad_scores_names_file_and_line(tmp_path, lines, message):
    write_documents(str(tmp_path / "a.jsonl.zst"), [Document("d0", "x", "s"), Document("d1", "y", "s")])
    path = tmp_path / "b.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    config = FilterByScoreConfig(
        str(tmp_path / "a.jsonl.zst"), str(path), threshold=1, output_path=str(tmp_path / "out")
    )
    with pytest.raises(DataError, match=message) as caught:
        filter_by_score(config)
    assert str(path) in str(caught.value)


def test_filter_by_score_without_a_file_of_scores_says_which(tmp_path):
    documents, folder = prepare(tmp_path, [1] * 20)
    (tmp_path / "scores" / "shard-00001.jsonl.zst").unlink()
    with pytest.raises(DataError, match=r"no scores for .*expected .*shard-00001\.jsonl\.zst"):
        filter_by_score(FilterByScoreConfig(documents, folder, threshold=1, output_path=str(tmp_path / "out")))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"threshold": 1, "keep_fraction": 0.5},
        {"keep_fraction": 0},
        {"keep_fraction": 2},
        {"threshold": float("nan")},
    ],
)
def test_filter_by_score_config_that_cannot_work_is_refused(given):
    with pytest.raises(ConfigError, match=r"threshold|keep_fraction"):
        FilterByScoreConfig("in", "scores", **given)
