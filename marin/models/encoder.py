"""Encoders: every position sees the whole text. BERT's architecture, and that of the GTE family.

    x = norm(embedding(token) + embedding(position) + embedding(type 0))
    each layer: x = norm(x + attention(x))             normalized after the addition, as in BERT
                x = norm(x + mlp(x))

BERT (Devlin et al., 2018, arXiv:1810.04805) and RoBERTa learn a vector for each position and have a plain feed-forward; the
GTE encoders (Zhang et al., 2024, arXiv:2407.19669) rotate queries and keys in its place and gate the feed-forward. Texts are padded
behind: a row is `length` tokens and what follows is not seen. `MaskedHead` is what predicts hidden tokens in pretraining.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from marin.errors import ConfigError
from marin.models.lm import count_parameters, shapes_of
from marin.nn import (
    ACTIVATIONS,
    Embedding,
    GatedMlp,
    LayerNorm,
    Linear,
    RotaryConfig,
    apply_rotary,
    rotary_angles,
)
from marin.nn.wide_sums import shifted
from marin.number_checks import check_whole


@dataclasses.dataclass(frozen=True)
class EncoderModelConfig:
    """Which encoder to build.

    Args:
        max_seq_len: the most tokens of a text; of learned positions there are as many.
        rope: rotate queries and keys; None learns a vector for each position.
        gated: whether the feed-forward is `down(activation(gate(x)) * up(x))`.
        num_token_types: rows of the table of segment types, of which only the first is used; 0 has no table.
        first_position: unused rows before the first of the learned positions (RoBERTa has 2).
    """

    max_seq_len: int = 512
    hidden_dim: int = 768
    intermediate_dim: int = 3072
    num_layers: int = 12
    num_heads: int = 12
    activation: str = "gelu"
    layer_norm_epsilon: float = 1e-12
    rope: RotaryConfig | None = None
    gated: bool = False
    num_token_types: int = 2
    first_position: int = 0
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        for field in ("max_seq_len", "hidden_dim", "intermediate_dim", "num_layers", "num_heads"):
            check_whole(f"`{field}` of the encoder", getattr(self, field))
        if self.hidden_dim % self.num_heads or (self.rope is not None and self.head_dim % 2):
            raise ConfigError(
                f"`hidden_dim` {self.hidden_dim} and `num_heads` {self.num_heads} give heads of"
                f" {self.hidden_dim / self.num_heads:g}: a whole number is needed, an even one where `rope` rotates pairs"
            )
        if self.activation not in ACTIVATIONS:
            raise ConfigError(f"`activation` is {self.activation!r}: use one of {', '.join(ACTIVATIONS)}")

    @property
    def head_dim(self) -> int:
        return self.hidden_dim // self.num_heads

    def build(self, vocab_size: int, *, key: PRNGKeyArray) -> "Encoder":
        return Encoder.init(self, vocab_size, key=key)

    def flops_per_token(self, context_length: int) -> float:
        """Forward FLOPs for one token of a text: 2 for each weight of a matrix, and attention over the whole text."""
        matrices = 3 if self.gated else 2
        block = 4 * self.hidden_dim**2 + matrices * self.hidden_dim * self.intermediate_dim
        return float(self.num_layers * (2 * block + 4 * self.hidden_dim * context_length))

    def total_trainable_params(self, vocab_size: int) -> int:
        return count_parameters(shapes_of(self, vocab_size))


class SelfAttention(eqx.Module):
    """Attention of every position to every position of its text; queries, keys and values are one product."""

    qkv: Linear
    output: Linear
    num_heads: int = eqx.field(static=True)

    def __call__(
        self, x_BTD: Float[Array, "B T D"], lengths_B: Int[Array, " B"], angles: tuple[Array, Array] | None
    ) -> Float[Array, "B T D"]:
        rows, tokens, width = x_BTD.shape
        qkv = self.qkv(x_BTD).reshape(rows, tokens, 3, self.num_heads, width // self.num_heads)
        q_BTHC, k_BTHC, v_BTHC = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        if angles is not None:
            q_BTHC, k_BTHC = apply_rotary(q_BTHC, *angles), apply_rotary(k_BTHC, *angles)
        out_BTHC = bidirectional_attention(q_BTHC, k_BTHC, v_BTHC, lengths_B)
        return self.output(out_BTHC.reshape(rows, tokens, width))


class Mlp(eqx.Module):
    """`down(activation(up(x)))`."""

    up: Linear
    down: Linear
    activation: str = eqx.field(static=True)

    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        return self.down(ACTIVATIONS[self.activation](self.up(x)))


class EncoderBlock(eqx.Module):
    """Attention and feed-forward, each added to the stream, which is normalized after."""

    attention: SelfAttention
    attention_norm: LayerNorm
    mlp: Mlp | GatedMlp
    mlp_norm: LayerNorm

    @staticmethod
    def init(config: EncoderModelConfig, *, key: PRNGKeyArray) -> "EncoderBlock":
        keys = jax.random.split(key, 5)
        width, hidden, std = config.hidden_dim, config.intermediate_dim, config.initializer_range
        up = Linear.init(width, hidden, key=keys[2], std=std, use_bias=not config.gated)
        down = Linear.init(hidden, width, key=keys[3], std=std, use_bias=True)
        gate = Linear.init(width, hidden, key=keys[4], std=std) if config.gated else None
        return EncoderBlock(
            attention=SelfAttention(
                Linear.init(width, 3 * width, key=keys[0], std=std, use_bias=True),
                Linear.init(width, width, key=keys[1], std=std, use_bias=True),
                config.num_heads,
            ),
            attention_norm=LayerNorm.init(width, epsilon=config.layer_norm_epsilon),
            mlp=Mlp(up, down, config.activation) if gate is None else GatedMlp(gate, up, down, config.activation),
            mlp_norm=LayerNorm.init(width, epsilon=config.layer_norm_epsilon),
        )

    def __call__(
        self, x_BTD: Float[Array, "B T D"], lengths_B: Int[Array, " B"], angles: tuple[Array, Array] | None
    ) -> Float[Array, "B T D"]:
        x_BTD = self.attention_norm(x_BTD + self.attention(x_BTD, lengths_B, angles))
        return self.mlp_norm(x_BTD + self.mlp(x_BTD))


class Encoder(eqx.Module):
    """The whole encoder, without a head."""

    embedding: Embedding
    position_embedding: Embedding | None
    type_embedding: Embedding | None
    embedding_norm: LayerNorm
    blocks: tuple[EncoderBlock, ...]
    config: EncoderModelConfig = eqx.field(static=True)

    @staticmethod
    def init(config: EncoderModelConfig, vocab_size: int, *, key: PRNGKeyArray) -> "Encoder":
        keys = jax.random.split(key, 3 + config.num_layers)
        width, std = config.hidden_dim, config.initializer_range

        def table(rows: int, table_key: PRNGKeyArray) -> Embedding | None:
            return Embedding.init(rows, width, key=table_key, std=std) if rows else None

        return Encoder(
            embedding=Embedding.init(vocab_size, width, key=keys[0], std=std),
            position_embedding=table(0 if config.rope else config.first_position + config.max_seq_len, keys[1]),
            type_embedding=table(config.num_token_types, keys[2]),
            embedding_norm=LayerNorm.init(width, epsilon=config.layer_norm_epsilon),
            blocks=tuple(EncoderBlock.init(config, key=block_key) for block_key in keys[3:]),
            config=config,
        )

    def activations(self, tokens_BT: Int[Array, "B T"], lengths_B: Int[Array, " B"]) -> Float[Array, "B T D"]:
        """One vector a position, from the first `lengths_B` tokens of its row; those of positions behind mean nothing.

        Raises:
            ConfigError: if rows are longer than the encoder has positions for.
        """
        config, num_tokens = self.config, tokens_BT.shape[1]
        if num_tokens > config.max_seq_len:
            raise ConfigError(
                f"texts of {num_tokens} tokens, but the encoder takes {config.max_seq_len} at most: cut them"
            )
        x_BTD = self.embedding(tokens_BT)
        if self.type_embedding is not None:
            x_BTD = shifted(x_BTD, self.type_embedding.weight_VD[None, :1])
        if self.position_embedding is not None:
            first = config.first_position
            x_BTD = shifted(x_BTD, self.position_embedding.weight_VD[None, first : first + num_tokens])
        angles = None if config.rope is None else rotary_angles(config.rope, num_tokens, config.head_dim)
        x_BTD = self.embedding_norm(x_BTD)
        for block in self.blocks:
            x_BTD = block(x_BTD, lengths_B, angles)
        return x_BTD


class MaskedHead(eqx.Module):
    """BERT's prediction of hidden tokens: `norm(gelu(dense(x)))` against the table of embeddings, and a bias."""

    dense: Linear
    norm: LayerNorm
    bias_V: Float[Array, " V"]

    @staticmethod
    def init(config: EncoderModelConfig, vocab_size: int, *, key: PRNGKeyArray) -> "MaskedHead":
        width = config.hidden_dim
        dense = Linear.init(width, width, key=key, std=config.initializer_range, use_bias=True)
        norm = LayerNorm.init(width, epsilon=config.layer_norm_epsilon)
        return MaskedHead(dense, norm, jnp.zeros((vocab_size,), jnp.float32))

    def __call__(self, x: Float[Array, "N D"], embedding: Embedding) -> Float[Array, "N V"]:
        """Logits in float32."""
        x = self.norm(ACTIVATIONS["gelu"](self.dense(x)))
        logits = jnp.dot(x, embedding.weight_VD.T, preferred_element_type=jnp.float32)
        return logits + self.bias_V.astype(jnp.float32)[None]


def bidirectional_attention(
    q_BTHC: Float[Array, "B T H C"],
    k_BTHC: Float[Array, "B T H C"],
    v_BTHC: Float[Array, "B T H C"],
    lengths_B: Int[Array, " B"],
) -> Float[Array, "B T H C"]:
    """Attention of all positions to the first `lengths_B` of their row; cuDNN's kernel on GPUs in 16 bits."""
    fused = jax.default_backend() == "gpu" and q_BTHC.dtype in (jnp.bfloat16, jnp.float16)
    return jax.nn.dot_product_attention(
        q_BTHC, k_BTHC, v_BTHC, key_value_seq_lengths=lengths_B, implementation="cudnn" if fused else "xla"
    )


def pooled(x_BTD: Float[Array, "B T D"], lengths_B: Int[Array, " B"], pooling: str) -> Float[Array, "B D"]:
    """One float32 vector a text: that of its first position ("cls"), or the mean over its positions ("mean")."""
    if pooling == "cls":
        return x_BTD[:, 0].astype(jnp.float32)
    seen_BT = (jnp.arange(x_BTD.shape[1])[None] < lengths_B[:, None]).astype(jnp.float32)
    total_BD = jnp.einsum("btd,bt->bd", x_BTD.astype(jnp.float32), seen_BT)
    return total_BD / jnp.maximum(lengths_B[:, None].astype(jnp.float32), 1.0)
