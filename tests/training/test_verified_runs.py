"""What the training loop really writes is what verification takes: real clocks, kills, pauses, schedules."""

import hashlib
import json
import os
import random
import time
from pathlib import Path

import pytest

from marin.data.core_tasks import CORE_TASKS
from marin.gpt2.results import CoreFigures, write_run_results
from marin.speedrun.arithmetic.core_counts import core_of
from marin.speedrun.results import Author, Core, CoreCounts, write_results
from marin.speedrun.run_results import SubmissionInfo, results_from_run
from marin.speedrun.verdict import Verdict
from marin.speedrun.verification import verify_submission
from marin.tracking import RunRecord
from marin.tracking.run_record import PAUSES
from marin.training import loop
from marin.training.loop import Measurement, train_lm

pytestmark = pytest.mark.usefixtures("as_a_person_trains")


def _submission(run: Path, to: Path, seed: int = 0) -> Path:
    """The run's log and results as `logs/0` of a submission; the evaluation is made up to fit the last losses."""
    log = to / "logs" / "0"
    log.mkdir(parents=True)
    for name in ("run.json", "metrics.jsonl"):
        (log / name).write_bytes((run / name).read_bytes())
    bits = RunRecord.open(run).steps()[-1]["loss"] * 10_000 / (0.6931 * 30_000)
    block = {
        "name": "words", "digest": "0" * 64, "bits_per_byte": bits, "levanter_bits_per_byte": bits, "bytes": 30_000, "tokens": 10_000,
        "documents": 9,
    }  # fmt: skip
    probe = {"passed": True, "measured": 0.0, "limit": 0.0, "message": "fine"}
    probes = dict.fromkeys(("normalization", "causality", "one_pass", "byte_count", "held_out"), probe)
    validity = {"passed": True, "seed": 1, "num_cuts": 768, "num_positions": 64, "seconds": 1.0, **probes}
    evaluation = {"evaluation": block, "validity": validity, "compressors": {}, "sample": "x"}
    (log / "evaluation.json").write_text(json.dumps(evaluation))
    per_token = RunRecord.open(run).info["model_flops_per_token"]
    author = {"name": "Ada Example", "affiliation": "Independent", "url": None}
    info = results_from_run(log, log, "tokens", SubmissionInfo(author, "A test.", per_token, per_token))
    write_results(to / "speedrun_results.json", info)
    return to


def _assert_log_passes(verdict: Verdict) -> None:
    assert verdict["log"].outcome == "passed", verdict["log"]
    assert not [f for rung in verdict.rungs for f in rung.findings if f.severity == "error"], verdict


def _evaluate(model, max_batches):
    return {"bits_per_byte": 2.5}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"num_train_steps": 12, "steps_per_eval": 3, "steps_per_export": 5},
        {"num_train_steps": 60, "train_batch_size": [(0, 8), (20, 16)]},
    ],
    ids=["evaluations and checkpoints", "batch schedule"],
)
def test_verify_of_a_trained_run_passes_the_log_rung(options, make_config, tmp_path):
    config = make_config(**options)
    train_lm(config, evaluate=_evaluate)
    ((_, verdict),) = verify_submission(_submission(Path(config.output_path), tmp_path / "s"))
    _assert_log_passes(verdict)


def test_verify_of_a_run_with_every_pause_passes_the_log_rung(make_config, tmp_path):
    config = make_config(
        num_train_steps=12, steps_per_eval=3, steps_per_export=5, steps_per_hf_export=4, task_eval_names=["piqa"],
        steps_per_task_eval=5, profiler=True, profiler_start_step=2, profiler_num_steps=3,
    )  # fmt: skip
    measurements = [
        Measurement("task evaluation", 5, lambda model, done: {"piqa": 0.5}, at_end=True),
        Measurement("evaluation", 3, lambda model, done: {"val_bpb": 2.0}),  # at the steps of the other, and at 9
        Measurement("CORE", 4, lambda model, done: {"core_metric": 0.1}),
        Measurement("samples", 6, lambda model, done: {}),
    ]
    train_lm(config, evaluate=_evaluate, measurements=measurements)
    record = RunRecord.open(Path(config.output_path))
    assert {pause["reason"] for pause in record.of("pause")} == set(PAUSES)
    ((_, verdict),) = verify_submission(_submission(Path(config.output_path), tmp_path / "s"))
    _assert_log_passes(verdict)


def _core_figures(weights: str) -> CoreFigures:
    tasks = {
        label: CoreCounts(num_items=task.num_items, num_correct=task.num_items // 2)
        for label, task in CORE_TASKS.items()
    }
    counts = Core(weights=weights, tasks=tasks)
    return CoreFigures(core_of(counts, "v1"), counts)


def test_results_of_the_gpt2_pipeline_agree_with_their_log(make_config):
    config = make_config(num_train_steps=8)
    train_lm(config)
    run = Path(config.output_path)
    weights = RunRecord.open(run).of("end")[-1]["checkpoint"]
    manifest = (run / "checkpoints" / "step-00000008" / "manifest.json").read_bytes()
    assert weights == hashlib.sha256(manifest).hexdigest()
    author = Author(name="Ada Example", affiliation="", url=None)
    info = write_run_results(run, _core_figures(weights), "A base run.", author)
    assert info.tokenized_dataset is not None and info.tokenized_dataset.endswith("/tokens")
    ((_, verdict),) = verify_submission(run)
    assert [f for f in verdict["log"].findings if f.severity in ("error", "unchecked")] == []
    assert not [f for f in verdict["arithmetic"].findings if f.field.startswith("core")]


def test_core_of_other_weights_than_those_of_the_log_fails(make_config):
    config = make_config(num_train_steps=8)
    train_lm(config)
    run = Path(config.output_path)
    write_run_results(run, _core_figures("0" * 64), "A base run.", Author(name="Ada Example", affiliation="", url=None))
    ((_, verdict),) = verify_submission(run)
    assert [(f.severity, f.field) for f in verdict["log"].findings if f.severity != "note"] == [
        ("error", "core.weights")
    ]


def test_verify_of_an_interrupted_run_passes_the_log_rung(make_config, tmp_path, monkeypatch):
    config = make_config(num_train_steps=20, steps_per_export=4)
    original, taken = loop.Prefetcher.take, iter(range(1000))

    def take(self):
        if next(taken) == 9:
            os.kill(os.getpid(), 2)
        return original(self)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Prefetcher, "take", take)
        with pytest.raises(KeyboardInterrupt):
            train_lm(config)
    with (Path(config.output_path) / "metrics.jsonl").open("ab") as log:
        log.write(b'{"event":"step","st')  # what a kill leaves
    train_lm(config)
    ((info, verdict),) = verify_submission(_submission(Path(config.output_path), tmp_path / "s"))
    assert info.resumed
    _assert_log_passes(verdict)


def test_verify_of_a_trained_run_with_a_slow_step_dropped_fails(make_config, tmp_path, monkeypatch):
    config = make_config(num_train_steps=20)
    original, taken = loop.Prefetcher.take, iter(range(1000))

    def take(self):
        if next(taken) == 7:
            time.sleep(0.7)
        return original(self)

    monkeypatch.setattr(loop.Prefetcher, "take", take)
    train_lm(config)
    submission = _submission(Path(config.output_path), tmp_path / "s")
    path = submission / "logs" / "0" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    slow = max((line for line in lines if line["event"] == "step"), key=lambda line: line["step_time"])
    slow["step_time"] -= 0.65
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ((_, verdict),) = verify_submission(submission)
    messages = [finding.message for finding in verdict["log"].findings]
    assert any("neither the clock nor a named pause" in message for message in messages), messages


@pytest.mark.slow
def test_verify_tells_two_seeds_from_a_copy_with_noise(make_config, tmp_path):
    """Real runs of two seeds on the same batches pass beside each other; one that is the other with noise does not."""
    runs = []
    for seed in (0, 1):
        config = make_config(f"seed{seed}", num_train_steps=60, seed=seed)
        train_lm(config)
        runs.append(_submission(Path(config.output_path), tmp_path / str(seed)))
    both = tmp_path / "both"
    for number, run in enumerate(runs):
        (both / "logs").mkdir(parents=True, exist_ok=True)
        (run / "logs" / "0").rename(both / "logs" / str(number))
    infos = [json.loads((run / "speedrun_results.json").read_text())["runs"][0] for run in runs]
    (both / "speedrun_results.json").write_text(json.dumps({"runs": infos}))
    for _, verdict in verify_submission(both):
        _assert_log_passes(verdict)
    rng = random.Random(0)
    source, target = both / "logs" / "0" / "metrics.jsonl", both / "logs" / "1" / "metrics.jsonl"
    lines = [json.loads(line) for line in source.read_text().splitlines()]
    for line in lines:
        if line["event"] == "step":
            line["step_time"] *= 1 + rng.gauss(0, 0.01)
    target.write_text("".join(json.dumps(line) + "\n" for line in lines))
    findings = verify_submission(both)[1][1]["log"].findings
    assert any("the log was copied" in finding.message for finding in findings), findings
