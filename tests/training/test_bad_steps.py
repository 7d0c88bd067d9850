"""Losses that are not finite, and losses that jump: what is kept, what is said, and how to look at the data."""

import dataclasses
import re
import shlex
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from marin.cli.main import dispatch
from marin.data.loader import BatchSource, open_batches
from marin.data.rows import Batch
from marin.errors import NonFiniteLossError
from marin.nn import Precision
from marin.nn.trees import named_leaves
from marin.optim import AdamConfig, MuonConfig
from marin.tracking import RunRecord
from marin.training import checkpoint as checkpoints
from marin.training.loop import train_lm
from marin.training.state import StepConfig, before_bad_step, init_state, make_train_step

ROWS, LENGTH = 8, 32


def _change_batch(monkeypatch, at_step, change) -> None:
    """Batches as they are, but for that of one step."""
    original = BatchSource.batch_from

    def batch_from(self, seed, first_sample, batch_size, host=(0, 1)):
        batch = original(self, seed, first_sample, batch_size, host)
        return change(batch) if first_sample == at_step * ROWS else batch

    monkeypatch.setattr(BatchSource, "batch_from", batch_from)


def _poison(batch: Batch) -> Batch:
    return batch._replace(weight_BT=batch.weight_BT * np.float32("nan"))


@pytest.fixture
def stopped(make_config, monkeypatch):
    """A run whose fourth batch is bad, and its error."""
    config = make_config("stopped", num_train_steps=6, ema_beta=0.9)
    with monkeypatch.context() as patch:
        _change_batch(patch, 3, _poison)
        with pytest.raises(NonFiniteLossError, match="at step 3 the loss is nan") as caught:
            train_lm(config)
    return config, str(caught.value)


def test_run_that_ends_at_a_bad_loss_keeps_the_state_before_it(stopped, make_config):
    config, _ = stopped
    clean = make_config("clean", num_train_steps=6, ema_beta=0.9, steps_per_export=3)
    like = train_lm(clean)
    found, problems = checkpoints.latest_valid(Path(config.output_path) / "checkpoints")
    assert (found.step, problems) == (3, [])
    expected = checkpoints.at_step(Path(clean.output_path), 3)
    one, other = (named_leaves(checkpoints.restore(each, like)) for each in (found, expected))
    for name in other:
        np.testing.assert_array_equal(np.asarray(one[name]), np.asarray(other[name]), err_msg=name)
    # With the cause removed the same command goes on, and ends as the run that never stopped.
    for name, value in named_leaves(train_lm(config)).items():
        np.testing.assert_array_equal(np.asarray(value), np.asarray(named_leaves(like)[name]), err_msg=name)


def test_error_of_a_bad_loss_names_its_rows_and_a_command_that_shows_them(stopped, capsys):
    config, message = stopped
    record = RunRecord.open(config.output_path)
    assert [step["step"] for step in record.steps()] == [0, 1, 2, 3]
    (event,) = record.of("bad_step")
    rows = open_batches(config.data, LENGTH, 0).rows_from(config.data_seed, 3 * ROWS, ROWS)
    assert (event["step"], event["loss"], event["num_rows"]) == (3, "nan", ROWS)
    assert event["rows"] == [list(row) for row in rows]
    assert f"row {rows[0].row} of train" in message and "and 5 more" in message
    command = shlex.split(re.search(r"look at the first: (.+)", message)[1])
    capsys.readouterr()
    assert command[0] == "marin" and dispatch(command[1:]) == 0
    shown = capsys.readouterr().out
    numbers = [int(number) - 1 for number in re.findall(r"^document (\d+) of", shown, re.MULTILINE)]
    assert numbers == list(range(rows[0].first_document, rows[0].last_document + 1))


def test_loss_that_jumps_is_noted_once_with_its_batch(make_config, monkeypatch, capsys):
    origin = make_config("origin", num_train_steps=30)
    train_lm(origin)
    _change_batch(monkeypatch, 40, lambda batch: batch._replace(targets_BT=np.full_like(batch.targets_BT, 299)))
    # Rates so small that the loss stays where the first run left it.
    still = MuonConfig(learning_rate=1e-9, adam_lr=1e-9, warmup=0)
    options = {"optimizer_config": still, "initialize_from_checkpoint_path": origin.output_path}
    config = make_config("still", num_train_steps=42, **options)
    train_lm(config)
    record = RunRecord.open(config.output_path)
    (spike,) = record.of("spike")
    assert spike["step"] == 40
    assert spike["usual"] < spike["limit"] < spike["loss"] == record.steps()[40]["loss"]
    assert len(spike["rows"]) == ROWS
    assert capsys.readouterr().out.count("the loss jumps at step 40") == 1


@dataclasses.dataclass(frozen=True)
class _Breaking(AdamConfig):
    """AdamW that at one step makes a NaN of a finite gradient: in an update, or in what it gathers."""

    at_step: int = 3
    where: str = "update"

    def build(self, model, num_train_steps):
        def update(updates, state, params=None):
            count = state["count"]
            broken = jnp.where(count == self.at_step, jnp.nan, 0.0)
            added = broken if self.where == "update" else 0.0
            updates = jax.tree.map(lambda u: u + added, updates)
            return updates, {"count": count + 1, "gathered": state["gathered"] + broken}

        start = {"count": jnp.zeros((), jnp.int32), "gathered": jnp.zeros(())}
        return optax.chain(
            super().build(model, num_train_steps), optax.GradientTransformation(lambda params: start, update)
        )


@pytest.mark.parametrize(("bad", "noted"), [((2, 3, 5), ["2", "5"]), ((0, 1, 6), ["0", "6"])])
def test_updates_that_are_left_out_are_counted_and_the_first_in_a_row_is_noted_with_its_batch(
    bad, noted, make_config, monkeypatch, capsys
):
    config = make_config("skips", num_train_steps=7, skip_bad_steps=True)
    with monkeypatch.context() as patch:
        for step in bad:
            _change_batch(patch, step, _poison)
        train_lm(config)
    said = capsys.readouterr().out
    assert noted == re.findall(r"the update of step (\d) is left out .* the loss is nan .* its batch: row \d", said)
    assert re.search(r"step 7/7  loss \S+ .* 3 updates left out", said)


@pytest.mark.parametrize("where", ["update", "state"])
@pytest.mark.parametrize("options", [{}, {"skip_bad_steps": True}, {"num_train_steps": 4}], ids=str)
def test_optimizer_that_makes_nan_of_finite_gradients_ends_the_run_at_that_step_and_nothing_spoiled_is_kept(
    make_config, options, where
):
    optimizer = _Breaking(learning_rate=0.01, where=where)
    config = make_config(
        "broken", optimizer_config=optimizer, **({"steps_per_export": 2, "num_train_steps": 8} | options)
    )
    for _ in range(2):  # and again, as nobody changed anything
        with pytest.raises(NonFiniteLossError, match=r"at step 3 the optimizer \(_Breaking\) made numbers"):
            train_lm(config)
        found, problems = checkpoints.latest_valid(Path(config.output_path) / "checkpoints")
        assert (found.step, problems) == (2, [])
    record = RunRecord.open(config.output_path)
    assert [step["step"] for step in record.steps()] == [0, 1, 2, 3] and not record.is_complete
    assert {event["step"] for event in record.of("bad_step")} == {3}
    assert all(np.isfinite(step["loss"]) and "spoiled" not in step for step in record.steps())


# ---- the compiled step -----------------------------------------------------------------------------------------------


class _Model(eqx.Module):
    """Vectors by token; a weight of infinity makes an infinite gradient of a finite loss."""

    table_VD: jax.Array
    lm_head_DV: jax.Array
    logit_softcap = None

    def activations(self, tokens_BT, segment_ids_BT):
        return self.table_VD[tokens_BT]


class _InfiniteSlope(_Model):
    def training_activations(self, tokens_BT, segment_ids_BT):
        x_BTD = self.activations(tokens_BT, segment_ids_BT)
        return x_BTD, {"slope": jnp.sum(jnp.sqrt(jnp.abs(self.table_VD[0] - self.table_VD[0])))}


def _batch(weight: float) -> Batch:
    tokens = np.arange(16, dtype=np.int32).reshape(2, 8)
    return Batch(tokens, (tokens + 1) % 16, np.full((2, 8), weight, np.float32), np.zeros((2, 8), np.int32))


def _state(kind, optimizer):
    keys = jax.random.split(jax.random.key(0))
    return init_state(kind(jax.random.normal(keys[0], (16, 4)), jax.random.normal(keys[1], (4, 16))), optimizer, 0.9)


def _assert_unchanged(one, other) -> None:
    for left, right in zip(
        *(jax.tree.leaves(eqx.filter((s.model, s.opt_state, s.average), eqx.is_array)) for s in (one, other)),
        strict=True,
    ):
        np.testing.assert_array_equal(np.asarray(left), np.asarray(right))


@pytest.mark.parametrize("optimizer", [optax.adam(0.1), optax.sgd(0.1, momentum=0.9)], ids=["adam", "momentum"])
def test_step_with_a_bad_loss_changes_nothing_and_neither_do_those_after_it(optimizer):
    config = StepConfig(Precision("f32"), loss_block=16, ema_beta=0.9)
    step = jax.jit(make_train_step(optimizer, lambda step: jnp.ones(()), config))
    good, _ = step(_state(_Model, optimizer), _batch(1.0))
    assert before_bad_step(good) is None
    bad, metrics = step(good, _batch(float("inf")))
    assert not np.isfinite(float(metrics["loss"]))
    after, _ = step(bad, _batch(1.0))
    for state in (bad, after):
        _assert_unchanged(state, good)
        assert int(before_bad_step(state).step) == int(good.step) == 1


def test_step_with_a_finite_loss_and_a_bad_gradient_changes_nothing():
    optimizer = optax.adam(0.1)
    step = jax.jit(
        make_train_step(optimizer, lambda step: jnp.ones(()), StepConfig(Precision("f32"), loss_block=16, ema_beta=0.9))
    )
    before = _state(_InfiniteSlope, optimizer)
    after, metrics = step(before, _batch(1.0))
    assert np.isfinite(float(metrics["loss"])) and not np.isfinite(float(metrics["grad_norm"]))
    _assert_unchanged(after, before)
    assert int(before_bad_step(after).step) == 0
