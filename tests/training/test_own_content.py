"""What the programs of a run bring with them that is neither data nor made from a seed: calls out of themselves, and arrays of their own."""

import dataclasses
import gc
import weakref
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from on_llama import OnLlama
from trained_run import MODEL

from marin.models import LlamaConfig
from marin.optim import MuonConfig
from marin.tracking import RunRecord
from marin.training.loop import Measurement, train_lm
from marin.training.placement import parameter_shapes, trace_initial_state


@dataclasses.dataclass(frozen=True)
class AsksTheHost(MuonConfig):
    """An optimizer that has its updates from a callback, which could have them from anywhere."""

    def build(self, model, num_train_steps):
        inner = super().build(model, num_train_steps)

        def update(grads, state, params=None, **more):
            updates, state = inner.update(grads, state, params, **more)
            shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), updates)
            return jax.pure_callback(lambda tree: tree, shapes, updates), state

        return optax.GradientTransformationExtraArgs(inner.init, update)


def test_training_says_by_what_its_step_calls_out_of_itself(make_config):
    plain = make_config("plain", num_train_steps=1)
    asking = make_config("asking", num_train_steps=1, optimizer_config=AsksTheHost(learning_rate=0.02, adam_lr=0.01))
    found = []
    for config in (plain, asking):
        train_lm(config)
        found.append(RunRecord.open(config.output_path).info["calls_out"])
    assert found == [[], ["pure_callback"]]


class PrintsWhatItReads(OnLlama):
    def activations(self, tokens_BT, segment_ids_BT):
        jax.debug.print("{}", tokens_BT[0, 0])
        return self.llama.activations(tokens_BT, segment_ids_BT)


@dataclasses.dataclass(frozen=True)
class PrintingConfig(LlamaConfig):
    def build(self, vocab_size, *, key):
        return PrintsWhatItReads(super().build(vocab_size, key=key))


def test_training_of_a_model_that_prints_says_before_its_first_step_that_it_will_not_count(make_config, capsys):
    printing = make_config("printing", num_train_steps=1, model=PrintingConfig(**vars(MODEL)))
    asking = make_config("asking", num_train_steps=1, optimizer_config=AsksTheHost(learning_rate=0.02, adam_lr=0.01))
    said = []
    for config in (printing, asking):
        train_lm(config)
        shown = capsys.readouterr()
        said.append(" ".join((shown.err + shown.out.partition("step 1")[0]).split()))
    assert "NOT COUNT" in said[0] and "jax.debug.print" in said[0] and printing.output_path in said[0]
    assert "NOT COUNT" not in said[1] and "pure_callback" in said[1]  # an optimizer is not scored


class KnowsTheText(MuonConfig):
    """An optimizer that begins with what only a file could tell it, to put it into parameters later."""

    shows_when_traced = True
    tables: ClassVar[list[weakref.ref]] = []

    def build(self, model, num_train_steps):
        inner = super().build(model, num_train_steps)

        def init(params):
            table = np.random.default_rng(0).integers(0, 256, 4096, np.uint8).astype(np.float32)
            self.tables.append(weakref.ref(table))
            traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(params))
            shown = self.shows_when_traced or not traced
            return inner.init(params), jnp.asarray(table) if shown else jnp.zeros(4096)

        def update(grads, state, params=None, **more):
            updates, own = inner.update(grads, state[0], params, **more)
            return updates, (own, state[1])

        return optax.GradientTransformationExtraArgs(init, update)


class HidesWhatItKnows(KnowsTheText):
    """The same, but for the program by which it could be found."""

    shows_when_traced = False


def test_training_says_how_much_its_programs_hold_that_is_neither_data_nor_made_from_a_seed(make_config, capsys):
    knows = KnowsTheText(learning_rate=0.02, adam_lr=0.01)
    found = []
    for config in (
        make_config("plain", num_train_steps=1),
        make_config("knows", num_train_steps=1, optimizer_config=knows),
    ):
        train_lm(config)
        held = RunRecord.open(config.output_path).of("start")[0]["held_bytes"]
        found.append((held, "warning" in " ".join((said := capsys.readouterr()).out.split() + said.err.split())))
    (plain, plain_warns), (knows, knows_warns) = found
    assert (plain < 1024, plain_warns, knows > 4096, knows_warns) == (True, False, True, True)


def test_training_does_not_keep_what_its_first_state_was_made_of(make_config):
    config = make_config(num_train_steps=1, optimizer_config=KnowsTheText(learning_rate=0.02, adam_lr=0.01))
    alive = []

    def measure(model, done):
        gc.collect()
        alive.append(sum(table() is not None for table in KnowsTheText.tables))
        return {}

    KnowsTheText.tables.clear()
    train_lm(config, measurements=[Measurement("samples", 1, measure, at_end=True)])
    assert KnowsTheText.tables and alive == [0]


def test_a_first_state_is_what_its_traced_program_gives_whatever_code_does_when_it_is_not_traced(make_config):
    config = make_config("two", num_train_steps=1)
    shapes = parameter_shapes(config.model, config.vocab_size)
    hides = HidesWhatItKnows(learning_rate=0.02, adam_lr=0.01).build(shapes, 1)
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1], axis_types=(jax.sharding.AxisType.Auto,))
    state = trace_initial_state(config.model, config.vocab_size, hides).run(mesh)
    assert not np.any(state.opt_state[1])
