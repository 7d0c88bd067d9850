"""FLOPs that the traced program counts, against the published formula and by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from marin.models import LlamaConfig
from marin.speedrun.flops import count_flops, counted_flops_per_token


def test_count_of_a_product_is_two_a_multiply_add_and_loops_count_each_turn():
    def program(x, w):
        def turn(x, _):
            return x @ w, None

        return jax.lax.scan(turn, x, None, length=5)[0]

    jaxpr = jax.make_jaxpr(jax.jit(program))(jnp.ones((3, 4)), jnp.ones((4, 4))).jaxpr
    assert count_flops(jaxpr) == 5 * 2 * 3 * 4 * 4


@pytest.mark.parametrize("backend", [None, "JAX_FLASH", "VANILLA"])
@pytest.mark.parametrize("remat", [True, False])
def test_count_of_a_llama_is_the_formula_but_for_the_softmax_whatever_the_kernel(backend, remat):
    config = LlamaConfig(
        seq_len=512,
        hidden_dim=128,
        intermediate_dim=448,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        attn_backend=backend,
        gradient_checkpointing=remat,
    )
    softmax = 3 * 3 * 512 * 4  # layers x 3 FLOPs a score; no matrix product, so not counted
    assert counted_flops_per_token(config, 1000) == pytest.approx(config.flops_per_token(1000, 512) - softmax, rel=1e-6)


def test_count_shows_a_formula_that_leaves_something_out():
    honest = LlamaConfig(seq_len=64, hidden_dim=32, intermediate_dim=64, num_layers=2, num_heads=2, num_kv_heads=2)

    @dataclasses.dataclass(frozen=True)
    class Flattering(LlamaConfig):
        def flops_per_token(self, vocab_size, context_length):
            return 0.5 * super().flops_per_token(vocab_size, context_length)

    flattering = Flattering(**{f.name: getattr(honest, f.name) for f in dataclasses.fields(honest)})
    assert counted_flops_per_token(flattering, 100) == counted_flops_per_token(honest, 100)
    assert flattering.flops_per_token(100, 64) < 0.6 * counted_flops_per_token(flattering, 100)
