"""What must hold for any corpus: a killed stage goes on to the same bytes, and memory does not grow with the corpus."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

from marin.data import scratch
from marin.data.deduplication.exact import (
    ExactDocumentsConfig,
    ExactParagraphsConfig,
    dedup_exact_documents,
    dedup_exact_paragraphs,
)
from marin.data.deduplication.fuzzy import FuzzyConfig, dedup_fuzzy_documents
from marin.data.documents import Document, Dropped
from marin.data.filters import gopher
from marin.data.filters.decontamination import DecontaminateConfig, decontaminate
from marin.data.filters.rules import FilterByRulesConfig, filter_by_rules
from marin.data.filters.scores import FilterByScoreConfig, filter_by_score
from marin.data.shards import DocumentSet, write_shards

RULES = gopher.quality_rules() + gopher.repetition_rules()
NAMES = ["documents", "paragraphs", "fuzzy", "decontaminate", "rules", "scores"]


def run_stage(stage, documents, output_path, evaluation, num_workers=2):
    if stage == "scores":
        scores = f"{documents}-scores"
        filter_by_score(
            FilterByScoreConfig(documents, scores, keep_fraction=0.4, output_path=output_path, num_workers=num_workers)
        )
    elif stage == "documents":
        dedup_exact_documents(ExactDocumentsConfig(documents, output_path, num_workers=num_workers))
    elif stage == "paragraphs":
        dedup_exact_paragraphs(ExactParagraphsConfig(documents, output_path=output_path, num_workers=num_workers))
    elif stage == "fuzzy":
        dedup_fuzzy_documents(FuzzyConfig(documents, output_path=output_path, num_workers=num_workers))
    elif stage == "decontaminate":
        decontaminate(
            DecontaminateConfig(documents, {"own": evaluation}, output_path=output_path, num_workers=num_workers)
        )
    else:
        filter_by_rules(FilterByRulesConfig(documents, RULES, output_path, num_workers=num_workers))


def start(stage, tmp_path, output, *num_shards):
    """A process that does the stage; with `num_shards`, it stays where a pass over more of them would go on."""
    command = [sys.executable, __file__, stage, tmp_path / "in", output, tmp_path / "evaluation.txt", *num_shards]
    return subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL)


def stay_after(num_shards):
    compute = scratch._compute

    def compute_or_stay(kept, function, index):
        while index >= num_shards:
            time.sleep(0.1)
        compute(kept, function, index)

    scratch._compute = compute_or_stay  # the workers get it by value, as it is of the program that was started


def finish(stage, tmp_path, output, num_workers=1):
    began = time.monotonic()
    paths = (tmp_path / "in", output, tmp_path / "evaluation.txt")
    run_stage(stage, *map(str, paths), num_workers=num_workers)
    return time.monotonic() - began


def tree(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def make_corpus(tmp_path, num_documents, shard_bytes):
    """Documents of ten paragraphs of which some stand in other documents too, their scores, and an evaluation set."""
    generator = random.Random(0)
    vocabulary = [f"word{i}" for i in range(20_000)] + ["the", "and", "of", "to"] * 1000
    paragraphs = [" ".join(generator.choices(vocabulary, k=35)) for _ in range(min(60_000, 5 * num_documents))]

    def documents():
        previous = ""
        for number in range(num_documents):
            text = "\n\n".join(generator.choice(paragraphs) for _ in range(10))
            if number % 10 == 3:
                text = previous + (" a few more words" if number % 20 == 3 else "")
            previous = text
            yield Document(f"d{number}", text, "made")

    write_shards(str(tmp_path / "in"), documents(), stage="make", settings={}, shard_bytes=shard_bytes)
    write_scores(tmp_path, generator)
    (tmp_path / "evaluation.txt").write_text("\n".join(paragraphs[:3]) + "\n")


def write_scores(tmp_path, generator):
    """A score for each document, of which many are equal, so that the limit of a fraction falls among equal ones."""
    folder = tmp_path / "in-scores"
    folder.mkdir()
    for shard in DocumentSet.open(str(tmp_path / "in")).shards:
        with open(folder / f"{shard.name}.jsonl", "w") as stream:
            for document in shard.documents():
                stream.write(json.dumps({"id": document.id, "score": generator.randrange(10)}) + "\n")


def kill_and_finish(stage, tmp_path, delays):
    """How many of the kills came before the end; in the end the output must be that of a run without kills."""
    num_kills = 0
    for delay in delays:
        child = start(stage, tmp_path, tmp_path / "killed")
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        num_kills += child.wait() == -signal.SIGKILL
    finish(stage, tmp_path, tmp_path / "killed")
    assert tree(tmp_path / "killed") == tree(tmp_path / "whole")
    shutil.rmtree(tmp_path / "killed")
    return num_kills


@pytest.mark.parametrize(("stage", "folder"), [("fuzzy", "sketches"), ("scores", "scores")])
def test_killed_stage_goes_on_to_the_same_bytes(tmp_path, stage, folder):
    make_corpus(tmp_path, 600, 300_000)
    finish(stage, tmp_path, tmp_path / "whole")
    child = start(stage, tmp_path, tmp_path / "killed", 1)
    arrays = tmp_path / "killed" / ".work" / folder
    while child.poll() is None and not any(arrays.glob("shard-*")):
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert [path.name.startswith("shard-00000") for path in arrays.glob("shard-*")] == [True]
    assert not (tmp_path / "killed" / "manifest.json").exists()
    finish(stage, tmp_path, tmp_path / "killed")
    assert tree(tmp_path / "killed") == tree(tmp_path / "whole")


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("stage", NAMES)
def test_stage_killed_again_and_again_goes_on_to_the_same_bytes(tmp_path, stage):
    make_corpus(tmp_path, 8000, 2_000_000)
    seconds = finish(stage, tmp_path, tmp_path / "whole", num_workers=2)
    num_kills = sum(
        kill_and_finish(stage, tmp_path, [seconds * (part + 1) / 10 for part in parts])
        for parts in ([0, 1, 2, 3, 4], [3, 5, 6], [7, 8], [9])
    )
    print(f"{stage}: {num_kills} kills")
    assert num_kills >= 6


@pytest.mark.torture
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("stage", NAMES)
def test_stage_over_two_gigabytes_stays_below_one_and_a_half_in_memory(two_gigabytes, tmp_path, stage):
    child = start(stage, two_gigabytes, tmp_path / "out")
    peak = 0
    while child.poll() is None:
        peak = max(peak, resident_bytes(child.pid))
        time.sleep(0.2)
    assert child.returncode == 0
    print(f"{stage}: at most {peak / 1e6:,.0f} MB in memory")
    assert peak < 1.5e9


@pytest.fixture(scope="module")
def two_gigabytes(tmp_path_factory):
    path = tmp_path_factory.mktemp("two_gigabytes")
    make_corpus(path, 870_000, 32_000_000)
    yield path
    shutil.rmtree(path)


def resident_bytes(pid):
    """Of the process and all below it; pages that several share are counted for each."""
    total = 0
    try:
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            total += process.memory_info().rss
    except psutil.NoSuchProcess:
        pass
    return total


@pytest.mark.parametrize("stage", NAMES)
def test_stage_of_a_set_without_documents_gives_a_set_without_documents(tmp_path, stage):
    write_shards(str(tmp_path / "in"), [Dropped("bad", "bad row")], stage="make", settings={})
    write_scores(tmp_path, random.Random(0))
    (tmp_path / "evaluation.txt").write_text("one two three four five six seven eight nine\n")
    run_stage(stage, *(str(tmp_path / name) for name in ("in", "out", "evaluation.txt")), num_workers=1)
    assert DocumentSet.open(str(tmp_path / "out")).num_documents == 0


if __name__ == "__main__":
    if len(sys.argv) > 5:
        stay_after(int(sys.argv[5]))
    run_stage(*sys.argv[1:5])
