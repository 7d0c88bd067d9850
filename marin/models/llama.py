"""The Llama architecture: RMSNorm, rotary positions, grouped-query attention, SwiGLU (Touvron et al., 2023, arXiv:2302.13971).

`LlamaConfig` carries every field that published speedrun configs name. A value that this implementation cannot honour is
refused when the config is made, never ignored.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from marin.errors import ConfigError
from marin.models.described import check_rope
from marin.models.flops import lm_flops_per_token
from marin.models.lm import count_parameters, shapes_of
from marin.nn import (
    ACTIVATIONS,
    AttentionBackend,
    Embedding,
    GatedMlp,
    Linear,
    RmsNorm,
    RmsNormConfig,
    RotaryConfig,
    apply_rotary,
    attention,
    rotary_angles,
)
from marin.nn.remat import check_recomputation, recomputing
from marin.number_checks import check_switches, check_whole, is_finite


@dataclasses.dataclass(frozen=True)
class LlamaConfig:
    """A Llama-style decoder.

    Args:
        cross_entropy_block_size: the most tokens whose logits exist at once in the loss; None for the engine's choice.
        seq_len: tokens of context in training and evaluation.
        head_dim: width of a head; None for `hidden_dim / num_heads`.
        use_layer_norm_weight: whether normalizations learn a scale.
        input_embedding_norm: normalize the embeddings before the first block.
        use_attention_sink: a learned logit in each head's softmax that attends to nothing.
        upcast_attn: compute attention scores from float32 queries and keys.
        attn_backend: an attention kernel (`AttentionBackend` or its name), or None for the device's best.
        flash_attention_block_size: queries per block of the JAX_FLASH kernel; None chooses.
        qk_norm: normalize queries and keys of each head.
        gradient_checkpointing: what the backward pass recomputes: True each block, "products" all but the results of
            products with weights, False nothing (see `marin.nn.remat`).
        initializer_range: standard deviation of initial weights.
        reference_checkpoint: a Hugging Face repository of this architecture, for the record.
        tokenizer: the tokenizer that the model is tied to, or None; a dataset of another one is refused.
    """

    cross_entropy_block_size: int | None = None
    seq_len: int = 2048
    hidden_dim: int = 4096
    intermediate_dim: int = 11008
    num_layers: int = 32
    num_heads: int = 32
    num_kv_heads: int = 32
    head_dim: int | None = None
    activation_function: str = "silu"
    use_bias: bool = False
    use_layer_norm_weight: bool = True
    layer_norm_epsilon: float = 1e-5
    tie_word_embeddings: bool = False
    input_embedding_norm: bool = False
    use_attention_sink: bool = False
    upcast_attn: bool = False
    attn_backend: AttentionBackend | str | None = None
    flash_attention_block_size: int | None = None
    rope: RotaryConfig = RotaryConfig()
    qk_norm: RmsNormConfig | None = None
    gradient_checkpointing: bool | str = True
    initializer_range: float = 0.02
    reference_checkpoint: str = "NousResearch/Llama-2-7b-hf"
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        check_transformer_shape(self)

    @property
    def max_seq_len(self) -> int:
        return self.seq_len

    @property
    def actual_head_dim(self) -> int:
        return self.head_dim or self.hidden_dim // self.num_heads

    def build(self, vocab_size: int, *, key: PRNGKeyArray) -> "LlamaModel":
        return LlamaModel.init(self, vocab_size, key=key)

    def flops_per_token(self, vocab_size: int, context_length: int) -> float:
        return lm_flops_per_token(
            hidden_dim=self.hidden_dim,
            intermediate_dim=self.intermediate_dim,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            context_length=context_length,
            vocab_size=vocab_size,
            glu=True,
        )

    def total_trainable_params(self, vocab_size: int) -> int:
        """Counted from the shapes that `build` makes, so it holds whatever the options."""
        return count_parameters(shapes_of(self, vocab_size))


class LlamaAttention(eqx.Module):
    """Grouped-query attention with rotary positions."""

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    query_norm: RmsNorm | None
    key_norm: RmsNorm | None
    sink_H: Float[Array, " H"] | None
    config: LlamaConfig = eqx.field(static=True)

    @staticmethod
    def init(config: LlamaConfig, *, key: PRNGKeyArray) -> "LlamaAttention":
        keys = jax.random.split(key, 4)
        width, head_dim, std, bias = (
            config.hidden_dim,
            config.actual_head_dim,
            config.initializer_range,
            config.use_bias,
        )
        queries, keys_values = config.num_heads * head_dim, config.num_kv_heads * head_dim
        return LlamaAttention(
            query=Linear.init(width, queries, key=keys[0], std=std, use_bias=bias),
            key=Linear.init(width, keys_values, key=keys[1], std=std, use_bias=bias),
            value=Linear.init(width, keys_values, key=keys[2], std=std, use_bias=bias),
            output=Linear.init(queries, width, key=keys[3], std=std, use_bias=bias),
            query_norm=config.qk_norm.build(head_dim) if config.qk_norm else None,
            key_norm=config.qk_norm.build(head_dim) if config.qk_norm else None,
            sink_H=jnp.zeros((config.num_heads,), jnp.float32) if config.use_attention_sink else None,
            config=config,
        )

    def queries_keys_values(
        self, x_BTD: Float[Array, "B T D"], angles: tuple[Array, Array]
    ) -> tuple[Float[Array, "B T H C"], Float[Array, "B T K C"], Float[Array, "B T K C"]]:
        """What attention takes, of the normalized stream."""
        num_rows, num_tokens, _ = x_BTD.shape
        config = self.config
        q_BTHC = self.query(x_BTD).reshape(num_rows, num_tokens, config.num_heads, config.actual_head_dim)
        k_BTKC = self.key(x_BTD).reshape(num_rows, num_tokens, config.num_kv_heads, config.actual_head_dim)
        v_BTKC = self.value(x_BTD).reshape(num_rows, num_tokens, config.num_kv_heads, config.actual_head_dim)
        if self.query_norm is not None and self.key_norm is not None:
            q_BTHC, k_BTKC = self.query_norm(q_BTHC), self.key_norm(k_BTKC)
        return apply_rotary(q_BTHC, *angles), apply_rotary(k_BTKC, *angles), v_BTKC

    def merged(self, out_BTHC: Float[Array, "B T H C"], dtype: jnp.dtype) -> Float[Array, "B T D"]:
        """What is added to the stream, of attention's result."""
        num_rows, num_tokens = out_BTHC.shape[:2]
        return self.output(out_BTHC.astype(dtype).reshape(num_rows, num_tokens, -1))

    def __call__(self, x_BTD: Float[Array, "B T D"], segment_ids_BT: Int[Array, "B T"] | None) -> Float[Array, "B T D"]:
        config = self.config
        angles = rotary_angles(config.rope, x_BTD.shape[1], config.actual_head_dim)
        out_BTHC = attention(
            *self.queries_keys_values(x_BTD, angles),
            segment_ids_BT,
            sink_H=self.sink_H,
            backend=parse_attention_backend(config.attn_backend),
            block_size=config.flash_attention_block_size,
            upcast=config.upcast_attn,
        )
        return self.merged(out_BTHC, x_BTD.dtype)


class LlamaBlock(eqx.Module):
    """Attention, then a gated feed-forward; each normalized before and added to the residual stream."""

    attention_norm: RmsNorm
    attention: LlamaAttention
    mlp_norm: RmsNorm
    mlp: GatedMlp

    @staticmethod
    def init(config: LlamaConfig, *, key: PRNGKeyArray) -> "LlamaBlock":
        attention_key, mlp_key = jax.random.split(key)
        norm = RmsNormConfig(config.layer_norm_epsilon, config.use_layer_norm_weight)
        return LlamaBlock(
            attention_norm=norm.build(config.hidden_dim),
            attention=LlamaAttention.init(config, key=attention_key),
            mlp_norm=norm.build(config.hidden_dim),
            mlp=GatedMlp.init(
                config.hidden_dim,
                config.intermediate_dim,
                key=mlp_key,
                std=config.initializer_range,
                activation=config.activation_function,
                use_bias=config.use_bias,
            ),
        )

    def __call__(self, x_BTD: Float[Array, "B T D"], segment_ids_BT: Int[Array, "B T"] | None) -> Float[Array, "B T D"]:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), segment_ids_BT)
        return x_BTD + self.mlp(self.mlp_norm(x_BTD))


class LlamaModel(eqx.Module):
    """Embedding, blocks, a last normalization, and a head that may share the embedding's weights."""

    embedding: Embedding
    embedding_norm: RmsNorm | None
    blocks: tuple[LlamaBlock, ...]
    final_norm: RmsNorm
    lm_head: Linear | None
    config: LlamaConfig = eqx.field(static=True)

    @staticmethod
    def init(config: LlamaConfig, vocab_size: int, *, key: PRNGKeyArray) -> "LlamaModel":
        embedding_key, head_key, blocks_key = jax.random.split(key, 3)
        norm = RmsNormConfig(config.layer_norm_epsilon, config.use_layer_norm_weight)
        std = config.initializer_range
        return LlamaModel(
            embedding=Embedding.init(vocab_size, config.hidden_dim, key=embedding_key, std=std),
            embedding_norm=norm.build(config.hidden_dim) if config.input_embedding_norm else None,
            blocks=tuple(LlamaBlock.init(config, key=k) for k in jax.random.split(blocks_key, config.num_layers)),
            final_norm=norm.build(config.hidden_dim),
            lm_head=(
                None
                if config.tie_word_embeddings
                else Linear.init(config.hidden_dim, vocab_size, key=head_key, std=std)
            ),
            config=config,
        )

    @property
    def lm_head_DV(self) -> Float[Array, "D V"]:
        return self.embedding.weight_VD.T if self.lm_head is None else self.lm_head.weight_IO

    @property
    def logit_softcap(self) -> float | None:
        return None

    def activations(
        self, tokens_BT: Int[Array, "B T"], segment_ids_BT: Int[Array, "B T"] | None
    ) -> Float[Array, "B T D"]:
        return self.final_norm(self.stream(tokens_BT, segment_ids_BT, len(self.blocks)))

    def stream(
        self, tokens_BT: Int[Array, "B T"], segment_ids_BT: Int[Array, "B T"] | None, num_layers: int
    ) -> Float[Array, "B T D"]:
        """What the first `num_layers` blocks leave."""
        x_BTD = self.embedding(tokens_BT)
        if self.embedding_norm is not None:
            x_BTD = self.embedding_norm(x_BTD)

        def run(block: LlamaBlock, x_BTD: Array) -> Array:
            return block(x_BTD, segment_ids_BT)

        run = recomputing(run, self.config.gradient_checkpointing)
        for block in self.blocks[:num_layers]:
            x_BTD = run(block, x_BTD)
        return x_BTD


def parse_attention_backend(name: AttentionBackend | str | None) -> AttentionBackend | None:
    """A backend by the name that configs use, such as "JAX_FLASH"; None stays None, the device's best.

    Raises:
        ConfigError: for a kernel that is not there (the reference's NVTE among them).
    """
    if name is None or isinstance(name, AttentionBackend):
        return name
    try:
        return AttentionBackend[name.upper()]
    except KeyError:
        known = ", ".join(backend.name for backend in AttentionBackend)
        raise ConfigError(
            f"`attn_backend` is {name!r}: this engine has {known}; leave it None for the device's best"
        ) from None


def check_transformer_shape(config: Any) -> None:
    """Refuses shapes and options that a transformer cannot be built from, each with what would work.

    Raises:
        ConfigError: naming the field.
    """
    for field in ("seq_len", "hidden_dim", "intermediate_dim", "num_layers", "num_heads", "num_kv_heads"):
        check_whole(f"`{field}`", getattr(config, field))
    for field in ("head_dim", "cross_entropy_block_size", "flash_attention_block_size"):
        check_whole(f"`{field}`", getattr(config, field), or_none=True)
    for field in ("layer_norm_epsilon", "initializer_range"):
        value = getattr(config, field, 0.0)  # a copy of the template may have done away with it
        if not is_finite(value) or value < 0:
            raise ConfigError(f"`{field}` is {value!r}: use a number of at least 0")
    check_switches("`{}`", config)
    hidden, heads, kv_heads = config.hidden_dim, config.num_heads, config.num_kv_heads
    if config.head_dim is None and hidden % heads:
        raise ConfigError(
            f"`hidden_dim` {hidden} is not a multiple of `num_heads` {heads}: change one, or set `head_dim`"
        )
    if heads % kv_heads:
        raise ConfigError(f"`num_heads` {heads} is not a multiple of `num_kv_heads` {kv_heads}")
    if (config.head_dim or hidden // heads) % 2:
        raise ConfigError(f"`head_dim` is {config.head_dim or hidden // heads}: rotary embedding needs an even number")
    if config.activation_function not in ACTIVATIONS:
        raise ConfigError(f"`activation_function` is {config.activation_function!r}: use one of {sorted(ACTIVATIONS)}")
    parse_attention_backend(config.attn_backend)
    check_recomputation(config.gradient_checkpointing)
    if config.qk_norm is not None and not isinstance(config.qk_norm, RmsNormConfig):
        raise ConfigError(f"`qk_norm` is {config.qk_norm!r}: use RmsNormConfig(), or None")
    check_rope(config.rope)
