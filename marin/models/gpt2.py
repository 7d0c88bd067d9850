"""GPT-2 (Radford et al., 2019), to be scored: what a folder of its weights in Hugging Face's layout computes.

Learned positions, layer normalizations with biases, attention over the whole context, a feed-forward with GELU, and a head that is
the embedding. Time-to-GPT-2 is measured against it. Such a model is read (`load_gpt2`), scored and sampled from; it cannot be
decoded with a cache, and is trained only as any `LmConfig` is.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from marin.errors import CheckpointError, ConfigError
from marin.models.flops import lm_flops_per_token
from marin.models.hf_files import CONFIG_FILE, WeightFolder, read_json
from marin.models.hf_layout import parameters_of
from marin.models.hf_values import HfValues
from marin.models.lm import count_parameters, shapes_of
from marin.nn import ACTIVATIONS, Embedding, LayerNorm, Linear, attention
from marin.nn.trees import with_arrays
from marin.nn.wide_sums import shifted
from marin.number_checks import check_whole

MODEL_TYPE = "gpt2"


@dataclasses.dataclass(frozen=True)
class Gpt2Config:
    """The smallest GPT-2 by default.

    Args:
        seq_len: positions that the model knows; a longer row is refused.
        intermediate_dim: width of the feed-forward; None for four times `hidden_dim`.
    Raises:
        ConfigError: a number is below 1, the heads do not divide the width, or the activation is unknown.
    """

    seq_len: int = 1024
    hidden_dim: int = 768
    num_layers: int = 12
    num_heads: int = 12
    intermediate_dim: int | None = None
    activation_function: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        for field in ("seq_len", "hidden_dim", "num_layers", "num_heads"):
            check_whole(f"`{field}`", getattr(self, field))
        if self.hidden_dim % self.num_heads:
            raise ConfigError(f"`hidden_dim` {self.hidden_dim} is not a multiple of `num_heads` {self.num_heads}")
        if self.activation_function not in ACTIVATIONS:
            raise ConfigError(
                f"`activation_function` is {self.activation_function!r}: use one of {sorted(ACTIVATIONS)}"
            )

    @property
    def max_seq_len(self) -> int:
        return self.seq_len

    @property
    def feed_forward_dim(self) -> int:
        return self.intermediate_dim or 4 * self.hidden_dim

    def build(self, vocab_size: int, *, key: PRNGKeyArray) -> "Gpt2":
        return Gpt2.init(self, vocab_size, key=key)

    def flops_per_token(self, vocab_size: int, context_length: int) -> float:
        return lm_flops_per_token(
            hidden_dim=self.hidden_dim,
            intermediate_dim=self.feed_forward_dim,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_kv_heads=self.num_heads,
            context_length=context_length,
            vocab_size=vocab_size,
            glu=False,
        )

    def total_trainable_params(self, vocab_size: int) -> int:
        return count_parameters(shapes_of(self, vocab_size))


class Gpt2Block(eqx.Module):
    """Attention, then a feed-forward; each normalized before and added to the residual stream."""

    attention_norm: LayerNorm
    qkv: Linear
    output: Linear
    mlp_norm: LayerNorm
    up: Linear
    down: Linear
    config: Gpt2Config = eqx.field(static=True)

    @staticmethod
    def init(config: Gpt2Config, *, key: PRNGKeyArray) -> "Gpt2Block":
        keys = jax.random.split(key, 4)
        width, hidden, std = config.hidden_dim, config.feed_forward_dim, config.initializer_range
        # What is added to the stream begins smaller the more layers add to it.
        std_out = std / (2 * config.num_layers) ** 0.5
        return Gpt2Block(
            attention_norm=LayerNorm.init(width, epsilon=config.layer_norm_epsilon),
            qkv=Linear.init(width, 3 * width, key=keys[0], std=std, use_bias=True),
            output=Linear.init(width, width, key=keys[1], std=std_out, use_bias=True),
            mlp_norm=LayerNorm.init(width, epsilon=config.layer_norm_epsilon),
            up=Linear.init(width, hidden, key=keys[2], std=std, use_bias=True),
            down=Linear.init(hidden, width, key=keys[3], std=std_out, use_bias=True),
            config=config,
        )

    def __call__(self, x_BTD: Float[Array, "B T D"], segment_ids_BT: Int[Array, "B T"] | None) -> Float[Array, "B T D"]:
        rows, tokens, width = x_BTD.shape
        qkv = self.qkv(self.attention_norm(x_BTD))
        q_BTHC, k_BTHC, v_BTHC = (
            part.reshape(rows, tokens, self.config.num_heads, -1) for part in jnp.split(qkv, 3, axis=-1)
        )
        out_BTHC = attention(q_BTHC, k_BTHC, v_BTHC, segment_ids_BT)
        x_BTD = x_BTD + self.output(out_BTHC.astype(x_BTD.dtype).reshape(rows, tokens, width))
        return x_BTD + self.down(ACTIVATIONS[self.config.activation_function](self.up(self.mlp_norm(x_BTD))))


class Gpt2(eqx.Module):
    """Embeddings of tokens and of positions, blocks, and a last normalization."""

    embedding: Embedding
    position_SD: Float[Array, "S D"]
    blocks: tuple[Gpt2Block, ...]
    final_norm: LayerNorm
    config: Gpt2Config = eqx.field(static=True)

    @staticmethod
    def init(config: Gpt2Config, vocab_size: int, *, key: PRNGKeyArray) -> "Gpt2":
        embedding_key, position_key, blocks_key = jax.random.split(key, 3)
        width, std = config.hidden_dim, config.initializer_range
        return Gpt2(
            embedding=Embedding.init(vocab_size, width, key=embedding_key, std=std),
            position_SD=std * jax.random.normal(position_key, (config.seq_len, width), jnp.float32),
            blocks=tuple(Gpt2Block.init(config, key=k) for k in jax.random.split(blocks_key, config.num_layers)),
            final_norm=LayerNorm.init(width, epsilon=config.layer_norm_epsilon),
            config=config,
        )

    @property
    def lm_head_DV(self) -> Float[Array, "D V"]:
        return self.embedding.weight_VD.T

    @property
    def logit_softcap(self) -> float | None:
        return None

    @property
    def max_positions(self) -> int:
        return self.config.seq_len

    def activations(
        self, tokens_BT: Int[Array, "B T"], segment_ids_BT: Int[Array, "B T"] | None
    ) -> Float[Array, "B T D"]:
        """Positions count from the beginning of the row, whatever its segments, as in GPT-2's own training.

        Raises:
            ConfigError: the row is longer than the positions that the model knows.
        """
        num_tokens = tokens_BT.shape[1]
        if num_tokens > self.config.seq_len:
            raise ConfigError(
                f"a row of {num_tokens:,} tokens, and the model knows {self.config.seq_len:,} positions: use shorter rows"
            )
        x_BTD = shifted(self.embedding(tokens_BT), self.position_SD[None, :num_tokens])
        for block in self.blocks:
            x_BTD = block(x_BTD, segment_ids_BT)
        return self.final_norm(x_BTD)


# ---- Hugging Face's layout -------------------------------------------------------------------------------------------

_NAMES = {"embedding.weight_VD": "wte.weight", "position_SD": "wpe.weight"}
_MODULES = {
    "attention_norm": "ln_1",
    "qkv": "attn.c_attn",
    "output": "attn.c_proj",
    "mlp_norm": "ln_2",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}
_ARRAYS = {"weight_IO": "weight", "weight_D": "weight", "bias_O": "bias", "bias_D": "bias"}
# Masks that old checkpoints hold beside the weights; and the head, which is the embedding.
_DERIVED = (".attn.bias", ".attn.masked_bias", "lm_head.weight")
# Keys that this model has one value for, and that value.
_FIXED = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}


def gpt2_config(hf: Mapping[str, Any], where: str) -> Gpt2Config:
    """The config that a `config.json` of `model_type` "gpt2" describes.

    Args:
        where: the file, for messages.
    Raises:
        CheckpointError: naming the key that is missing, or whose value cannot be computed here.
    """
    values = HfValues(hf, where)
    for key, value in _FIXED.items():
        if hf.get(key, value) != value:
            values.refuse(key, f"this engine's GPT-2 has {value!r}")
    activation = values.text("activation_function", "gelu_new")
    try:
        return Gpt2Config(
            seq_len=values.whole("n_positions"),
            hidden_dim=values.whole("n_embd"),
            num_layers=values.whole("n_layer"),
            num_heads=values.whole("n_head"),
            intermediate_dim=None if hf.get("n_inner") is None else values.whole("n_inner"),
            activation_function={"gelu_pytorch_tanh": "gelu_new"}.get(activation, activation),
            layer_norm_epsilon=values.number("layer_norm_epsilon", 1e-5),
            initializer_range=values.number("initializer_range", 0.02),
        )
    except ConfigError as error:
        raise CheckpointError(f"{where} describes a model that this engine cannot build: {error}") from None


def load_gpt2(folder: str | Path) -> tuple[Gpt2Config, Gpt2]:
    """The model in a folder and its config; every array has its parameter and every parameter its array.

    Raises:
        CheckpointError: the folder is not whole, or holds another model than its config describes.
    """
    hf, where = read_json(Path(folder), CONFIG_FILE), str(Path(folder) / CONFIG_FILE)
    config = gpt2_config(hf, where)
    shapes = shapes_of(config, HfValues(hf, where).whole("vocab_size"))
    weights = WeightFolder.open(Path(folder))
    # Some checkpoints hold the transformer alone, others a language model that has one.
    prefix = "transformer." if "transformer.wte.weight" in weights.shapes else ""
    leaves = []
    for name, leaf in parameters_of(shapes).items():
        place = prefix + published_name(name)
        if weights.shapes.get(place) != leaf.shape:
            found = weights.shapes.get(place, "not")
            raise CheckpointError(
                f"{folder} holds `{place}` {'not' if found == 'not' else f'with shape {found}'}, its {CONFIG_FILE} makes {leaf.shape}:"
                " it is of another model, or not whole"
            )
        leaves.append(jax.device_put(np.ascontiguousarray(weights.read(place).astype(leaf.dtype))))
    used = {prefix + published_name(name) for name in parameters_of(shapes)}
    for entry in sorted(weights.shapes.keys() - used):
        if not entry.endswith(_DERIVED):
            raise CheckpointError(f"{folder} holds `{entry}`, for which GPT-2 has no parameter: it is of another model")
    return config, with_arrays(shapes, leaves)


def published_name(parameter: str) -> str:
    """What one of our parameters is called, such as "h.0.mlp.c_fc.weight" for "blocks.0.up.weight_IO"; matrices stand there with inputs first, as ours do."""
    if parameter in _NAMES:
        return _NAMES[parameter]
    module, _, array = parameter.rpartition(".")
    if module == "final_norm":
        return f"ln_f.{_ARRAYS[array]}"
    _, number, name = module.split(".", 2)
    return f"h.{number}.{_MODULES[name]}.{_ARRAYS[array]}"
