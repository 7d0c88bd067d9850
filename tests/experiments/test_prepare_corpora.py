"""The documented data preparation, run as a person runs it over small files in the layout of the shared data."""

import gzip
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from marin.data.cache import TokenCache
from marin.storage import trees

SOURCES = {
    "rust-rfcs.jsonl.gz": "rust-lang/rfcs",
    "swift-evolution.jsonl.gz": "swiftlang/swift-evolution",
    "eips.jsonl.gz": "ethereum/EIPs",
    "rust-book.jsonl.gz": "rust-lang/book",
}


def small_corpora(directory: Path) -> Path:
    """Text of 40,000 different words, enough for 8,192 tokens; with a copy, a bad document and one evaluation question."""
    chance = random.Random(0)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(3, 9))) for _ in range(40_000)]

    def text() -> str:
        lines = [" ".join([*chance.choices(words, k=12), "the", "of", "and"]) + "." for _ in range(30)]
        return "\n\n".join(lines)

    question = " ".join(chance.choices(words, k=30))
    corpora, evaluation = directory / "corpora", directory / "core_eval_bundle" / "eval_data" / "world"
    corpora.mkdir(parents=True)
    evaluation.mkdir(parents=True)
    (evaluation / "quiz.jsonl").write_text(json.dumps({"query": question, "gold": "yes"}) + "\n")
    for file, source in SOURCES.items():
        rows = [{"id": f"{source}/{number}", "text": text(), "source": source} for number in range(60)]
        if source == "rust-lang/book":
            rows.append({"id": "copy", "text": rows[3]["text"], "source": source})
            rows.append({"id": "bad", "text": "1 2 3 4 " * 100, "source": source})
            rows.append({"id": "leak", "text": f"{text()}\n\n{question}", "source": source})
        with gzip.open(corpora / file, "wt") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in rows)
    (corpora / "play.txt").write_text("\n\n".join(text() for _ in range(20)))
    return directory


def test_preparation_drops_what_it_should_and_ends_with_caches_and_a_report(
    tmp_path: Path, repository: Path, plain_environment: dict[str, str]
) -> None:
    data = small_corpora(tmp_path / "data")
    command = [sys.executable, "-m", "experiments.prepare_corpora", "--prefix", str(tmp_path / "store")]
    environment = plain_environment | {"MARIN_SHARED_DATA": str(data)}

    def run(*flags: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*command, *flags], cwd=repository, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done

    run()
    (report,) = (tmp_path / "store" / "reports").glob("corpora-*/report.json")
    value = json.loads(report.read_text())
    gone = {stage["name"]: {reason: ids for reason, _, ids in stage["dropped"]} for stage in value["stages"]}
    assert gone["distinct documents"] and list(gone["distinct documents"].values()) == [["copy"]]
    assert any("bad" in ids for ids in gone["filtered"].values())
    assert list(gone["decontaminated"].values()) == [["leak"]]
    assert [part["name"] for part in value["components"]] == ["proposals", "book", "prose"]
    assert value["components"][0]["documents"] == 180
    for part in value["components"]:
        (cache,) = (tmp_path / "store" / "tokenized").glob(f"corpora-{part['name']}-*")
        assert len(TokenCache.open(str(cache))) == part["tokens"]
    assert "What was prepared" in report.with_name("index.html").read_text()
    assert "nothing to do" in run().stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_preparation_interrupted_and_started_again_writes_the_same_files(
    tmp_path: Path, repository: Path, plain_environment: dict[str, str]
) -> None:
    environment = plain_environment | {
        "MARIN_SHARED_DATA": str(small_corpora(tmp_path / "data")),
        "PYTHONUNBUFFERED": "1",
    }
    command = [sys.executable, "-m", "experiments.prepare_corpora", "--prefix", str(tmp_path / "store")]

    def run(interrupt_at: str | None) -> str:
        """What the process says; Ctrl-C comes when it has said `interrupt_at`."""
        said = ""
        with subprocess.Popen(
            command, cwd=repository, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                said += line
                if interrupt_at and interrupt_at in line:
                    process.send_signal(signal.SIGINT)
                    interrupt_at = None
        assert interrupt_at is None, said[-3000:]
        assert process.returncode == (130 if "interrupted; run the same command again" in said else 0), said[-3000:]
        assert "Traceback" not in said
        return said

    run(None)
    (tmp_path / "store").rename(tmp_path / "alone")
    for moment in ("filter_by_rules: ", "dedup_fuzzy_documents: ", "tokenize"):
        assert "interrupted" in run(moment)
    run(None)
    steps = [path.parent.relative_to(tmp_path / "alone") for path in (tmp_path / "alone").rglob(".executor_status")]
    assert len(steps) >= 12
    for step in steps:
        assert (
            trees.first_difference(
                str(tmp_path / "alone" / step), str(tmp_path / "store" / step), leave_out=".executor"
            )
            is None
        )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_preparation_of_the_shared_corpora_finishes(
    tmp_path: Path, repository: Path, plain_environment: dict[str, str], seeds: Path
) -> None:
    environment = plain_environment | {"MARIN_SHARED_DATA": str(seeds.parent / "data")}
    command = [sys.executable, "-m", "experiments.prepare_corpora", "--prefix", str(tmp_path)]
    subprocess.run(command, cwd=repository, env=environment, check=True, stdout=subprocess.DEVNULL)
    (report,) = (tmp_path / "reports").glob("corpora-*/report.json")
    assert json.loads(report.read_text())["stages"][0]["documents_in"] == 2181
    assert os.path.getsize(report.with_name("index.html")) > 1000
