"""FLOPs that the traced program has: by hand, against the published formula, and against XLA's own count."""

import dataclasses
import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from on_llama import OnLlama

from marin.errors import ConfigError
from marin.models import LlamaConfig
from marin.nn import AttentionBackend, Precision, attention
from marin.nn.attention_counting import counting_attention, keys_per_query
from marin.training.state import StepConfig
from marin.training.traced_flops import count_flops, forward_flops, held_bytes, scoring_flops, traced_flops

STEP = StepConfig(Precision("f32"))


def _llama(**options) -> LlamaConfig:
    sizes = {
        "seq_len": 128,
        "hidden_dim": 64,
        "intermediate_dim": 160,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
    }
    return LlamaConfig(**(sizes | options))


def _count(program, *arguments) -> float:
    return count_flops(jax.make_jaxpr(program)(*arguments).jaxpr).flops


# ---- the walk, by hand -----------------------------------------------------------------------------------------------


def test_count_of_a_product_is_two_a_multiply_add_and_loops_count_each_turn():
    def program(x, w):
        return jax.lax.scan(lambda x, _: (x @ w, None), x, None, length=5)[0]

    assert _count(jax.jit(program), jnp.ones((3, 4)), jnp.ones((4, 4))) == 5 * 2 * 3 * 4 * 4


def test_count_of_a_branch_is_its_dearest_arm():
    def program(x, w):
        return jax.lax.cond(x[0, 0] > 0, lambda: x @ w @ w, lambda: x @ w)

    assert _count(program, jnp.ones((3, 4)), jnp.ones((4, 4))) == 2 * 2 * 3 * 4 * 4


def test_count_of_a_while_loop_is_one_turn_and_says_so():
    def program(x, w):
        return jax.lax.while_loop(lambda x: x[0, 0] < 10, lambda x: x @ w, x)

    found = count_flops(jax.make_jaxpr(program)(jnp.ones((3, 4)), jnp.ones((4, 4))).jaxpr)
    assert (found.flops, found.uncounted) == (2 * 3 * 4 * 4, ("while",))


def test_count_names_the_foreign_code_that_it_cannot_see():
    def program(x):
        return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((3,), jnp.float32), x)

    assert count_flops(jax.make_jaxpr(program)(jnp.ones(3)).jaxpr).uncounted == ("pure_callback",)


def test_count_names_fourier_transforms_which_it_leaves_out():
    found = count_flops(jax.make_jaxpr(lambda x: jnp.fft.irfft(jnp.fft.rfft(x)))(jnp.ones((4, 64))).jaxpr)
    assert (found.flops, found.uncounted) == (0.0, ("fft",))


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (jnp.linalg.cholesky, 2 * 48**3 / 3),
        (lambda x: jax.scipy.linalg.solve_triangular(x, jnp.ones((2, 48, 5))), 2 * 5 * 48**2),
        (lambda x: jnp.linalg.solve(x, jnp.ones((2, 48, 5))), 2 * (2 * 48**3 / 3 + 2 * 5 * 48**2)),
        (jnp.linalg.qr, 2 * (4 * 48**3 / 3 + 4 * 48**3 / 3)),
        (lambda x: jnp.linalg.qr(x[..., :16]), 2 * 2 * 2 * 16**2 * (48 - 16 / 3)),
        (
            lambda x: jnp.linalg.qr(x[..., :16], mode="complete"),
            2 * (2 * 16**2 * (48 - 16 / 3) + 4 * 48**2 * 16 - 4 * 48 * 16**2 + 4 / 3 * 16**3),
        ),
        (lambda x: jax.lax.linalg.eigh(x, symmetrize_input=False), 2 * 9 * 48**3),
        (lambda x: jnp.linalg.svd(x, full_matrices=False), 2 * 22 * 48**3),
        (lambda x: jnp.linalg.svd(x[..., :16]), 2 * (4 * 48**2 * 16 + 8 * 48 * 16**2 + 9 * 16**3)),
        (lambda x: jnp.linalg.svd(x, compute_uv=False), 2 * 8 * 48**3 / 3),
        (jnp.linalg.eig, 2 * 25 * 48**3),
        (lambda x: jax.lax.linalg.lu(x)[0], 2 * 2 * 48**3 / 3),
    ],
    ids=[
        "cholesky",
        "triangular",
        "solve",
        "qr",
        "tall-qr",
        "whole-qr",
        "eigh",
        "svd",
        "full-svd",
        "values",
        "eig",
        "lu",
    ],
)
def test_count_of_a_factorization_is_that_of_the_textbook(program, expected):
    found = count_flops(jax.make_jaxpr(program)(jnp.ones((2, 48, 48))).jaxpr)
    assert found.flops == pytest.approx(expected)
    assert found.uncounted == ()


def test_count_of_a_ragged_product_and_of_its_gradient():
    x_MK, w_GKN, sizes_G = jnp.ones((12, 5)), jnp.ones((3, 5, 7)), jnp.array([4, 4, 4], jnp.int32)
    program = lambda x, w: jax.lax.ragged_dot(x, w, sizes_G)  # noqa: E731
    once = 2 * 12 * 5 * 7
    assert _count(program, x_MK, w_GKN) == once
    gradient = lambda x, w: jax.vjp(program, x, w)[1](jnp.ones((12, 7)))  # noqa: E731
    assert _count(gradient, x_MK, w_GKN) == 3 * once


def test_count_of_a_pallas_kernel_is_its_estimate_or_its_body_at_each_point_of_the_grid():
    from jax.experimental import pallas as pl

    def kernel(x_ref, w_ref, out_ref):
        out_ref[...] = jnp.dot(x_ref[...], w_ref[...])

    def program(x, w, estimate=None):
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((32, 8), jnp.float32),
            grid=(4,),
            in_specs=[pl.BlockSpec((8, 16), lambda i: (i, 0)), pl.BlockSpec((16, 8), lambda i: (0, 0))],
            out_specs=pl.BlockSpec((8, 8), lambda i: (i, 0)),
            cost_estimate=estimate,
        )(x, w)

    x, w = jnp.ones((32, 16)), jnp.ones((16, 8))
    assert _count(program, x, w) == 2 * 32 * 16 * 8
    stated = pl.CostEstimate(flops=1234, transcendentals=0, bytes_accessed=0)
    assert _count(lambda x, w: program(x, w, stated), x, w) == 1234


def test_count_inside_shard_map_is_that_of_all_devices():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.PartitionSpec("data")
    program = jax.shard_map(
        lambda x, w: x @ w, mesh=mesh, in_specs=(rows, jax.sharding.PartitionSpec()), out_specs=rows
    )
    assert _count(program, jnp.ones((16, 4)), jnp.ones((4, 4))) == 2 * 16 * 4 * 4


def test_what_a_program_holds_counts_arrays_and_numbers_that_stand_alone():
    table = np.random.default_rng(0).integers(0, 2**31, 500, np.int32)
    held = lambda program: held_bytes(jax.make_jaxpr(program)(jnp.ones(3)))  # noqa: E731
    assert held(lambda x: x @ jnp.ones(3) + jnp.cos(jnp.arange(500, dtype=jnp.float32))[0])[0] < 100
    size, largest = held(lambda x: x[0] + jnp.asarray(table).astype(jnp.float32)[0])
    assert size > 1900 and largest == "int32[500]"
    one_by_one = lambda x: sum((x[0] * np.float32(number) for number in table), x[1])  # noqa: E731
    assert held(one_by_one)[0] > 1500
    kept = jax.new_ref(jnp.asarray(table))  # a mutable array
    size, largest = held(lambda x: x[0] + kept[...].astype(jnp.float32)[0])
    assert size > 1900 and largest == "int32[500]"


# ---- against XLA, on models without attention ------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(64, 128, 256), (32, 512, 96)])
def test_count_of_a_tower_and_its_gradient_is_that_of_xla(shape):
    num_rows, width, inner = shape
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (num_rows, width))
    weights = [jax.random.normal(keys[1], (width, inner)), jax.random.normal(keys[2], (inner, width))]

    def loss(weights, x):
        for _ in range(3):
            x = jnp.maximum(x @ weights[0], 0.0) @ weights[1]
        return jnp.sum(x)

    gradient = jax.value_and_grad(loss, argnums=(0, 1))
    by_xla = jax.jit(gradient).lower(weights, x).compile().cost_analysis()["flops"]
    # XLA counts element-wise work too.
    assert _count(gradient, weights, x) == pytest.approx(by_xla, rel=0.02)


def test_count_of_a_convolution_is_that_of_xla():
    x, kernel = jnp.ones((4, 32, 32, 8)), jnp.ones((3, 3, 8, 16))

    def program(x, kernel):
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=numbers)

    by_xla = jax.jit(program).lower(x, kernel).compile().cost_analysis()["flops"]
    assert _count(program, x, kernel) == pytest.approx(by_xla, rel=0.01)


# ---- attention -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [None, 1, 16, 64, 200])
def test_keys_that_are_counted_are_the_area_under_the_causal_band(window):
    num_tokens, width = 64, min(window or 64, 64)
    area = sum(min(query + 0.5, width) for query in range(num_tokens))  # the band's area, query by query
    # Exact but for the one query in which the band reaches its width, and for rounding a key up.
    assert 0 <= keys_per_query("visible", num_tokens, window) - area / num_tokens <= 1 + 1e-9
    assert keys_per_query("all", num_tokens, window) == num_tokens


@pytest.mark.parametrize("backend", [AttentionBackend.VANILLA, AttentionBackend.JAX_FLASH])
@pytest.mark.parametrize("num_tokens", [64, 512])  # the two programs of JAX_FLASH
def test_count_of_attention_is_the_same_whatever_the_kernel_and_its_gradient_twice_it(backend, num_tokens):
    q, kv = jnp.ones((2, num_tokens, 4, 8)), jnp.ones((2, num_tokens, 2, 8))
    program = lambda q, k, v: attention(q, k, v, None, backend=backend)  # noqa: E731
    gradient = lambda q, k, v: jax.vjp(program, q, k, v)[1](q)  # noqa: E731
    square = 2 * 2 * (2 * 4 * num_tokens * num_tokens * 8)  # scores and values
    for keys, expected in (("all", square), ("visible", square / 2)):
        with counting_attention(keys):
            assert _count(program, q, kv, kv) == expected
            assert _count(gradient, q, kv, kv) == 3 * expected


def test_attention_that_was_traced_for_counting_is_never_computed():
    attend = jax.jit(lambda q: attention(q, q, q, None))
    q = jax.random.normal(jax.random.key(0), (1, 16, 2, 4))
    with counting_attention("visible"):
        jax.make_jaxpr(attend)(q)
    expected = attention(q, q, q, None, backend=AttentionBackend.VANILLA)
    assert jnp.allclose(attend(q), expected, atol=1e-5)


# ---- models ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [None, "JAX_FLASH", "VANILLA"])
def test_count_of_a_llama_is_the_formula_but_for_the_softmax_whatever_the_kernel(backend):
    config = _llama(attn_backend=backend)
    softmax = 2 * 3 * 128 * 4  # layers x 3 FLOPs a score; no matrix product, so not counted
    assert forward_flops(config, 1000, "all").flops == config.flops_per_token(1000, 128) - softmax


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_checkpointing": False},
        {"num_kv_heads": 4, "num_layers": 1, "tie_word_embeddings": True},
        {"hidden_dim": 96, "seq_len": 256, "num_heads": 3, "num_kv_heads": 3},
    ],
    ids=["remat", "plain", "tied", "wide"],
)
def test_traced_flops_of_a_llama_are_the_closed_formula_with_attention_halved(options):
    config = _llama(**options)
    width, heads, length = config.hidden_dim, config.num_heads, config.seq_len
    head_dim = width // heads
    projections = 2 * width * (2 * heads * head_dim + 2 * config.num_kv_heads * head_dim)
    causal_attention = 2 * (2 * length * heads * head_dim) / 2
    feed_forward = 3 * 2 * width * config.intermediate_dim
    forward = config.num_layers * (projections + causal_attention + feed_forward) + 2 * width * 1000
    found = traced_flops(config, 1000, STEP)
    assert found.forward == forward == forward_flops(config, 1000, "visible").flops
    assert found.training == 3 * forward  # recomputation is not the model's need
    assert found.uncounted == ()


def test_traced_flops_of_a_head_that_the_loss_takes_in_blocks_are_the_same():
    config = _llama()
    blocks = dataclasses.replace(STEP, loss_block=32)
    assert traced_flops(config, 1000, blocks) == traced_flops(config, 1000, STEP)


def test_count_shows_a_formula_that_leaves_something_out():
    honest = _llama()

    @dataclasses.dataclass(frozen=True)
    class Flattering(LlamaConfig):
        def flops_per_token(self, vocab_size, context_length):
            return 0.5 * super().flops_per_token(vocab_size, context_length)

    flattering = Flattering(**{f.name: getattr(honest, f.name) for f in dataclasses.fields(honest)})
    assert forward_flops(flattering, 100, "all").flops == forward_flops(honest, 100, "all").flops
    assert flattering.flops_per_token(100, 128) < 0.6 * forward_flops(flattering, 100, "all").flops


class _TwoPasses(OnLlama):
    """Reads the text twice when it is scored, and once in training."""

    def training_activations(self, tokens_BT, segment_ids_BT):
        return self.llama.activations(tokens_BT, segment_ids_BT), {}

    def activations(self, tokens_BT, segment_ids_BT):
        return sum(self.llama.activations(tokens_BT, segment_ids_BT) for _ in range(2))


def test_scoring_flops_have_what_a_model_computes_only_when_it_is_scored():
    @dataclasses.dataclass(frozen=True)
    class TwoPasses(LlamaConfig):
        def build(self, vocab_size, *, key):
            return _TwoPasses(super().build(vocab_size, key=key))

    plain = _llama()
    assert scoring_flops(plain, 1000, 128) == forward_flops(plain, 1000, "visible")
    config = TwoPasses(**{f.name: getattr(plain, f.name) for f in dataclasses.fields(plain)})
    head = 2 * plain.hidden_dim * 1000
    once = traced_flops(config, 1000, STEP).forward
    assert once == traced_flops(plain, 1000, STEP).forward
    assert scoring_flops(config, 1000, 128).flops == 2 * (once - head) + head


def test_traced_flops_have_the_losses_that_a_model_adds_in_training():
    @dataclasses.dataclass(frozen=True)
    class WithExtraHead(LlamaConfig):
        def build(self, vocab_size, *, key):
            return _ExtraHead(super().build(vocab_size, key=key))

    plain = _llama()
    config = WithExtraHead(**{f.name: getattr(plain, f.name) for f in dataclasses.fields(plain)})
    extra = 2 * plain.hidden_dim * 1000
    found, without = traced_flops(config, 1000, STEP), traced_flops(plain, 1000, STEP)
    assert found.training - without.training == 3 * extra
    forward, forward_without = (forward_flops(c, 1000, "visible").flops for c in (config, plain))
    assert forward - forward_without == extra


class _ExtraHead(eqx.Module):
    inner: eqx.Module
    logit_softcap = None

    @property
    def lm_head_DV(self):
        return self.inner.lm_head_DV

    def activations(self, tokens_BT, segment_ids_BT):
        return self.inner.activations(tokens_BT, segment_ids_BT)

    def training_activations(self, tokens_BT, segment_ids_BT):
        x_BTD = self.activations(tokens_BT, segment_ids_BT)
        return x_BTD, {"extra": jnp.mean(jnp.square(x_BTD @ self.lm_head_DV))}


# ---- models that cannot be scored ------------------------------------------------------------------------------------


class _Altered(OnLlama):
    """A Llama whose vectors and head go through `vectors` and `head`."""

    vectors: Any = eqx.field(static=True)
    head: Any = eqx.field(static=True)

    @property
    def lm_head_DV(self):
        return self.head(self.llama.lm_head_DV)

    def activations(self, tokens_BT, segment_ids_BT):
        return self.vectors(self.llama.activations(tokens_BT, segment_ids_BT))


@dataclasses.dataclass(frozen=True)
class _AlteredConfig:
    vectors: Any = lambda x: x
    head: Any = lambda x: x
    llama: LlamaConfig = dataclasses.field(default_factory=lambda: _llama(num_layers=1))

    @property
    def max_seq_len(self):
        return self.llama.max_seq_len

    def build(self, vocab_size, *, key):
        return _Altered(self.llama.build(vocab_size, key=key), self.vectors, self.head)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vectors": lambda x: None}, "`activations` of _Altered returns None for 1 rows of 128 tokens"),
        ({"vectors": lambda x: (x, {})}, "returns a tuple for 1 rows"),
        ({"vectors": lambda x: x[:, :-1]}, "returns an array [1, 127, 64] for 1 rows of 128 tokens"),
        ({"vectors": lambda x: x.mean(1)}, "returns an array [1, 64]"),
        ({"head": lambda x: x.T}, "`lm_head_DV` of _Altered is an array [512, 64]: make it"),
        ({"head": lambda x: x[:, :-1]}, "is an array [64, 511]"),
        ({"head": lambda x: None}, "is a NoneType"),
    ],
)
def test_model_whose_outputs_cannot_be_scored_is_named_with_their_shapes(changes: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=re.escape(said)):
        forward_flops(_AlteredConfig(**changes), 512, "all")


def test_head_may_be_padded():
    padded = _AlteredConfig(head=lambda x: jnp.pad(x, ((0, 0), (0, 64))))
    assert forward_flops(padded, 512, "all").flops > forward_flops(_AlteredConfig(), 512, "all").flops
