"""The compiled programs of the engine. Each is compiled once for a shape, and there are few shapes.

    prefill   a piece of one prompt, padded to a power of two, into a cache of one row
    first     the first token after a prompt
    burst     up to `BURST` tokens of every row of a batch
    resize    a batch with other rows, more rows or longer ones

A burst ends early when every row waits: for a tool's result, or because it has all the tokens it was asked for.
"""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from marin.inference.choosing import Given, RowOptions, choose
from marin.models.decoding import (
    KvCache,
    begin_burst,
    check_can_decode,
    end_burst,
    extend,
    extend_burst,
    init_cache,
    joined_projections,
    layer_windows,
    prefill,
    resize,
    with_joined_projections,
)
from marin.nn import Linear
from marin.nn.loss import softcapped

# Tokens of each row in one call: what starting a program and writing to the cache cost is shared by so many.
BURST = 8


class BurstInput(NamedTuple):
    """What a burst begins with.

    `pending_B` is the last token of each row, which the cache lacks. `forced_BN` are the first `num_forced_B` that
    follow it, whatever the model would choose. `budget_B` is how many tokens a row may be fed; 0 for an empty row.
    `pause_B` is a token after which a row waits.
    """

    pending_B: Int[Given, " B"]
    forced_BN: Int[Given, "B N"]
    num_forced_B: Int[Given, " B"]
    budget_B: Int[Given, " B"]
    pause_B: Int[Given, " B"]
    options: RowOptions


class BurstOutput(NamedTuple):
    """The tokens after the pending one, of which `num_B` of each row count, and their log-probabilities."""

    tokens_BN: Int[Array, "B N"]
    logprobs_BN: Float[Array, "B N"]
    num_B: Int[Array, " B"]


class Programs:
    """The programs of one model."""

    def __init__(self, model: Any, vocab_size: int, precision: Any) -> None:
        """Args:
        vocab_size: tokens that the tokenizer has; the model may have more rows, which are never chosen.
        precision: number format to compute in; None for that of the weights.
        Raises:
            ConfigError: for a model that cannot be decoded with a cache.
        """
        check_can_decode(model)
        model = model if precision is None else precision.cast(model)
        self.windows = layer_windows(model)
        self.vocab_size = min(vocab_size, model.lm_head_DV.shape[1])
        self._softcap = model.logit_softcap
        head_DV = jnp.array(model.lm_head_DV[:, : self.vocab_size])
        model = eqx.tree_at(lambda m: m.lm_head, model, None, is_leaf=lambda leaf: leaf is None)
        arrays, self._static = eqx.partition(model, eqx.is_array)
        # A call looks at each object that it is handed: leaves are far fewer than a model's modules.
        self._leaves, self._structure = jax.tree.flatten((arrays, head_DV))
        self._joined: list[Linear] | None = None
        self._prefill = jax.jit(self._prefill_fn, donate_argnums=(1,), static_argnames=("first",))
        self._burst = jax.jit(self._burst_fn, donate_argnums=(2,))
        self._resize = jax.jit(functools.partial(resize, windows=self.windows), static_argnums=(2,))
        self._first = jax.jit(choose)
        self._join = jax.jit(_join, donate_argnums=(0,))

    def take_weights(self, other: "Programs") -> None:
        """Goes on with the weights of another of the same model; nothing is compiled again."""
        self._leaves, self._joined = other._leaves, None

    @property
    def weight_bytes(self) -> int:
        """What one step of decoding reads at least."""
        arrays, head = self._weights(self._leaves)
        read = eqx.tree_at(lambda m: m.embedding, arrays, None)
        if getattr(arrays, "value_embeddings", None):
            read = eqx.tree_at(lambda m: m.value_embeddings, read, ())
        return int(sum(leaf.nbytes for leaf in jax.tree.leaves((read, head))))

    def cache_bytes(self, length: int) -> int:
        """Keys and values that one step of decoding reads of a row of so many tokens."""
        layers = jax.eval_shape(lambda: self.empty(1, length)).layers
        return int(sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(layers)))

    def empty(self, rows: int, length: int) -> KvCache:
        return init_cache(self._model(self._leaves), rows, length)

    def prefill(self, tokens_1T: Any, count: int, cache: KvCache, *, first: bool) -> tuple[Array, KvCache]:
        """The logits [1, V] after `count` of the tokens, and the cache with them; `first` if nothing is in it."""
        return self._prefill(self._leaves, cache, tokens_1T, jnp.full((1,), count, jnp.int32), first=first)

    def first(self, logits_1V: Array, options: RowOptions) -> tuple[Array, Array]:
        return self._first(logits_1V, options)

    def burst(self, cache: KvCache, asked: BurstInput) -> tuple[BurstOutput, KvCache]:
        return self._burst(self._leaves, self._joined_for(asked.pending_B.shape[0]), cache, asked)

    def resize(self, cache: KvCache, rows: Any, length: int) -> KvCache:
        """See `marin.models.decoding.resize`."""
        return self._resize(cache, jnp.asarray(rows, jnp.int32), length)

    def join(self, cache: KvCache, row: int, new: KvCache) -> KvCache:
        """The cache with a row replaced by that of a cache of one row and the same length."""
        return self._join(cache, jnp.asarray(row, jnp.int32), new)

    def _joined_for(self, rows: int) -> list[Linear]:
        """A copy of some matrices, joined, where that is faster; else nothing.

        On a processor one row's products are so short that each further one costs more than what it computes: joined they
        made 1.08 to 1.10 times as many tokens a second (6 layers of width 384, 2 AVX-512 cores). Of 2 to 16 rows, .96 to .98.
        """
        if rows > 1 or jax.default_backend() != "cpu":
            return []
        if self._joined is None:
            self._joined = joined_projections(self._model(self._leaves))
        return self._joined

    def _weights(self, leaves: list[Array]) -> tuple[Any, Float[Array, "D V"]]:
        """The model's arrays without its head, and that."""
        arrays, head_DV = jax.tree.unflatten(self._structure, leaves)
        return arrays, head_DV

    def _model(self, leaves: list[Array]) -> Any:
        return eqx.combine(self._weights(leaves)[0], self._static)

    def _logits(self, leaves: list[Array], x_BD: Array) -> Float[Array, "B V"]:
        return softcapped((x_BD @ self._weights(leaves)[1]).astype(jnp.float32), self._softcap)

    def _prefill_fn(
        self, leaves: list[Array], cache: KvCache, tokens_1T: Array, count_1: Array, *, first: bool
    ) -> tuple[Array, KvCache]:
        model = self._model(leaves)
        x_1TD, cache = (prefill if first else extend)(model, tokens_1T, cache, count_1)
        last_1D = jnp.take_along_axis(x_1TD, (count_1 - 1)[:, None, None], axis=1)[:, 0]
        return self._logits(leaves, last_1D), cache

    def _burst_fn(
        self, leaves: list[Array], joined: list[Linear], cache: KvCache, asked: BurstInput
    ) -> tuple[BurstOutput, KvCache]:
        model = self._model(leaves)
        if joined:
            model = with_joined_projections(model, joined)
        rows = asked.pending_B.shape[0]

        def goes_on(state: Any) -> Bool[Array, ""]:
            burst, _, active_B, _, _, _ = state
            return (burst.step < BURST) & jnp.any(active_B)

        def step(state: Any) -> Any:
            burst, pending_B, active_B, drawn_B, tokens_BN, logprobs_BN = state
            index = burst.step
            x_BD, burst = extend_burst(model, pending_B, burst, active_B)
            forced_B = index < asked.num_forced_B
            options = asked.options._replace(drawn_B=drawn_B)
            chosen_B, logprob_B = choose(self._logits(leaves, x_BD), options)
            wanted_B = jax.lax.dynamic_index_in_dim(asked.forced_BN, index, axis=1, keepdims=False)
            token_B = jnp.where(forced_B, wanted_B, chosen_B)
            logprob_B = jnp.where(forced_B, 0.0, logprob_B)
            tokens_BN = jax.lax.dynamic_update_index_in_dim(tokens_BN, token_B, index, axis=1)
            logprobs_BN = jax.lax.dynamic_update_index_in_dim(logprobs_BN, logprob_B, index, axis=1)
            drawn_B = drawn_B + (active_B & ~forced_B).astype(jnp.int32)
            pauses_B = ~forced_B & (token_B == asked.pause_B)
            active_B = active_B & (burst.fed_B < asked.budget_B) & ~pauses_B
            return burst, token_B, active_B, drawn_B, tokens_BN, logprobs_BN

        blank = (jnp.zeros((rows, BURST), jnp.int32), jnp.zeros((rows, BURST), jnp.float32))
        start = (begin_burst(model, cache, BURST), asked.pending_B, asked.budget_B > 0, asked.options.drawn_B, *blank)
        burst, _, _, _, tokens_BN, logprobs_BN = jax.lax.while_loop(goes_on, step, start)
        return BurstOutput(tokens_BN, logprobs_BN, burst.fed_B), end_burst(burst)


def _join(cache: KvCache, row: Array, new: KvCache) -> KvCache:
    return jax.tree.map(
        lambda kept, value: jax.lax.dynamic_update_index_in_dim(kept, value[0], row, axis=0), cache, new
    )
