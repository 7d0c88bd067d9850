"""The whole job in miniature, once: what it leaves behind, what it prints, and what a second run does."""

import datetime
import html.parser
import json
import math
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from marin.data.documents import read_documents
from marin.evaluation import compressor_bits_per_byte
from marin.models.flops import lm_flops_per_token
from marin.speedrun.arithmetic import consistency
from marin.speedrun.results import load_results
from marin.training.programs import cpu_candidates

STEPS, BATCH, SEQ_LEN, VOCAB, PEAK = 30, 4, 64, 320, 2e11


@pytest.fixture(scope="module")
def run(finished: Any) -> dict[str, Any]:
    """The `run_info` object of the finished run."""
    assert finished.first.status == 0, finished.first.err
    return finished.miniature.results()


def test_first_run_succeeds_step_by_step(finished: Any) -> None:
    first = finished.first
    assert (first.status, first.err) == (0, "")
    names = re.findall(r"^RUN (\S+) -> \S+ \(never ran\)$", first.out, re.MULTILINE)
    assert names == [
        "corpora/miniature",
        "tokenizers/bpe",
        "tokenized/miniature",
        "checkpoints/speedrun/miniature",
        "evaluation/speedrun/miniature",
        "speedrun/miniature-speedrun_results",
        "leaderboard",
    ]
    assert re.findall(r"^done (\S+) in [\d.]+ s$", first.out, re.MULTILINE) == names


def test_progress_shows_step_loss_rate_mfu_and_time_left(finished: Any) -> None:
    lines = re.findall(
        r"^step +(\d+)/30  loss (\d\.\d+)  ([\d,]+) tokens/s  MFU ([\d.]+)% \(model FLOPs\)  left (\d+:\d\d)(?:  waits for data \d+%)?$",
        finished.first.out,
        re.MULTILINE,
    )
    step, loss, rate, mfu, left = lines[-1]
    assert (step, left) == ("30", "0:00")
    assert 0 < float(loss) < math.log(VOCAB)
    per_token = finished.miniature.results()["model_flops_per_token"]
    assert float(mfu) / 100 == pytest.approx(3 * per_token * int(rate.replace(",", "")) / PEAK, abs=6e-4)


def test_results_are_published_where_people_look_and_are_all_equal(finished: Any, run: dict[str, Any]) -> None:
    store = finished.miniature.store
    (made,) = store.glob("speedrun/miniature-speedrun_results-*/speedrun_results.json")
    places = [store, store / "checkpoints" / "speedrun", finished.miniature.run_directory]
    assert {(place / "speedrun_results.json").read_bytes() for place in places} == {made.read_bytes()}
    assert json.loads(made.read_text()) == {"runs": [{"run_info": run}]}
    assert made.read_text() == json.dumps({"runs": [{"run_info": run}]}, indent=2, sort_keys=True) + "\n"


def test_cp_commands_of_both_tutorials_find_the_results(finished: Any, seeds: Path, tmp_path: Path) -> None:
    commands = re.findall(
        r"^ *(cp \$\{MARIN_PREFIX\}\S*/speedrun_results\.json) ",
        "".join(path.read_text() for path in sorted(seeds.iterdir())),
        re.MULTILINE,
    )
    assert len(commands) >= 2
    for number, command in enumerate(dict.fromkeys(commands)):
        target = tmp_path / str(number)
        target.mkdir()
        environment = {"MARIN_PREFIX": str(finished.miniature.store), "PATH": "/usr/bin:/bin"}
        subprocess.run(["sh", "-c", f"{command} {target}/"], env=environment, check=True)
        assert (target / "speedrun_results.json").read_bytes() == (
            finished.miniature.store / "speedrun_results.json"
        ).read_bytes()


def test_results_have_every_key_of_the_public_schema_and_ours(run: dict[str, Any]) -> None:
    public = (
        "author description model_config train_config tokenized_dataset resources model_size total_tokens model_flops "
        "model_flops_per_token num_devices num_chips device_flops training_time training_hardware_flops "
        "eval/paloma/c4_en/bpb run_completion_timestamp wandb_run_link"
    )
    assert set(public.split()) - set(run) == set()
    assert run["schema_version"] == 1
    assert run["seed"] == 0
    assert set(run["digests"]) == {
        "config",
        "data",
        "tokenizer",
        "evaluation_set",
        "metrics_log",
        "run",
        "log_head",
        "evaluation_link",
        "checkpoint",
    }
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in run["digests"].values())
    assert run["author"] == {"name": "Ada Example", "affiliation": "Independent", "url": "https://example.org/ada"}
    assert run["eval/paloma/c4_en/bpb"] is None
    assert run["wandb_run_link"] is None
    assert (run["resumed"], run["num_resumes"], run["wasted_time"]) == (False, 0, 0.0)
    when = datetime.datetime.strptime(run["run_completion_timestamp"], "%Y-%m-%d %H:%M:%S UTC")
    age = datetime.datetime.now(datetime.UTC) - when.replace(tzinfo=datetime.UTC)
    assert datetime.timedelta(0) <= age < datetime.timedelta(hours=1)


def test_results_name_the_commit_of_the_experiment(run: dict[str, Any], finished: Any) -> None:
    directory = finished.miniature.shell.directory
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=directory, capture_output=True, text=True, check=True)
    assert run["git_commit"] == head.stdout.strip()
    assert run["git_dirty"] is False


def test_results_configs_leave_out_resources_and_hold_every_field(run: dict[str, Any]) -> None:
    assert "resources" not in run["train_config"]
    assert run["resources"] == {"num_cpus": 2, "num_hosts": 1}
    assert (run["train_config"]["train_batch_size"], run["train_config"]["num_train_steps"]) == (BATCH, STEPS)
    assert (run["train_config"]["learning_rate"], run["train_config"]["data_seed"]) == (0.01, 42)
    assert run["model_config"]["seq_len"] == SEQ_LEN
    assert Path(run["tokenized_dataset"]).name.startswith("miniature-")


def test_results_figures_follow_from_each_other(run: dict[str, Any], finished: Any) -> None:
    per_token = lm_flops_per_token(
        hidden_dim=32, intermediate_dim=64, num_layers=1, num_heads=2, num_kv_heads=2, context_length=SEQ_LEN,
        vocab_size=VOCAB, glu=True,
    )  # fmt: skip
    attention_and_mlp = 4 * 32 * 32 + 3 * 32 * 64
    assert run["model_size"] == 2 * VOCAB * 32 + attention_and_mlp + 3 * 32
    assert run["total_tokens"] == BATCH * STEPS * SEQ_LEN
    assert run["model_flops_per_token"] == per_token
    assert run["model_flops"] == 3 * per_token * run["total_tokens"]
    assert run["device_flops"] == PEAK
    step_times = [step["step_time"] for step in finished.miniature.events("step")]
    assert run["training_time"] == pytest.approx(sum(step_times))
    assert run["training_hardware_flops"] == pytest.approx(run["training_time"] * run["num_chips"] * PEAK)
    assert run["mfu"] == pytest.approx(run["model_flops"] / run["training_hardware_flops"])
    assert run["traced_flops"] == run["traced_training_flops_per_token"] * run["total_tokens"]
    assert run["traced_training_flops_per_token"] == 3 * run["traced_flops_per_token"]
    causal_half = SEQ_LEN * 32 * 2  # one layer of width 32: half of scores and values
    assert run["counted_flops_per_token"] - run["traced_flops_per_token"] == causal_half
    assert run["traced_mfu"] == pytest.approx(run["traced_flops"] / run["training_hardware_flops"])
    spent = run["wall_time"]
    assert sum(spent.values()) - spent["total"] - spent["goodput"] == pytest.approx(spent["total"])
    assert spent["training"] + spent["data"] == pytest.approx(run["training_time"])
    assert spent["goodput"] == pytest.approx(spent["training"] / spent["total"])
    assert run["compile_time"] > 0
    assert 50e6 < run["peak_memory_bytes"] < 12e9  # of this process, in which other tests ran before


def test_results_pass_the_consistency_check_without_errors(finished: Any) -> None:
    (info,) = load_results(finished.miniature.store / "speedrun_results.json")
    findings = consistency.check(info)
    assert [finding for finding in findings if finding.severity in ("error", "unchecked")] == []
    assert consistency.status(findings) == "arithmetic checked"


def test_evaluation_scores_the_held_out_documents_beside_compressors(run: dict[str, Any], finished: Any) -> None:
    (heldout,) = finished.miniature.store.glob("corpora/miniature-*/heldout.jsonl.zst")
    texts = [document.text.encode() for document in read_documents(str(heldout))]
    evaluation = run["evaluation"]
    assert evaluation["name"] == "miniature/heldout"
    assert evaluation["documents"] == len(texts) == 20
    assert evaluation["bytes"] == sum(map(len, texts))
    chance = math.log2(VOCAB) * evaluation["tokens"] / evaluation["bytes"]
    assert 0.2 < evaluation["bits_per_byte"] < 0.75 * chance
    assert set(run["compressors"]) == {"gzip_9", "xz_9", "zstd_19"}
    joined = compressor_bits_per_byte(b"".join(texts))
    assert run["compressors"] == pytest.approx(joined, rel=0.02)  # documents may be joined with a separator
    assert run["sample"].startswith("Return the ")
    assert len(run["sample"]) > len("Return the ") + 100
    assert f"{evaluation['bits_per_byte']:.4f}" in finished.first.out
    assert f"{run['compressors']['xz_9']:.3f}" in finished.first.out


def test_metrics_have_one_line_a_step_and_run_json_says_what_ran(finished: Any) -> None:
    miniature = finished.miniature
    steps = miniature.events("step")
    assert [step["step"] for step in steps] == list(range(STEPS))
    for step in steps:
        assert set(step) >= {"loss", "grad_norm", "learning_rate", "tokens", "step_time", "time"}
        assert step["tokens"] == BATCH * SEQ_LEN
    assert steps[0]["loss"] == pytest.approx(math.log(VOCAB), rel=0.02)
    assert steps[-1]["loss"] < 0.8 * steps[0]["loss"]
    watched = [step["step"] for step in steps if "grads/norm" in step and "params/norm" in step]
    assert watched == [0, 10, 20]
    assert [len(miniature.events(kind)) for kind in ("start", "end")] == [1, 1]
    info = json.loads((miniature.run_directory / "run.json").read_text())
    assert set(info) >= {
        "schema_version", "run_name", "tags", "config", "num_parameters", "platform", "device_name", "num_devices",
        "num_chips", "device_flops", "precision", "seeds", "digests", "git", "host", "python", "packages", "command",
    }  # fmt: skip
    assert (info["run_name"], info["platform"]) == ("miniature", "cpu")
    assert info["precision"] in {way.precision.compute for way in cpu_candidates(None)}
    assert info["seeds"] == {"model": 0, "data": 42}
    assert {"jax", "jaxlib", "numpy"} <= set(info["packages"])


def test_leaderboard_page_lists_the_run(finished: Any, run: dict[str, Any]) -> None:
    (index,) = finished.miniature.store.glob("leaderboard-*/index.html")
    text = _text_of(index.read_text())
    assert "Ada Example" in text
    assert "miniature/heldout" in text
    assert f"{run['evaluation']['bits_per_byte']:.3f}" in text
    (document,) = index.parent.glob("data/tracks/other-miniature-heldout-*.json")
    (listed,) = json.loads(document.read_text())["entries"]
    assert listed["values"]["bits_per_byte"] == run["evaluation"]["bits_per_byte"]
    assert str(index) in finished.first.out


def _text_of(page: str) -> str:
    parts: list[str] = []
    parser = html.parser.HTMLParser()
    parser.handle_data = parts.append  # type: ignore[method-assign]
    parser.feed(page)
    return " ".join(parts)


def test_second_run_does_no_work_and_says_so(finished: Any) -> None:
    miniature = finished.miniature
    before = {path: path.stat().st_mtime_ns for path in miniature.store.rglob("*")}
    again = miniature.run("--force_run_failed", "true")
    assert (again.status, again.err) == (0, "")
    assert again.out.splitlines()[-1] == "nothing to do: all 7 steps are done"
    assert "RUN " not in again.out
    assert {path: path.stat().st_mtime_ns for path in miniature.store.rglob("*")} == before


def test_run_with_another_learning_rate_has_a_path_of_its_own_and_keeps_the_data(finished: Any, tmp_path: Path) -> None:
    from_copy = finished.miniature.copied(tmp_path, trained=True).edited(LEARNING_RATE="0.005")
    steps = from_copy.run("--dry_run", "true").steps()
    assert {name for name, (action, _, _) in steps.items() if action == "would skip"} == {
        "corpora/miniature",
        "tokenizers/bpe",
        "tokenized/miniature",
    }
    action, reason, path = steps["checkpoints/speedrun/miniature"]
    assert (action, reason) == ("would run", "never ran")
    assert path.name != finished.miniature.run_directory.name
    assert not path.exists()
