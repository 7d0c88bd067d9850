"""Samples depend on ids and seed alone, hold each text once, and take examples from every kind of file."""

import json
import pathlib
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marin.data.documents import Document, read_documents
from marin.data.shards import DocumentSet, write_shards
from marin.datashop.sampling import (
    DrawConfig,
    ExampleLabelsConfig,
    ExamplesConfig,
    PoolConfig,
    draw_documents,
    draw_documents_step,
    draw_examples,
    label_examples,
    make_pool,
)
from marin.errors import ConfigError, DataError

from .conftest import made_documents


def drawn(pool: str, size: int, to: pathlib.Path, **fields: object) -> list[Document]:
    draw_documents(DrawConfig(pool, size, output_path=str(to), num_workers=1, **fields))  # type: ignore[arg-type]
    return list(read_documents(str(to)))


def examples(pool: str, positives: list[str], to: pathlib.Path, **fields: object) -> list[Document]:
    draw_examples(ExamplesConfig(pool, positives, output_path=str(to), num_workers=1, **fields))  # type: ignore[arg-type]
    return list(read_documents(str(to)))


def test_larger_sample_holds_the_smaller_one_whatever_the_shards(pool: DocumentSet, tmp_path: pathlib.Path) -> None:
    small, large = drawn(pool.path, 20, tmp_path / "small"), drawn(pool.path, 90, tmp_path / "large")
    assert len(small) == 20 and len(large) == 90 and large[:20] == small
    one = write_shards(str(tmp_path / "one"), pool.documents(), stage="made", settings={})
    assert len(pool.shards) > 1 == len(one.shards)
    assert drawn(one.path, 90, tmp_path / "again") == large
    assert drawn(pool.path, 90, tmp_path / "other", seed=1) != large


def test_sample_of_more_than_there_is_holds_every_distinct_text_once(tmp_path: pathlib.Path) -> None:
    repeated = [Document(f"{copy}-{d.id}", d.text, d.source) for copy in "ab" for d in made_documents(40)]
    write_shards(str(tmp_path / "pool"), repeated, stage="made", settings={})
    texts = [document.text for document in drawn(str(tmp_path / "pool"), 1000, tmp_path / "all")]
    assert len(texts) == len(set(texts)) == 40


def test_repeated_texts_leave_no_sample_too_small_unless_the_pool_is(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copies = [Document(f"copy-{number}", "the same boilerplate", "web") for number in range(400)]
    write_shards(str(tmp_path / "pool"), [*copies, *made_documents(60)], stage="made", settings={})
    pool = str(tmp_path / "pool")
    assert len(drawn(pool, 40, tmp_path / "small")) == 40 and "warning" not in capsys.readouterr().out
    large = drawn(pool, 61, tmp_path / "large")
    assert len(large) == 61 and "warning" not in capsys.readouterr().out
    assert drawn(pool, 40, tmp_path / "again") == large[:40]
    assert drawn(pool, 62, tmp_path / "all") == large
    assert "has 61 texts, 62 were to be drawn: all are" in capsys.readouterr().out
    (tmp_path / "good.jsonl").write_text('{"text": "the same boilerplate"}\n')
    for wanted, said in ((50, False), (70, True)):
        found = examples(
            pool, [str(tmp_path / "good.jsonl")], tmp_path / f"s{wanted}", negatives_per_positive=float(wanted)
        )
        assert len(found) == 1 + min(wanted, 60)
        assert ("60 texts other than the examples, 70 were" in capsys.readouterr().out) == said


def test_sample_of_some_sources_has_only_those(pool: DocumentSet, tmp_path: pathlib.Path) -> None:
    found = drawn(pool.path, 30, tmp_path / "rust", sources=("rust",))
    assert len(found) == 30 and {document.source for document in found} == {"rust"}
    with pytest.raises(DataError, match="no documents of"):
        drawn(pool.path, 30, tmp_path / "none", sources=("nowhere",))


def test_examples_stand_before_what_the_pool_gives_and_none_comes_back_as_a_negative(
    pool: DocumentSet, tmp_path: pathlib.Path
) -> None:
    wanted = [document for document in pool.documents() if document.source == "rust"][:30]
    (tmp_path / "wanted.jsonl").write_text("".join(json.dumps({"text": d.text}) + "\n" for d in [*wanted, wanted[0]]))
    found = examples(pool.path, [str(tmp_path / "wanted.jsonl")], tmp_path / "sample", negatives_per_positive=9.0)
    roles = Counter(document.id.split("/")[0] for document in found)
    assert roles == {"positive": 30, "pool": 270}  # of 300 documents of the pool, 30 are the examples
    assert len({document.text for document in found}) == 300
    label_examples(ExampleLabelsConfig(str(tmp_path / "sample"), str(tmp_path / "labels")))
    rows = [json.loads(line) for line in (tmp_path / "labels" / "labels.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == [document.id for document in found]
    assert [row["label"] for row in rows] == [1.0] * 30 + [0.0] * 270
    summary = json.loads((tmp_path / "labels" / "labels.json").read_text())
    assert summary["by_role"] == {"positive": 30, "negative": 0, "pool": 270} and summary["scale"] == [0, 1]
    assert summary["histogram"] == {"0": 270, "1": 30} and summary["lopsided"] is None


def test_examples_come_from_text_parquet_and_document_sets(pool: DocumentSet, tmp_path: pathlib.Path) -> None:
    (tmp_path / "texts").mkdir()
    for number in range(3):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"text file {number}")
    pq.write_table(pa.table({"text": ["from parquet"], "id": ["p"]}), tmp_path / "rows.parquet")
    write_shards(str(tmp_path / "set"), [Document("s", "from a set", "x")], stage="made", settings={})
    paths = [str(tmp_path / name) for name in ("texts", "rows.parquet", "set")]
    found = examples(pool.path, paths, tmp_path / "sample", negatives=[pool.path])[:5]
    assert [document.id for document in found] == [
        "positive/0/0.txt", "positive/0/1.txt", "positive/0/2.txt", "positive/1/p", "positive/2/s"
    ]  # fmt: skip


def test_negatives_that_are_given_take_the_place_of_the_pool(pool: DocumentSet, tmp_path: pathlib.Path) -> None:
    (tmp_path / "good.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    (tmp_path / "bad.jsonl").write_text('{"text": "c"}\n{"text": "a"}\n')
    found = examples(
        pool.path, [str(tmp_path / "good.jsonl")], tmp_path / "sample", negatives=[str(tmp_path / "bad.jsonl")]
    )
    assert [(d.id.split("/")[0], d.text) for d in found] == [("positive", "a"), ("positive", "b"), ("negative", "c")]


def test_examples_that_leave_one_side_empty_are_refused(pool: DocumentSet, tmp_path: pathlib.Path) -> None:
    (tmp_path / "good.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(DataError, match="no document stands for what is not wanted"):
        examples(pool.path, [str(tmp_path / "good.jsonl")], tmp_path / "s", negatives=[str(tmp_path / "good.jsonl")])
    (tmp_path / "bad.jsonl").write_text('{"text": 5}\n')
    with pytest.raises(DataError, match=r"bad\.jsonl:1"):
        examples(pool.path, [str(tmp_path / "bad.jsonl")], tmp_path / "s")


def test_sample_that_holds_no_examples_cannot_be_labelled_as_such(pool: DocumentSet, tmp_path: pathlib.Path) -> None:
    with pytest.raises(DataError, match="'d0' has no role"):
        label_examples(ExampleLabelsConfig(pool.path, str(tmp_path / "labels")))


def test_pool_is_read_from_files_or_copied_from_a_document_set(pool: DocumentSet, tmp_path: pathlib.Path) -> None:
    make_pool(PoolConfig([pool.path], "pool", output_path=str(tmp_path / "copy"), num_workers=1))
    copied = DocumentSet.open(str(tmp_path / "copy"))
    assert list(copied.documents()) == list(pool.documents()) and len(copied.shards) == len(pool.shards)
    (tmp_path / "a.txt").write_text("some text")
    make_pool(PoolConfig([str(tmp_path / "a.txt")], "pool", output_path=str(tmp_path / "read")))
    assert list(read_documents(str(tmp_path / "read"))) == [Document("a.txt", "some text", "pool")]


def test_sources_that_are_one_name_and_no_list_are_refused(pool: DocumentSet) -> None:
    with pytest.raises(ConfigError, match=r"`sources` is 'web': give a list, \['web'\]"):
        draw_documents_step("drawn", pool.path, 5, sources="web")
