"""A whole run from examples, as a person starts it: what it keeps, what it says, and that it runs once."""

import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from marin.data.cache import TokenCache
from marin.data.documents import read_documents
from marin.data.filters.scores import FilterByScoreConfig, filter_by_score
from marin.data.shards import DocumentSet
from marin.datashop.counts import check_cache, check_labels, check_scores, count_stages
from marin.datashop.scoring import read_scores
from marin.datashop.selection import SelectionConfig, look_at_selection
from marin.errors import DataError

from .conftest import made_documents

CONFIG = """
from marin.datashop.ngrams import NgramConfig
from marin.datashop.pipeline import DatashopRunnerConfig

config = DatashopRunnerConfig(
    experiment_name="small",
    pretraining_data_path=("pool.jsonl", "more.txt"),
    positives=("wanted.jsonl",),
    negatives_per_positive=4.0,
    classifier=NgramConfig(held_out_fraction=0.3, num_hashes=4096),
    keep_fraction=0.2,
    planted_sources=("rust",),
    eval_sets={"exam": "exam.jsonl"},
    vocab_size=300,
    shard_bytes=20_000,
    num_workers=1,
)
"""


def write_jsonl(path: pathlib.Path, documents: list[Any]) -> None:
    path.write_text("".join(json.dumps(vars(document)) + "\n" for document in documents))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """What a person has: files with a pool, in which two documents each have one id, examples, an evaluation set, a config."""
    here = tmp_path_factory.mktemp("work")
    pool = [type(d)(f"d{number // 2}", d.text, d.source) for number, d in enumerate(made_documents(400))]
    repeated = [type(d)(f"again-{d.id}", d.text, d.source) for d in pool[:10]]
    write_jsonl(here / "pool.jsonl", pool + repeated)
    (here / "more.txt").write_text("one more document | with <b>markup</b>\n# and a heading")
    write_jsonl(here / "wanted.jsonl", [d for d in made_documents(300, seed=1, prefix="example") if d.source == "rust"])
    write_jsonl(here / "exam.jsonl", [type(d)("q", d.text, "exam") for d in pool[5:6]])
    (here / "wish.py").write_text(CONFIG)
    return here


def marin(folder: pathlib.Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "marin", "datashop", *arguments],
        cwd=folder,
        env=environment,
        text=True,
        capture_output=True,
    )


@pytest.fixture(scope="module")
def done(folder: pathlib.Path, plain_environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return marin(folder, plain_environment, "run", "wish.py", "--prefix", "store")


@pytest.fixture(scope="module")
def outputs(folder: pathlib.Path, done: subprocess.CompletedProcess[str]) -> dict[str, pathlib.Path]:
    """The output path of each stage."""
    assert done.returncode == 0, done.stdout + done.stderr
    found = (folder / "store" / "datashop" / "small").iterdir()
    return {path.name.rpartition("-")[0]: path for path in found if not path.name.startswith(".")}


def test_run_has_all_stages_and_says_what_it_found(
    outputs: dict[str, pathlib.Path], done: subprocess.CompletedProcess[str]
) -> None:
    stages = [
        "pool",
        "sample",
        "labels",
        "classifier",
        "scores",
        "filtered",
        "selection",
        "deduplicated",
        "decontaminated",
    ]
    assert set(outputs) == {*stages, "tokenizer", "tokenized", "card", "report"}
    assert "Planted documents kept" in done.stdout and "index.html" in done.stdout


def test_planted_documents_are_found_and_the_fraction_is_exact(outputs: dict[str, pathlib.Path]) -> None:
    selection = json.loads((outputs["selection"] / "selection.json").read_text())
    assert (selection["num_documents"], selection["num_kept"]) == (411, round(0.2 * 411))
    planted = selection["planted"]
    quality = planted["quality"]
    assert quality["auc"]["value"] >= 0.98
    assert quality["average_precision"]["value"] > 0.9 > 3 * quality["prior"]
    assert planted["recall_of_kept"] > 0.95 and planted["precision_of_kept"] > 0.8  # 82 are kept, 75 or so are wanted
    assert sum(selection["kept"]) + sum(selection["dropped"]) == 411


def test_counts_of_all_stages_add_up(outputs: dict[str, pathlib.Path]) -> None:
    card = json.loads((outputs["card"] / "card.json").read_text())
    stages = card["stages"]
    assert [stage["name"] for stage in stages] == ["pool", "filtered", "deduplicated", "decontaminated"]
    for before, after in itertools.pairwise(stages):
        assert after["documents_in"] == before["documents_kept"]
        assert after["documents_in"] - after["documents_kept"] == sum(after["dropped"].values())
    assert stages[2]["dropped"] == {"same text": stages[2]["documents_in"] - stages[2]["documents_kept"]}
    assert stages[3]["dropped"] == {"overlap with exam": 1}
    cache = TokenCache.open(str(outputs["tokenized"] / "train"))
    assert cache.num_documents == card["cache"]["documents"] == stages[3]["documents_kept"]
    assert (
        card["num_scores"] == 411
        and card["labels"]["num_labelled"] == DocumentSet.open(str(outputs["sample"])).num_documents
    )


def test_samples_show_both_sides_with_their_scores(outputs: dict[str, pathlib.Path]) -> None:
    samples = [json.loads(line) for line in (outputs["selection"] / "samples.jsonl").read_text().splitlines()]
    kept = [sample["text"] for sample in samples if sample["kept"]]
    assert sorted(document.text for document in read_documents(str(outputs["filtered"]))) == sorted(kept)
    limit = json.loads((outputs["selection"] / "selection.json").read_text())["limit"]
    assert all((sample["score"] >= limit) == sample["kept"] for sample in samples)
    near = [sample for sample in samples if not sample["kept"] and sample["drawn"] == "nearest to the limit"]
    random = [sample for sample in samples if not sample["kept"] and sample["drawn"] == "at random"]
    assert len(near) == len(random) == 100 and len(kept) == round(0.2 * 411)
    assert min(sample["score"] for sample in near) >= max(sample["score"] for sample in random)


def test_dataset_opens_with_its_card_texts_and_scores(outputs: dict[str, pathlib.Path]) -> None:
    card = (outputs["card"] / "README.md").read_text()
    _, metadata, body = card.split("---\n", 2)
    found = yaml.safe_load(metadata)
    assert found["configs"][0]["data_files"][0]["path"] == "data/*.parquet" and found["size_categories"] == ["n<1K"]
    assert "# small" in body and "wanted.jsonl" in body and "overlap with exam 1" in body
    assert str(outputs["card"].parent) not in card  # no path of this machine
    rows = [
        row for path in sorted((outputs["card"] / "data").glob("*.parquet")) for row in pq.read_table(path).to_pylist()
    ]
    documents = list(read_documents(str(outputs["decontaminated"])))
    assert [(row["id"], row["text"], row["source"]) for row in rows] == [(d.id, d.text, d.source) for d in documents]
    pool = DocumentSet.open(str(outputs["pool"]))
    scores = [score for shard in pool.shards for score in read_scores(str(outputs["scores"]), shard)]
    score_of = {document.text: score for document, score in zip(pool.documents(), scores, strict=True)}
    assert [row["score"] for row in rows] == [score_of[row["text"]] for row in rows]  # ids are not unique


def test_report_has_pictures_in_both_schemes_and_the_same_figures(outputs: dict[str, pathlib.Path]) -> None:
    report = outputs["report"]
    names = {path.name for path in (report / "pictures").iterdir()}
    assert {f"{name}-wide-dark.svg" for name in ("labels", "calibration", "scores", "roc", "precision")} <= names
    page, text = (report / "index.html").read_text(), (report / "report.md").read_text()
    for name in names:
        assert name in page
    auc = json.loads((report / "report.json").read_text())["card"]["quality"]["auc"]["value"]
    assert f"{auc:.4f}" in page and f"{auc:.4f}" in text


def test_second_run_does_nothing(
    folder: pathlib.Path, outputs: dict[str, pathlib.Path], plain_environment: dict[str, str]
) -> None:
    before = {name: path.stat().st_mtime_ns for name, path in outputs.items()}
    again = marin(folder, plain_environment, "run", "wish.py", "--prefix", "store")
    assert again.returncode == 0 and "RUN " not in again.stdout
    assert {name: path.stat().st_mtime_ns for name, path in outputs.items()} == before


def test_dry_run_writes_nothing(folder: pathlib.Path, plain_environment: dict[str, str]) -> None:
    shown = marin(folder, plain_environment, "run", "wish.py", "--dry_run", "--prefix", "elsewhere")
    assert shown.returncode == 0 and "datashop/small/report" in shown.stdout
    assert not (folder / "elsewhere").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is not there"),
        ("x = 1\n", "defines neither `config`"),
        ("\nx = (\n", "wrong.py, line 2: '(' was never closed"),
        ("import json\n\nimport nothing_of_that_name\n", "wrong.py, line 3: No module named 'nothing_of_that_name'"),
        (CONFIG.replace('positives=("wanted.jsonl",),', ""), "exactly one of the three ways"),
        (CONFIG.replace('"pool.jsonl"', '"nowhere.jsonl"'), "nowhere.jsonl"),
    ],
)
def test_mistakes_end_in_one_message(
    folder: pathlib.Path, plain_environment: dict[str, str], content: str | None, said: str
) -> None:
    if content is not None:
        (folder / "wrong.py").write_text(content.replace('"small"', '"wrong"'))
    name = "wrong.py" if content is not None else "absent.py"
    failed = marin(folder, plain_environment, "run", name, "--prefix", "wrong_store")
    assert failed.returncode == 2
    assert said in failed.stderr and "Traceback" not in failed.stderr


def test_limit_that_keeps_nothing_is_refused_with_the_highest_score(
    outputs: dict[str, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    pool, scores = str(outputs["pool"]), str(outputs["scores"])
    filter_by_score(
        FilterByScoreConfig(pool, scores, 0.999999, None, output_path=str(tmp_path / "kept"), num_workers=1)
    )
    config = SelectionConfig(
        pool, scores, str(tmp_path / "kept"), str(outputs["sample"]), output_path=str(tmp_path / "selection")
    )
    with pytest.raises(DataError, match=r"no document of 411 scores 0\.999999 or more, the highest score is 0\.\d+"):
        look_at_selection(config)


@pytest.mark.slow
def test_run_that_is_killed_again_and_again_ends_with_the_same_dataset(
    folder: pathlib.Path, outputs: dict[str, pathlib.Path], plain_environment: dict[str, str]
) -> None:
    """Each attempt is killed some time after another stage has begun; the last is left alone."""
    generator = np.random.default_rng(0)
    command = [sys.executable, "-m", "marin", "datashop", "run", "wish.py", "--prefix", "killed"]
    kills = 0
    for _ in range(12):
        process = subprocess.Popen(command, cwd=folder, env=plain_environment, text=True, stdout=subprocess.PIPE)
        assert process.stdout is not None
        begun = 0
        for line in process.stdout:
            begun += line.startswith("RUN ")
            if begun == 2:
                break
        try:
            process.wait(timeout=float(generator.uniform(0, 2)))
            break
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
        finally:
            process.stdout.close()
    assert kills >= 3
    last = marin(folder, plain_environment, "run", "wish.py", "--prefix", "killed")
    assert last.returncode == 0, last.stdout + last.stderr
    for name, file in (
        ("card", "README.md"),
        ("card", "card.json"),
        ("selection", "samples.jsonl"),
        ("report", "report.json"),
    ):
        (again,) = (folder / "killed" / "datashop" / "small").glob(f"{name}-*/{file}")
        assert again.read_bytes() == (outputs[name] / file).read_bytes(), (name, file)


def test_counts_that_do_not_add_up_are_refused(outputs: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    names = ("pool", "filtered", "deduplicated", "decontaminated")
    stages = count_stages([(name, str(outputs[name])) for name in names])
    check_scores(str(outputs["scores"]), stages[0])
    with pytest.raises(DataError, match="do not add up: filtered kept"):
        count_stages([("filtered", str(outputs["filtered"])), ("decontaminated", str(outputs["decontaminated"]))])
    with pytest.raises(DataError, match="do not add up"):
        check_scores(str(outputs["scores"]), stages[1])
    with pytest.raises(DataError, match="do not add up"):
        check_labels(str(outputs["labels"]), str(outputs["pool"]))
    with pytest.raises(DataError, match="do not add up"):
        check_cache(str(outputs["tokenized"]), stages[0])
    manifest = json.loads((outputs["filtered"] / "manifest.json").read_text())
    manifest["dropped_by_reason"]["low score"] -= 1
    os.makedirs(tmp_path / "edited")
    (tmp_path / "edited" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="do not add up"):
        count_stages([("filtered", str(tmp_path / "edited"))])


def test_scores_of_the_run_part_wanted_from_other_documents(outputs: dict[str, pathlib.Path]) -> None:
    """The same figure from the files, without the code that the report uses."""
    from sklearn.metrics import roc_auc_score

    pool = DocumentSet.open(str(outputs["pool"]))
    scores = np.array([score for shard in pool.shards for score in read_scores(str(outputs["scores"]), shard)])
    truth = np.array([document.source == "rust" for document in pool.documents()])
    assert roc_auc_score(truth, scores) >= 0.98
