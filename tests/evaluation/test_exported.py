"""A program that was written down against the model that it was written down from, and programs that a stranger wrote."""

import pathlib
import random
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from marin.data.documents import Document, write_documents
from marin.data.tokenizer import Tokenizer, TrainTokenizerConfig, train_tokenizer
from marin.errors import DataError
from marin.evaluation import EvalSet, Scorer, Validity, bits_per_byte_of, probe_validity
from marin.evaluation.exported import ACTIVATIONS_FILE, ExportedProgram, export_program
from marin.models import LlamaConfig
from marin.models.gpt import GptConfig
from marin.nn import Precision
from marin.nn.trees import named_leaves

LENGTH, ROWS, VOCAB = 32, 8, 270
SIZES: dict[str, Any] = {"seq_len": LENGTH, "hidden_dim": 32, "num_heads": 2}
F32 = Precision("f32")


def llama(num_layers: int = 1) -> LlamaConfig:
    return LlamaConfig(
        **SIZES, num_layers=num_layers, intermediate_dim=32, num_kv_heads=2, initializer_range=0.3, gradient_checkpointing=False
    )  # fmt: skip


def read_back(scorer: Scorer, folder: pathlib.Path) -> Scorer:
    """The scorer of the same program, written down and read."""
    export_program(scorer, str(folder), ROWS, LENGTH)
    program = ExportedProgram.read(folder)
    assert (program.batch_size, program.context_length) == (ROWS, LENGTH)
    return Scorer(program, named_leaves(scorer.arrays), scorer.softcap, scorer.precision)


@pytest.fixture(scope="module")
def eval_set() -> EvalSet:
    texts = (" ".join(random.Random(n).choices(["bado", "kilu", "éka", "漢", "doba"], k=40)) for n in range(40))
    return EvalSet("test", tuple(Document(str(number), text, "test") for number, text in enumerate(texts)))


@pytest.fixture(scope="module")
def tokenizer(eval_set: EvalSet, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_documents(str(folder / "docs.jsonl.zst"), eval_set.documents)
    train_tokenizer(TrainTokenizerConfig(str(folder / "docs.jsonl.zst"), vocab_size=VOCAB, output_path=str(folder)))
    return Tokenizer.load(str(folder))


def probed(scorer: Scorer, eval_set: EvalSet, tokenizer: Tokenizer) -> Validity:
    measured = bits_per_byte_of(scorer, eval_set, tokenizer, LENGTH, batch_size=ROWS)
    return probe_validity(scorer, eval_set, tokenizer, LENGTH, measured, batch_size=ROWS, seed=7)


def failed(outcome: Validity) -> set[str]:
    return {name for name, found in outcome.probes.items() if not found.passed}


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize(
    "config", [llama(2), GptConfig(**SIZES, num_layers=2, window_pattern="SL")], ids=["llama", "gpt"]
)
def test_program_that_was_written_down_scores_as_the_model_to_the_bit(
    config: Any, precision: str, tmp_path: pathlib.Path
):
    scorer = Scorer.of(config.build(VOCAB, key=jax.random.key(0)), Precision(precision))
    again = read_back(scorer, tmp_path)
    tokens, targets = np.random.default_rng(0).integers(0, VOCAB, (2, ROWS, LENGTH), np.int32)
    segments = np.cumsum(tokens % 9 == 0, axis=1, dtype=np.int32)
    np.testing.assert_array_equal(again.nats(tokens, targets, segments), scorer.nats(tokens, targets, segments))
    columns = np.full((ROWS, 2), 5)
    np.testing.assert_array_equal(
        again.nats_at(columns, tokens, targets, segments), scorer.nats_at(columns, tokens, targets, segments)
    )


def test_operations_of_a_deep_honest_program_are_not_held_against_it(tmp_path: pathlib.Path):
    scorer = read_back(Scorer.of(llama(24).build(VOCAB, key=jax.random.key(0)), F32), tmp_path)
    assert scorer.calls_out(None, None) == set() and scorer.constant_bytes(None, None) == (0, "none")


# ---- programs that a stranger wrote --------------------------------------------------------------------------------------


class Changed(eqx.Module):
    """A Llama with something added to its activations."""

    llama: Any
    added: Any = eqx.field(static=True)

    @property
    def lm_head_DV(self) -> Any:
        return self.llama.lm_head_DV

    @property
    def logit_softcap(self) -> Any:
        return None

    def activations(self, tokens_BT: Any, segment_ids_BT: Any) -> Any:
        x_BTD = self.llama.activations(tokens_BT, segment_ids_BT)
        return x_BTD + self.added(self.llama, tokens_BT).astype(x_BTD.dtype)


def changed(added: Any) -> Scorer:
    return Scorer.of(Changed(llama().build(VOCAB, key=jax.random.key(0)), added), F32)


def looks_ahead(model: Any, tokens_BT: Any) -> Any:
    return 0.3 * model.embedding(jnp.roll(tokens_BT, -1, axis=1))


BITS = np.random.default_rng(0).integers(0, 2, 40_000 * 8, np.int8)
TEXT = np.packbits(BITS)  # incompressible, as a text is that somebody else has packed


def holds_text(model: Any, tokens_BT: Any) -> Any:
    return jnp.asarray(TEXT)[tokens_BT][..., None]


def holds_text_in_a_program_inside(model: Any, tokens_BT: Any) -> Any:
    inside = export.export(jax.jit(lambda tokens: jnp.asarray(TEXT)[tokens]))(
        jax.ShapeDtypeStruct(tokens_BT.shape, tokens_BT.dtype)
    )
    return inside.call(tokens_BT)[..., None]


def holds_text_in_what_is_joined(model: Any, tokens_BT: Any) -> Any:
    """No constant but 0 and 1: the text is in which of the two stands where."""
    pair = [jnp.zeros((1,), jnp.int32) + tokens_BT[0, 0], jnp.ones((1,), jnp.int32) * tokens_BT[0, 1]]
    return jnp.concatenate([pair[bit] for bit in BITS[:20_000]])[tokens_BT][..., None]


def calls_the_host(model: Any, tokens_BT: Any) -> Any:
    return jax.pure_callback(lambda tokens: tokens, jax.ShapeDtypeStruct(tokens_BT.shape, tokens_BT.dtype), tokens_BT)[
        ..., None
    ]


def test_program_that_looks_ahead_fails_where_it_is_scored_apart(
    eval_set: EvalSet, tokenizer: Tokenizer, tmp_path: pathlib.Path
):
    assert failed(probed(read_back(changed(looks_ahead), tmp_path), eval_set, tokenizer)) == {"causality"}


@pytest.mark.parametrize(
    ("added", "least"),
    [(holds_text, len(TEXT)), (holds_text_in_a_program_inside, len(TEXT)), (holds_text_in_what_is_joined, 20_000 // 8 - 500)],
)  # fmt: skip
def test_text_that_a_program_holds_is_measured_wherever_it_stands(
    added: Any, least: int, tmp_path: pathlib.Path, monkeypatch
):
    monkeypatch.setattr("marin.evaluation.exported._OPERATIONS", 4_000)  # what those of the model alone take
    held, _ = read_back(changed(added), tmp_path).constant_bytes(None, None)
    assert held >= least


def test_program_that_calls_the_host_cannot_be_written_down(tmp_path: pathlib.Path):
    with pytest.raises(DataError, match=r"cannot be written down .*callback"):
        export_program(changed(calls_the_host), str(tmp_path), ROWS, LENGTH)
    assert list(tmp_path.iterdir()) == []


def test_call_of_a_name_that_is_not_known_is_a_call_out(tmp_path: pathlib.Path):
    """Who writes the file by hand is not bound by what `export_program` lets through."""

    def calls(arrays: Any, tokens_BT: Any, segment_ids_BT: Any) -> Any:
        shape = jax.ShapeDtypeStruct((ROWS, LENGTH, 32), jnp.float32)
        return jax.ffi.ffi_call("xla_answers", shape)(tokens_BT)

    export_program(changed(looks_ahead), str(tmp_path), ROWS, LENGTH)
    arrays = ExportedProgram.read(tmp_path).shapes
    tokens = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32)
    unchecked = [export.DisabledSafetyCheck.custom_call("xla_answers")]
    written = export.export(jax.jit(calls), disabled_checks=unchecked)(arrays, tokens, tokens)
    (tmp_path / ACTIVATIONS_FILE).write_bytes(bytes(written.serialize()))
    assert ExportedProgram.read(tmp_path).calls_out() == {"xla_answers"}


def _cut_short(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _of_another_shape(content: bytes) -> bytes:
    shape = jax.ShapeDtypeStruct((3,), jnp.float32)
    return bytes(export.export(jax.jit(jnp.sin))(shape).serialize())


def _for_a_gpu(content: bytes) -> bytes:
    shape = jax.ShapeDtypeStruct((3,), jnp.float32)
    return bytes(export.export(jax.jit(jnp.sin), platforms=["cuda"])(shape).serialize())


@pytest.mark.parametrize(
    ("change", "message"),
    [(_cut_short, "damaged, or no program"), (lambda content: b"", "damaged, or no program"), (_of_another_shape, "takes no batches of tokens"),
     (_for_a_gpu, r"for other devices \(1 of cuda\)"), (None, "is not there")],
    ids=["cut short", "empty", "another shape", "for a GPU", "missing"],
)  # fmt: skip
def test_file_that_is_no_program_of_a_model_is_refused(change: Any, message: str, tmp_path: pathlib.Path):
    export_program(changed(looks_ahead), str(tmp_path), ROWS, LENGTH)
    file = tmp_path / ACTIVATIONS_FILE
    if change is None:
        file.unlink()
    else:
        file.write_bytes(change(file.read_bytes()))
    with pytest.raises(DataError, match=message):
        ExportedProgram.read(tmp_path)
