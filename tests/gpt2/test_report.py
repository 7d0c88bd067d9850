"""The report's parts: order, metrics by stage, cost, and the track's conditions."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from marin.data.core_tasks import CORE_TASKS
from marin.errors import MarinError
from marin.evaluation.core import CoreResult, TaskResult
from marin.gpt2 import report as report_module
from marin.gpt2.places import Places
from marin.gpt2.report import collect, comparisons, final_metrics, markdown, verdict
from marin.gpt2.results import Condition, CoreFigures, record_conditions
from marin.gpt2.samples import samples_markdown
from marin.gpt2.sections import note_time, read_section, report_section
from marin.site.gpt2_report import write_page
from marin.speedrun.arithmetic.core_counts import core_of
from marin.speedrun.results import Author, RunInfo
from marin.tracking import RunRecord, RunWriter


@pytest.fixture
def places(tmp_path) -> Places:
    made = Places(str(tmp_path))
    tasks = {
        "Spelling": {"accuracy": 0.75, "low": 0.7, "baseline": 0.01},
        "ARC-Easy": {"accuracy": 0.3, "low": 0.24, "baseline": 0.25},
    }
    report_section(made, "Chat evaluation sft", {"model": "d4, step 9", "tasks": tasks}, "    <b>& a reply")
    report_section(
        made,
        "Base model evaluation",
        {"model": "d4_000009", "core_metric": 0.26, "max_per_task": -1, "tasks": {"copa": {"accuracy": 0.6}}},
    )
    report_section(made, "Tokenizer training", {"vocabulary": 300})
    report_section(made, "Zebra", {"a": None})
    note_time(made, "gpt2/tok_train", 90.0)
    note_time(made, "gpt2/tok_train", 30.0)
    return made


def _commit(folder: Path, branch: str) -> None:
    folder.mkdir()
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    for command in (("init", "-q", "-b", branch), (*identity, "commit", "-q", "--allow-empty", "-m", f"on {branch}")):
        subprocess.run(["git", *command], cwd=folder, check=True)


def test_report_names_the_branch_and_message_of_the_code_that_runs(tmp_path, monkeypatch):
    for branch in ("code", "elsewhere"):
        _commit(tmp_path / branch, branch)
    # A worker of pytest-xdist has a `__main__` without a file.
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "code" / "report.py"), raising=False)
    monkeypatch.chdir(tmp_path / "elsewhere")
    places = Places(str(tmp_path / "base"))
    report_module.reset(places)
    git = json.loads((places.report / report_module.HEADER_FILE).read_text())["git"]
    assert (git["branch"], git["message"]) == ("code", "on code")


def test_report_of_whoever_has_git_check_signatures_has_the_message_alone(tmp_path, monkeypatch):
    _commit(tmp_path / "code", "code")
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    signing = {"gpg.format": "ssh", "user.signingkey": str(key), "log.showSignature": "true"}
    for name, value in (signing | {"user.name": "a", "user.email": "a@example.com"}).items():
        subprocess.run(["git", "config", name, value], cwd=tmp_path / "code", check=True)
    subprocess.run(["git", "commit", "-qS", "--amend", "--no-edit", "--allow-empty"], cwd=tmp_path / "code", check=True)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "code" / "report.py"), raising=False)
    places = Places(str(tmp_path / "base"))
    report_module.reset(places)
    assert json.loads((places.report / report_module.HEADER_FILE).read_text())["git"]["message"] == "on code"


def test_report_has_sections_in_the_pipelines_order_with_metrics_and_cost(places):
    report = collect(places, price_per_hour=24.0)
    names = [section.name for section in report.sections]
    assert names == ["Tokenizer training", "Base model evaluation", "Chat evaluation sft", "Zebra"]
    assert final_metrics(report) == {
        "core_metric": {"BASE": 0.26},
        "Spelling": {"SFT": 0.75},
        "ARC-Easy": {"SFT": 0.3},
    }
    unpriced = markdown(collect(places, price_per_hour=None))
    assert "\n- cost: not stated: --price-per-hour of the machine gives it\n" in unpriced
    assert report.wall_time == 120.0 and report.cost == pytest.approx(0.8)
    text = markdown(report)
    assert "| core_metric | 0.26 | not measured |" in text and "| tok_train | 2 |" in text and "- cost: 0.80" in text
    assert (
        "| Spelling, SFT | 0.75 | 0.7 | 0.01 | yes |" in text and "| ARC-Easy, SFT | 0.3 | 0.24 | 0.25 | no |" in text
    )
    assert "Would the record stand?" not in text  # there is no base run


def test_core_of_some_items_or_of_another_model_is_not_shown_as_the_trained_models(places):
    figures = {"model": "d4_000009", "core_metric": 0.26, "max_per_task": 500}
    report_section(places, "Base model training", {"model": "d4", "val_bpb": 0.9})
    report_section(places, "Base model evaluation", figures)
    report = collect(places)
    assert final_metrics(report)["core_metric, at most 500 items a task"] == {"BASE": 0.26}
    assert "CORE, at most 500 items a task" in write_page(places, report).read_text()
    report_section(places, "Base model evaluation", figures | {"model": "d12_000009", "max_per_task": -1})
    page = write_page(places, collect(places)).read_text()
    assert "<dt>CORE</dt>" not in page and "Validation, bits per byte" in page


def test_loss_of_finetuning_stands_beside_that_of_the_base_model_and_says_of_what_text_it_is(places):
    report_section(places, "Base model evaluation", {"model": "d4_000009", "val_bpb": 1.2})
    report_section(places, "Chat SFT", {"val_bpb": 0.4, "tasks": {"ARC-Easy": {"accuracy": 0.9}}})
    metrics = final_metrics(collect(places))
    assert metrics["val_bpb"] == {"BASE": 1.2}
    assert metrics["val_bpb of answers in held-out conversations"] == {"SFT": 0.4}
    assert metrics["ARC-Easy"] == {"SFT": 0.3}  # of the whole evaluation, not of a few questions on the way


def test_samples_are_blocks_of_their_own(tmp_path):
    markdown_it = pytest.importorskip("markdown_it", reason="the Python package markdown-it-py is not installed")
    path = tmp_path / "samples.json"
    path.write_text(json.dumps({"prompted": [["One is", " one"]], "free": ["first\n\nends", "## second"]}))
    tokens = markdown_it.MarkdownIt("commonmark").parse(samples_markdown(path))
    found = [token.content.rstrip("\n") for token in tokens if token.type == "code_block"]
    assert found == ["One is one", "first\n\nends", "## second"]


def test_questions_to_the_base_model_stand_before_finetuning(places):
    report_section(places, "Chat evaluation base", {"tasks": {"Spelling": {"accuracy": 0.25}}})
    report = collect(places)
    slugs = [section.slug for section in report.sections]
    assert (
        slugs.index("base-model-evaluation") < slugs.index("chat-evaluation-base") < slugs.index("chat-evaluation-sft")
    )
    assert list(final_metrics(report)["Spelling"]) == ["BASE, chat", "SFT"]


def test_partial_core_of_some_items_says_so_once(places):
    name = "partial CORE (18 of 22 tasks), at most 12 items a task"
    figures = {"model": "d4_000009", "core_metric": None, name: 0.1, "max_per_task": 12}
    report_section(places, "Base model evaluation", figures)
    assert name in final_metrics(collect(places))


def test_chat_scores_say_how_they_were_asked(places):
    tasks = {
        "ARC-Easy": {"accuracy": 0.3, "low": 0.24, "baseline": 0.25},
        "GSM8K, pass@8": {"accuracy": 0.9, "low": 0.8, "baseline": 0.0},
    }
    figures = {"chatcore_metric": 0.2, "max_problems": 20, "num_samples": 8, "tasks": tasks}
    report_section(places, "Chat evaluation rl", figures)
    report_section(places, "Chat evaluation sft", figures | {"max_problems": -1})
    report = collect(places)
    metrics = final_metrics(report)
    assert metrics["ChatCORE, at most 20 questions a task, pass@8"] == {"RL": 0.2}
    assert metrics["ChatCORE, pass@8"] == {"SFT": 0.2} and "ChatCORE" not in metrics
    assert metrics["GSM8K, pass@8"] == {"RL": 0.9, "SFT": 0.9}
    assert not any("pass@" in name for name in comparisons(report)) and "ARC-Easy, RL" in comparisons(report)


def test_wall_time_ends_with_the_last_stage_that_found_something(places):
    (places.report / "header.json").write_text(json.dumps({"started": "2026-01-01T00:00:00+00:00"}))
    for path, hour in (
        ("zebra", 2),
        ("tokenizer-training", 1),
        ("base-model-evaluation", 1),
        ("chat-evaluation-sft", 1),
    ):
        section = places.report / f"{path}.json"
        content = json.loads(section.read_text()) | {"written": f"2026-01-01T0{hour}:00:00+00:00"}
        section.write_text(json.dumps(content))
    report_section(places, "Zebra", {"a": None})  # a stage that ran again and found the same
    assert collect(places, price_per_hour=24.0).cost == pytest.approx(48.0)
    # What only says how it was asked for is of the run that found something.
    report_section(places, "Yak", {"a": 1, "flags": {"device_batch_size": 8}})
    report_section(places, "Yak", {"a": 1, "flags": {"device_batch_size": 4}})
    assert read_section(places, "Yak")["figures"]["flags"] == {"device_batch_size": 8}
    assert "| device_batch_size | 8 |" in (places.report / "yak.md").read_text()
    for name in ("yak.json", "yak.md"):
        (places.report / name).unlink()
    report_section(places, "Zebra", {"a": 1})
    assert collect(places).wall_time > 2 * 3600


@pytest.mark.parametrize(
    ("content", "message"), [('{"name": "Zeb', "zebra.json is not valid JSON"), ("[1, 2]", "zebra.json is no section")]
)
def test_section_that_was_damaged_is_named(places, content, message):
    (places.report / "zebra.json").write_text(content)
    with pytest.raises(MarinError, match=message):
        collect(places)
    report_section(places, "Zebra", {"a": None})  # its stage, run again, makes it whole
    assert "Zebra" in [section.name for section in collect(places).sections]


def test_page_shows_what_stages_wrote_and_runs_nothing_of_it(places):
    report_section(
        places, "Evil", {"<script>alert(1)</script>": "<img src=x onerror=alert(1)>"}, "</pre><script>alert(2)</script>"
    )
    page = write_page(places, collect(places)).read_text()
    assert "<script" not in page and "<img" not in page
    assert "&lt;script&gt;alert(2)" in page and "default-src" in page and "&lt;b&gt;&amp; a reply" in page


@pytest.fixture
def base_run(tmp_path) -> RunRecord:
    """Nine steps, and the checkpoint that they ended with."""
    writer = RunWriter(tmp_path / "d4")
    writer.write_info({"run_name": "d4"})
    for step in range(9):
        writer.append("step", step=step)
    writer.append("end", steps=9, checkpoint="a" * 64)
    writer.close()
    return RunRecord.open(tmp_path / "d4")


def _core_file(tmp_path: Path, folder: str = "d4_000009", **changes) -> Path:
    """An evaluation's `core.json` of all tasks, every second item right."""
    tasks = tuple(
        TaskResult(
            label, task.num_items, task.num_items // 2, task.num_items, 0, task.baseline, 1.0, False, None, "d", "r"
        )
        for label, task in CORE_TASKS.items()
    )
    path = tmp_path / "base_eval" / folder / "core.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(CoreResult(tasks, ()).to_json() | {"weights": "a" * 64} | changes))
    return path


def test_core_counts_for_a_record_only_where_all_of_it_was_measured_and_of_these_weights(base_run, tmp_path):
    base_eval = tmp_path / "base_eval"
    assert CoreFigures.of_run(base_eval, base_run) is None
    _core_file(tmp_path, "d6_000009")
    _core_file(tmp_path, "d4_000010")
    assert CoreFigures.of_run(base_eval, base_run) is None
    _core_file(tmp_path)
    found = CoreFigures.of_run(base_eval, base_run)
    assert found is not None and found.metric == pytest.approx(core_of(found.counts, "v1"), abs=1e-12)
    assert found.counts.tasks["copa"].model_dump() == {"num_items": 100, "num_correct": 50, "data": "d", "records": "r"}
    for changes in ({"max_per_task": 500}, {"core_metric": None}, {"weights": "b" * 64}):
        _core_file(tmp_path, **changes)
        assert CoreFigures.of_run(base_eval, base_run) is None


@pytest.mark.parametrize("changes", [{"weights": 7}, {"tasks": {"copa": {"num_items": 100}}}, {"tasks": None}])
def test_core_file_of_another_version_is_named(tmp_path, changes):
    path = _core_file(tmp_path, **changes)
    with pytest.raises(MarinError, match=r"core\.json is not as this version writes it: run scripts\.base_eval again"):
        CoreFigures.read(path)


def _info(**changes) -> RunInfo:
    stated = {
        "author": Author(name="a", affiliation="b"),
        "description": "",
        "device_name": "H100",
        "platform": "gpu",
        "num_devices": 8,
        "num_chips": 8,
        "training_time": 5000.0,
        "core_metric": 0.2575,
        "core_version": "v1",
        "git_commit": "abc",
        "git_dirty": False,
    }
    return RunInfo(**(stated | changes))


def test_a_single_good_run_lacks_only_its_repetitions():
    missing = [condition.asked for condition in record_conditions(_info()) if not condition.met]
    assert missing == ["at least 5 runs with different seeds"]


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"num_chips": 4, "num_devices": 4}, "hardware: 8 x H100"),
        ({"core_metric": 0.25}, "CORE > 0.256525"),
        ({"core_metric": None, "core_version": None}, "CORE > 0.256525"),
        ({"training_time": 1.66 * 3600}, "training time below the record's 1.65 h"),
        ({"git_dirty": True}, "a clean commit"),
    ],
)
def test_what_the_track_asks_for_and_a_run_lacks_is_named(changes, missing):
    conditions = tuple(record_conditions(_info(**changes)))
    assert missing in [condition.asked for condition in conditions if not condition.met]
    assert missing in verdict(conditions) and "would not stand" in verdict(conditions)


def test_every_finished_run_gets_its_results_and_the_verdict_is_of_the_trained_one(places, monkeypatch):
    """d26 of a recipe, and its seeds beside it, of which none is the deepest `dN`."""
    written = []
    for tag in ("d4", "d4_seed1", "d4_seed2", "d5_running"):
        run = places.checkpoints("base", tag)
        (run / "checkpoints" / "step-00000001").mkdir(parents=True)
        writer = RunWriter(run)
        writer.write_info({"run_name": tag})
        writer.append("start", from_step=0)
        if "running" not in tag:
            writer.append("end", steps=0)
        writer.close()

    def write(run, core, description):
        written.append(run.name)
        return run.name

    monkeypatch.setattr(report_module, "write_run_results", write)
    monkeypatch.setattr(report_module, "record_conditions", lambda name: [Condition(f"of {name}", False, "")])
    report_section(places, "Base model training", {"model": "d4_seed1"})
    found = collect(places)
    assert written == ["d4", "d4_seed1", "d4_seed2"]
    assert [condition.asked for condition in found.record] == ["of d4_seed1"]
    assert found.logs["Base model"].parent.name == "d4_seed1"


def test_curves_and_metrics_are_of_the_models_that_the_sections_are_of(places):
    """A deeper model was begun, and left, after the one that was finetuned."""
    for tag in ("d2", "d3"):
        run = places.checkpoints("sft", tag)
        (run / "checkpoints" / "step-00000001").mkdir(parents=True)
        writer = RunWriter(run)
        writer.write_info({"run_name": tag})
        writer.close()
    report_section(places, "Chat SFT", {"model": "d2", "val_bpb": 1.5})
    found = collect(places)
    assert found.logs["SFT"].parent.name == "d2"
    assert "| model | d4_000009 | d2; d4, step 9 |" in markdown(found)
