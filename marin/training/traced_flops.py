"""FLOPs as the traced program has them, beside what a config's own formula says.

`flops_per_token` is a method of the submitter's config, so what the model's program does is counted next to it. Nothing is
computed: the program is traced with shapes, for one row, and walked. The rules:

- A matrix product counts 2 FLOPs a multiply-add, by its shapes; so do ragged products and convolutions. Factorizations and triangular
  solves count by textbook formulas (`marin.training.factorization_flops`). Element-wise work and sorting count nothing.
- A loop of known length counts each turn; a branch counts as its most expensive arm; `shard_map` counts every device.
- `marin.nn.attention` counts by the pairs of query and key, whatever the kernel computes (`marin.nn.attention_counting`).
  Attention that a model writes itself counts as it is written.
- A Pallas kernel counts what its `cost_estimate` states, else its body once a grid point.
- What `jax.checkpoint` computes a second time is left out: it is a choice about memory, not the model's need.
- What cannot be known is named in `uncounted` and counts nothing: calls into foreign code, and Fourier transforms. Of a `while` loop, whose turns
  are not known, one turn counts, and it is named too.
"""

import concurrent.futures
import dataclasses
import math
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from marin.data.rows import Batch
from marin.errors import ConfigError
from marin.models.lm import shapes_of
from marin.nn.attention_counting import Keys, counting_attention
from marin.nn.trees import is_shape
from marin.training.beside import beside
from marin.training.factorization_flops import FORMULAS
from marin.training.state import StepConfig, loss_of_rows, training_activations

# Foreign code, of which cannot be seen what it computes, and transforms, whose work is no product.
_FOREIGN = ("ffi_call", "custom_call", "pure_callback", "io_callback", "buffer_callback", "call_exported", "fft",
            "dot_product_attention_fwd_wrapper", "dot_product_attention_bwd_wrapper")  # fmt: skip
# What a program does not compute itself: the host does, or code of somebody's own, or a program that was compiled before and shows
# nothing of what is in it.
_OUTSIDE = {
    "pure_callback",
    "io_callback",
    "buffer_callback",
    "debug_callback",
    "debug_print",
    "ffi_call",
    "call_exported",
}
_MAKERS = ("jax", "equinox")  # packages whose primitives are what their names say


@dataclasses.dataclass(frozen=True)
class FlopCount:
    """FLOPs, and the names of what is in the program and not, or not wholly, in the number."""

    flops: float
    uncounted: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class TracedFlops:
    """What one token of training needs.

    Args:
        forward: the forward pass and the head, attention by the keys that a query sees.
        training: the loss and its gradient, the same way; nothing that is computed a second time.
        uncounted: what the program has and the numbers lack.
    """

    forward: float
    training: float
    uncounted: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        return {"forward": self.forward, "training": self.training, "uncounted": list(self.uncounted)}


def forward_flops(model_config: Any, vocab_size: int, keys: Keys, length: int | None = None) -> FlopCount:
    """Forward FLOPs for one token of the model that `model_config` builds, its head and its own training losses included.

    Args:
        keys: which keys a query counts: those that it sees, or all of the row.
        length: tokens of a row; None for the model's context.
    Raises:
        ConfigError: if the model's vectors or its head have a shape that cannot be scored.
    """

    def forward(model: Any, tokens_BT: Any, segment_ids_BT: Any) -> Any:
        weight_BT: Any = jnp.ones(tokens_BT.shape, jnp.float32)
        x_BTD, losses = training_activations(model, Batch(tokens_BT, tokens_BT, weight_BT, segment_ids_BT))
        _check_head(model, x_BTD.shape[2], vocab_size)
        return x_BTD @ model.lm_head_DV, losses

    return _flops_of(forward, model_config, vocab_size, keys, length or model_config.max_seq_len)


def _check_head(model: Any, width: int, vocab_size: int) -> None:
    """Columns beyond the vocabulary are a padding that a model may have."""
    shape: tuple[int, ...] = getattr(model.lm_head_DV, "shape", ())
    if len(shape) != 2 or shape[0] != width or shape[1] < vocab_size:
        found = f"an array {list(shape)}" if shape else f"a {type(model.lm_head_DV).__name__}"
        raise ConfigError(
            f"`lm_head_DV` of {type(model).__name__} is {found}: make it [width of the activations, vocabulary], here"
            f" [{width}, {vocab_size}]"
        )


def scoring_flops(model_config: Any, vocab_size: int, length: int) -> FlopCount:
    """FLOPs for one token of the model and its head when it is scored, on rows of `length` tokens, attention by the keys seen.

    A model may have other activations for training; what it computes only when it is scored is in no run's cost.
    """

    def forward(model: Any, tokens_BT: Any, segment_ids_BT: Any) -> Any:
        return model.activations(tokens_BT, segment_ids_BT) @ model.lm_head_DV

    return _flops_of(forward, model_config, vocab_size, "visible", length)


def _flops_of(
    forward: Callable[[Any, Any, Any], Any], model_config: Any, vocab_size: int, keys: Keys, length: int
) -> FlopCount:
    """FLOPs for one token of `forward(model, tokens_BT, segment_ids_BT)`."""
    arrays, static = _shapes(model_config, vocab_size)
    tokens = jax.ShapeDtypeStruct((1, length), jnp.int32)
    with counting_attention(keys):
        program = jax.make_jaxpr(lambda arrays, *ids: forward(eqx.combine(arrays, static), *ids))(
            arrays, tokens, tokens
        )
    return _per_token(program, length)


def traced_flops(model_config: Any, vocab_size: int, step: StepConfig, length: int | None = None) -> TracedFlops:
    """What one token costs in the training step that `step` describes, on rows of `length` tokens; None for the model's context."""
    arrays, static = _shapes(model_config, vocab_size)
    length = length or model_config.max_seq_len
    ids: Any = jax.ShapeDtypeStruct((1, length), jnp.int32)
    weights: Any = jax.ShapeDtypeStruct((1, length), jnp.float32)
    step = dataclasses.replace(step, micro_batches=1)

    def loss(arrays: Any, batch: Any) -> Any:
        return loss_of_rows(arrays, static, batch, jnp.ones(()), step)[0]

    with counting_attention("visible"):
        program = jax.make_jaxpr(loss)(arrays, Batch(ids, ids, weights, ids))
        whole = core.jaxpr_as_fun(_without_recomputation(program))
        gradient = jax.make_jaxpr(lambda arrays, batch: jax.vjp(lambda a: whole(*a, *batch), arrays)[1]([jnp.ones(())]))
        backward = gradient(jax.tree.leaves(arrays), [ids, ids, weights, ids])
    training = _per_token(backward, length)
    return TracedFlops(_per_token(program, length).flops, training.flops, training.uncounted)


def tracing_flops(
    model_config: Any, vocab_size: int, step: StepConfig, length: int
) -> "concurrent.futures.Future[TracedFlops]":
    """`traced_flops`, counted while the caller compiles, which leaves the interpreter idle."""
    return beside("traced-flops", traced_flops, model_config, vocab_size, step, length)


def count_flops(jaxpr: Any) -> FlopCount:
    """FLOPs of the matrix products and convolutions in a jaxpr."""
    uncounted: set[str] = set()
    return FlopCount(_count(jaxpr, uncounted), tuple(sorted(uncounted)))


def primitives(program: Any) -> set[core.Primitive]:
    """Everything that a traced program calls, also inside of what it calls."""
    jaxpr = getattr(program, "jaxpr", program)
    found = {equation.primitive for equation in jaxpr.eqns}
    return found.union(*(primitives(inner) for equation in jaxpr.eqns for inner in _inner_jaxprs(equation.params)))


def calls_out_of(program: Any) -> set[str]:
    """By what a traced program calls out of itself, so that its work is in no count and its result may depend on anything.

    Callbacks and foreign code, by their names; primitives of somebody's own, whatever their names, as a name such as `add` may
    stand for any code; and effects, such as a mutable array that outlives a call.
    """
    called = primitives(program)
    own = _primitives_of_jax() if called else set()
    found = {
        primitive.name if id(primitive) in own else f"{primitive.name} of its own"
        for primitive in called
        if primitive.name in _OUTSIDE or id(primitive) not in own
    }
    return found or {type(effect).__name__ for effect in program.effects}


def _primitives_of_jax() -> set[int]:
    """The identities of the primitives that stand in JAX's modules, as far as they are imported."""
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] in _MAKERS]
    values = (value for module in modules for value in list(vars(module).values()))
    return {id(value) for value in values if isinstance(value, core.Primitive)}


def constants_of(program: Any) -> list[Any]:
    """The arrays that a traced program holds, beside those that it is given: what its code read or computed while it was traced."""
    jaxpr = getattr(program, "jaxpr", program)
    variables = (*jaxpr.outvars, *(variable for equation in jaxpr.eqns for variable in equation.invars))
    literals = (variable for variable in variables if hasattr(variable, "val"))
    found = [*getattr(program, "consts", ()), *(literal.val for literal in literals if jnp.ndim(literal.val))]
    for equation in jaxpr.eqns:
        for inner in _inner_programs(equation.params):
            found += constants_of(inner)
    return found


def held_bytes(program: Any) -> tuple[int, str]:
    """How much a traced program holds beside what it is given, in bytes as zlib writes it; and its largest array, in words.

    No table is let through for being smooth: each float32 of a table of angles has room for several bits below what moves a score, and
    a text of one bit a byte needs no more. Numbers that stand alone count in their order, as a text can be written in them too.
    """
    arrays = {id(array): _plain_array(array) for array in constants_of(program)}
    sizes = {place: _compressed(array.tobytes()) for place, array in arrays.items()}
    numbers = b"".join(np.asarray(number).tobytes() for number in _numbers_of(program))
    largest = arrays[max(sizes, key=sizes.__getitem__)] if sizes else None
    words = "none" if largest is None else f"{largest.dtype}{list(largest.shape)}"
    return sum(sizes.values()) + _compressed(numbers), words


def _compressed(content: bytes) -> int:
    # Megabytes are far above what is asked about, however well they are written.
    return len(zlib.compress(content, 9 if len(content) < 1 << 22 else 1)) if content else 0


def _plain_array(array: Any) -> Any:
    if isinstance(array, jax.Ref):
        array = array[...]
    is_key = jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(array) if is_key else array)


def _numbers_of(program: Any) -> Iterator[Any]:
    """The scalars that a traced program's operations are given as they stand."""
    for equation in getattr(program, "jaxpr", program).eqns:
        yield from (each.val for each in equation.invars if hasattr(each, "val") and not jnp.ndim(each.val))
        for inner in _inner_programs(equation.params):
            yield from _numbers_of(inner)


def _shapes(model_config: Any, vocab_size: int) -> tuple[Any, Any]:
    """The model's arrays as shapes, and the rest of it."""
    return eqx.partition(shapes_of(model_config, vocab_size), is_shape)


def _per_token(program: core.ClosedJaxpr, num_tokens: int) -> FlopCount:
    found = count_flops(program.jaxpr)
    return FlopCount(found.flops / num_tokens, found.uncounted)


# ---- the walk --------------------------------------------------------------------------------------------------------


def _count(jaxpr: Any, uncounted: set[str]) -> float:
    return sum(_count_equation(equation, uncounted) for equation in jaxpr.eqns)


def _count_equation(equation: Any, uncounted: set[str]) -> float:
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        return _product(equation, contracted)
    if name == "ragged_dot_general":
        return _ragged_product(equation)
    if name == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        inputs_and_window = math.prod(kernel) / kernel[params["dimension_numbers"].rhs_spec[0]]
        return 2.0 * math.prod(equation.outvars[0].aval.shape) * inputs_and_window
    if name in FORMULAS:
        return FORMULAS[name](equation)
    if name == "custom_linear_solve":  # of its four programs the one that is run
        return _count(params["jaxprs"].solve.jaxpr, uncounted)
    if name == "cond":
        return max(_count(branch.jaxpr, uncounted) for branch in params["branches"])
    if name == "pallas_call" and getattr(params.get("cost_estimate"), "flops", None) is not None:
        return float(params["cost_estimate"].flops)
    inner = sum(_count(jaxpr, uncounted) for jaxpr in _inner_jaxprs(params))
    if name in _FOREIGN or (name == "while" and inner):
        uncounted.add(name)
    return _turns(name, params) * inner


def _turns(name: str, params: dict[str, Any]) -> float:
    """How often what is inside is run."""
    if name == "scan":
        return float(params["length"])
    if name == "pallas_call":
        return float(math.prod(params["grid_mapping"].grid))
    if name == "shard_map":
        return float(math.prod(params["mesh"].shape[axis] for axis in params["newly_manual_axes"]))
    return 1.0


def _product(equation: Any, contracted: Any) -> float:
    left = equation.invars[0].aval.shape
    return 2.0 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[dim] for dim in contracted)


def _ragged_product(equation: Any) -> float:
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (contracted, _), _ = numbers.dot_dimension_numbers
    flops = _product(equation, contracted)
    # Groups that are cut from the contracted dimension share its length between them.
    (ragged,) = numbers.lhs_ragged_dimensions
    return flops / equation.invars[2].aval.shape[-1] if ragged in contracted else flops


def _inner_jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    return (getattr(program, "jaxpr", program) for program in _inner_programs(params))


def _inner_programs(params: dict[str, Any]) -> Iterator[Any]:
    """Those with their constants where they have some."""
    for value in params.values():
        for item in value if isinstance(value, list | tuple) else [value]:
            if hasattr(getattr(item, "jaxpr", item), "eqns"):
                yield item


def _without_recomputation(program: Any) -> Any:
    """The same program, whose `jax.checkpoint`s keep everything, so that its gradient computes nothing again."""
    inner = getattr(program, "jaxpr", program)
    if inner is not program:  # older JAX wraps a program with its constants
        return program.replace(jaxpr=_without_recomputation(inner))
    equations = []
    for equation in program.eqns:
        changed = dict(equation.params)
        for name, value in changed.items():
            if hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns"):
                changed[name] = _without_recomputation(value)
            elif name == "branches":
                changed[name] = tuple(_without_recomputation(branch) for branch in value)
        if "policy" in changed and "prevent_cse" in changed:
            changed["policy"] = jax.checkpoint_policies.everything_saveable
        equations.append(equation.replace(params=changed))
    return program.replace(eqns=equations)
