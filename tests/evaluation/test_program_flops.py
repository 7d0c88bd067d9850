"""FLOPs of programs that were written down, against counts by hand and against what the model's own trace has."""

import pathlib
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax import export
from on_llama import OnLlama

from marin.evaluation import Scorer
from marin.evaluation import exported as exported_programs
from marin.evaluation.exported import ExportedProgram, export_program
from marin.evaluation.program_flops import ProductFlops, product_flops
from marin.models import LlamaConfig
from marin.models.gpt import GptConfig
from marin.nn import Precision
from marin.training.traced_flops import scoring_flops

ROWS, VOCAB = 2, 300
SIZES: dict[str, Any] = {"hidden_dim": 64, "num_layers": 2, "num_heads": 2}
W, PRODUCT = jnp.ones((8, 8)), 2.0 * 4 * 8 * 8


def counted(compute: Callable[..., Any], *arrays: Any) -> ProductFlops:
    program = export.export(jax.jit(compute))(*arrays)
    with exported_programs._module_of(program) as module:
        return product_flops(module)


def once(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w)


def scanned(x: Any, w: Any) -> Any:
    return jax.lax.scan(lambda carry, _: (once(carry, w), None), x, None, length=5)[0]


def counted_up(x: Any, w: Any) -> Any:
    return jax.lax.fori_loop(3, 9, lambda _, carry: once(carry, w), x)


def until_small(x: Any, w: Any) -> Any:
    return jax.lax.while_loop(lambda carry: carry.sum() > 1, lambda carry: once(carry, w), x)


def nested(x: Any, w: Any) -> Any:
    return jax.lax.scan(lambda carry, _: (counted_up(carry, w), None), x, None, length=2)[0]


def in_functions(x: Any, w: Any) -> Any:
    inner = jax.jit(once)
    return inner(inner(x, w), w)


def of_two_arms(x: Any, w: Any) -> Any:
    return jax.lax.cond(x.sum() > 0, lambda: once(once(x, w), w), lambda: once(x, w))


@pytest.mark.parametrize(
    ("compute", "products"),
    [(once, 1), (in_functions, 2), (scanned, 5), (counted_up, 6), (nested, 12), (until_small, 1), (of_two_arms, 1)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_products_are_counted_by_shapes_and_turns(compute: Any, products: int):
    assert counted(compute, jnp.ones((4, 8)), W) == ProductFlops(single=products * PRODUCT)


def test_many_products_in_one_are_counted_apart():
    batched = counted(lambda x, y: jnp.einsum("bij,bjk->bik", x, y), jnp.ones((3, 4, 5)), jnp.ones((3, 5, 6)))
    assert batched == ProductFlops(batched=3 * 2.0 * 4 * 5 * 6) and batched.floor == batched.total / 2


def test_convolution():
    found = counted(lambda x, w: jax.lax.conv(x, w, (1,), "VALID"), jnp.ones((2, 3, 9)), jnp.ones((5, 3, 4)))
    assert found == ProductFlops(single=2.0 * (2 * 5 * 6) * (3 * 4))


def written(config: Any, folder: pathlib.Path, wrap: Any = lambda model: model) -> ExportedProgram:
    scorer = Scorer.of(wrap(config.build(VOCAB, key=jax.random.key(0))), Precision("f32"))
    export_program(scorer, str(folder), ROWS, config.max_seq_len)
    return ExportedProgram.read(folder)


@pytest.mark.parametrize("length", [32, 512])
@pytest.mark.parametrize("kind", ["llama", "gpt"])
def test_model_takes_what_its_own_trace_has(kind: str, length: int, tmp_path: pathlib.Path):
    config: Any = (
        LlamaConfig(**SIZES, seq_len=length, intermediate_dim=96, num_kv_heads=1)
        if kind == "llama"
        else GptConfig(**SIZES, seq_len=length, window_pattern="SL")
    )
    own = scoring_flops(config, VOCAB, length).flops
    assert 0.6 * own < written(config, tmp_path).flops_per_token() < 1.05 * own


class Twice(OnLlama):
    """A pass more, when it is scored."""

    def activations(self, tokens_BT: Any, segment_ids_BT: Any = None) -> Any:
        x_BTD = self.llama.activations(tokens_BT, segment_ids_BT)
        return x_BTD + self.llama.activations(jnp.flip(tokens_BT), segment_ids_BT)


def test_pass_that_is_made_only_when_the_model_is_scored_is_counted(tmp_path: pathlib.Path):
    config = LlamaConfig(**SIZES, seq_len=32, intermediate_dim=96, num_kv_heads=1)
    plain = written(config, tmp_path / "plain").flops_per_token()
    twice = written(config, tmp_path / "twice", Twice).flops_per_token()
    head = 2 * 64 * VOCAB
    assert twice - head == pytest.approx(2 * (plain - head))


def test_model_without_products_takes_those_of_its_head(tmp_path: pathlib.Path):
    class Embedded(eqx.Module):
        table_VD: Any
        lm_head_DV: Any
        logit_softcap: Any = None

        def activations(self, tokens_BT: Any, segment_ids_BT: Any = None) -> Any:
            return self.table_VD[tokens_BT]

    scorer = Scorer.of(Embedded(jnp.ones((VOCAB, 8)), jnp.ones((8, VOCAB))), Precision("f32"))
    export_program(scorer, str(tmp_path), ROWS, 16)
    assert ExportedProgram.read(tmp_path).flops_per_token() == 2 * 8 * VOCAB
