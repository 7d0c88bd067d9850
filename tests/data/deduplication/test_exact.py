import json
import random

import pytest

from marin.data.deduplication import buckets
from marin.data.deduplication.exact import (
    ExactDocumentsConfig,
    ExactParagraphsConfig,
    dedup_exact_documents,
    dedup_exact_documents_step,
    dedup_exact_paragraphs,
)
from marin.data.documents import Document, read_documents
from marin.data.shards import write_shards
from marin.execution import Executor, ExecutorMainConfig
from marin.execution.step import InputName

LONG = "This paragraph, which has the number {}, is longer than the hundred characters below which repeats are let be."


def written(path, texts, shard_bytes=1500):
    documents = [Document(f"d{i}", text, "s") for i, text in enumerate(texts)]
    write_shards(str(path), documents, stage="make", settings={}, shard_bytes=shard_bytes)
    return str(path)


def dropped(path):
    report = json.loads((path / "report.json").read_text())
    assert report["documents"]["in"] == report["documents"]["kept"] + report["documents"]["dropped"]
    return {reason: entry["documents"] for reason, entry in report["dropped"].items()}


@pytest.fixture(params=[buckets._MAX_HASHES, 3])
def max_hashes(request, monkeypatch):
    """All hashes at once, and part by part."""
    monkeypatch.setattr(buckets, "_MAX_HASHES", request.param)


@pytest.mark.usefixtures("max_hashes")
def test_exact_documents_keep_the_first_of_equal_texts_across_shards(tmp_path):
    generator = random.Random(0)
    texts = [f"text {generator.randrange(40)} " * 5 for _ in range(150)]
    dedup_exact_documents(ExactDocumentsConfig(written(tmp_path / "in", texts), str(tmp_path / "out"), num_workers=1))
    kept = list(read_documents(str(tmp_path / "out")))
    assert [document.text for document in kept] == list(dict.fromkeys(texts))
    assert [document.id for document in kept] == [f"d{texts.index(text)}" for text in dict.fromkeys(texts)]
    assert dropped(tmp_path / "out") == {"same text": 150 - len(kept)}
    assert sorted(entry.name for entry in (tmp_path / "out").iterdir()) == [
        *("documents", "dropped", "manifest.json", "report.json", "shards")
    ]


def test_exact_documents_differ_by_a_single_space(tmp_path):
    texts = ["same", "same ", "Same", "same"]
    dedup_exact_documents(ExactDocumentsConfig(written(tmp_path / "in", texts), str(tmp_path / "out")))
    assert [document.id for document in read_documents(str(tmp_path / "out"))] == ["d0", "d1", "d2"]


def test_exact_documents_whose_hashes_agree_in_64_bits_are_different(tmp_path, monkeypatch):
    from marin.data.deduplication import exact

    real = exact.text_digest
    monkeypatch.setattr(exact, "text_digest", lambda text: bytes(8) + real(text)[8:])
    texts = [f"text {i % 7}" for i in range(30)]
    dedup_exact_documents(ExactDocumentsConfig(written(tmp_path / "in", texts), str(tmp_path / "out"), num_workers=1))
    assert [document.text for document in read_documents(str(tmp_path / "out"))] == texts[:7]


@pytest.mark.usefixtures("max_hashes")
def test_exact_paragraphs_are_those_of_a_plain_set(tmp_path):
    generator = random.Random(1)
    texts = [
        "\n\n".join(
            generator.choice(["short", LONG.format(generator.randrange(30)), f"  {LONG.format(1)}\n"])
            for _ in range(generator.randrange(1, 6))
        )
        for _ in range(80)
    ]
    dedup_exact_paragraphs(
        ExactParagraphsConfig(written(tmp_path / "in", texts), output_path=str(tmp_path / "out"), num_workers=1)
    )
    seen, expected = set(), {}
    for index, text in enumerate(texts):
        kept = []
        for paragraph in text.split("\n\n"):
            normalized = " ".join(paragraph.split())
            if len(normalized) < 100 or normalized not in seen:
                kept.append(normalized)
            if len(normalized) >= 100:
                seen.add(normalized)
        if kept:
            expected[f"d{index}"] = kept
    found = {document.id: document.text for document in read_documents(str(tmp_path / "out"))}
    assert {
        name: [" ".join(part.split()) for part in text.split("\n\n") if part.strip()] for name, text in found.items()
    } == expected
    assert dropped(tmp_path / "out") == {"all paragraphs repeated": 80 - len(expected)}


def test_exact_paragraphs_leave_the_rest_of_a_document_as_it_was(tmp_path):
    first = f"{LONG.format(1)}\n\n\n{LONG.format(2)}\n \n{LONG.format(3)}\n"
    second = f"Own.\n\n\n{LONG.format(2)}\n \n{LONG.format(4)}\n"
    third = f"{LONG.format(3)}\n\n\n\nEnd.\n\n"
    source = written(tmp_path / "in", [first, second, third, "plain\n\n\n\n  text"])
    dedup_exact_paragraphs(ExactParagraphsConfig(source, output_path=str(tmp_path / "out"), num_workers=1))
    assert [document.text for document in read_documents(str(tmp_path / "out"))] == [
        first,
        f"Own.\n \n{LONG.format(4)}\n",
        "End.\n\n",
        "plain\n\n\n\n  text",
    ]


def test_exact_deduplication_does_not_depend_on_workers_or_shards(tmp_path):
    texts = ["\n\n".join(LONG.format((i * j) % 17) for j in range(1, 5)) for i in range(60)]
    small, large = written(tmp_path / "small", texts, 3000), written(tmp_path / "large", texts, 10**6)
    results = []
    for number, (source, workers) in enumerate([(small, 1), (small, 2), (large, 1)]):
        out = tmp_path / f"out{number}"
        dedup_exact_paragraphs(ExactParagraphsConfig(source, output_path=str(out), num_workers=workers))
        results.append([(document.id, document.text) for document in read_documents(str(out))])
    assert results[0] == results[1] == results[2]
    documents = [tmp_path / f"out{number}" / "documents" for number in (0, 1)]
    assert [file.read_bytes() for file in sorted(documents[0].iterdir())] == [
        file.read_bytes() for file in sorted(documents[1].iterdir())
    ]


def test_exact_documents_step_runs_in_an_executor(tmp_path):
    source = written(tmp_path / "in", ["a", "b", "a"])
    step = dedup_exact_documents_step("mine", InputName.hardcoded(source))
    Executor(ExecutorMainConfig(prefix=str(tmp_path / "store"))).run([step])
    (out,) = (tmp_path / "store" / "deduplicated").glob("mine-*")
    assert [document.text for document in read_documents(str(out))] == ["a", "b"]
