"""The hackable transformer with AdaMuon (Si et al., 2025, arXiv:2507.11005), an optimizer that the package does not have.

    SR_SIZES=cpu SR_SEEDS=0,1,2 python -m experiments.speedrun.hackable_adamuon.main --force_run_failed true --prefix local_store

Muon makes the update of a matrix orthogonal; AdaMuon then divides each element by the root of its own second moment, as Adam
does, and scales the whole to the size of Adam's updates. Embeddings, head and norms take AdamW, as with Muon.
Copied from `experiments/hackable_transformer_starter_template.py`; figures are in docs/LOG.md.
"""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from experiments.python_docs import tokenized
from experiments.simple_train_config import SimpleTrainConfig
from experiments.speedrun.prebuilt_caches import fineweb_edu_subcache_10B
from marin.errors import ConfigError
from marin.execution import ExecutorStep, executor_main
from marin.models.flops import lm_flops_per_token
from marin.models.llama import check_transformer_shape, parse_attention_backend
from marin.models.lm import count_parameters
from marin.nn import (
    AttentionBackend,
    Embedding,
    GatedMlp,
    Linear,
    RmsNorm,
    RmsNormConfig,
    RotaryConfig,
    apply_rotary,
    attention,
    recomputing,
    rotary_angles,
)
from marin.optim import MuonConfig
from marin.optim.orthogonalize import orthogonalize_all
from marin.resources import CpuOnlyConfig, GpuConfig, Resources, TpuPodConfig
from marin.speedrun.speedrun import Author, SpeedrunConfig, chosen_names, chosen_seeds, chosen_switch, default_speedrun

# ======================================================================================================================
# TODO: who you are, and what is new here. (`marin init` fills in the first; a submission must not keep placeholders.)
# ======================================================================================================================

AUTHOR = Author(
    name="Marin",
    affiliation="Marin",
    url="https://marin.community",
)
DESCRIPTION = "The hackable transformer trained with AdaMuon in place of Muon"
NAME = Path(__file__).resolve().parent.name  # the submission's directory


# ======================================================================================================================
# TODO: the model. Shapes are in the names: B batch, T tokens, D width, H heads, K key/value heads, C head width, V vocabulary.
# ======================================================================================================================


@dataclasses.dataclass(frozen=True)
class HackableTransformerConfig:
    """Everything that decides the model. A field that you add is part of the run's identity."""

    cross_entropy_block_size: int | None = 4096
    seq_len: int = 4096
    hidden_dim: int = 512
    intermediate_dim: int = 1792
    num_layers: int = 6
    num_heads: int = 8
    num_kv_heads: int = 8
    head_dim: int | None = None
    activation_function: str = "silu"
    use_bias: bool = False
    use_layer_norm_weight: bool = True
    layer_norm_epsilon: float = 1e-5
    tie_word_embeddings: bool = False
    input_embedding_norm: bool = False
    use_attention_sink: bool = False
    upcast_attn: bool = False
    attn_backend: AttentionBackend | str | None = None  # the device's best
    flash_attention_block_size: int | None = None
    rope: RotaryConfig = RotaryConfig()
    qk_norm: RmsNormConfig | None = None
    gradient_checkpointing: bool | str = True  # or "products", or False: faster, where memory is enough
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

    @property
    def norm(self) -> RmsNormConfig:
        return RmsNormConfig(self.layer_norm_epsilon, self.use_layer_norm_weight)

    def build(self, vocab_size: int, *, key: PRNGKeyArray) -> "Transformer":
        return Transformer.init(self, vocab_size, key=key)

    def flops_per_token(self, vocab_size: int, context_length: int) -> float:
        """Forward FLOPs for one token. TODO: keep this true when you change the model; it is checked against a count."""
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
        """Counted from the shapes that `build` makes, so there is nothing to keep up to date."""
        return count_parameters(eqx.filter_eval_shape(lambda: self.build(vocab_size, key=jax.random.key(0))))


class Attention(eqx.Module):
    """Causal self-attention within documents."""

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    query_norm: RmsNorm | None
    key_norm: RmsNorm | None
    sink_H: Float[Array, " H"] | None
    config: HackableTransformerConfig = eqx.field(static=True)

    @staticmethod
    def init(config: HackableTransformerConfig, *, key: PRNGKeyArray) -> "Attention":
        query_key, key_key, value_key, output_key = jax.random.split(key, 4)
        width, std, bias = config.hidden_dim, config.initializer_range, config.use_bias
        queries = config.num_heads * config.actual_head_dim
        keys_values = config.num_kv_heads * config.actual_head_dim
        return Attention(
            query=Linear.init(width, queries, key=query_key, std=std, use_bias=bias),
            key=Linear.init(width, keys_values, key=key_key, std=std, use_bias=bias),
            value=Linear.init(width, keys_values, key=value_key, std=std, use_bias=bias),
            output=Linear.init(queries, width, key=output_key, std=std, use_bias=bias),
            query_norm=config.qk_norm.build(config.actual_head_dim) if config.qk_norm else None,
            key_norm=config.qk_norm.build(config.actual_head_dim) if config.qk_norm else None,
            sink_H=jnp.zeros((config.num_heads,), jnp.float32) if config.use_attention_sink else None,
            config=config,
        )

    def __call__(self, x_BTD: Float[Array, "B T D"], segment_ids_BT: Int[Array, "B T"] | None) -> Float[Array, "B T D"]:
        config = self.config
        rows, tokens, _ = x_BTD.shape
        q_BTHC = self.query(x_BTD).reshape(rows, tokens, config.num_heads, config.actual_head_dim)
        k_BTKC = self.key(x_BTD).reshape(rows, tokens, config.num_kv_heads, config.actual_head_dim)
        v_BTKC = self.value(x_BTD).reshape(rows, tokens, config.num_kv_heads, config.actual_head_dim)
        if self.query_norm is not None and self.key_norm is not None:
            q_BTHC, k_BTKC = self.query_norm(q_BTHC), self.key_norm(k_BTKC)
        cos_TC, sin_TC = rotary_angles(config.rope, tokens, config.actual_head_dim)
        out_BTHC = attention(
            apply_rotary(q_BTHC, cos_TC, sin_TC),
            apply_rotary(k_BTKC, cos_TC, sin_TC),
            v_BTKC,
            segment_ids_BT,
            sink_H=self.sink_H,
            backend=parse_attention_backend(config.attn_backend),
            block_size=config.flash_attention_block_size,
            upcast=config.upcast_attn,
        )
        return self.output(out_BTHC.astype(x_BTD.dtype).reshape(rows, tokens, -1))


class Block(eqx.Module):
    """One layer: attention and feed-forward, each normalized before and added to the residual stream."""

    attention_norm: RmsNorm
    attention: Attention
    mlp_norm: RmsNorm
    mlp: GatedMlp

    @staticmethod
    def init(config: HackableTransformerConfig, *, key: PRNGKeyArray) -> "Block":
        attention_key, mlp_key = jax.random.split(key)
        return Block(
            attention_norm=config.norm.build(config.hidden_dim),
            attention=Attention.init(config, key=attention_key),
            mlp_norm=config.norm.build(config.hidden_dim),
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


class Transformer(eqx.Module):
    """Embedding, layers, a last normalization, and a head."""

    embedding: Embedding
    embedding_norm: RmsNorm | None
    blocks: tuple[Block, ...]
    final_norm: RmsNorm
    lm_head: Linear | None
    config: HackableTransformerConfig = eqx.field(static=True)

    @staticmethod
    def init(config: HackableTransformerConfig, vocab_size: int, *, key: PRNGKeyArray) -> "Transformer":
        embedding_key, head_key, blocks_key = jax.random.split(key, 3)
        std, width = config.initializer_range, config.hidden_dim
        return Transformer(
            embedding=Embedding.init(vocab_size, width, key=embedding_key, std=std),
            embedding_norm=config.norm.build(width) if config.input_embedding_norm else None,
            blocks=tuple(Block.init(config, key=k) for k in jax.random.split(blocks_key, config.num_layers)),
            final_norm=config.norm.build(width),
            lm_head=None if config.tie_word_embeddings else Linear.init(width, vocab_size, key=head_key, std=std),
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
        x_BTD = self.embedding(tokens_BT)
        if self.embedding_norm is not None:
            x_BTD = self.embedding_norm(x_BTD)

        def run(block: Block, x_BTD: Array) -> Array:
            return block(x_BTD, segment_ids_BT)

        run = recomputing(run, self.config.gradient_checkpointing)
        for block in self.blocks:
            x_BTD = run(block, x_BTD)
        return self.final_norm(x_BTD)


# ======================================================================================================================
# The optimizer.
# ======================================================================================================================


@dataclasses.dataclass(frozen=True)
class AdaMuonConfig(MuonConfig):
    """AdaMuon for hidden matrices, AdamW for the rest; `momentum` is also the decay of the second moment, as in the paper.

    Args:
        variance_epsilon: added to the root of the second moment.
    """

    nesterov: bool = False
    variance_epsilon: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.use_kimi_scaling:
            raise ConfigError("`use_kimi_scaling` is True: AdaMuon has a scale of its own; leave it False")

    def matrix_rule(self, num_train_steps: int) -> optax.GradientTransformation:
        return optax.chain(scale_by_adamuon(self), *self.decay_and_rate(num_train_steps))


class AdaMuonState(NamedTuple):
    """The momentum of each matrix, and the running mean of its squared orthogonal updates, element by element."""

    momentum: optax.Updates
    variance: optax.Updates


def scale_by_adamuon(config: AdaMuonConfig) -> optax.GradientTransformation:
    """M <- beta M + G; O = orthogonal(sign M); V <- beta V + (1 - beta) O^2; then O / (sqrt V + eps) at RMS 0.2."""
    beta = config.momentum

    def init(params: optax.Params) -> AdaMuonState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return AdaMuonState(zeros, zeros)

    def scaled(o_IO: Float[Array, "I O"], v_IO: Float[Array, "I O"]) -> Float[Array, "I O"]:
        u_IO = o_IO / (jnp.sqrt(v_IO) + config.variance_epsilon)
        return u_IO * (0.2 * u_IO.size**0.5 / jnp.maximum(jnp.linalg.norm(u_IO), jnp.finfo(u_IO.dtype).tiny))

    def update(
        updates: optax.Updates, state: AdaMuonState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, AdaMuonState]:
        momentum = jax.tree.map(lambda m, g: beta * m + g, state.momentum, updates)
        ahead = jax.tree.map(lambda m, g: beta * m + g, momentum, updates) if config.nesterov else momentum
        leaves, structure = jax.tree.flatten(jax.tree.map(jnp.sign, ahead))
        flat = orthogonalize_all(leaves, num_steps=config.backend_steps, epsilon=config.muon_epsilon)
        orthogonal = jax.tree.unflatten(structure, flat)
        variance = jax.tree.map(lambda v, o: beta * v + (1 - beta) * jnp.square(o), state.variance, orthogonal)
        return jax.tree.map(scaled, orthogonal, variance), AdaMuonState(momentum, variance)

    return optax.GradientTransformation(init, update)


# ======================================================================================================================
# TODO: sizes, optimizers and hardware. Steps give about 20 tokens a parameter.
# ======================================================================================================================


@dataclasses.dataclass(frozen=True)
class Preset:
    """One size: its shape, its optimizer, its batch, and what to run it on (0 GPUs: this machine's processor)."""

    model: HackableTransformerConfig
    optimizer: MuonConfig
    train_batch_size: int
    num_gpus: int
    tpu_type: str = "v5p-32"
    dataset: ExecutorStep = fineweb_edu_subcache_10B
    num_train_steps: int | None = None  # None for TOKENS_PER_PARAMETER


def _shape(
    hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, **more: Any
) -> HackableTransformerConfig:
    return HackableTransformerConfig(
        hidden_dim=hidden,
        intermediate_dim=intermediate,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        **more,
    )


def _muon(
    learning_rate: float,
    adam_lr: float,
    *,
    momentum: float = 0.98,
    decay: float,
    max_grad_norm: float = 1,
    epsilon: float = 1e-15,
) -> AdaMuonConfig:
    return AdaMuonConfig(
        learning_rate=learning_rate,
        adam_lr=adam_lr,
        weight_decay=0.1,
        min_lr_ratio=0,
        warmup=0,
        decay=decay,
        momentum=momentum,
        beta1=0.8,
        beta2=0.98,
        epsilon=epsilon,
        muon_epsilon=1e-5,
        max_grad_norm=max_grad_norm,
    )


# The rates of the matrices are those with which an update has the size that Muon's has in the template: a 0.2 sqrt(width)-th.
PRESETS = {
    "130m": Preset(_shape(512, 1792, 6, 8, 8), _muon(0.0035, 0.0032, momentum=0.95, decay=0.8), 128, num_gpus=1),
    "300m": Preset(_shape(768, 2688, 12, 12, 12), _muon(0.00144, 0.0024, decay=0.8), 128, num_gpus=1),
    "520m": Preset(_shape(1024, 3584, 24, 16, 8), _muon(0.00125, 0.0024, decay=1, epsilon=1e-25), 128, num_gpus=2),
    "1_2b": Preset(_shape(2048, 7168, 16, 16, 8), _muon(0.00044, 0.0012, decay=1, max_grad_norm=2), 256, num_gpus=4),
    # What an idea is worth at this size says little about the others; that it trains is seen here before a GPU is paid for.
    "cpu": Preset(
        _shape(128, 384, 2, 2, 2, seq_len=256, gradient_checkpointing=False),
        _muon(0.007, 0.03, momentum=0.9, decay=0.6),
        4,
        num_gpus=0,
        dataset=tokenized(2048),
        num_train_steps=200,
    ),
}

DATASET_TOKENS = 10_000_000_000
VOCAB_SIZE = 128_256
TOKENS_PER_PARAMETER = 20


def resources_for(preset: Preset) -> Resources:
    """TODO: name your hardware; a result counts what it could have done in the time that you used it."""
    if preset.num_gpus == 0:
        return CpuOnlyConfig(num_cpus=2)
    if chosen_switch("SR_USE_TPU"):
        return TpuPodConfig(preset.tpu_type)
    return GpuConfig(gpu_count=preset.num_gpus, accelerator_type="A100-80G")


def speedrun_config(size: str, seed: int = 0) -> SpeedrunConfig:
    """The speedrun of one size; `seed` is that of the initial weights."""
    preset = PRESETS[size]
    tokens_per_step = preset.train_batch_size * preset.model.seq_len
    num_train_steps = preset.num_train_steps
    if num_train_steps is None:
        num_train_steps = TOKENS_PER_PARAMETER * preset.model.total_trainable_params(VOCAB_SIZE) // tokens_per_step
    if num_train_steps * tokens_per_step > DATASET_TOKENS:
        print(
            f"warning: {size} trains on {num_train_steps * tokens_per_step / 1e9:.1f}B tokens, the dataset has "
            f"{DATASET_TOKENS / 1e9:.0f}B: some of them repeat"
        )
    return SpeedrunConfig(
        author=AUTHOR,
        description=f"{DESCRIPTION} ({size})",
        model_config=preset.model,
        train_config=SimpleTrainConfig(
            resources_for(preset),
            train_batch_size=preset.train_batch_size,
            num_train_steps=num_train_steps,
            learning_rate=preset.optimizer.learning_rate,
            optimizer_config=preset.optimizer,
            steps_per_hf_export=-1,
            seed=seed,
        ),
        tokenized_dataset=preset.dataset,
    )


def runs() -> list[ExecutorStep]:
    """The steps of every size and seed that the environment asks for."""
    # TODO: the sizes to run; larger ones once the smallest says that the idea works.
    sizes = chosen_names("SR_SIZES", "130m", PRESETS)
    seeds = chosen_seeds("SR_SEEDS", "0")
    names = {(size, seed): f"{NAME}_{size}" + (f"_seed{seed}" if seed else "") for size in sizes for seed in seeds}
    return [step for key, name in names.items() for step in default_speedrun(name, speedrun_config(*key))]


if __name__ == "__main__":
    executor_main(steps=runs(), description=DESCRIPTION)
