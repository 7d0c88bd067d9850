"""A program that was written down against the model that it was written down from, and programs that a stranger wrote."""

import dataclasses
import pathlib
import random
import re
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.extend.mlir import deserialize_portable_artifact, ir, serialize_portable_artifact
from jax.extend.mlir.dialects import chlo, sdy, stablehlo
from on_llama import OnLlama

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


class Changed(OnLlama):
    """What it adds is a function of the Llama and the tokens."""

    added: Any = eqx.field(static=True)

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


def holds_text_as_decimals(model: Any, tokens_BT: Any) -> Any:
    """Constants of so few numbers that they are written out."""
    parts = [jnp.asarray(part.astype(np.int32)) for part in np.split(TEXT[:30_000], 600)]
    return jnp.concatenate(parts)[tokens_BT][..., None]


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


class WithNumbers(Changed):
    """With parameters that nothing needs."""

    numbers: tuple[Any, ...] = tuple(jnp.zeros(()) for _ in range(400))


def test_numbers_that_are_added_to_a_model_let_its_program_hold_no_more(tmp_path: pathlib.Path):
    model = llama().build(VOCAB, key=jax.random.key(0))
    before, after = (
        read_back(Scorer.of(kind(model, holds_text_as_decimals), F32), tmp_path).constant_bytes(None, None)[0]
        for kind in (Changed, WithNumbers)
    )
    assert after >= before


def test_program_that_calls_the_host_cannot_be_written_down(tmp_path: pathlib.Path):
    with pytest.raises(DataError, match=r"cannot be written down .*callback"):
        export_program(changed(calls_the_host), str(tmp_path), ROWS, LENGTH)
    assert list(tmp_path.iterdir()) == []


def replace_program(folder: pathlib.Path, program: Any, *unchecked: str) -> None:
    """Puts a program of one's own in the place of what `export_program` wrote, whose checks bind nobody who writes the file by hand."""
    arrays = ExportedProgram.read(folder).shapes
    tokens = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32)
    allowed = [export.DisabledSafetyCheck.custom_call(name) for name in unchecked]
    written = export.export(jax.jit(program), disabled_checks=allowed)(arrays, tokens, tokens)
    (folder / ACTIVATIONS_FILE).write_bytes(bytes(written.serialize()))


def rewrite(file: pathlib.Path, change: Callable[[str], str]) -> None:
    """Changes the text of a program."""
    exported = export.deserialize(bytearray(file.read_bytes()))
    with ir.Context() as context:
        for dialect in (stablehlo, chlo, sdy):
            dialect.register_dialect(context)
        text = str(deserialize_portable_artifact(exported.mlir_module_serialized))
        module = ir.Module.parse(change(text))
        content = serialize_portable_artifact(module, stablehlo.get_current_version(), True)
    file.write_bytes(bytes(dataclasses.replace(exported, mlir_module_serialized=content).serialize()))


def calls_by_name(arrays: Any, tokens_BT: Any, segment_ids_BT: Any) -> Any:
    return jax.ffi.ffi_call("xla_answers", jax.ShapeDtypeStruct((ROWS, LENGTH, 32), jnp.float32))(tokens_BT)


def factorizes(arrays: Any, tokens_BT: Any, segment_ids_BT: Any) -> Any:
    """Its kernel writes to where a program that was edited says, whatever lies there."""
    return jnp.broadcast_to(jax.lax.linalg.lu(jnp.eye(32) + tokens_BT[0, 0].astype(jnp.float32))[0], (ROWS, LENGTH, 32))


def counts_calls(arrays: Any, tokens_BT: Any, segment_ids_BT: Any) -> Any:
    """A generator whose state lasts from one call to the next."""
    return jax.lax.rng_uniform(jnp.float32(0), jnp.float32(1), (ROWS, LENGTH, 32))


@pytest.mark.parametrize(
    ("program", "name"),
    [(calls_by_name, "xla_answers"), (factorizes, "lapack_sgetrf_ffi"), (counts_calls, "stablehlo.rng")],
)
def test_program_that_does_more_than_compute_is_refused_before_it_is_run(
    program: Any, name: str, tmp_path: pathlib.Path
):
    export_program(changed(looks_ahead), str(tmp_path), ROWS, LENGTH)
    replace_program(tmp_path, program, "xla_answers")
    with pytest.raises(DataError, match=f"does more than compute: .*{name}"):
        ExportedProgram.read(tmp_path)


def test_model_with_linear_algebra_leaves_no_program_that_would_be_refused(tmp_path: pathlib.Path):
    scorer = changed(lambda model, tokens_BT: jax.lax.linalg.lu(model.lm_head_DV[None, :, :32])[0])
    with pytest.raises(DataError, match="does more than compute: .*lapack_sgetrf_ffi"):
        export_program(scorer, str(tmp_path), ROWS, LENGTH)
    assert list(tmp_path.iterdir()) == []


def test_text_between_names_that_look_like_a_place_in_a_file_is_measured(tmp_path: pathlib.Path):
    """Where a program came from is no part of it; an attribute's text is."""

    def between(text: str) -> str:
        constants = [found.start() for found in re.finditer(r"dense<\[\d+, ", text)]
        for place, mark in ((constants[-1], ")"), (constants[0], "loc(")):
            text = f'{text[:place]}{{mark = "{mark}"}} {text[place:]}'
        return text

    read_back(changed(holds_text_as_decimals), tmp_path)
    before, _ = ExportedProgram.read(tmp_path).held()
    rewrite(tmp_path / ACTIVATIONS_FILE, between)
    after, _ = ExportedProgram.read(tmp_path).held()
    assert before > 0 and after >= before - 100


def test_text_of_blanks_does_not_hold_up_what_reads_it(tmp_path: pathlib.Path):
    read_back(changed(looks_ahead), tmp_path)
    blanks = " " * 200_000
    rewrite(tmp_path / ACTIVATIONS_FILE, lambda text: text.replace("dense<", f'{{mark = "{blanks}"}} dense<', 1))
    program, begin = ExportedProgram.read(tmp_path), time.perf_counter()
    program.held()
    assert time.perf_counter() - begin < 10.0  # 0.1 s


def of_more_rows(arrays: Any, tokens_BT: Any, segment_ids_BT: Any) -> Any:
    return jnp.zeros((ROWS + 1, LENGTH, 32))


def of_no_width(arrays: Any, tokens_BT: Any, segment_ids_BT: Any) -> Any:
    return jnp.zeros((ROWS, LENGTH))


def of_complex_numbers(arrays: Any, tokens_BT: Any, segment_ids_BT: Any) -> Any:
    return jnp.zeros((ROWS, LENGTH, 32), jnp.complex64)


@pytest.mark.parametrize("program", [of_more_rows, of_no_width, of_complex_numbers])
def test_program_that_gives_no_activations_of_its_tokens_is_refused(program: Any, tmp_path: pathlib.Path):
    export_program(changed(looks_ahead), str(tmp_path), ROWS, LENGTH)
    replace_program(tmp_path, program)
    with pytest.raises(DataError, match="no activations"):
        ExportedProgram.read(tmp_path)


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
