"""Validity probes against models that cheat, each in its own way, and against honest ones."""

import dataclasses
import functools
import importlib
import random
import sys
from typing import Any

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import mlir
from on_llama import OnLlama

from marin.data.documents import Document, write_documents
from marin.data.tokenizer import Tokenizer, TrainTokenizerConfig, train_tokenizer
from marin.evaluation import EvalSet, Scorer, Validity, bits_per_byte_of, probe_validity
from marin.models import LlamaConfig
from marin.models.gpt import GptConfig
from marin.nn import Precision

LENGTH, ROWS = 32, 8
SIZES = {"seq_len": LENGTH, "hidden_dim": 32, "num_layers": 1, "num_heads": 2}
LLAMA = LlamaConfig(**SIZES, intermediate_dim=32, num_kv_heads=2, initializer_range=0.3, gradient_checkpointing=False)
HACKABLE = SIZES | {
    "intermediate_dim": 32,
    "num_kv_heads": 2,
    "initializer_range": 0.3,
    "gradient_checkpointing": False,
}
VARIANTS = ("hackable_moe", "hackable_multi_token", "hackable_adamuon")
F32 = Precision("f32")


@pytest.fixture(scope="module")
def eval_set() -> EvalSet:
    rng = random.Random(0)
    words = ["".join(rng.choices(["ba", "do", "ki", "lu", "é", "漢"], k=rng.randint(1, 4))) for _ in range(200)]
    texts = (" ".join(rng.choices(words, k=rng.randint(2, 60))) for _ in range(60))
    return EvalSet("test", tuple(Document(str(number), text, "test") for number, text in enumerate(texts)))


@pytest.fixture(scope="module")
def long() -> EvalSet:
    """Of so many windows, drawn one by one, hardly two follow each other."""
    texts = ("".join(random.Random(number).choices("abcdefghijklmno ", k=12_000)) for number in range(8))
    return EvalSet("long", tuple(Document(str(number), text, "test") for number, text in enumerate(texts)))


@pytest.fixture(scope="module")
def tokenizer(eval_set: EvalSet, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_documents(str(folder / "docs.jsonl.zst"), eval_set.documents)
    train_tokenizer(TrainTokenizerConfig(str(folder / "docs.jsonl.zst"), vocab_size=277, output_path=str(folder)))
    return Tokenizer.load(str(folder))


def probe(model: Any, eval_set: EvalSet, tokenizer: Tokenizer, precision: Precision = F32, **more: Any) -> Validity:
    scorer = Scorer.of(model, precision)
    measured = bits_per_byte_of(scorer, eval_set, tokenizer, LENGTH, batch_size=ROWS)
    measured = dataclasses.replace(measured, **more.pop("measured", {}))
    return probe_validity(scorer, eval_set, tokenizer, LENGTH, measured, batch_size=ROWS, **more)


def value(model: Any, eval_set: EvalSet, tokenizer: Tokenizer) -> float:
    return bits_per_byte_of(Scorer.of(model, F32), eval_set, tokenizer, LENGTH, batch_size=ROWS).value


def failed(outcome: Validity) -> set[str]:
    return {name for name, found in outcome.probes.items() if not found.passed}


# ---- honest models -----------------------------------------------------------------------------------------------------


@functools.cache
def _honest(name: str, vocab_size: int, **changes: int) -> Any:
    if name == "llama":
        config: Any = LLAMA
    elif name == "gpt":
        config = GptConfig(**SIZES, window_pattern="SL")
    else:
        config = importlib.import_module(f"experiments.speedrun.{name}.main").HackableTransformerConfig(**HACKABLE)
    return dataclasses.replace(config, **changes).build(vocab_size, key=jax.random.key(0))


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS[1:]]


@pytest.mark.parametrize("name", ["llama", "gpt", VARIANTS[0], *SLOW])
def test_probes_of_an_honest_model_pass_and_are_far_from_their_limits(name: str, eval_set, tokenizer):
    outcome = probe(_honest(name, tokenizer.vocab_size), eval_set, tokenizer)
    assert failed(outcome) == set()
    assert outcome.causality.measured <= outcome.causality.limit / 10
    assert outcome.one_pass.measured <= outcome.one_pass.limit / 10


@pytest.mark.slow
def test_probes_of_an_honest_model_in_bfloat16_pass(eval_set, tokenizer):
    assert failed(probe(_honest("llama", tokenizer.vocab_size), eval_set, tokenizer, Precision("bf16"))) == set()


def test_probes_again_with_the_stored_seed_measure_the_same(eval_set, tokenizer):
    model = _honest("llama", tokenizer.vocab_size)
    first = probe(model, eval_set, tokenizer)
    again = probe(model, eval_set, tokenizer, seed=first.seed)
    assert dataclasses.replace(first, seconds=0.0) == dataclasses.replace(again, seconds=0.0)
    other = probe(LLAMA.build(tokenizer.vocab_size, key=jax.random.key(1)), eval_set, tokenizer)
    assert other.seed != first.seed  # nothing that a model could know while it trains


# ---- models that cheat -------------------------------------------------------------------------------------------------


class Cheat(OnLlama):
    """What it adds is what it should not have seen."""

    def activations(self, tokens_BT: Any, segment_ids_BT: Any) -> Any:
        return self.llama.activations(tokens_BT, segment_ids_BT) + self.seen(tokens_BT, segment_ids_BT)

    def seen(self, tokens_BT: Any, segment_ids_BT: Any) -> Any:
        return jnp.zeros((), jnp.float32)

    def embedded(self, tokens_BT: Any) -> Any:
        return 0.3 * self.llama.embedding(tokens_BT)


class NextToken(Cheat):
    """Acausal: each position sees the token that it is to predict."""

    def seen(self, tokens_BT, segment_ids_BT):
        return self.embedded(jnp.roll(tokens_BT, -1, axis=1))


class RarelyNextToken(Cheat):
    """The same at one position in sixteen."""

    def seen(self, tokens_BT, segment_ids_BT):
        chosen = (jnp.arange(tokens_BT.shape[1]) % 16 == 7)[None, :, None]
        return jnp.where(chosen, self.embedded(jnp.roll(tokens_BT, -1, axis=1)), jnp.zeros((), jnp.float32))


class OnceInAHundred(Cheat):
    """The same where two tokens and the column say so, at one position in a hundred."""

    def seen(self, tokens_BT, segment_ids_BT):
        columns_1T = jnp.arange(tokens_BT.shape[1])[None]
        mixed_BT = tokens_BT * 7919 + jnp.roll(tokens_BT, 1, axis=1) * 104729 + columns_1T * 13
        chosen_BT = mixed_BT % 100 == 0
        return jnp.where(
            chosen_BT[..., None], self.embedded(jnp.roll(tokens_BT, -1, axis=1)), jnp.zeros((), jnp.float32)
        )


class RowAverage(Cheat):
    """A side channel: the average over the row."""

    def seen(self, tokens_BT, segment_ids_BT):
        return jnp.mean(self.embedded(tokens_BT), axis=1, keepdims=True)


class DocumentEnds(Cheat):
    """Sees where documents end, one token before."""

    def seen(self, tokens_BT, segment_ids_BT):
        ends = jnp.roll(segment_ids_BT, -1, axis=1) > segment_ids_BT
        return jnp.where(ends[..., None], jnp.ones((), jnp.float32), jnp.zeros((), jnp.float32))


class BatchAverage(Cheat):
    """Every row sees the first tokens of all rows."""

    def seen(self, tokens_BT, segment_ids_BT):
        return jnp.mean(self.embedded(tokens_BT[:, :1]), axis=0, keepdims=True)


class RowNumber(Cheat):
    """The score depends on the place in the batch."""

    def seen(self, tokens_BT, segment_ids_BT):
        return 0.1 * jnp.arange(tokens_BT.shape[0], dtype=jnp.float32)[:, None, None]


class Prints(Cheat):
    """Tells the host what it sees, which may tell it back by any way."""

    def seen(self, tokens_BT, segment_ids_BT):
        jax.debug.callback(lambda tokens: None, tokens_BT)
        return jnp.zeros((), jnp.float32)


class CallsOut(Cheat):
    """Asks the host, which could have read the answers."""

    def seen(self, tokens_BT, segment_ids_BT):
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        return jax.pure_callback(lambda: np.zeros((), np.float32), shape, vmap_method="sequential")


class Shows(Cheat):
    """The same by a print, whose output a program may read."""

    def seen(self, tokens_BT, segment_ids_BT):
        jax.debug.print("{}", tokens_BT[0, 0])
        return jnp.zeros((), jnp.float32)


class Exported(Cheat):
    """Calls a program that was compiled before, in which no walk finds the text that it may hold."""

    def seen(self, tokens_BT, segment_ids_BT):
        shape = jax.ShapeDtypeStruct(tokens_BT.shape, jnp.int32)
        held = np.random.default_rng(0).integers(0, 277, 2**17, np.int32)
        looked_up = jax.export.export(jax.jit(lambda tokens_BT: jnp.asarray(held)[tokens_BT]))(shape)
        return 0.0 * looked_up.call(tokens_BT)[..., None].astype(jnp.float32)


class Remembers(Cheat):
    """Keeps what it saw in a mutable array, from one batch to the next."""

    memory: Any = eqx.field(static=True, default_factory=lambda: jax.new_ref(jnp.zeros((), jnp.int32)))

    def seen(self, tokens_BT, segment_ids_BT):
        self.memory[...] = tokens_BT[0, 0]
        return jnp.zeros((), jnp.float32)


OWN = Primitive("add")  # a primitive of one's own under the name of one of JAX's
OWN.def_abstract_eval(lambda x: x)
mlir.register_lowering(OWN, lambda context, x: [x])


class OwnPrimitive(Cheat):
    """Does what nobody sees in a primitive of its own."""

    def seen(self, tokens_BT, segment_ids_BT):
        return 0.0 * OWN.bind(tokens_BT)[..., None].astype(jnp.float32)


@pytest.mark.parametrize("cheat", [Shows, Exported, Remembers, OwnPrimitive])
def test_probes_of_a_program_that_does_not_all_of_its_work_itself_fail(cheat, eval_set, tokenizer):
    outcome = probe(cheat(_honest("llama", tokenizer.vocab_size)), eval_set, tokenizer)
    assert failed(outcome) == {"one_pass"}
    assert "calls out of itself" in outcome.one_pass.message


@pytest.mark.parametrize(
    ("cheat", "probes"),
    [(NextToken, {"causality"}), pytest.param(RarelyNextToken, {"causality"}, marks=pytest.mark.slow), (RowAverage, {"causality"}),
     (DocumentEnds, {"causality"}), (BatchAverage, {"one_pass"}),
     pytest.param(RowNumber, {"one_pass"}, marks=pytest.mark.slow), (CallsOut, {"one_pass"}),
     (Prints, {"one_pass"})],
)  # fmt: skip
def test_probes_of_a_model_that_cheats_fail_for_the_right_reason(cheat, probes, eval_set, tokenizer):
    outcome = probe(cheat(_honest("llama", tokenizer.vocab_size)), eval_set, tokenizer)
    assert failed(outcome) == probes
    assert not outcome.passed


def test_probes_of_a_model_that_looks_ahead_at_one_position_in_a_hundred_fail_whatever_the_seed(long, tokenizer):
    model = OnceInAHundred(_honest("llama", tokenizer.vocab_size))
    scorer = Scorer.of(model, F32)
    measured = bits_per_byte_of(scorer, long, tokenizer, LENGTH, batch_size=ROWS)
    for seed in range(4):  # of 64 cuts all would meet it once in 24 times
        outcome = probe_validity(scorer, long, tokenizer, LENGTH, measured, batch_size=ROWS, seed=seed)
        assert failed(outcome) == {"causality"}


def test_probes_of_a_set_that_was_scored_in_part_are_refused(long, tokenizer):
    scorer = Scorer.of(_honest("llama", tokenizer.vocab_size), F32)
    measured = bits_per_byte_of(scorer, long, tokenizer, LENGTH, batch_size=ROWS, max_batches=1)
    with pytest.raises(ValueError, match="score all of it"):
        probe_validity(scorer, long, tokenizer, LENGTH, measured, batch_size=ROWS)


class ReadsTargets(Cheat):
    """Looks for the targets in the frames of whoever traces its program, and in the batch that is probed."""

    def seen(self, tokens_BT, segment_ids_BT):
        frame = sys._getframe()
        while frame is not None:
            found = frame.f_locals.get("targets_BT")
            if found is not None and isinstance(found, jax.core.Tracer):
                return self.llama.lm_head_DV.T[found]
            frame = frame.f_back
        return jnp.zeros((), jnp.float32)


def test_a_model_finds_no_targets_beside_its_program(eval_set, tokenizer):
    honest = _honest("llama", tokenizer.vocab_size)
    assert value(ReadsTargets(honest), eval_set, tokenizer) == value(honest, eval_set, tokenizer)


class ReadsTheSet(Cheat):
    """Takes the evaluation set from the frame of whoever traces it, and says what follows there on the last three tokens."""

    def seen(self, tokens_BT, segment_ids_BT):
        frame = sys._getframe()
        while "stream" not in frame.f_locals:
            frame = frame.f_back
        tokens = frame.f_locals["stream"].tokens.astype(np.int32)
        keys = (tokens[:-3] * 277 + tokens[1:-2]) * 277 + tokens[2:-1]
        keys_N, following_N = jnp.asarray(np.sort(keys)), jnp.asarray(tokens[3:][np.argsort(keys)])
        key_BT = (jnp.roll(tokens_BT, 2, 1) * 277 + jnp.roll(tokens_BT, 1, 1)) * 277 + tokens_BT
        found_BT = jnp.searchsorted(keys_N, key_BT).clip(0, len(keys) - 1)
        known_BT = (keys_N[found_BT] == key_BT) & (jnp.arange(tokens_BT.shape[1]) > 1)[None]
        return jnp.where(known_BT[..., None], self.embedded(following_N[found_BT]), jnp.zeros((), jnp.float32))


def test_probes_of_a_program_that_holds_the_evaluation_set_fail(long, tokenizer):
    outcome = probe(ReadsTheSet(_honest("llama", tokenizer.vocab_size)), long, tokenizer)
    assert failed(outcome) == {"one_pass"}
    assert "bytes that are no parameters" in outcome.one_pass.message


class HoldsATable(Cheat):
    """A mask over the row as a constant, as many models have one."""

    def seen(self, tokens_BT, segment_ids_BT):
        mask_TT = jnp.asarray(np.tril(np.ones((LENGTH, LENGTH), np.float32)))
        return 0.0 * mask_TT[: tokens_BT.shape[1], :1][None]


def test_probes_of_a_program_that_holds_a_mask_pass(eval_set, tokenizer):
    assert failed(probe(HoldsATable(_honest("llama", tokenizer.vocab_size)), eval_set, tokenizer)) == set()


@pytest.mark.parametrize("context", [256, 4096])
@pytest.mark.parametrize("name", ["llama", "gpt", *VARIANTS])
def test_programs_of_the_models_here_hold_next_to_nothing_whatever_their_context(name, context):
    # A table of angles of the hello world, 65,536 bytes, was taken for a copy of the text, and no probe of a small model showed it.
    model = _honest(name, 64, seq_len=context, hidden_dim=128)
    tokens_BT = np.zeros((1, context), np.int32)
    assert Scorer.of(model, F32).constant_bytes(tokens_BT, tokens_BT)[0] < 1024


class NumpyAngles(Cheat):
    """Honest, with a table of angles from NumPy that is as large as the text."""

    def seen(self, tokens_BT, segment_ids_BT):
        angles_TC = np.outer(np.arange(1024), 10_000.0 ** -(np.arange(32) / 32))
        table_TC = jnp.asarray(np.cos(angles_TC), jnp.float32)
        return 0.0 * table_TC[: tokens_BT.shape[1], :1][None]


class OwnAngles(Cheat):
    """The same as the message says."""

    def seen(self, tokens_BT, segment_ids_BT):
        frequencies_1C = 10_000.0 ** -(jnp.arange(32, dtype=jnp.float32)[None] / 32)
        table_TC = jnp.cos(jnp.arange(1024, dtype=jnp.float32)[:, None] * frequencies_1C)
        return 0.0 * table_TC[: tokens_BT.shape[1], :1][None]


def test_probes_tell_the_author_of_a_numpy_table_which_it_is_and_how_to_pass(eval_set, tokenizer):
    honest = _honest("llama", tokenizer.vocab_size)
    refused = probe(NumpyAngles(honest), eval_set, tokenizer)
    assert failed(refused) == {"one_pass"}
    assert "float32[1024, 32]" in refused.one_pass.message
    assert "inside `activations` from jnp.arange" in refused.one_pass.message
    assert failed(probe(OwnAngles(honest), eval_set, tokenizer)) == set()


class EqualToNothing:
    """A setting by which no cache finds a model's program again; it counts how often one was asked for."""

    def __init__(self):
        self.asked = 0

    def __eq__(self, other):
        return False

    def __hash__(self):
        return random.randrange(2**32)


class HonestWhenAskedAgain(Cheat):
    """Looks ahead in the first program that is made of it, and in no other."""

    key: EqualToNothing = eqx.field(static=True, default_factory=EqualToNothing)

    def seen(self, tokens_BT, segment_ids_BT):
        self.key.asked += 1
        if self.key.asked > 1:
            return jnp.zeros((), jnp.float32)
        return self.embedded(jnp.roll(tokens_BT, -1, axis=1))


def test_probes_look_at_the_program_that_scored_the_run(eval_set, tokenizer):
    model = HonestWhenAskedAgain(_honest("llama", tokenizer.vocab_size))
    assert failed(probe(model, eval_set, tokenizer)) == {"causality"}


def test_probes_of_a_program_that_is_made_again_fail(eval_set, tokenizer):
    model = HonestWhenAskedAgain(_honest("llama", tokenizer.vocab_size))
    scorer = Scorer.of(model, F32)
    measured = bits_per_byte_of(scorer, eval_set, tokenizer, LENGTH, batch_size=ROWS)
    jax.clear_caches()  # which a model's code could do
    outcome = probe_validity(scorer, eval_set, tokenizer, LENGTH, measured, batch_size=ROWS)
    assert failed(outcome) == {"causality", "one_pass"}  # the scores are not what the other program gives
    assert "made again" in outcome.one_pass.message


class NextRow(Cheat):
    """Where one row of a batch goes on with the document of the row before, its first token is told to that."""

    def seen(self, tokens_BT, segment_ids_BT):
        goes_on_B = jnp.concatenate([segment_ids_BT[1:, 0] == segment_ids_BT[:-1, -1], jnp.zeros(1, bool)])
        last_BT = goes_on_B[:, None] & (jnp.arange(tokens_BT.shape[1]) == tokens_BT.shape[1] - 1)[None]
        first_B1D = self.embedded(jnp.roll(tokens_BT[:, :1], -1, axis=0))
        return jnp.where(last_BT[..., None], first_B1D, jnp.zeros((), jnp.float32))


def test_probes_of_a_model_that_sees_the_next_row_where_a_document_goes_on_there_fail(long, tokenizer):
    outcome = probe(NextRow(_honest("llama", tokenizer.vocab_size)), long, tokenizer)
    assert failed(outcome) == {"one_pass"}


class HugeLogits(Cheat):
    """At one position in sixty, logits so large that float32 cannot tell their log-sum from any of them: every token would cost nothing."""

    @property
    def lm_head_DV(self):
        head_DV = self.llama.lm_head_DV
        return jnp.concatenate([head_DV, jnp.full((1, head_DV.shape[1]), 1e9, jnp.float32)])

    def activations(self, tokens_BT, segment_ids_BT):
        x_BTD = self.llama.activations(tokens_BT, segment_ids_BT)
        chosen_BT1 = ((tokens_BT * 7919 + jnp.roll(tokens_BT, 1, axis=1) * 104729) % 60 == 0)[..., None]
        return jnp.concatenate([x_BTD, chosen_BT1.astype(jnp.float32)], axis=-1)


class HeadOfOnes(Cheat):
    """The same at every position."""

    @property
    def lm_head_DV(self):
        return jnp.full(self.llama.lm_head_DV.shape, 1e8, jnp.float32)

    def activations(self, tokens_BT, segment_ids_BT):
        return jnp.ones((*tokens_BT.shape, SIZES["hidden_dim"]), jnp.float32)


def test_a_model_gains_nothing_by_logits_of_any_size(eval_set, tokenizer):
    model = HeadOfOnes(_honest("llama", tokenizer.vocab_size))
    measured = bits_per_byte_of(Scorer.of(model, F32), eval_set, tokenizer, LENGTH, batch_size=ROWS)
    assert measured.nats == pytest.approx(measured.num_tokens * np.log(tokenizer.vocab_size), rel=1e-6)
    assert failed(probe(model, eval_set, tokenizer)) == set()
    rarely = HugeLogits(_honest("llama", tokenizer.vocab_size))
    measured = bits_per_byte_of(Scorer.of(rarely, F32), eval_set, tokenizer, LENGTH, batch_size=ROWS)
    # Where all logits are alike up to float32's eight, a token costs about the logarithm of the vocabulary; none is free.
    assert np.min(measured.nats_of_targets) > 0.01


class NarrowHead(Cheat):
    """Leaves the last tokens of the vocabulary out."""

    @property
    def lm_head_DV(self):
        return self.llama.lm_head_DV[:, :-3]


def test_probes_of_a_head_that_lacks_tokens_fail(eval_set, tokenizer):
    plain = EvalSet("plain", tuple(Document("0", "ab " * 200, "test") for _ in range(3)))  # none of the tokens left out
    model = NarrowHead(_honest("llama", tokenizer.vocab_size))
    assert failed(probe(model, plain, tokenizer)) == {"normalization"}


@pytest.mark.parametrize(("field", "name"), [("num_bytes", "byte_count"), ("num_tokens", "one_pass")])
def test_probes_of_a_miscounted_measurement_fail(field, name, eval_set, tokenizer):
    model = _honest("llama", tokenizer.vocab_size)
    right = getattr(bits_per_byte_of(Scorer.of(model, F32), eval_set, tokenizer, LENGTH, batch_size=ROWS), field)
    assert failed(probe(model, eval_set, tokenizer, measured={field: right + 1})) == {name}
