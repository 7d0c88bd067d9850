"""Next-token loss, computed a block of tokens at a time so that the whole [B, T, V] logits never exist.

Training uses `weighted_cross_entropy`, a weighted sum whose gradients are computed in the same pass as the loss: the
weights are known beforehand, so nothing has to be recomputed, and of the four matrix products that recomputing would
take, three remain. Evaluation uses `cross_entropy`, the loss of each token. Both work in float32 on the logits, which training
in bfloat16 rounds to it first.

On a CPU with a large vocabulary, what a block of tokens adds to the head's gradient is computed a chunk of the vocabulary
at a time and added in place: the whole would be a second array as large as the head.

On a mesh of devices each computes the loss of its own rows and positions with the whole head; positions are then divided
along the tensor axis too. The head's gradient is added up over devices once, after the last block.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from marin.nn.axes import BATCH_AXES, SEQUENCE, TENSOR, ambient_axes, dividing
from marin.nn.fp8 import BACKWARD, FORWARD, Fp8, contract, to_fp8
from marin.nn.loss_kernel import has_loss_kernel, logits_gradient, softmax_gradient
from marin.nn.precision import wide_einsum

Block = tuple[Array, Array, Array]

# On a CPU: columns of the head's gradient that a product writes at once, where the vocabulary has more than four times
# as many, and logits that exist at once (128 MiB). At vocabulary 128,256, T = 4,096 and width 512 the loss needs 0.11 of
# the memory of all logits at once; with all columns and 512 tokens at once it needs 0.18.
_CPU_CHUNK, _CPU_LOGITS = 8192, 2**25
_NORMALIZER_PARTS = 8
_SMALL_CAP = 40.0  # exp(-2 x 40) is a normal number of float32


def cross_entropy(
    x_BTD: Float[Array, "B T D"],
    head_DV: Float[Array, "D V"],
    target_BT: Int[Array, "B T"],
    *,
    block: int,
    softcap: float | None = None,
) -> Float[Array, "B T"]:
    """Loss of each token in nats, by probabilities that sum to 1 however large the logits are; its gradient recomputes each block's logits.

    Args:
        block: the most tokens whose logits exist at once (a block is whole columns of the batch, at least one). On a
            CPU it is also held to 2^25 logits.
        softcap: logits become `softcap * tanh(logits / softcap)`.
    """
    score = functools.partial(_cross_entropy, block=block, softcap=softcap)
    spec_BT = _places(target_BT)
    return (
        score(x_BTD, head_DV, target_BT)
        if spec_BT is None
        else _over_mesh(score, spec_BT, spec_BT)(x_BTD, head_DV, target_BT)
    )


def _cross_entropy(
    x_BTD: Array, head_DV: Array, target_BT: Array, *, block: int, softcap: float | None
) -> Float[Array, "B T"]:
    @jax.checkpoint
    def block_loss(x_BtD: Array, target_Bt: Array) -> Array:
        logits, _ = _logits(x_BtD, head_DV, softcap)
        # The largest logit is taken off both terms and never added to one: beside a logit of 1e8 float32 does not see the sum's logarithm,
        # and every token of the vocabulary would cost nothing.
        below_top = logits - jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
        return jnp.log(jnp.sum(jnp.exp(below_top), axis=-1)) - _picked(below_top, target_Bt)

    block = _tokens_at_once(block, head_DV)
    xs = (_columns(x_BTD, block), _columns(target_BT, block))
    loss_nBt = jax.lax.map(lambda pair: block_loss(*pair), xs)
    return _rows(loss_nBt, target_BT.shape[1])


def weighted_cross_entropy(
    x_BTD: Float[Array, "B T D"],
    head_DV: Float[Array, "D V"],
    target_BT: Int[Array, "B T"],
    weight_BT: Float[Array, "B T"],
    block: int,
    softcap: float | None = None,
    z_loss_weight: float = 0.0,
    *,
    in_fp8: bool = False,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Sum over tokens of weight x nats, and the z-loss sum of weight x z_loss_weight x logsumexp^2 (PaLM, arXiv:2204.02311).

    The sum to minimize is that of both results. Only `x_BTD` and `head_DV` receive gradients; both results must have the
    same cotangent, as they do when they are added and scaled.

    Args:
        in_fp8: multiply the logits' gradient by the head in FP8, for the gradient of `x_BTD`. The logits stay as they are, and so does the
            loss: of random ones in FP8 an H200 made it 0.005 nats a token too small. Without effect where a CPU takes the vocabulary in chunks.
    """
    options = _Options(block, softcap, z_loss_weight, in_fp8)
    spec_BT = _places(target_BT)
    if spec_BT is None:
        return _weighted_sums(x_BTD, head_DV, target_BT, weight_BT, options)

    def of_device(x_BTD: Array, head_DV: Array, target_BT: Array, weight_BT: Array) -> tuple[Array, Array]:
        nats, penalty = _weighted_sums(x_BTD, head_DV, target_BT, weight_BT, options)
        return nats.reshape(1, 1), penalty.reshape(1, 1)

    sums = _over_mesh(of_device, spec_BT, (spec_BT, spec_BT))(x_BTD, head_DV, target_BT, weight_BT)
    return jnp.sum(sums[0]), jnp.sum(sums[1])


def _places(target_BT: Array) -> PartitionSpec | None:
    """How rows and positions are divided between the devices of the ambient mesh; None where they are not."""
    sizes = ambient_axes()
    rows, positions = (
        dividing(sizes, axes, dim) for axes, dim in zip((BATCH_AXES, (SEQUENCE, TENSOR)), target_BT.shape, strict=True)
    )
    return PartitionSpec(rows, positions) if sizes else None


def _over_mesh(fn: Callable[..., Any], spec_BT: PartitionSpec, out_specs: Any) -> Callable[..., Any]:
    """`fn(x_BTD, head_DV, *others_BT)` on each device's rows and positions."""

    def run(x_BTD: Array, head_DV: Array, *others_BT: Array) -> Any:
        in_specs = (spec_BT, PartitionSpec(), *(spec_BT for _ in others_BT))
        return jax.shard_map(fn, in_specs=in_specs, out_specs=out_specs, check_vma=False)(x_BTD, head_DV, *others_BT)

    return run


class _Options(NamedTuple):
    """Those of `weighted_cross_entropy`."""

    block: int
    softcap: float | None
    z_loss_weight: float
    in_fp8: bool


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _weighted_sums(
    x_BTD: Array, head_DV: Array, target_BT: Array, weight_BT: Array, options: _Options
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    def step(total: Array, inputs: Block) -> tuple[Array, None]:
        x_BtD, target_Bt, weight_Bt = inputs
        logits, _ = _capped(_rounded_logits(x_BtD, head_DV).astype(jnp.float32), options.softcap)
        log_z = jax.nn.logsumexp(logits, axis=-1)
        nats = jnp.sum(weight_Bt * (log_z - _picked(logits, target_Bt)))
        return total + jnp.stack([nats, options.z_loss_weight * jnp.sum(weight_Bt * jnp.square(log_z))]), None

    block = _tokens_at_once(options.block, head_DV)
    total, _ = jax.lax.scan(step, jnp.zeros((2,), jnp.float32), _blocks(x_BTD, target_BT, weight_BT, block))
    return total[0], total[1]


def _forward_with_gradients(
    x_BTD: Array, head_DV: Array, target_BT: Array, weight_BT: Array, options: _Options
) -> tuple[tuple[Array, Array], Block]:
    softcap, z_loss = options.softcap, options.z_loss_weight
    vocab = jnp.arange(head_DV.shape[1], dtype=target_BT.dtype)[None, None, :]
    block = _tokens_at_once(options.block, head_DV)
    head_DV8 = to_fp8(head_DV, FORWARD) if options.in_fp8 else None

    def step(carry: tuple[Array, Array], inputs: Block) -> tuple[tuple[Array, Array], Array]:
        total, grad_head_DV = carry
        x_BtD, target_Bt, weight_Bt = inputs
        rounded = _rounded_logits(x_BtD, head_DV)
        logits, slope = _capped(rounded.astype(jnp.float32), softcap)
        top, sum_exp = _normalizer(logits, softcap)
        log_z = (jnp.log(sum_exp) + top)[..., 0]
        # On an accelerator they are capped again for each use: XLA would write them for all, as much as it reads.
        again = softcap is not None and jax.default_backend() != "cpu"
        picked = (
            softcapped(_picked(rounded, target_Bt).astype(jnp.float32), softcap)
            if again
            else _picked(logits, target_Bt)
        )
        nats = jnp.sum(weight_Bt * (log_z - picked))
        penalty = z_loss * jnp.sum(weight_Bt * jnp.square(log_z))
        if again:
            logits, slope = _capped(jax.lax.optimization_barrier(rounded).astype(jnp.float32), softcap)
        # d/dlogits of nats is softmax - onehot, of the penalty 2 z log_z softmax.
        scale = (weight_Bt * (1.0 + 2.0 * z_loss * log_z))[..., None] / sum_exp
        softmax = _Softmax(top, scale, target_Bt, weight_Bt)
        if _num_chunks(head_DV.shape[1]) > 1:
            grad_head_DV, grad_x_BtD = _add_in_chunks(grad_head_DV, x_BtD, head_DV, logits, softmax, softcap)
            return (total + jnp.stack([nats, penalty]), grad_head_DV), grad_x_BtD
        if head_DV8 is None and has_loss_kernel(rounded):
            grad_logits = logits_gradient(rounded, *softmax, softcap)
        else:
            target_Bt1, weight_Bt1 = target_Bt[..., None], weight_Bt[..., None]
            grad_logits = softmax_gradient(logits, slope, top, scale, target_Bt1, weight_Bt1, vocab)
        if head_DV8 is None:
            grad_logits = grad_logits.astype(x_BtD.dtype)
            grad_x_BtD = jnp.einsum("btv,dv->btd", grad_logits, head_DV)
        else:
            # A softmax is at most 1, and so is a cap's slope: nothing has to be looked for.
            largest = jnp.max(jnp.abs(weight_Bt * (1.0 + jnp.abs(2.0 * z_loss * log_z))))
            grad_x_BtD = _times_head(grad_logits, head_DV8, largest, x_BtD.dtype)
            grad_logits = grad_logits.astype(x_BtD.dtype)
        grad_head_DV += wide_einsum("btd,btv->dv", x_BtD, grad_logits)
        return (total + jnp.stack([nats, penalty]), grad_head_DV), grad_x_BtD

    start = (jnp.zeros((2,), jnp.float32), jnp.zeros(head_DV.shape, jnp.float32))
    (total, grad_head_DV), grad_x_nBtD = jax.lax.scan(step, start, _blocks(x_BTD, target_BT, weight_BT, block))
    grad_x_BTD = _rows(grad_x_nBtD, x_BTD.shape[1])
    return (total[0], total[1]), (grad_x_BTD, grad_head_DV.astype(head_DV.dtype), weight_BT)


def _times_head(
    grad_BtV: Float[Array, "B t V"], head_DV8: Fp8, largest: Float[Array, ""], dtype: Any
) -> Float[Array, "B t D"]:
    """The gradient of the vectors that the head multiplies, in FP8."""
    grad_NV8 = to_fp8(grad_BtV.reshape(-1, grad_BtV.shape[-1]), BACKWARD, largest)
    grad_ND = contract(grad_NV8, head_DV8, 1, 1, dtype, jax.lax.Precision.HIGHEST)
    return grad_ND.reshape(*grad_BtV.shape[:-1], -1)


def _backward(options: _Options, saved: Block, cotangent: tuple[Array, Array]) -> tuple[Array, Array, None, None]:
    grad_x_BTD, grad_head_DV, _ = saved
    scale = cotangent[0]
    return grad_x_BTD * scale.astype(grad_x_BTD.dtype), grad_head_DV * scale.astype(grad_head_DV.dtype), None, None


_weighted_sums.defvjp(_forward_with_gradients, _backward)


def _rounded_logits(x_BtD: Array, head_DV: Array) -> Float[Array, "B t V"]:
    """Logits before a cap as training holds them, in the format that it computes in.

    On an accelerator what the loss costs beside its products is that they are written once and read twice; on a CPU products of
    bfloat16 are fast where their result has that type.
    """
    return jnp.einsum("btd,dv->btv", x_BtD, head_DV)


def _logits(x: Array, head_DV: Array, softcap: float | None) -> tuple[Float[Array, "... V"], Array | None]:
    """Float32 logits and, where they are capped, the slope of the cap."""
    return _capped(jnp.einsum("...d,dv->...v", x, head_DV, preferred_element_type=jnp.float32), softcap)


def softcapped(logits: Float[Array, "*N V"], softcap: float | None) -> Float[Array, "*N V"]:
    """What a model's logits become under its cap; None leaves them."""
    return logits if softcap is None else softcap * jnp.tanh(logits / softcap)


def _capped(logits: Array, softcap: float | None) -> tuple[Float[Array, "... V"], Array | None]:
    if softcap is None:
        return logits, None
    bounded = jnp.tanh(logits / softcap)
    return softcap * bounded, 1.0 - jnp.square(bounded)


def _normalizer(
    logits: Float[Array, "B t V"], softcap: float | None
) -> tuple[Float[Array, "B t 1"], Float[Array, "B t 1"]]:
    """What is taken off the logits of each token, the largest or a number above, and the sum of exponentials of what is left."""
    if jax.default_backend() == "cpu":
        top = jnp.max(logits, axis=-1, keepdims=True)
        return top, jnp.sum(jnp.exp(logits - top), axis=-1, keepdims=True)
    if softcap is not None and softcap <= _SMALL_CAP:
        # No logit is above the cap, and none so far below that its exponential would vanish.
        top = jnp.full((*logits.shape[:-1], 1), softcap, logits.dtype)
        return top, jnp.sum(jnp.exp(logits - top), axis=-1, keepdims=True)
    # A TPU reads vectors of 128 numbers, at whose edges parts need not begin; parts that are capped would be written first.
    in_parts = jax.default_backend() == "gpu" and softcap is None
    num_parts = math.gcd(logits.shape[-1], _NORMALIZER_PARTS) if in_parts else 1
    top, sum_exp = normalizer_at_once(logits, num_parts)
    return top[..., None], sum_exp[..., None]


def normalizer_at_once(
    logits: Float[Array, "*N V"], num_parts: int = 1
) -> tuple[Float[Array, "*N"], Float[Array, "*N"]]:
    """The same in one pass over the logits, whose reading is what it costs on an accelerator (Milakov and Gimelshein, 2018, arXiv:1805.02867).

    A token's logits are cut into parts, and those at the same place of each are added up before anything is merged, so that there is
    little more than one exponential a logit. With 8 parts an H200 reads 4.2 TB/s, with one 3.4, and 2.7 where merging takes two exponentials.

    Args:
        num_parts: a divisor of V.
    """

    def merge(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
        top, below = jnp.maximum(one[0], other[0]), -jnp.abs(one[0] - other[0])
        less = jnp.exp(below)
        return top, jnp.where(one[0] >= other[0], one[1] + other[1] * less, one[1] * less + other[1])

    parts = jnp.split(logits, num_parts, axis=-1)
    top = functools.reduce(jnp.maximum, parts)
    # Minus infinity is left out, also where every part has it.
    finite = jnp.maximum(top, jnp.finfo(logits.dtype).min)
    sum_exp = functools.reduce(jnp.add, [jnp.exp(part - finite) for part in parts])
    # Not minus infinity, of which two would merge to not-a-number.
    start = (jnp.finfo(logits.dtype).min, jnp.zeros((), logits.dtype))
    return jax.lax.reduce((finite, sum_exp), start, merge, (logits.ndim - 1,))


def _picked(logits: Float[Array, "... V"], target: Int[Array, "..."]) -> Float[Array, "..."]:
    return jnp.take_along_axis(logits, target[..., None], axis=-1)[..., 0]


class _Softmax(NamedTuple):
    """What turns a block's logits into their gradient: `exp(logits - top) * scale`, less the weight at the target."""

    top: Float[Array, "B t 1"]
    scale: Float[Array, "B t 1"]
    target: Int[Array, "B t"]
    weight: Float[Array, "B t"]


def _add_in_chunks(
    grad_head_DV: Array, x_BtD: Array, head_DV: Array, logits: Array, softmax: _Softmax, softcap: float | None
) -> tuple[Float[Array, "D V"], Float[Array, "B t D"]]:
    """A block's gradients, a chunk of the vocabulary at a time; the head's is added in place.

    The exponentials are computed again: those of the loss are summed as they are made, and never held.
    """
    vocab_size = head_DV.shape[1]
    num_chunks = _num_chunks(vocab_size)
    width = -(-vocab_size // num_chunks)

    def add(index: Array, grads: tuple[Array, Array]) -> tuple[Array, Array]:
        grad_head_DV, grad_x_BtD = grads
        start = jnp.minimum(index * width, vocab_size - width)
        columns = start + jnp.arange(width, dtype=softmax.target.dtype)
        chunk = jax.lax.dynamic_slice_in_dim(logits, start, width, axis=2)
        grad = jnp.exp(chunk - softmax.top) * softmax.scale
        grad -= jnp.where(softmax.target[..., None] == columns[None, None, :], softmax.weight[..., None], 0.0)
        if softcap is not None:
            grad *= 1.0 - jnp.square(chunk * (1.0 / softcap))
        if vocab_size % width:  # the last chunk begins in the one before it, whose columns are done
            grad = jnp.where((columns >= index * width)[None, None, :], grad, 0.0)
        grad = grad.astype(x_BtD.dtype)
        head_Dv = jax.lax.dynamic_slice_in_dim(head_DV, start, width, axis=1)
        grad_x_BtD += wide_einsum("btv,dv->btd", grad, head_Dv)
        of_head_Dv = wide_einsum("btd,btv->dv", x_BtD, grad)
        of_head_Dv += jax.lax.dynamic_slice_in_dim(grad_head_DV, start, width, axis=1)
        return jax.lax.dynamic_update_slice_in_dim(grad_head_DV, of_head_Dv, start, axis=1), grad_x_BtD

    grads = (grad_head_DV, jnp.zeros(x_BtD.shape, jnp.float32))
    grad_head_DV, grad_x_BtD = jax.lax.fori_loop(0, num_chunks, add, grads)
    return grad_head_DV, grad_x_BtD.astype(x_BtD.dtype)


def _num_chunks(vocab_size: int) -> int:
    """Into how many chunks the head's gradient is cut; accelerators do best with one."""
    if vocab_size <= 4 * _CPU_CHUNK or jax.default_backend() != "cpu":
        return 1
    return -(-vocab_size // _CPU_CHUNK)


def _tokens_at_once(block: int, head_DV: Array) -> int:
    return min(block, max(1, _CPU_LOGITS // head_DV.shape[1])) if jax.default_backend() == "cpu" else block


def _blocks(x_BTD: Array, target_BT: Array, weight_BT: Array, block: int) -> Block:
    return _columns(x_BTD, block), _columns(target_BT, block), _columns(weight_BT.astype(jnp.float32), block)


def _columns(array: Array, block: int) -> Array:
    """[B, T, ...] as [n, B, t, ...] with the fewest n for which a block holds at most `block` tokens, or one column.

    Cutting along T leaves the batch dimension whole, so that rows stay on the device that holds them. Where n does not divide
    T the last block is filled up with zeros: the divisors of a T such as 1,021 would make a block of every column, and each
    block reads the whole head.
    """
    batch_size, num_tokens = array.shape[:2]
    num_blocks = -(-num_tokens // max(1, block // batch_size))
    wide = -(-num_tokens // num_blocks)
    if missing := num_blocks * wide - num_tokens:
        array = jnp.pad(array, [(0, 0), (0, missing)] + [(0, 0)] * (array.ndim - 2))
    return jnp.moveaxis(array.reshape(batch_size, num_blocks, wide, *array.shape[2:]), 1, 0)


def _rows(array_nBt: Array, num_tokens: int) -> Array:
    """[n, B, t, ...] as the [B, T, ...] that `_columns` made it of, without what filled up the last block."""
    array_Bnt = jnp.moveaxis(array_nBt, 0, 1)
    array_BT = array_Bnt.reshape(array_Bnt.shape[0], -1, *array_Bnt.shape[3:])
    return array_BT if array_BT.shape[1] == num_tokens else array_BT[:, :num_tokens]
