"""cuDNN's attention, on a processor: which way a batch takes, and what each computes when plain JAX stands in for the kernels.

A stand-in does what JAX's documentation says of the function that it replaces, and refuses other arguments. Whether cuDNN does so
too is seen on a GPU only.
"""

import functools
import itertools
import re
import sys
import unittest.mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as binding
from jax.interpreters import partial_eval

from marin.nn import attention_cudnn, recomputing, reference_attention
from marin.nn.attention_cudnn import CHOICE, MOST_PACKED, cudnn_attention

ROWS, TOKENS, WIDTH = 3, 64, 8
CAUSAL, PACKED, BIAS = range(3)
"""The ways, as `_way` numbers them."""
FORWARD, BACKWARD = "dot_product_attention_fwd", "dot_product_attention_bwd"
"""JAX's names for cuDNN's kernels begin so."""


@pytest.fixture(autouse=True)
def forget_the_binding():
    """What JAX has is looked up again."""
    attention_cudnn._packed_kernel.cache_clear()
    yield
    attention_cudnn._packed_kernel.cache_clear()


def on_a_gpu(monkeypatch, capability="9.0", version="0.11.0"):
    monkeypatch.setattr(jax, "local_devices", lambda: [unittest.mock.Mock(compute_capability=capability)])
    monkeypatch.setattr(jax, "__version__", version)


# --- which way -----------------------------------------------------------------------------------------------------


def row_of(*lengths):
    """Segment ids of documents of these lengths."""
    return np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)


def whole(first, *others):
    """A row whose last document is as long as the row needs."""
    return row_of(first, *others, TOKENS - first - sum(others))


def counted(rows):
    """Lengths of the documents of each row and where they begin, by counting."""
    lengths = [[len(list(same)) for _, same in itertools.groupby(row)] for row in rows.tolist()]
    return lengths, [[0, *itertools.accumulate(row[:-1])] for row in lengths]


def random_batches():
    """Rows of 48 tokens, alike in how often a document ends and in nothing else; in some, ids fall."""
    draw = np.random.default_rng(0)
    for ends, falls in itertools.product((0.0, 0.02, 0.1, 0.5, 0.6, 0.7, 1.0), (0.0, 0.0, 0.05)):
        shape = (2, 48)
        steps = draw.integers(1, 4, shape) * (draw.random(shape) < ends)
        yield np.cumsum(np.where(draw.random(shape) < falls, -2, steps), axis=1, dtype=np.int32)


def test_way_of_random_batches_is_that_of_a_count():
    way = jax.jit(attention_cudnn._way)
    expected, found = [], []
    for batch in random_batches():
        falls = any(later < one for row in batch.tolist() for one, later in itertools.pairwise(row))
        most = max(map(len, counted(batch)[0]))
        expected.append(BIAS if falls or most > MOST_PACKED else PACKED if most > 1 else CAUSAL)
        found.append(int(way(batch)))
    assert found == expected
    assert set(expected) == {CAUSAL, PACKED, BIAS}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[0, 0], [5, 5]], CAUSAL),
        ([[-1, -1], [0, 0]], CAUSAL),
        ([[0, 0], [0, 1]], PACKED),
        ([[0, 0], [1, 0]], BIAS),
        ([range(MOST_PACKED), [0] * MOST_PACKED], PACKED),
        ([range(MOST_PACKED + 1), [0] * (MOST_PACKED + 1)], BIAS),
        ([[0, 0, 1, 0], [0, 0, 0, 0]], BIAS),  # that of id 0 is seen again after another
    ],
    ids=str,
)
def test_way_is_that_of_the_row_that_asks_for_most(rows, expected):
    rows = np.array([list(row) for row in rows], np.int32)
    assert int(attention_cudnn._way(rows)) == int(attention_cudnn._way(rows[::-1])) == expected


def test_documents_begin_and_end_where_a_count_says_and_the_other_places_are_minus_one():
    documents = jax.jit(attention_cudnn._documents)
    at_most = [batch for batch in random_batches() if max(map(len, counted(batch)[0])) <= MOST_PACKED]
    tokens_alone = np.stack([np.arange(MOST_PACKED), np.zeros(MOST_PACKED)]).astype(np.int32)
    batches = [*at_most, tokens_alone, np.array([[0, 0], [3, 9]], np.int32)]
    for batch in batches:
        lengths, starts = documents(batch)
        assert lengths.dtype == starts.dtype == jnp.int32
        assert lengths.shape == (2, MOST_PACKED)
        assert starts.shape == (2, MOST_PACKED + 1)
        for found, expected in ((lengths, counted(batch)[0]), (starts, counted(batch)[1])):
            width = found.shape[1]
            assert found.tolist() == [row + [-1] * (width - len(row)) for row in expected], batch
    assert {len(row) for batch in batches for row in counted(batch)[0]} >= {1, 2, MOST_PACKED}


# --- what each way computes ----------------------------------------------------------------------------------------


def plain_attention(q, k, v, visible, scale):
    """Softmax over the keys that are visible, of [B, H, T, T] or what broadcasts to it; not-a-number where none is."""
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    scores = jnp.where(visible, scale * jnp.einsum("bthc,bshc->bhts", q, k), -jnp.inf)
    return jnp.einsum("bhts,bshc->bthc", jax.nn.softmax(scores, axis=-1), v)


def distances():
    """How far each key is before each query, [T, T]."""
    return jnp.arange(TOKENS)[:, None] - jnp.arange(TOKENS)[None, :]


def public_stand_in(way, q, k, v, *, mask, is_causal, local_window_size, implementation):
    """For `jax.nn.dot_product_attention`, when only this way may be taken."""
    assert implementation == "cudnn"
    assert mask is None or (mask.dtype == bool and mask.shape == (len(q), 1, TOKENS, TOKENS))
    before, after = (TOKENS, TOKENS) if local_window_size is None else local_window_size
    visible = (distances() <= before) & (distances() >= (0 if is_causal else -after))
    visible = visible[None, None] if mask is None else visible[None, None] & mask
    out = plain_attention(q, k, v, visible, WIDTH**-0.5)
    return out if way == (CAUSAL if mask is None else BIAS) else jnp.full_like(out, jnp.nan)


def packed_stand_in(
    way, rows, q, k, v, *, q_seqlen, kv_seqlen, q_offsets, kv_offsets, scale, mask_type, sliding_window_length
):
    """For JAX's binding of the packed layout, when only this way may be taken, and so many rows at once."""
    assert len(q) == rows
    assert mask_type is binding.MaskType.PADDING_CAUSAL
    for lengths, offsets in ((q_seqlen, q_offsets), (kv_seqlen, kv_offsets)):
        assert lengths.dtype == offsets.dtype == jnp.int32
        assert lengths.shape == (len(q), MOST_PACKED)
        assert offsets.shape == (len(q), MOST_PACKED + 1)

    def places(lengths, offsets):
        """Of each token in each document, from the document's first on; and whether it is in that document, [B, M, T]."""
        place = jnp.arange(TOKENS)[None, None, :] - offsets[:, :-1, None]
        return place, (lengths[..., None] >= 0) & (place >= 0) & (place < lengths[..., None])

    (place_q, in_q), (place_k, in_k) = places(q_seqlen, q_offsets), places(kv_seqlen, kv_offsets)
    before = place_q[..., :, None] - place_k[..., None, :]
    window = TOKENS if sliding_window_length is None else sliding_window_length
    visible = in_q[..., :, None] & in_k[..., None, :] & (before >= 0) & (before < window)
    out = plain_attention(q, k, v, jnp.any(visible, axis=1)[:, None], scale)
    return out if way == PACKED else jnp.full_like(out, jnp.nan)


def stand_in(monkeypatch, way, rows=ROWS):
    """Plain JAX for cuDNN's kernels. What any way but the given one computes is not a number; rows are packed so many at once."""
    monkeypatch.setattr(jax.nn, "dot_product_attention", functools.partial(public_stand_in, way))
    packed = functools.partial(packed_stand_in, way, rows), binding.MaskType.PADDING_CAUSAL
    monkeypatch.setattr(attention_cudnn, "_packed_kernel", lambda: packed)


def assert_computes_the_reference(segments, window, heads):
    keys = jax.random.split(jax.random.key(1), 4)
    rows = ROWS if segments is None else len(segments)
    q, grad = (jax.random.normal(key, (rows, TOKENS, heads[0], WIDTH)) for key in keys[:2])
    k, v = (jax.random.normal(key, (rows, TOKENS, heads[1], WIDTH)) for key in keys[2:])

    def run(kernel):
        def values_and_gradients(q, k, v, grad):
            out, pull = jax.vjp(lambda q, k, v: kernel(q, k, v, segments, window=window), q, k, v)
            return out, *pull(grad)

        return jax.jit(values_and_gradients)(q, k, v, grad)

    for name, found, expected in zip("oqkv", run(cudnn_attention), run(reference_attention), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5, err_msg=name)


ONE = np.stack([row_of(TOKENS), row_of(TOKENS) + 7, row_of(TOKENS)])
SEVERAL = np.stack([row_of(TOKENS), whole(1, 2, 30, 1), whole(*[1] * (MOST_PACKED - 1))])
MANY = np.stack([row_of(TOKENS), whole(20, 20), whole(*[1] * MOST_PACKED)])
FALLING = np.stack([row_of(TOKENS), whole(20, 20), whole(20, 20) % 2])
BATCHES = {
    "one": (ONE, CAUSAL),
    "several": (SEVERAL, PACKED),
    "many": (MANY, BIAS),
    "falling": (FALLING, BIAS),
}


@pytest.mark.parametrize("heads", [(2, 2), (4, 2)], ids=str)
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("batch", BATCHES)
def test_cudnn_s_attention_and_its_gradients_are_those_of_the_reference(monkeypatch, batch, window, heads):
    segments, way = BATCHES[batch]
    on_a_gpu(monkeypatch)
    stand_in(monkeypatch, way)
    assert_computes_the_reference(segments, window, heads)


@pytest.mark.parametrize("window", [None, 7])
def test_rows_without_segments_are_one_document_each(monkeypatch, window):
    stand_in(monkeypatch, CAUSAL)
    assert_computes_the_reference(None, window, (4, 1))


# --- where packing is not possible ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "version", "heads", "way"),
    [
        ("8.0", "0.11.0", (2, 2), BIAS),
        ("8.9", "0.11.0", (2, 2), BIAS),
        ("9.0", "0.10.2", (4, 2), BIAS),
        ("9.0", "0.10.2", (2, 2), PACKED),
        ("10.3", "0.11.2", (4, 2), PACKED),
        ("12.0", "1.0.0rc1", (4, 2), PACKED),
    ],
)
def test_documents_are_hidden_by_a_bias_where_this_gpu_or_jax_cannot_pack(monkeypatch, capability, version, heads, way):
    on_a_gpu(monkeypatch, capability, version)
    stand_in(monkeypatch, way)
    assert_computes_the_reference(SEVERAL, 7, heads)


@pytest.mark.parametrize("heads", [(2, 2), (4, 2)], ids=str)
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("written", [4, 1], ids=["written out", "loop"])
def test_rows_are_packed_a_few_at_a_time_where_memory_is_short(monkeypatch, rows, heads, written):
    on_a_gpu(monkeypatch)
    monkeypatch.setattr(attention_cudnn, "_MOST_WRITTEN", written)
    num_heads, num_kv_heads = heads
    of_a_row = MOST_PACKED * num_heads * TOKENS * WIDTH * (4 if num_heads == num_kv_heads else 8)
    monkeypatch.setattr(attention_cudnn, "_WORKSPACE", rows * of_a_row)
    segments = np.concatenate([SEVERAL, SEVERAL[::-1]])[:4]
    stand_in(monkeypatch, PACKED, rows=rows)
    assert_computes_the_reference(segments, 7, heads)


def test_documents_are_hidden_by_a_bias_where_one_row_asks_for_too_much_memory(monkeypatch):
    on_a_gpu(monkeypatch)
    long, longer = (jax.ShapeDtypeStruct((2, tokens, 16, 128), jnp.bfloat16) for tokens in (2**15, 2**16))
    assert attention_cudnn._can_pack(long, long)
    assert not attention_cudnn._can_pack(longer, longer)


def without_module(monkeypatch):
    monkeypatch.setitem(sys.modules, binding.__name__, None)


def without_function(monkeypatch):
    monkeypatch.delattr(binding, "dot_product_attention")


def without_parameter(monkeypatch):
    monkeypatch.setattr(binding, "dot_product_attention", lambda query, key, value, q_seqlen, kv_seqlen, scale: query)


def without_mask(monkeypatch):
    monkeypatch.setattr(binding, "MaskType", None)


@pytest.mark.parametrize("moved", [without_module, without_function, without_parameter, without_mask])
def test_documents_are_hidden_by_a_bias_where_jax_has_moved_what_packs(monkeypatch, moved):
    on_a_gpu(monkeypatch)
    look_up = attention_cudnn._packed_kernel
    stand_in(monkeypatch, BIAS)
    monkeypatch.setattr(attention_cudnn, "_packed_kernel", look_up)
    moved(monkeypatch)
    assert look_up() is None
    assert_computes_the_reference(SEVERAL, None, (2, 2))


# --- what JAX has --------------------------------------------------------------------------------------------------


def test_installed_jax_has_the_packed_kernel():
    found = attention_cudnn._packed_kernel()
    assert found is not None, "JAX has moved it: say in `_packed_kernel` where it is, or all documents take the bias"
    kernel, causal = found
    assert kernel is binding.dot_product_attention
    assert causal.name == "PADDING_CAUSAL"


SEGMENTS = jax.ShapeDtypeStruct((2, TOKENS), jnp.int32)


def gradient(monkeypatch, choice, segments=SEGMENTS, capability="9.0"):
    """The program of attention and its gradient on a GPU, by the primitives that JAX has for cuDNN; it can trace them anywhere."""
    on_a_gpu(monkeypatch, capability)
    monkeypatch.setattr(binding, "check_compute_capability", lambda *args: True)
    monkeypatch.setattr(binding, "check_cudnn_version", lambda *args: 90800)
    q, k = (jax.ShapeDtypeStruct((2, TOKENS, heads, 16), jnp.bfloat16) for heads in (4, 2))

    def attend(q, k, v, segments):
        run = recomputing(lambda q, k, v: cudnn_attention(q, k, v, segments, window=7), choice)
        return jnp.sum(run(q, k, v).astype(jnp.float32))

    program = jax.make_jaxpr(jax.value_and_grad(attend, argnums=(0, 1, 2)))(q, k, k, segments).jaxpr
    # Without what nothing needs, as XLA takes it.
    return partial_eval.dce_jaxpr(program, [True] * len(program.outvars))[0]


def kernels_of(program, name):
    """How many calls of the kernel a program has, in all its branches and loops."""
    inner = [leaf for equation in program.eqns for leaf in programs_in(equation)]
    here = sum(equation.primitive.name.startswith(name) for equation in program.eqns)
    return here + sum(kernels_of(leaf, name) for leaf in inner)


def programs_in(equation):
    leaves = jax.tree.leaves(equation.params, is_leaf=lambda leaf: hasattr(leaf, "eqns"))
    return [inner for leaf in leaves if hasattr(inner := getattr(leaf, "jaxpr", leaf), "eqns")]


def choices_of(program):
    """Of each conditional of a program its name in compiled programs, and the shapes of its results."""
    for equation in program.eqns:
        if equation.primitive.name == "cond":
            yield str(equation.source_info.name_stack), [variable.aval.shape for variable in equation.outvars]
        for inner in programs_in(equation):
            yield from choices_of(inner)


def test_rows_packed_a_few_at_a_time_leave_the_backward_pass_nothing_and_are_computed_again(monkeypatch):
    monkeypatch.setattr(attention_cudnn, "_WORKSPACE", MOST_PACKED * 4 * TOKENS * 16 * 8)
    program = gradient(monkeypatch, False)
    # Two ways beside it, and each of two rows forward and again backward.
    assert kernels_of(program, FORWARD) == 2 + 2 * 2
    # A loop in one of its branches would keep the choice off the GPU's own launches.
    assert not re.search(r"\b(while|scan)\[", str(program))
    (_, forward), _ = choices_of(program)
    assert forward == [(2, TOKENS, 4, 16), (2, 4, TOKENS)]


def test_parts_of_many_rows_are_a_loop_so_that_a_program_stays_small(monkeypatch):
    monkeypatch.setattr(attention_cudnn, "_WORKSPACE", MOST_PACKED * 4 * TOKENS * 16 * 8)
    monkeypatch.setattr(attention_cudnn, "_MOST_WRITTEN", 1)
    program = gradient(monkeypatch, False)
    assert kernels_of(program, FORWARD) == 2 + 2
    assert re.search(r"\b(while|scan)\[", str(program))


@pytest.mark.parametrize(("choice", "times"), [(True, 2), ("products", 1), (False, 1)])
def test_gradient_runs_each_way_s_forward_kernel_again_only_where_blocks_are_recomputed(monkeypatch, choice, times):
    program = gradient(monkeypatch, choice)
    assert kernels_of(program, FORWARD) == 3 * times
    assert kernels_of(program, BACKWARD) == 3
    assert len(list(choices_of(program))) == times + 1


def test_choice_keeps_each_result_once_and_gives_nothing_more_than_gradients_backward(monkeypatch):
    (_, forward), (_, backward) = choices_of(gradient(monkeypatch, False))
    statistics, packed = (2, 4, TOKENS), (2 * MOST_PACKED, 4, TOKENS)
    assert forward == [(2, TOKENS, 4, 16), statistics, packed]
    assert backward == [(2, TOKENS, 4, 16), (2, TOKENS, 2, 16), (2, TOKENS, 2, 16)]


@pytest.mark.parametrize("segments", [None, SEGMENTS], ids=["none", "biased"])
@pytest.mark.parametrize(("choice", "times"), [(True, 2), ("products", 1), (False, 1)])
def test_one_way_alone_is_no_choice_and_runs_its_kernels_as_often(monkeypatch, segments, choice, times):
    program = gradient(monkeypatch, choice, segments=segments, capability="8.0")
    assert not list(choices_of(program))
    assert kernels_of(program, FORWARD) == times
    assert kernels_of(program, BACKWARD) == 1


@pytest.mark.parametrize("choice", [True, "products", False])
def test_choice_bears_its_name_forward_and_backward(monkeypatch, choice):
    """`benchmarks.absent_gpu` knows it by that."""
    names = [name for name, _ in choices_of(gradient(monkeypatch, choice))]
    assert len(names) >= 2
    assert all(re.search(rf"\b{CHOICE}\b", name) for name in names), names
