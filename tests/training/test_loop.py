"""The training loop as a user sees it: it learns, records, resumes to the bit, and stops for good reasons only."""

import dataclasses
import json
import math
import shutil
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stopping import arrays_of, assert_equal, stop_after

from marin import hardware
from marin.data.cache import TokenizeConfig, tokenize
from marin.data.documents import Document, write_documents
from marin.data.tokenizer import TrainTokenizerConfig, train_tokenizer
from marin.errors import CheckpointError, ConfigError, HardwareError, NonFiniteLossError, ResultsError
from marin.nn import Precision
from marin.optim import AdamConfig, GroupsConfig, ParameterGroup
from marin.optim.adopt import AdoptConfig
from marin.parallel import Parallelism
from marin.resources import GpuConfig
from marin.tracking import RunRecord
from marin.tracking.console import duration
from marin.training import SimpleTrainConfig, WatchConfig, watch
from marin.training import checkpoint as checkpoints
from marin.training.loop import Measurement, train_lm


def test_training_lowers_the_loss_and_records_every_step(make_config):
    config = make_config(num_train_steps=30)
    state = train_lm(config)
    record = RunRecord.open(config.output_path)
    losses = [step["loss"] for step in record.steps()]
    assert int(state.step) == len(losses) == 30
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.5
    assert record.is_complete
    first = record.steps()[0]
    assert {"step", "loss", "grad_norm", "learning_rate", "tokens", "step_time", "data_wait"} <= first.keys()
    assert first["tokens"] == 8 * 32
    assert {
        "config",
        "git",
        "host",
        "packages",
        "seeds",
        "digests",
        "device_flops",
        "num_parameters",
    } <= record.info.keys()
    assert record.info["digests"]["data"]


def test_training_interrupted_and_resumed_ends_with_the_same_bits(make_config, monkeypatch):
    options = {"num_train_steps": 9, "ema_beta": 0.9, "skip_bad_steps": True}
    alone = train_lm(make_config("alone", **options))
    config = make_config("stopped", **options)
    stop_after(config, 4, monkeypatch)
    done = checkpoints.list_checkpoints(Path(config.output_path) / "checkpoints")[-1].step
    assert done == 5
    resumed = train_lm(config)
    assert_equal(alone, resumed)
    one, other = (RunRecord.open(make_config(name, **options).output_path) for name in ("alone", "stopped"))
    assert [s["loss"] for s in one.steps()] == [s["loss"] for s in other.steps()]
    assert len(other.of("start")) == 2


def test_training_killed_after_a_checkpoint_repeats_the_lost_steps_and_says_so(make_config, tmp_path):
    config = make_config("run", num_train_steps=8, steps_per_export=4)
    whole = train_lm(config)
    # As a SIGKILL during step 6 leaves it: the newest checkpoint is that of step 4, the log goes further and is torn.
    directory = Path(config.output_path)
    shutil.rmtree(directory / "checkpoints" / "step-00000008")
    lines = (directory / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    steps = [i for i, line in enumerate(lines) if b'"event":"step"' in line]
    (directory / "metrics.jsonl").write_bytes(b"".join(lines[: steps[6]]) + b'{"event":"st')
    assert_equal(whole, train_lm(config))
    record = RunRecord.open(directory)
    assert [step["step"] for step in record.steps()] == list(range(8))
    assert [step["step"] for step in record.superseded()] == [4, 5]


def test_training_measures_each_thing_at_its_own_pace_with_the_clock_paused(make_config):
    seen: list[tuple[str, int]] = []

    def measure(name: str, figures: dict[str, float]):
        def run(model, done: int) -> dict[str, float]:
            assert model.lm_head_DV.shape[1] > 0
            seen.append((name, done))
            return figures

        return run

    config = make_config("measured", num_train_steps=6)
    train_lm(
        config,
        measurements=[
            Measurement("score", 2, measure("score", {"val_bpb": 1.5})),
            Measurement("samples", 3, measure("samples", {})),
        ],
    )
    assert seen == [("score", 2), ("samples", 3), ("score", 4)]  # not after the last step
    record = RunRecord.open(config.output_path)
    assert [(entry["step"], entry["val_bpb"]) for entry in record.of("evaluation")] == [(2, 1.5), (4, 1.5)]
    assert [entry["reason"] for entry in record.of("pause") if entry["reason"] != "checkpoint"] == [
        "score",
        "samples",
        "score",
    ]


def test_training_of_a_finished_run_does_nothing(make_config):
    config = make_config()
    train_lm(config)
    before = (Path(config.output_path) / "metrics.jsonl").read_bytes()
    state = train_lm(config)
    assert int(state.step) == 6
    assert (Path(config.output_path) / "metrics.jsonl").read_bytes() == before


def test_training_passes_over_a_damaged_checkpoint_and_ends_the_same(make_config, capsys):
    config = make_config(num_train_steps=8, steps_per_export=4)
    whole = train_lm(config)
    newest = Path(config.output_path) / "checkpoints" / "step-00000008"
    victim = max(
        (p for p in newest.rglob("*") if p.is_file() and p.name != "manifest.json"), key=lambda p: p.stat().st_size
    )
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    found, problems = checkpoints.latest_valid(newest.parent)
    assert found.step == 4
    assert victim.name in problems[0]
    shutil.rmtree(newest)
    assert_equal(whole, train_lm(config))


def test_training_with_only_damaged_checkpoints_refuses_to_start_over_silently(make_config):
    config = make_config(num_train_steps=2)
    train_lm(config)
    for manifest in Path(config.output_path).glob("checkpoints/*/manifest.json"):
        manifest.write_text("{}")
    with pytest.raises(CheckpointError, match="no checkpoint is whole"):
        train_lm(config)


def test_training_that_diverges_names_the_step_and_keeps_the_good_checkpoint(make_config):
    config = make_config(num_train_steps=20, learning_rate=1e18, optimizer_config=None, steps_per_export=1)
    with pytest.raises(NonFiniteLossError, match="at step"):
        train_lm(config)
    found, _ = checkpoints.latest_valid(Path(config.output_path) / "checkpoints")
    if found is not None:
        steps = RunRecord.open(config.output_path).steps()
        assert all(np.isfinite(float(step["loss"])) for step in steps[: found.step])


def test_training_watches_norms_on_the_steps_that_the_interval_names(make_config):
    watch = WatchConfig(watch_targets=["grads", "params", "updates"], interval=2)
    config = make_config(num_train_steps=4, watch=watch)
    train_lm(config)
    steps = RunRecord.open(config.output_path).steps()
    assert "grads/norm" not in steps[1]
    assert steps[2]["grads/norm"] == pytest.approx(steps[2]["grad_norm"], rel=1e-5)
    assert steps[2]["params/norm/embedding.weight_VD"] > 0
    assert steps[2]["updates/norm/blocks.0.mlp.up.weight_IO"] > 0


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 31.0, 1.5], {"min": 0.0, "max": 31.0, "counts": [1, 1, *[0] * 28, 1]}),
        ([math.nan, 5.0, 5.0, -math.inf], {"min": 5.0, "max": 5.0, "counts": [*[0] * 30, 2], "not_finite": 2}),
        ([math.nan], {"min": 0.0, "max": 0.0, "counts": [0] * 31, "not_finite": 1}),
    ],
)
def test_histogram_counts_what_is_finite_and_says_how_much_is_not(values, expected):
    assert watch.as_figure(jax.jit(watch._histogram)(jnp.array(values, jnp.float32))) == expected


def test_training_with_histograms_counts_every_parameter_and_says_where_they_lie(make_config):
    watch = WatchConfig(
        watch_targets=["params"], include_per_parameter_norms=False, include_histograms=True, interval=2
    )
    config = make_config(num_train_steps=3, watch=watch)
    state = train_lm(config)
    steps = RunRecord.open(config.output_path).steps()
    assert not any("histogram" in name for name in steps[1])
    weight = np.asarray(state.model.embedding.weight_VD)  # after step 2, the last
    histogram = steps[2]["params/histogram/embedding.weight_VD"]
    counts, _ = np.histogram(weight, bins=31)
    assert (histogram["min"], histogram["max"]) == pytest.approx((weight.min(), weight.max()))
    assert sum(histogram["counts"]) == weight.size
    # An edge that rounds another way moves a value or two to the next bin.
    np.testing.assert_allclose(np.cumsum(histogram["counts"]), np.cumsum(counts), atol=2)
    constant = steps[0]["params/histogram/final_norm.weight_D"]
    assert sum(constant["counts"]) == 16


def test_training_writes_what_the_traced_step_costs_and_where_the_time_went(make_config, capsys):
    from marin.cli.main import dispatch
    from marin.tracking.goodput import wall_time

    config = make_config(num_train_steps=3)
    train_lm(config)
    assert "wall time " in capsys.readouterr().out
    record = RunRecord.open(config.output_path)
    traced = record.info["traced_flops_per_token"]
    assert (traced["training"], traced["uncounted"]) == (3 * traced["forward"], [])
    assert record.info["model_flops_per_token"] == config.model.flops_per_token(300, 32) > traced["forward"]
    spent = wall_time(record.events)
    assert spent.parts["training"] + spent.parts["data"] == pytest.approx(sum(s["step_time"] for s in record.steps()))
    assert spent.parts["compile"] > 0 and spent.parts["setup"] > 0 and spent.parts["checkpoint"] > 0
    assert dispatch(["show", config.output_path]) == 0
    shown = capsys.readouterr().out
    assert "3 of 3 steps, done" in shown
    assert "(model FLOPs)" in shown and "(traced FLOPs)" in shown
    assert f"{spent.goodput:.1%} of the wall time is training" in shown


def test_training_says_that_the_peak_of_its_processor_was_given(make_config, monkeypatch):
    found = []
    for name, given in (("given", "1e11"), ("measured", "")):
        monkeypatch.setenv("MARIN_CPU_PEAK_FLOPS", given)
        config = make_config(name, num_train_steps=1)
        train_lm(config)
        found.append(RunRecord.open(config.output_path).info["peak_is_given"])
    assert found == [True, False]


def test_training_whose_steps_are_long_says_so_before_the_first(make_config, monkeypatch, capsys):
    monkeypatch.setattr(hardware, "LEAST_PEAK", 1.0)  # for no larger model is trained in a test
    for name, peak, is_long in (("quick", "1e11", False), ("slow", "1e5", True)):
        monkeypatch.setenv("MARIN_CPU_PEAK_FLOPS", peak)
        config = make_config(name, num_train_steps=1)
        train_lm(config)
        said = " ".join(capsys.readouterr().out.split())
        tokens = config.train.batch_schedule.size_at(0) * config.seq_len
        least = duration(3 * config.model.flops_per_token(config.vocab_size, config.seq_len) * tokens / float(peak))
        assert (f"a step of {tokens} tokens takes {least} or more here" in said) == is_long
        assert not is_long or said.index("a step of") < said.index("step 1/1")


def test_training_is_copied_to_tensorboard_where_it_is_asked_for(make_config, monkeypatch):
    pytest.importorskip("tensorboardX")
    monkeypatch.setenv("MARIN_TENSORBOARD", "1")
    config = make_config(num_train_steps=2)
    train_lm(config)
    assert list((Path(config.output_path) / "tensorboard").glob("events.out.tfevents.*"))


def test_training_evaluates_the_average_where_one_is_kept(make_config):
    seen = []
    config = make_config(num_train_steps=4, ema_beta=0.5, steps_per_eval=2, max_eval_batches=3)

    def evaluate(model, limit):
        seen.append((np.asarray(model.final_norm.weight_D), limit))
        return {"bits_per_byte": 1.0}

    state = train_lm(config, evaluate)
    assert len(seen) == 1
    assert seen[0][1] == 3
    assert not np.array_equal(
        np.asarray(state.average.final_norm.weight_D), np.asarray(state.model.final_norm.weight_D)
    )
    assert RunRecord.open(config.output_path).of("evaluation")[0]["bits_per_byte"] == 1.0
    assert "evaluation" in {pause["reason"] for pause in RunRecord.open(config.output_path).of("pause")}


def test_training_that_has_nothing_to_evaluate_with_says_that_it_will_not(make_config, capsys):
    train_lm(make_config(num_train_steps=1, steps_per_eval=1))
    assert "`steps_per_eval` has no effect" in capsys.readouterr().err
    train_lm(make_config("evaluated", num_train_steps=1, steps_per_eval=1), lambda model, limit: {})
    assert "steps_per_eval" not in capsys.readouterr().err


@pytest.mark.parametrize("other", ["other data", "another tokenizer"])
def test_resuming_on_other_data_is_refused_before_training(other, make_config, data, tmp_path, monkeypatch):
    config = make_config(num_train_steps=4)
    stop_after(config, 1, monkeypatch)
    documents, folder = str(tmp_path / "docs.jsonl.zst"), tmp_path / "other"
    write_documents(documents, [Document(str(i), f"a path of {i} nodes " * 40, "test") for i in range(60)])
    if other == "other data":
        folder = data
    else:  # of the data that it began with
        documents = str(data / "docs.jsonl.zst")
        train_tokenizer(TrainTokenizerConfig(documents=documents, vocab_size=290, output_path=str(folder)))
    tokenize(TokenizeConfig(documents=documents, tokenizer=str(folder), output_path=str(tmp_path / "tokens")))
    changed = dataclasses.replace(config, data=str(tmp_path / "tokens"), tokenizer=str(folder))
    with pytest.raises(ConfigError, match=f"holds a run that began with {other}: put back"):
        train_lm(changed)
    shutil.copytree(data / "tokens", tmp_path / "moved")
    assert int(train_lm(dataclasses.replace(config, data=str(tmp_path / "moved"))).step) == 4


def test_resuming_with_a_line_of_the_log_changed_is_refused_before_training(make_config, monkeypatch):
    config = make_config(num_train_steps=6)
    stop_after(config, 2, monkeypatch)
    log = Path(config.output_path) / "metrics.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join([*lines[:3], "{half\n", *lines[4:]]))
    before = log.read_bytes()
    with pytest.raises(ResultsError, match=r"metrics.jsonl:4 is not JSON.*move .* away to begin the run again"):
        train_lm(config)
    assert log.read_bytes() == before


def test_each_step_has_its_own_time_also_before_a_checkpoint(make_config, monkeypatch):
    """On a CPU starting a step waits for its end, so that times written a step later would belong to the next one."""
    from marin.training import loop

    slow = 0.2
    original = loop.Prefetcher.take

    def take(self):
        time.sleep(slow)
        return original(self)

    monkeypatch.setattr(loop.Prefetcher, "take", take)
    config = make_config(num_train_steps=8, steps_per_export=4, steps_per_hf_export=-1)
    train_lm(config)
    times = [step["step_time"] for step in RunRecord.open(config.output_path).steps()]
    assert min(times) >= slow, times  # the steps before checkpoints, 3 and 7, too


def test_resuming_with_batches_in_other_parts_says_that_bits_may_differ(make_config, monkeypatch, capsys):
    stop_after(make_config(num_train_steps=4), 1, monkeypatch)
    train_lm(make_config(num_train_steps=4, per_device_parallelism=4))
    said = capsys.readouterr().out
    assert "began with the whole batch on a device at once and goes on with 4 sequences" in said


def test_training_in_bfloat16_keeps_float32_weights_and_learns(make_config):
    config = make_config(num_train_steps=20, precision=Precision("bf16"))
    state = train_lm(config)
    assert {leaf.dtype for leaf in jax.tree.leaves(state.model)} == {np.dtype(np.float32)}
    losses = [step["loss"] for step in RunRecord.open(config.output_path).steps()]
    assert np.mean(losses[-5:]) < losses[0] - 0.3


def test_training_clips_gradients_of_adam_to_the_norm(make_config):
    norms = {}
    for limit in (1e-6, None):
        optimizer = AdamConfig(learning_rate=0.01, weight_decay=0.0, warmup=0, epsilon=1.0, max_grad_norm=limit)
        watch = WatchConfig(watch_targets=["updates"], include_per_parameter_norms=False, interval=1)
        config = make_config(f"clip{limit}", num_train_steps=1, optimizer_config=optimizer, watch=watch)
        train_lm(config)
        norms[limit] = RunRecord.open(config.output_path).steps()[0]["updates/norm"]
    # With epsilon = 1 the first update is nearly the rate times the clipped gradient.
    assert norms[1e-6] == pytest.approx(0.01 * 1e-6, rel=0.01)
    assert norms[None] > 1000 * norms[1e-6]


def test_training_profiles_the_steps_asked_for(make_config):
    config = make_config(num_train_steps=6, profiler=True, profiler_start_step=1, profiler_num_steps=2)
    train_lm(config)
    assert list(Path(config.output_path).glob("profile/**/*.xplane.pb"))


def test_training_with_a_batch_that_devices_cannot_divide_says_which_multiple(make_config):
    with pytest.raises(ConfigError, match="130, which 8 devices cannot divide: use a multiple of 8"):
        SimpleTrainConfig(GpuConfig(8, "H100"), train_batch_size=130, num_train_steps=1, learning_rate=0.1)


def test_training_on_eight_devices_takes_the_same_steps_as_on_one(make_config):
    one = train_lm(make_config("one", num_train_steps=3))
    eight = train_lm(make_config("eight", num_train_steps=3, parallelism=Parallelism()))
    assert len(eight.model.lm_head.weight_IO.sharding.device_set) == 8
    for name, value in arrays_of(one).items():
        np.testing.assert_allclose(value, arrays_of(eight)[name], rtol=2e-3, atol=2e-4, err_msg=name)


def test_training_on_a_gpu_that_is_not_there_says_what_to_do(make_config):
    config = make_config()
    config = dataclasses.replace(config, train=config.train.replace(resources=GpuConfig(1, "A100-80G")))
    with pytest.raises(HardwareError, match="CpuOnlyConfig"):
        train_lm(config)


def test_training_run_info_digest_ignores_where_it_ran(make_config):
    digests = []
    for name, interval in (("one", 600.0), ("two", 5.0)):
        config = make_config(name, num_train_steps=1, checkpoint_interval=interval)
        train_lm(config)
        digests.append(json.loads((Path(config.output_path) / "run.json").read_text())["digests"]["config"])
    assert digests[0] == digests[1]


def test_a_run_of_other_settings_in_the_same_directory_is_refused_and_nothing_is_lost(make_config, monkeypatch):
    config = make_config(num_train_steps=6)
    stop_after(config, 2, monkeypatch)
    before = {path: path.read_bytes() for path in Path(config.output_path).rglob("*") if path.is_file()}
    other = make_config(num_train_steps=9, train_batch_size=4)
    with pytest.raises(
        ConfigError, match=r"train\.num_train_steps is 9, it began with 6; train\.train_batch_size is 4"
    ):
        train_lm(other)
    assert {path: path.read_bytes() for path in Path(config.output_path).rglob("*") if path.is_file()} == before
    assert int(train_lm(config).step) == 6
    # An engine that had one setting fewer began it.
    path = Path(config.output_path) / "run.json"
    info = json.loads(path.read_text())
    del info["config"]["train"]["skip_bad_steps"]
    path.write_text(json.dumps(info))
    assert int(train_lm(config).step) == 6


@pytest.mark.parametrize("in_a_group", [False, True])
def test_a_run_does_not_go_on_with_another_optimizer_of_the_same_fields(in_a_group, make_config, monkeypatch):
    """AdamW's and ADOPT's states have the same arrays too."""

    def config_with(kind):
        optimizer = kind(learning_rate=0.01, beta2=0.99, epsilon=1e-6)
        groups = [ParameterGroup("*", optimizer)]
        return make_config(
            optimizer_config=GroupsConfig(learning_rate=0.01, groups=groups) if in_a_group else optimizer
        )

    stop_after(config_with(AdamConfig), 2, monkeypatch)
    named = "GroupsConfig of AdamConfig" if in_a_group else "AdamConfig"
    with pytest.raises(ConfigError, match=f"optimizer_class is .*AdoptConfig, it began with .*:{named}"):
        train_lm(config_with(AdoptConfig))
    assert int(train_lm(config_with(AdamConfig)).step) == 6


def test_a_run_that_goes_on_with_more_than_its_cost_counts_says_so(make_config, monkeypatch, capsys):
    config = make_config(num_train_steps=6)
    stop_after(config, 2, monkeypatch)
    monkeypatch.setenv("MARIN_CPU_PEAK_FLOPS", "8e11")
    capsys.readouterr()
    train_lm(config)
    said = " ".join(capsys.readouterr().out.split())
    assert "began on 1 x cpu of 1e+11 FLOP/s" in said
    assert "as a speedrun it takes no rank" in said
    starts = RunRecord.open(config.output_path).of("start")
    assert [(start["num_chips"], start["device_flops"]) for start in starts] == [(1, 1e11), (1, 8e11)]
