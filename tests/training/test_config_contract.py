"""The seed's `train_config` listing, field by field: each field is set on a tiny run and must change what it says.

What is refused has a case too, so that no field of the listing is forgotten. `watch` is taken field by field, and so is
AdamW, which the fields of the optimizer make where no `optimizer_config` is given; the listing's own optimizer, Muon, is in
tests/optim/test_seed_listing.py. A few runs serve all cases: each sets several fields whose effects do not touch.
"""

import dataclasses
import functools
import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trained_run import MODEL, VOCAB

from marin.errors import ConfigError, HardwareError
from marin.models import LlamaConfig
from marin.optim import AdamConfig
from marin.resources import CpuOnlyConfig, GpuConfig
from marin.speedrun import steps as speedrun_steps
from marin.speedrun.steps import SpeedrunTrainConfig, train_speedrun
from marin.tracking import RunRecord
from marin.training import SimpleTrainConfig, TrainLmConfig, WatchConfig
from marin.training.loop import train_lm
from marin.training.run_paths import recorded_path

ROWS, LENGTH, STEPS = 8, MODEL.seq_len, 6
RATE = 0.01
NO_WATCH = WatchConfig(watch_targets=[])


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run left behind."""

    directory: Path
    state: Any
    evaluated_tokens: tuple[int, ...]

    @property
    def record(self) -> RunRecord:
        return RunRecord.open(str(self.directory))

    def of_steps(self, name: str) -> list[float]:
        return [step[name] for step in self.record.steps()]

    def pauses(self, reason: str) -> list[int]:
        return [pause["step"] for pause in self.record.of("pause") if pause["reason"] == reason]

    def watched(self) -> dict[int, set[str]]:
        """The norms and histograms that were written, by step."""
        return {step["step"]: {name for name in step if "/" in name} for step in self.record.steps()}

    def weights(self) -> np.ndarray:
        return np.asarray(self.state.model.lm_head.weight_IO)

    @property
    def kept_checkpoints(self) -> list[str]:
        return sorted(path.name for path in self.directory.glob("checkpoints/step-*"))


@pytest.fixture(scope="session")
def start(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Trains in a directory of its own, scored on documents as a speedrun is where `steps_per_eval` is set."""
    root = tmp_path_factory.mktemp("contract")

    def train(name: str, model: LlamaConfig = MODEL, **fields: Any) -> Run:
        defaults = {"train_batch_size": ROWS, "num_train_steps": STEPS, "learning_rate": RATE, "watch": NO_WATCH}
        config = TrainLmConfig(
            model=model,
            train=SimpleTrainConfig(CpuOnlyConfig(), **defaults | fields),
            data=str(data / "tokens"),
            tokenizer=str(data),
            vocab_size=VOCAB,
            output_path=str(root / name),
        )
        measured: list[int] = []
        score = speedrun_steps.bits_per_byte

        def counting(*args: Any, **options: Any) -> Any:
            result = score(*args, **options)
            measured.append(result.num_tokens)
            return result

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MARIN_CPU_PEAK_FLOPS", "1e11")
            patch.setattr(speedrun_steps, "bits_per_byte", counting)
            if config.train.steps_per_eval:
                train_speedrun(SpeedrunTrainConfig(config, "test", str(data / "docs.jsonl.zst")))
            state = train_lm(config)  # where it has ended, its final state
        return Run(Path(config.output_path), state, tuple(measured))

    return functools.cache(train)


@pytest.fixture
def plain(start: Callable[..., Run]) -> Run:
    """Every field at its default."""
    return start("plain")


@pytest.fixture
def other(start: Callable[..., Run]) -> Run:
    """Other data and rate, and a watch of updates without their whole."""
    watch = _Hashable(watch_targets=["updates"], include_norms=False, include_histograms=True, interval=4)
    return start("other", data_seed=7, learning_rate=2 * RATE, watch=watch)


@pytest.fixture
def fixed(start: Callable[..., Run]) -> Run:
    """An optimizer config of a constant rate, other initial weights, and a watch of whole targets only."""
    watch = _Hashable(watch_targets=["grads", "params"], include_per_parameter_norms=False, interval=3)
    adam = AdamConfig(learning_rate=RATE, lr_schedule="constant", warmup=0, weight_decay=0.0)
    return start("fixed", optimizer_config=adam, seed=1, watch=watch)


@pytest.fixture
def full(start: Callable[..., Run]) -> Run:
    """All that evaluates, averages, saves and traces."""
    return start(
        "full",
        z_loss_weight=0.01,
        ema_beta=0.5,
        steps_per_eval=2,
        max_eval_batches=2,
        per_device_eval_parallelism=3,
        steps_per_export=2,
        steps_per_hf_export=3,
        profiler=True,
        profiler_start_step=1,
        profiler_num_steps=3,
    )


class _Hashable(WatchConfig):
    """A WatchConfig that a cache can have as a key."""

    def __hash__(self) -> int:
        return hash(repr(self))


# ---- the listing -----------------------------------------------------------------------------------------------------


def _listing(seeds: Path) -> dict[str, Any]:
    """The `train_config` of the seeds' dry-run output."""
    (text,) = [text for path in sorted(seeds.iterdir()) if '"train_config"' in (text := path.read_text())]
    listed, _ = json.JSONDecoder().raw_decode(re.split(r'"train_config":\s*', text, maxsplit=1)[1])
    return dict(listed)


def _cases() -> set[str]:
    return {name.removeprefix("test_field_") for name in globals() if name.startswith("test_field_")}


def test_every_field_of_the_listing_has_a_case_and_the_configs_have_every_field(seeds: Path):
    listed = _listing(seeds)
    assert listed.keys() <= {field.name for field in dataclasses.fields(SimpleTrainConfig)}
    assert listed.keys() - _cases() - ADAM_FIELDS.keys() == set()
    assert listed["watch"].keys() <= {field.name for field in dataclasses.fields(WatchConfig)}
    assert {f"watch_{name}" for name in listed["watch"]} - _cases() == set()


def test_every_field_of_adam_has_a_case():
    assert ADAM_FIELDS.keys() | {"learning_rate"} == {field.name for field in dataclasses.fields(AdamConfig)}


# ---- data, steps, weights --------------------------------------------------------------------------------------------


def test_field_resources(plain: Run):
    assert plain.record.info["platform"] == "cpu"
    config = TrainLmConfig(
        MODEL, SimpleTrainConfig(GpuConfig(1, "H100"), ROWS, STEPS, RATE), "none", "none", VOCAB, "none"
    )
    assert config.precision.compute == "bf16"
    with pytest.raises(HardwareError, match="CpuOnlyConfig"):
        train_lm(config)


def test_field_train_batch_size(plain: Run, start: Callable[..., Run]):
    assert plain.of_steps("tokens") == [ROWS * LENGTH] * STEPS
    growing = start("short", train_batch_size=((0, ROWS), (2, 2 * ROWS)), num_train_steps=3)
    assert growing.of_steps("tokens") == [ROWS * LENGTH, ROWS * LENGTH, 2 * ROWS * LENGTH]


def test_field_num_train_steps(plain: Run, start: Callable[..., Run]):
    assert (len(plain.of_steps("loss")), int(plain.state.step)) == (STEPS, STEPS)
    short = start("short", train_batch_size=((0, ROWS), (2, 2 * ROWS)), num_train_steps=3)
    assert (len(short.of_steps("loss")), int(short.state.step)) == (3, 3)


def test_field_learning_rate(plain: Run, other: Run):
    np.testing.assert_allclose(other.of_steps("learning_rate"), 2 * np.array(plain.of_steps("learning_rate")))
    assert max(plain.of_steps("learning_rate")) == pytest.approx(RATE)


def test_field_data_seed(plain: Run, other: Run):
    # Before the first update the weights are equal, so what differs is the rows.
    assert other.of_steps("loss")[0] != plain.of_steps("loss")[0]
    assert (plain.record.info["seeds"]["data"], other.record.info["seeds"]["data"]) == (42, 7)


def test_field_optimizer_config(plain: Run, fixed: Run):
    assert fixed.of_steps("learning_rate") == pytest.approx([RATE] * STEPS)
    assert plain.of_steps("learning_rate")[-1] < 0.5 * RATE


def test_field_initialize_from_checkpoint_path(plain: Run, start: Callable[..., Run]):
    again = start("again", initialize_from_checkpoint_path=str(plain.directory))
    assert again.of_steps("loss")[0] < plain.of_steps("loss")[0] - 0.1


def test_field_reset_data_loader_on_init(plain: Run, start: Callable[..., Run]):
    again = start("again", initialize_from_checkpoint_path=str(plain.directory))
    goes_on = start("goes_on", initialize_from_checkpoint_path=str(plain.directory), reset_data_loader_on_init=False)
    assert again.of_steps("loss")[0] != goes_on.of_steps("loss")[0]  # the same weights, other rows


def test_field_allow_partial_checkpoint(plain: Run, start: Callable[..., Run]):
    more = dataclasses.replace(MODEL, input_embedding_norm=True)
    partial = start(
        "partial",
        model=more,
        num_train_steps=1,
        initialize_from_checkpoint_path=str(plain.directory),
        allow_partial_checkpoint=True,
    )
    assert int(partial.state.step) == 1
    np.testing.assert_allclose(partial.weights(), plain.weights(), atol=0.05)  # the rest was taken, one update ago


def test_field_initialize_from_hf(plain: Run, full: Run, start: Callable[..., Run]):
    again = start("from_hf", initialize_from_hf=str(full.directory / "hf" / "step-6"))
    assert again.of_steps("loss")[0] < plain.of_steps("loss")[0] - 0.1


# ---- the loss and the weights ----------------------------------------------------------------------------------------


def test_field_z_loss_weight(plain: Run, full: Run):
    assert full.of_steps("loss")[0] == pytest.approx(plain.of_steps("loss")[0], rel=1e-6)
    assert "z_loss" not in plain.record.steps()[0]
    # logsumexp of nearly equal logits is nearly log V.
    assert full.of_steps("z_loss")[0] == pytest.approx(0.01 * np.log(VOCAB) ** 2, rel=0.05)
    assert not np.array_equal(full.weights(), plain.weights())


def test_field_ema_beta(plain: Run, full: Run):
    assert plain.state.average is None
    behind = np.asarray(full.state.average.lm_head.weight_IO)
    assert 0 < np.abs(behind - full.weights()).max() < 5 * RATE


def test_field_skip_bad_steps(start: Callable[..., Run]):
    # The first update makes the weights useless; without the field this run stops (see test_loop.py).
    skipping = start("skipping", skip_bad_steps=True, learning_rate=1e18)
    assert int(skipping.state.step) == STEPS
    assert skipping.of_steps("skipped_steps")[-1] > 0


def test_field_int8(start: Callable[..., Run]):
    wide = dataclasses.replace(MODEL, hidden_dim=128, intermediate_dim=128)  # smaller matrices are not worth it
    exact = start("wide", model=wide, num_train_steps=2).of_steps("loss")[-1]
    rounded = start("int8", model=wide, num_train_steps=2, int8=True).of_steps("loss")[-1]
    assert 0 < abs(rounded - exact) < 0.01 * exact


# ---- evaluation and checkpoints --------------------------------------------------------------------------------------


def test_field_steps_per_eval(plain: Run, full: Run):
    assert [event["step"] for event in full.record.of("evaluation")] == [2, 4]  # the end is another step's business
    assert plain.record.of("evaluation") == []


def test_field_max_eval_batches(full: Run):
    rows = 3 * len(jax.devices())
    assert len(full.evaluated_tokens) == 2
    assert all(rows * LENGTH < tokens <= 2 * rows * LENGTH for tokens in full.evaluated_tokens)


def test_field_per_device_eval_parallelism(full: Run):
    # Two batches of what the field says on each device, not of the 16 rows that are the default.
    assert all(2 * 16 * LENGTH < tokens for tokens in full.evaluated_tokens)


def test_field_steps_per_export(plain: Run, full: Run):
    assert full.kept_checkpoints == ["step-00000002", "step-00000004", "step-00000006"]
    assert plain.kept_checkpoints == ["step-00000006"]


def test_record_of_a_run_names_no_path_of_the_machine(plain: Run, full: Run, data: Path):
    for run in (plain, full):
        for name in ("run.json", "metrics.jsonl"):
            text = (run.directory / name).read_text()
            assert str(data) not in text and str(run.directory.parent) not in text
        assert recorded_path(run.record.info["config"]["tokenizer"], run.directory) == str(data)


def test_field_train_seq_len(start: Callable[..., Run]):
    """Rows of half the context train as those of a model with half the context; it is scored in its whole context."""
    half = dataclasses.replace(MODEL, seq_len=LENGTH // 2)
    short = start("short rows", train_seq_len=LENGTH // 2, steps_per_eval=3)
    alike = start("half the context", half, steps_per_eval=3)
    np.testing.assert_array_equal(short.weights(), alike.weights())
    assert short.of_steps("tokens") == alike.of_steps("tokens") == [ROWS * LENGTH // 2] * STEPS
    assert short.record.info["model_flops_per_token"] == half.flops_per_token(VOCAB, LENGTH // 2)
    assert short.record.info["traced_flops_per_token"] == alike.record.info["traced_flops_per_token"]
    scores = [run.record.of("evaluation")[-1]["bits_per_byte"] for run in (short, alike)]
    assert scores[0] != scores[1]
    assert short.record.info["config"]["train"]["train_seq_len"] == LENGTH // 2


def test_rows_longer_than_the_context_are_refused(start: Callable[..., Run]):
    with pytest.raises(ConfigError, match=f"`train_seq_len` is {LENGTH + 1}, the model's context is {LENGTH}"):
        start("long rows", train_seq_len=LENGTH + 1)


def test_field_steps_per_task_eval(plain: Run, start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch):
    """At its pace and at the end; the tasks are lm-eval's business (tests/evaluation/test_harness.py)."""

    class Tasks:
        def __init__(self, names: tuple[str, ...], tokenizer: Any, max_length: int):
            assert (names, max_length) == (("a_task",), LENGTH)

        def __call__(self, model: Any, precision: Any) -> dict[str, float]:
            return {"a_task/acc": float(np.abs(model.lm_head.weight_IO).sum())}

    monkeypatch.setattr(speedrun_steps, "TaskEvaluator", Tasks)
    run = start("tasks", steps_per_eval=100, steps_per_task_eval=4, task_eval_names=("a_task",))
    assert run.pauses("task evaluation") == [3, STEPS - 1]
    found = {event["step"]: event["a_task/acc"] for event in run.record.of("evaluation")}
    assert sorted(found) == [4, STEPS] and found[STEPS] == pytest.approx(float(np.abs(run.weights()).sum()))
    assert run.of_steps("loss") == plain.of_steps("loss")


@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is not None, reason="lm-eval is installed")
def test_tasks_without_the_harness_are_refused_before_training(start: Callable[..., Run]):
    with pytest.raises(ConfigError, match="`task_eval_names` needs lm-eval, which is not installed"):
        start("no harness", steps_per_eval=100, task_eval_names=("piqa",))


def test_field_steps_per_hf_export(plain: Run, full: Run):
    assert sorted(path.parent.name for path in full.directory.glob("hf/*/config.json")) == ["step-3", "step-6"]
    assert not (plain.directory / "hf").exists()


# ---- the profiler ----------------------------------------------------------------------------------------------------


def test_field_profiler(plain: Run, full: Run):
    assert list(full.directory.glob("profile/**/*.xplane.pb"))
    assert not (plain.directory / "profile").exists()


def test_field_profiler_start_step(full: Run):
    assert full.pauses("profiler")[0] == 1


def test_field_profiler_num_steps(full: Run):
    assert full.pauses("profiler")[-1] == 3  # steps 1, 2 and 3


# ---- watching --------------------------------------------------------------------------------------------------------


def test_field_watch(plain: Run, fixed: Run):
    assert set().union(*plain.watched().values()) == set()
    assert fixed.watched()[0]


def test_field_watch_watch_targets(other: Run, fixed: Run):
    assert {name.split("/")[0] for name in other.watched()[0]} == {"updates"}
    assert {name.split("/")[0] for name in fixed.watched()[0]} == {"grads", "params"}


def test_field_watch_include_norms(other: Run, fixed: Run):
    assert "updates/norm" not in other.watched()[0]
    assert "grads/norm" in fixed.watched()[0]


def test_field_watch_include_per_parameter_norms(other: Run, fixed: Run):
    assert fixed.watched()[0] == {"grads/norm", "params/norm"}
    assert "updates/norm/lm_head.weight_IO" in other.watched()[0]


def test_field_watch_split_scan_layers(other: Run):
    assert any(name.startswith("updates/norm/blocks.0.") for name in other.watched()[0])
    with pytest.raises(ConfigError, match="`watch.split_scan_layers`"):
        WatchConfig(split_scan_layers=False)


def test_field_watch_include_histograms(other: Run, fixed: Run):
    assert "updates/histogram/lm_head.weight_IO" in other.watched()[0]
    assert not any("histogram" in name for name in fixed.watched()[0])


def test_field_watch_interval(other: Run, fixed: Run):
    assert [step for step, names in other.watched().items() if names] == [0, 4]
    assert [step for step, names in fixed.watched().items() if names] == [0, 3]


# ---- the optimizer's fields ------------------------------------------------------------------------------------------

SHAPES = {"embedding.w": (5, 3), "blocks.up.w": (3, 6), "norm.w": (3,)}
MATRICES = {"embedding.w", "blocks.up.w"}
OPTIMIZER_STEPS = 12
# field -> (another value, what else is set, what changes): "rates", or parameters whose weights differ after 12 steps.
ADAM_FIELDS: dict[str, tuple[Any, dict[str, Any], set[str]]] = {
    "weight_decay": (0.5, {}, MATRICES),
    "min_lr_ratio": (0.5, {}, {"rates", *SHAPES}),
    "warmup": (4, {}, {"rates", *SHAPES}),
    "decay": (0.5, {}, {"rates", *SHAPES}),
    "rewarmup": (2, {"cycle_length": 6}, {"rates", *SHAPES}),
    "weight_decay_modules": ("up", {}, {"embedding.w"}),
    "default_weight_decay_mask": (False, {}, {"norm.w"}),
    "lr_schedule": ("linear", {}, {"rates", *SHAPES}),
    "cycles": (2, {}, {"rates", *SHAPES}),
    "cycle_length": (4, {}, {"rates", *SHAPES}),
    "beta1": (0.5, {}, set(SHAPES)),
    "beta2": (0.5, {}, set(SHAPES)),
    "epsilon": (1.0, {}, set(SHAPES)),
    "max_grad_norm": (0.01, {"epsilon": 0.1}, set(SHAPES)),  # without epsilon Adam undoes a constant factor
    "nesterov": (True, {}, set(SHAPES)),
}


@functools.cache
def _observe(config: AdamConfig) -> dict[str, np.ndarray]:
    """Rates by step, and the weights after random gradients."""
    random = np.random.default_rng(0)
    params = {path: jnp.asarray(random.normal(size=shape), jnp.float32) for path, shape in SHAPES.items()}
    with jax.numpy_dtype_promotion("standard"):  # as the training step has it
        optimizer = config.build(params, OPTIMIZER_STEPS)
        state, update = optimizer.init(params), jax.jit(optimizer.update)
        for _ in range(OPTIMIZER_STEPS):
            gradients = {p: jnp.asarray(random.normal(size=shape), jnp.float32) for p, shape in SHAPES.items()}
            updates, state = update(gradients, state, params)
            params = jax.tree.map(jnp.add, params, updates)
        rates = config.schedule(OPTIMIZER_STEPS)(jnp.arange(OPTIMIZER_STEPS))
    return {"rates": np.asarray(rates)} | {path: np.asarray(value) for path, value in params.items()}


@pytest.mark.parametrize("field", ADAM_FIELDS)
def test_adam_field_changes_what_it_says_and_nothing_else_also_where_the_train_config_has_it(field: str):
    value, setting, expected = ADAM_FIELDS[field]
    base = AdamConfig(**{"learning_rate": 0.1, "max_grad_norm": None} | setting)
    before, after = _observe(base), _observe(dataclasses.replace(base, **{field: value}))
    assert {name for name in before if not np.array_equal(before[name], after[name])} == expected
    if field in {shared.name for shared in dataclasses.fields(SimpleTrainConfig)}:
        plain = SimpleTrainConfig(CpuOnlyConfig(), ROWS, OPTIMIZER_STEPS, 0.1, **setting)
        made = plain.replace(**{field: value}).build_optimizer()
        assert made == dataclasses.replace(plain.build_optimizer(), **{field: value})
        assert made != plain.build_optimizer()
