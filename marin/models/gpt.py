"""The GPT of the Time-to-GPT-2 contest: a Llama without learned norms, and with the ideas that its records were made of.

    x0 = norm(embedding), smeared                      each token sees a little of the one before it
    each layer: x = residual_scale x + input_scale x0
                x = x + attention(norm(x))             QK norm, windows, value embeddings behind a gate
                x = x + mlp(norm(x))                   relu^2, four times as wide
    x = norm(x - backout x_middle)                     what the first half found is taken out again
    logits = 15 tanh(x head / 15)

The architecture is that of nanochat (Karpathy, 2025 to 2026); each idea is a field, and what a field turns off is not built.
"""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from marin.errors import ConfigError
from marin.models.described import check_rope
from marin.models.lm import count_parameters, shapes_of
from marin.nn import Embedding, Linear, RotaryConfig, apply_rotary, attention, rotary_angles
from marin.nn.remat import check_recomputation, recomputing
from marin.nn.wide_sums import scaled
from marin.number_checks import check_switches, check_whole

# Inputs of the gates: the first channels of the normalized stream.
_VALUE_GATE_INPUTS, _SMEAR_GATE_INPUTS = 12, 24
_VOCABULARY_MULTIPLE = 64


@dataclasses.dataclass(frozen=True)
class GptConfig:
    """A decoder whose normalizations have no weights and whose matrices have no biases.

    Args:
        num_kv_heads: heads of keys and values; None for `num_heads`.
        window_pattern: a letter a layer, repeated: "L" attends to the whole context, "S" to a part of it. The last layer
            is always "L".
        short_window: keys that an "S" layer sees; None for a quarter of `seq_len`.
        value_embeddings: every other layer, the last among them, adds a learned row for the token itself to its values
            (Zhou et al., 2024, arXiv:2410.17897, as changed in modded-nanogpt).
        value_gates: each head gates its value embedding by the stream.
        smear: mix the embedding of the token before into each.
        backout: subtract the stream of the middle layer before the head.
        query_key_scale: queries and keys are multiplied by this after their normalization.
        logit_softcap: see `LmModel`.
        cross_entropy_block_size: the most tokens whose logits exist at once in the loss; None for the engine's choice.
        gradient_checkpointing: what the backward pass recomputes: True each block, "products" all but the results of
            products with weights, False nothing (see `marin.nn.remat`).
    """

    seq_len: int = 2048
    hidden_dim: int = 1280
    num_layers: int = 20
    num_heads: int = 10
    num_kv_heads: int | None = None
    window_pattern: str = "SSSL"
    value_embeddings: bool = True
    value_gates: bool = True
    smear: bool = True
    backout: bool = True
    query_key_scale: float = 1.2
    logit_softcap: float | None = 15.0
    rope: RotaryConfig = RotaryConfig(theta=100_000)
    cross_entropy_block_size: int | None = None
    gradient_checkpointing: bool | str = False
    short_window: int | None = dataclasses.field(default=None, kw_only=True, metadata={"marin.omit_default": True})

    def __post_init__(self) -> None:
        for field in ("seq_len", "hidden_dim", "num_layers", "num_heads"):
            check_whole(f"`{field}`", getattr(self, field))
        for field in ("num_kv_heads", "short_window", "cross_entropy_block_size"):
            check_whole(f"`{field}`", getattr(self, field), or_none=True)
        check_switches("`{}`", self)
        cap = self.logit_softcap
        if cap is not None and not (isinstance(cap, int | float) and not isinstance(cap, bool) and cap > 0):
            raise ConfigError(f"`logit_softcap` is {cap!r}: use a number above 0, or None for no cap")
        if self.hidden_dim % self.num_heads or self.head_dim % 2:
            raise ConfigError(
                f"`hidden_dim` {self.hidden_dim} and `num_heads` {self.num_heads} give heads of {self.hidden_dim / self.num_heads}:"
                " an even whole number is needed"
            )
        if self.num_heads % self.kv_heads:
            raise ConfigError(f"`num_heads` {self.num_heads} is not a multiple of `num_kv_heads` {self.kv_heads}")
        check_rope(self.rope)
        check_recomputation(self.gradient_checkpointing)
        if not self.window_pattern or set(self.window_pattern) - {"S", "L"}:
            raise ConfigError(f"`window_pattern` is {self.window_pattern!r}: use letters S and L, such as 'SSSL'")
        least = max(_SMEAR_GATE_INPUTS if self.smear else 1, _VALUE_GATE_INPUTS if self.value_gates else 1)
        if self.hidden_dim < least:
            raise ConfigError(
                f"`hidden_dim` is {self.hidden_dim}: the gates need at least {least}; turn them off or widen it"
            )

    @property
    def max_seq_len(self) -> int:
        return self.seq_len

    @property
    def head_dim(self) -> int:
        return self.hidden_dim // self.num_heads

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads

    def window(self, layer: int) -> int | None:
        """How many keys a query of this layer sees; None for all."""
        letter = self.window_pattern[layer % len(self.window_pattern)]
        if letter == "L" or layer == self.num_layers - 1:
            return None
        return self.short_window or max(1, self.seq_len // 4)

    def has_value_embedding(self, layer: int) -> bool:
        return self.value_embeddings and layer % 2 == (self.num_layers - 1) % 2

    def build(self, vocab_size: int, *, key: PRNGKeyArray) -> "Gpt":
        return Gpt.init(self, vocab_size, key=key)

    def flops_per_token(self, vocab_size: int, context_length: int) -> float:
        """Forward FLOPs: 2 for each weight of a matrix, and attention in full over each layer's window."""
        shapes = shapes_of(self, vocab_size)
        matrices = count_parameters(shapes.blocks) + count_parameters(shapes.lm_head)
        if shapes.smear_gate_I is not None:
            matrices += shapes.smear_gate_I.size
        spans = (min(self.window(layer) or context_length, context_length) for layer in range(self.num_layers))
        return 2 * matrices + 4 * self.num_heads * self.head_dim * sum(spans)

    def total_trainable_params(self, vocab_size: int) -> int:
        return count_parameters(shapes_of(self, vocab_size))


class GptAttention(eqx.Module):
    """Attention with normalized queries and keys, and values that know their token."""

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    value_gate: Linear | None
    config: GptConfig = eqx.field(static=True)
    window: int | None = eqx.field(static=True)

    @staticmethod
    def init(config: GptConfig, layer: int, *, key: PRNGKeyArray) -> "GptAttention":
        keys = jax.random.split(key, 4)
        width, kv_width = config.hidden_dim, config.kv_heads * config.head_dim
        gated = config.has_value_embedding(layer) and config.value_gates
        return GptAttention(
            query=_uniform(keys[0], width, width),
            key=_uniform(keys[1], width, kv_width),
            value=_uniform(keys[2], width, kv_width),
            output=Linear(jnp.zeros((width, width), jnp.float32), None),
            value_gate=(
                Linear(0.02 * jax.random.uniform(keys[3], (_VALUE_GATE_INPUTS, config.kv_heads), jnp.float32), None)
                if gated
                else None
            ),
            config=config,
            window=config.window(layer),
        )

    def queries_keys_values(
        self, x_BTD: Float[Array, "B T D"], value_BTKC: Float[Array, "B T K C"] | None, angles: tuple[Array, Array]
    ) -> tuple[Float[Array, "B T H C"], Float[Array, "B T K C"], Float[Array, "B T K C"]]:
        """What attention takes, of the normalized stream and the tokens' value embeddings."""
        rows, tokens, _ = x_BTD.shape
        head_dim, scale = self.config.head_dim, self.config.query_key_scale
        q_BTHC = self.query(x_BTD).reshape(rows, tokens, -1, head_dim)
        k_BTKC = self.key(x_BTD).reshape(rows, tokens, -1, head_dim)
        v_BTKC = self.value(x_BTD).reshape(rows, tokens, -1, head_dim)
        if value_BTKC is not None:
            if self.value_gate is not None:
                gate_BTK = 3.0 * jax.nn.sigmoid(self.value_gate(x_BTD[..., :_VALUE_GATE_INPUTS]))
                value_BTKC = scaled(gate_BTK[..., None], value_BTKC)
            v_BTKC = v_BTKC + value_BTKC
        q_BTHC = norm(apply_rotary(q_BTHC, *angles)) * scale
        k_BTKC = norm(apply_rotary(k_BTKC, *angles)) * scale
        return q_BTHC, k_BTKC, v_BTKC

    def merged(self, out_BTHC: Float[Array, "B T H C"], dtype: jnp.dtype) -> Float[Array, "B T D"]:
        """What is added to the stream, of attention's result."""
        rows, tokens = out_BTHC.shape[:2]
        return self.output(out_BTHC.astype(dtype).reshape(rows, tokens, -1))

    def __call__(
        self,
        x_BTD: Float[Array, "B T D"],
        value_BTKC: Float[Array, "B T K C"] | None,
        angles: tuple[Array, Array],
        segment_ids_BT: Int[Array, "B T"] | None,
    ) -> Float[Array, "B T D"]:
        q_BTHC, k_BTKC, v_BTKC = self.queries_keys_values(x_BTD, value_BTKC, angles)
        return self.merged(attention(q_BTHC, k_BTKC, v_BTKC, segment_ids_BT, window=self.window), x_BTD.dtype)


class GptMlp(eqx.Module):
    """`down(relu(up(x))^2)` (So et al., 2021, arXiv:2109.08668)."""

    up: Linear
    down: Linear

    @staticmethod
    def init(config: GptConfig, *, key: PRNGKeyArray) -> "GptMlp":
        width = config.hidden_dim
        up = _uniform(key, width, 4 * width)
        return GptMlp(Linear(0.4 * up.weight_IO, None), Linear(jnp.zeros((4 * width, width), jnp.float32), None))

    def __call__(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        return self.down(jnp.square(jax.nn.relu(self.up(x_BTD))))


class GptBlock(eqx.Module):
    """Attention, then the feed-forward, each on the normalized stream and added to it."""

    attention: GptAttention
    mlp: GptMlp

    def __call__(
        self,
        x_BTD: Float[Array, "B T D"],
        value_BTKC: Float[Array, "B T K C"] | None,
        angles: tuple[Array, Array],
        segment_ids_BT: Int[Array, "B T"] | None,
    ) -> Float[Array, "B T D"]:
        x_BTD = x_BTD + self.attention(norm(x_BTD), value_BTKC, angles, segment_ids_BT)
        return x_BTD + self.mlp(norm(x_BTD))


class GptStreams(NamedTuple):
    """The stream between two blocks, what it was before the first, and what it was after the middle one, if that has been."""

    x: Float[Array, "... D"]
    first: Float[Array, "... D"]
    middle: Float[Array, "... D"]


class Gpt(eqx.Module):
    """The whole model. The scalars of layers are arrays [L]."""

    embedding: Embedding
    value_embeddings: tuple[Embedding | None, ...]
    blocks: tuple[GptBlock, ...]
    lm_head: Linear
    residual_scale_L: Float[Array, " L"]
    input_scale_L: Float[Array, " L"]
    smear_gate_I: Float[Array, " I"] | None
    smear_scale: Float[Array, ""] | None
    backout_scale: Float[Array, ""] | None
    vocab_size: int = eqx.field(static=True)
    config: GptConfig = eqx.field(static=True)

    @staticmethod
    def init(config: GptConfig, vocab_size: int, *, key: PRNGKeyArray) -> "Gpt":
        embedding_key, head_key, value_key, blocks_key, gate_key = jax.random.split(key, 5)
        width, layers, kv_width = config.hidden_dim, config.num_layers, config.kv_heads * config.head_dim
        padded = padded_vocab_size(vocab_size)

        def block(layer: int, block_key: PRNGKeyArray) -> GptBlock:
            attention_key, mlp_key = jax.random.split(block_key)
            return GptBlock(GptAttention.init(config, layer, key=attention_key), GptMlp.init(config, key=mlp_key))

        return Gpt(
            embedding=Embedding.init(padded, width, key=embedding_key, std=0.8),
            value_embeddings=tuple(
                Embedding(_uniform(k, padded, kv_width, fan_in=width).weight_IO)
                if config.has_value_embedding(layer)
                else None
                for layer, k in enumerate(jax.random.split(value_key, layers))
            ),
            blocks=tuple(block(layer, k) for layer, k in enumerate(jax.random.split(blocks_key, layers))),
            lm_head=Linear.init(width, padded, key=head_key, std=0.001),
            residual_scale_L=jnp.linspace(1.15, 1.05, layers, dtype=jnp.float32),
            input_scale_L=jnp.linspace(0.20, 0.05, layers, dtype=jnp.float32),
            smear_gate_I=(
                0.02 * jax.random.uniform(gate_key, (_SMEAR_GATE_INPUTS,), jnp.float32) if config.smear else None
            ),
            smear_scale=jnp.zeros((), jnp.float32) if config.smear else None,
            backout_scale=jnp.full((), 0.2, jnp.float32) if config.backout else None,
            vocab_size=vocab_size,
            config=config,
        )

    @property
    def lm_head_DV(self) -> Float[Array, "D V"]:
        return self.lm_head.weight_IO[:, : self.vocab_size]

    @property
    def logit_softcap(self) -> float | None:
        return self.config.logit_softcap

    def embedded(self, tokens_BT: Int[Array, "B T"], segment_ids_BT: Int[Array, "B T"] | None) -> Float[Array, "B T D"]:
        """What the first block takes; an experiment that embeds more than the token itself defines it anew."""
        x_BTD = norm(self.embedding(tokens_BT))
        if self.smear_gate_I is None or self.smear_scale is None:
            return x_BTD
        return _smeared(x_BTD, self.smear_gate_I, self.smear_scale, segment_ids_BT)

    def activations(
        self, tokens_BT: Int[Array, "B T"], segment_ids_BT: Int[Array, "B T"] | None
    ) -> Float[Array, "B T D"]:
        return self.ended(self.streams(tokens_BT, segment_ids_BT, len(self.blocks)))

    def streams(
        self, tokens_BT: Int[Array, "B T"], segment_ids_BT: Int[Array, "B T"] | None, num_layers: int
    ) -> "GptStreams":
        """What the first `num_layers` blocks leave."""
        config = self.config
        angles = rotary_angles(config.rope, tokens_BT.shape[1], config.head_dim)
        x_BTD = self.embedded(tokens_BT, segment_ids_BT)
        streams = GptStreams(x_BTD, x_BTD, x_BTD)

        def run(block: GptBlock, x_BTD: Array, value_BTKC: Array | None) -> Array:
            return block(x_BTD, value_BTKC, angles, segment_ids_BT)

        run = recomputing(run, config.gradient_checkpointing)
        for layer, block in enumerate(self.blocks[:num_layers]):
            x_BTD = run(block, self.layer_input(streams, layer), self.token_values(tokens_BT, layer))
            streams = self.after_layer(streams, layer, x_BTD)
        return streams

    def layer_input(self, streams: "GptStreams", layer: int) -> Float[Array, "... D"]:
        return scaled(self.residual_scale_L[layer], streams.x) + scaled(self.input_scale_L[layer], streams.first)

    def token_values(self, tokens_BT: Int[Array, "B T"], layer: int) -> Float[Array, "B T K C"] | None:
        """What a layer adds to the values of these tokens; None in a layer without value embeddings."""
        table = self.value_embeddings[layer]
        return None if table is None else table(tokens_BT).reshape(*tokens_BT.shape, -1, self.config.head_dim)

    def after_layer(self, streams: "GptStreams", layer: int, x: Float[Array, "... D"]) -> "GptStreams":
        return GptStreams(x, streams.first, x if layer == self.config.num_layers // 2 else streams.middle)

    def ended(self, streams: "GptStreams") -> Float[Array, "... D"]:
        """What the head takes, of the streams after the last block."""
        if self.backout_scale is None:
            return norm(streams.x)
        return norm(streams.x - scaled(self.backout_scale, streams.middle))


def padded_vocab_size(vocab_size: int) -> int:
    """Rows of the tables and of the head: the vocabulary up to a multiple of 64."""
    return -(-vocab_size // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE


def norm(x: Float[Array, "... C"]) -> Float[Array, "... C"]:
    """The last dimension scaled to a root mean square of one; nothing is learned."""
    x32 = x.astype(jnp.float32)
    epsilon = float(jnp.finfo(x.dtype).eps)
    return (x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + epsilon)).astype(x.dtype)


def _smeared(x_BTD: Array, gate_I: Array, scale: Array, segment_ids_BT: Array | None) -> Float[Array, "B T D"]:
    """Each token with some of the one before it in its document: x_t + scale sigmoid(gate x_t) x_{t-1}."""
    before_BTD = jnp.pad(x_BTD[:, :-1], ((0, 0), (1, 0), (0, 0)))
    gate_BT = _smear_gate(x_BTD, gate_I, scale)
    if segment_ids_BT is not None:
        before = jnp.pad(segment_ids_BT[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
        gate_BT = jnp.where(segment_ids_BT == before, gate_BT, jnp.zeros((), gate_BT.dtype))
    return x_BTD + scaled(gate_BT[..., None], before_BTD)


def smeared_after(
    x_BTD: Float[Array, "B T D"], before_BD: Float[Array, "B D"], gate_I: Array, scale: Array
) -> Float[Array, "B T D"]:
    """The same where the first token of each row follows one whose normalized embedding is `before_BD`."""
    before_BTD = jnp.concatenate([before_BD[:, None], x_BTD[:, :-1]], axis=1)
    return x_BTD + scaled(_smear_gate(x_BTD, gate_I, scale)[..., None], before_BTD)


def _smear_gate(x_BTD: Array, gate_I: Array, scale: Array) -> Float[Array, "B T"]:
    return scaled(scale, jax.nn.sigmoid(x_BTD[..., :_SMEAR_GATE_INPUTS] @ gate_I))


def _uniform(key: PRNGKeyArray, inputs: int, outputs: int, *, fan_in: int | None = None) -> Linear:
    """Uniform weights of standard deviation `fan_in` ** -0.5."""
    bound = (3.0 / (fan_in or inputs)) ** 0.5
    return Linear(jax.random.uniform(key, (inputs, outputs), jnp.float32, -bound, bound), None)
