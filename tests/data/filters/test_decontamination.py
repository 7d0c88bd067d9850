import json
import time

import pytest

from marin.data.documents import Document, read_documents
from marin.data.filters.decontamination import (
    ContaminationConfig,
    DecontaminateConfig,
    contamination_report_step,
    decontaminate,
    decontaminate_step,
    report_contamination,
)
from marin.data.filters.ngram_index import NgramIndex, OverlapSettings, texts_of_item
from marin.data.shards import write_shards
from marin.data.sources import import_step
from marin.data.words import words_of
from marin.errors import ConfigError, DataError
from marin.execution import Executor, ExecutorMainConfig
from marin.execution.step import InputName

SMALL = OverlapSettings(size=5, shortest=3, max_items=2)
QUESTION = "which of these small animals sleeps the longest in winter"


def evaluation(tmp_path):
    """A text list with 3 items, and a folder with 2 sets of rows."""
    (tmp_path / "list.txt").write_text(f"{QUESTION}\n\nred green blue yellow\nshort one\n")
    folder = tmp_path / "bundle"
    folder.mkdir()
    rows = [{"context": "the quick brown fox jumps", "continuation": "over lazy dogs"}]
    rows += [{"context": f"please give the right answer now number{i}", "continuation": f"x{i}"} for i in range(4)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    row = {"query": "what color is the deep sea", "choices": ["blue of course", "red"], "gold": 0}
    (folder / "choice.jsonl").write_text(json.dumps(row) + "\n")
    return {"list": str(tmp_path / "list.txt"), "bundle": str(folder)}


def corpus(tmp_path, texts):
    documents = [Document(f"d{i}", text, "s") for i, text in enumerate(texts)]
    write_shards(str(tmp_path / "in"), documents, stage="make", settings={}, shard_bytes=120)
    return str(tmp_path / "in")


TEXTS = [
    "Nothing of interest stands in here at all, whatever one looks for.",
    "He asked: WHICH of these small -- animals sleeps?",
    "which of these small things",
    "red, green; blue: yellow!",
    "the red green blue yellow lines, and green blue yellow again",
    "please give the right answer now, says everybody",
    "brown fox jumps over lazy dogs and cats",
    "is the deep sea blue of the kind",
    "the deep sea blue of course it is",
]
EXPECTED = {
    "d1": ("list", "item 0: 'which of these small -- animals'"),
    "d3": ("list", "item 1: 'red, green; blue: yellow'"),
    "d4": ("list", "item 1: 'red green blue yellow'"),
    "d6": ("bundle/pairs", "item 0: 'brown fox jumps over lazy'"),
    "d7": ("bundle/choice", "item 0: 'is the deep sea blue'"),
    "d8": ("bundle/choice", "item 0: 'the deep sea blue of'"),
}


def test_decontaminate_drops_documents_with_an_ngram_of_an_evaluation_set(tmp_path):
    config = DecontaminateConfig(
        corpus(tmp_path, TEXTS), evaluation(tmp_path), SMALL, str(tmp_path / "out"), num_workers=1
    )
    decontaminate(config)
    assert [d.id for d in read_documents(str(tmp_path / "out"))] == ["d0", "d2", "d5"]
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert {reason: entry["examples"] for reason, entry in report["dropped"].items()} == {
        "overlap with list": ["d1", "d3", "d4"],
        "overlap with bundle/choice": ["d7", "d8"],
        "overlap with bundle/pairs": ["d6"],
    }
    found = json.loads((tmp_path / "out" / "contamination.json").read_text())
    assert found["documents"] == {"in": 9, "overlapping": 6}
    shown = {e["document"]: (name, e["overlap"]) for name, s in found["sets"].items() for e in s["examples"]}
    assert shown == EXPECTED
    assert {name: (s["items"], s["items_indexed"], s["items_found"]) for name, s in found["sets"].items()} == {
        "list": (3, 2, 2),
        "bundle/choice": (1, 1, 1),
        "bundle/pairs": (5, 5, 1),
    }
    assert found["sets"]["bundle/pairs"]["ngrams_left_out_as_instructions"] == 2
    assert not (tmp_path / "out" / ".work").exists()


def test_decontaminate_keeps_documents_below_the_largest_overlap(tmp_path):
    texts = ["red green blue yellow and ten other words that stand in no evaluation set", "red green blue yellow"]
    config = DecontaminateConfig(
        corpus(tmp_path, texts), evaluation(tmp_path), SMALL, str(tmp_path / "out"), num_workers=1, max_overlap=0.3
    )
    decontaminate(config)
    assert [d.id for d in read_documents(str(tmp_path / "out"))] == ["d0"]


def test_decontaminate_is_quick_on_a_document_that_says_one_question_again_and_again(tmp_path):
    config = ContaminationConfig(
        corpus(tmp_path, [f"{QUESTION} " * 30_000]),
        evaluation(tmp_path),
        SMALL,
        output_path=str(tmp_path / "out"),
        num_workers=1,
    )
    start = time.process_time()
    report_contamination(config)
    assert time.process_time() - start < 3.0  # 0.5 s; 4 to 6 s where each n-gram is looked up again
    report = json.loads((tmp_path / "out" / "contamination.json").read_text())
    assert report["sets"]["list"]["documents_overlapping"] == 1 and report["sets"]["list"]["items_found"] == 1


def test_decontaminate_gives_the_same_bytes_for_any_number_of_workers(tmp_path):
    source, sets = corpus(tmp_path, TEXTS * 3), evaluation(tmp_path)
    for workers in (1, 2):
        decontaminate(DecontaminateConfig(source, sets, SMALL, str(tmp_path / str(workers)), num_workers=workers))
    one, two = ({f.relative_to(tmp_path / n): f.read_bytes() for f in (tmp_path / n).rglob("*.*")} for n in "12")
    assert one == two


def test_step_that_writes_documents_is_one_evaluation_set_of_all_of_them(tmp_path):
    (tmp_path / "exam.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in (QUESTION, *TEXTS[-2:])))
    (tmp_path / "pool.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    exam = import_step("exam", str(tmp_path / "exam.jsonl"), shard_bytes=60)
    clean = decontaminate_step("pool", import_step("pool", str(tmp_path / "pool.jsonl")), {"exam": exam}, overlap=SMALL)
    Executor(ExecutorMainConfig(prefix=str(tmp_path / "store"))).run([clean])
    (shards,) = (tmp_path / "store" / "documents").glob("exam-*/documents")
    assert len(list(shards.iterdir())) > 1
    (out,) = (tmp_path / "store" / "decontaminated").glob("pool-*")
    (found,) = json.loads((out / "contamination.json").read_text())["sets"].items()
    assert (found[0], found[1]["items"], found[1]["items_found"]) == ("exam", 3, 3)
    assert [d.text for d in read_documents(str(out))] == [TEXTS[number] for number in (0, 2, 3, 4, 5, 6)]


def test_evaluation_set_that_is_not_there_is_refused_before_any_step_has_run(tmp_path):
    (tmp_path / "corpus.txt").write_text("some words of a small corpus")
    documents = import_step("corpus", [str(tmp_path / "corpus.txt")])
    exam = {"exam": str(tmp_path / "exma.jsonl")}
    for step in (decontaminate_step("all", documents, exam), contamination_report_step("all", documents, exam)):
        with pytest.raises(ConfigError, match=r"an evaluation set cannot be read: .*exma\.jsonl"):
            Executor(ExecutorMainConfig(prefix=str(tmp_path / "store"))).run([step])
    assert not (tmp_path / "store" / "documents").exists()


def test_contamination_report_step_writes_only_the_report(tmp_path):
    sets = {name: InputName.hardcoded(path) for name, path in evaluation(tmp_path).items()}
    step = contamination_report_step("mine", InputName.hardcoded(corpus(tmp_path, TEXTS)), sets, overlap=SMALL)
    Executor(ExecutorMainConfig(prefix=str(tmp_path / "store"))).run([step])
    (out,) = (tmp_path / "store" / "contamination").glob("mine-*")
    assert json.loads((out / "contamination.json").read_text())["documents"]["overlapping"] == 6
    assert not (out / "documents").exists()


def test_ngram_index_finds_what_a_plain_search_finds(tmp_path):
    import random

    generator = random.Random(0)
    vocabulary = [f"v{i}" for i in range(12)]
    items = [" ".join(generator.choices(vocabulary, k=generator.randrange(1, 9))) for _ in range(30)]
    (tmp_path / "s.txt").write_text("\n".join(items) + "\n")
    settings = OverlapSettings(size=4, shortest=3, max_items=10**6)
    index = NgramIndex({"s": [str(tmp_path / "s.txt")]}, settings)
    texts = [" ".join(generator.choices(vocabulary, k=40)) for _ in range(20)]
    words = words_of(texts)
    found = {}
    for text, start, size in index.matches(words):
        first = words.starts[text] + start
        found[text, start, size] = index.items_with(words.hashes[first : first + size]).tolist()
    expected = {}
    for number, text in enumerate(texts):
        split = text.split()
        for start in range(len(split)):
            for size in (3, 4):
                part = split[start : start + size]
                holders = [
                    i
                    for i, item in enumerate(item.split() for item in items)
                    if len(part) == size
                    and (item == part if size == 3 else any(item[k : k + 4] == part for k in range(len(item))))
                ]
                if holders:
                    expected[number, start, size] = holders
    assert found == expected
    assert expected


@pytest.mark.parametrize(
    ("row", "joined"),
    [
        ({"context": "a b", "continuation": "c"}, "a b c"),
        ({"context_options": ["a x", "a y"], "continuation": "z", "gold": 1}, "a y z"),
        ({"query": "q", "choices": ["n", "m"], "gold": 1}, "q m"),
    ],
)
def test_texts_of_item_join_what_belongs_together(row, joined):
    assert joined in texts_of_item(row)


def test_texts_of_item_of_odd_rows_do_not_fail():
    rows = [{}, {"gold": 9, "choices": []}, {"query": 3, "choices": [1], "gold": 0}, {"a": {"b": ["deep"]}}]
    assert "deep" in [text for row in rows for text in texts_of_item(row)]


def test_evaluation_sets_without_long_items_are_refused(tmp_path):
    (tmp_path / "short.txt").write_text("two words\n")
    with pytest.raises(DataError, match=r"short have no item.*lower `shortest`"):
        NgramIndex({"short": [str(tmp_path / "short.txt")]}, OverlapSettings())


def test_evaluation_sets_that_are_not_there_are_refused(tmp_path):
    source = corpus(tmp_path, TEXTS)
    with pytest.raises(ConfigError, match="`evaluation` is empty"):
        report_contamination(ContaminationConfig(source, {}, output_path=str(tmp_path / "out")))
    with pytest.raises(DataError, match="absent"):
        report_contamination(ContaminationConfig(source, {"x": str(tmp_path / "absent")}, output_path=str(tmp_path)))
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\n{oops\n')
    with pytest.raises(DataError, match=r"bad\.jsonl:2"):
        report_contamination(ContaminationConfig(source, {"x": str(tmp_path / "bad.jsonl")}, output_path=str(tmp_path)))


def test_overlap_settings_that_cannot_work_are_refused():
    with pytest.raises(ConfigError, match="shortest"):
        OverlapSettings(size=5, shortest=6)
    with pytest.raises(ConfigError, match="max_overlap"):
        DecontaminateConfig("in", {}, max_overlap=1.0)
