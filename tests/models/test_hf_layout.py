"""Names and config of the published layouts, against what the formats' authors publish, not against our own tables."""

import dataclasses

import equinox as eqx
import jax
import pytest

from marin.errors import CheckpointError, ConfigError
from marin.models import LlamaConfig
from marin.models.hf_config import differences, from_hf_config, to_hf_config
from marin.models.hf_layout import parameters_of, place_of
from marin.nn import Llama3RotaryConfig, RmsNormConfig, RotaryConfig, rotary_angles

# As published: names and shapes of a layer of meta-llama/Llama-3.2-1B (width 2048, 32 heads of 64, 8 key/value heads, 8192).
LLAMA_32_1B = {
    "model.embed_tokens.weight": (128256, 2048),
    "model.layers.0.input_layernorm.weight": (2048,),
    "model.layers.0.self_attn.q_proj.weight": (2048, 2048),
    "model.layers.0.self_attn.k_proj.weight": (512, 2048),
    "model.layers.0.self_attn.v_proj.weight": (512, 2048),
    "model.layers.0.self_attn.o_proj.weight": (2048, 2048),
    "model.layers.0.post_attention_layernorm.weight": (2048,),
    "model.layers.0.mlp.gate_proj.weight": (8192, 2048),
    "model.layers.0.mlp.up_proj.weight": (8192, 2048),
    "model.layers.0.mlp.down_proj.weight": (2048, 8192),
    "model.norm.weight": (2048,),
}
LLAMA_32_1B_CONFIG = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 1, "num_key_value_heads": 8, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "rope_scaling": {
        "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "transformers_version": "4.45.0.dev0", "use_cache": True, "vocab_size": 128256,
}  # fmt: skip
# As published for Qwen/Qwen3-0.6B: width 1024, 16 heads of 128, 8 key/value heads, feed-forward 3072.
QWEN3_06B = {
    "model.layers.0.self_attn.q_proj.weight": (2048, 1024),
    "model.layers.0.self_attn.k_proj.weight": (1024, 1024),
    "model.layers.0.self_attn.o_proj.weight": (1024, 2048),
    "model.layers.0.self_attn.q_norm.weight": (128,),
    "model.layers.0.self_attn.k_norm.weight": (128,),
    "model.layers.0.mlp.down_proj.weight": (1024, 3072),
}
QWEN3_06B_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072,
    "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16,
    "num_hidden_layers": 1, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000,
    "sliding_window": None, "tie_word_embeddings": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip


def _published_shapes(config: LlamaConfig, vocab_size: int) -> dict[str, tuple[int, ...]]:
    shapes = eqx.filter_eval_shape(lambda: config.build(vocab_size, key=jax.random.key(0)))
    found = {}
    for name, leaf in parameters_of(shapes).items():
        place = place_of(name)
        found[place.name] = tuple(reversed(leaf.shape)) if place.transposed else leaf.shape
    return found


def test_layout_of_llama_has_the_published_names_and_shapes_and_no_others():
    config = from_hf_config(LLAMA_32_1B_CONFIG, "config.json")
    assert _published_shapes(config, 128256) == LLAMA_32_1B
    untied = dataclasses.replace(config, tie_word_embeddings=False, use_bias=True)
    more = _published_shapes(untied, 128256)
    assert more["lm_head.weight"] == (128256, 2048)
    assert more["model.layers.0.self_attn.k_proj.bias"] == (512,)
    assert more["model.layers.0.mlp.gate_proj.bias"] == (8192,)
    assert len(more) == len(LLAMA_32_1B) + 8


def test_layout_of_qwen3_has_the_published_names_and_shapes():
    config = from_hf_config(QWEN3_06B_CONFIG, "config.json")
    assert QWEN3_06B.items() <= _published_shapes(config, 151936).items()
    assert config.qk_norm == RmsNormConfig(1e-6)


@pytest.mark.parametrize("published", [LLAMA_32_1B_CONFIG, QWEN3_06B_CONFIG], ids=["llama", "qwen3"])
def test_config_read_and_written_says_what_was_published(published):
    written = to_hf_config(from_hf_config(published, "config.json"), published["vocab_size"])
    about_us = {"torch_dtype", "transformers_version", "bos_token_id", "eos_token_id", "max_window_layers"}
    assert written == {key: value for key, value in published.items() if key not in about_us} | {"use_cache": True}


def test_config_of_transformers_5_with_rope_parameters_reads_alike():
    scaling = LLAMA_32_1B_CONFIG["rope_scaling"]
    newer = {key: value for key, value in LLAMA_32_1B_CONFIG.items() if not key.startswith("rope")}
    newer |= {"rope_parameters": scaling | {"rope_theta": 500000.0}}
    assert from_hf_config(newer, "config.json") == from_hf_config(LLAMA_32_1B_CONFIG, "config.json")


def test_config_of_every_rope_survives_the_round_trip():
    for rope in (RotaryConfig(5e5), RotaryConfig(1e4, factor=4.0), Llama3RotaryConfig(factor=32.0)):
        config = LlamaConfig(hidden_dim=32, num_heads=4, num_kv_heads=2, head_dim=8, intermediate_dim=48, rope=rope)
        assert from_hf_config(to_hf_config(config, 50), "config.json") == config


def test_llama3_rotation_keeps_fast_frequencies_and_stretches_slow_ones():
    rope = Llama3RotaryConfig(theta=10000.0, factor=8.0, original_max_position_embeddings=64)
    plain, scaled = (rotary_angles(config, 2, 64) for config in (RotaryConfig(10000.0), rope))
    angle, stretched = (jax.numpy.arctan2(sin[1], cos[1]) for cos, sin in (plain, scaled))
    turns = 64 * angle / (2 * jax.numpy.pi)
    assert stretched[turns > 4].tolist() == angle[turns > 4].tolist()
    assert stretched[turns < 1].tolist() == pytest.approx((angle / 8)[turns < 1].tolist(), rel=1e-5)
    between = (turns > 1) & (turns < 4)
    assert bool(between.any()) and bool(((stretched < angle) & (stretched > angle / 8))[between].all())
    with pytest.raises(ConfigError, match="low_freq_factor 4"):
        Llama3RotaryConfig(low_freq_factor=4.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"input_embedding_norm": True}, "`input_embedding_norm` is True"),
        ({"use_attention_sink": True}, "`use_attention_sink` is True"),
        ({"use_layer_norm_weight": False}, "`use_layer_norm_weight` is False"),
        ({"qk_norm": RmsNormConfig(1e-3)}, "`qk_norm`"),
        ({"qk_norm": RmsNormConfig(use_weight=False)}, "`qk_norm`"),
        ({"qk_norm": RmsNormConfig(), "use_bias": True}, "`use_bias` is True"),
    ],
)
def test_config_that_the_layout_cannot_say_is_refused_by_field(changes, said):
    config = dataclasses.replace(LlamaConfig(), **changes)
    with pytest.raises(ConfigError) as refused:
        to_hf_config(config, 50)
    assert said in str(refused.value) and str(refused.value).endswith(": such a model cannot be exported")


@pytest.mark.parametrize(
    ("base", "changes", "said"),
    [
        (LLAMA_32_1B_CONFIG, {"model_type": "gpt2"}, "`model_type` 'gpt2': this engine reads llama, qwen3"),
        (LLAMA_32_1B_CONFIG, {"hidden_size": None}, "`hidden_size` None"),
        (LLAMA_32_1B_CONFIG, {"attention_bias": True}, "`mlp_bias` False"),
        (
            LLAMA_32_1B_CONFIG,
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            "`rope_type` of `rope_scaling` 'yarn'",
        ),
        (LLAMA_32_1B_CONFIG, {"rope_scaling": {"factor": 4.0}}, "`rope_type` of `rope_scaling` None"),
        (
            LLAMA_32_1B_CONFIG,
            {"rope_scaling": {"type": "llama3", "factor": 4.0}},
            "no `low_freq_factor` of `rope_scaling`",
        ),
        (LLAMA_32_1B_CONFIG, {"rope_scaling": {"type": "linear", "factor": "4"}}, "`factor` of `rope_scaling` '4'"),
        (LLAMA_32_1B_CONFIG, {"rope_scaling": [8.0]}, "`rope_scaling` [8.0]"),
        (LLAMA_32_1B_CONFIG, {"rope_parameters": {"rope_theta": None}}, "`rope_theta` of `rope_parameters` None"),
        (LLAMA_32_1B_CONFIG, {"rope_theta": None}, "`rope_theta` None"),
        (LLAMA_32_1B_CONFIG, {"rms_norm_eps": None}, "`rms_norm_eps` None"),
        (LLAMA_32_1B_CONFIG, {"rms_norm_eps": -1e-5}, "`rms_norm_eps` -1e-05"),
        (LLAMA_32_1B_CONFIG, {"initializer_range": "wide"}, "`initializer_range` 'wide'"),
        (LLAMA_32_1B_CONFIG, {"tie_word_embeddings": "false"}, "`tie_word_embeddings` 'false'"),
        (LLAMA_32_1B_CONFIG, {"layer_types": True}, "`layer_types` True"),
        (LLAMA_32_1B_CONFIG, {"hidden_act": ["silu"]}, "`hidden_act` ['silu']"),
        (LLAMA_32_1B_CONFIG, {"hidden_act": "mish"}, "`activation_function` is 'mish'"),
        (LLAMA_32_1B_CONFIG, {"model_type": ["llama"]}, "`model_type` ['llama']"),
        (LLAMA_32_1B_CONFIG, {"num_hidden_layers": "16"}, "`num_hidden_layers` '16'"),
        (QWEN3_06B_CONFIG, {"use_sliding_window": True}, "`use_sliding_window` True"),
        (QWEN3_06B_CONFIG, {"layer_types": ["sliding_attention"]}, "`layer_types`"),
        (QWEN3_06B_CONFIG, {"attention_bias": True}, "`attention_bias` True"),
        (QWEN3_06B_CONFIG, {"head_dim": None}, "`head_dim` None"),
    ],
)
def test_config_that_this_engine_cannot_compute_is_refused_by_key(base, changes, said):
    with pytest.raises(CheckpointError) as refused:
        from_hf_config(base | changes, "models/x/config.json")
    assert said in str(refused.value) and "models/x/config.json" in str(refused.value)


def test_config_without_a_key_that_has_no_default_is_refused_by_key():
    whole = {key: value for key, value in QWEN3_06B_CONFIG.items() if key != "head_dim"}
    with pytest.raises(CheckpointError, match=r"models/x/config\.json has no `head_dim`"):
        from_hf_config(whole, "models/x/config.json")


def test_differences_name_what_shapes_do_not_show():
    config = from_hf_config(LLAMA_32_1B_CONFIG, "config.json")
    assert differences(config, LLAMA_32_1B_CONFIG, "config.json") == []
    other = dataclasses.replace(config, rope=RotaryConfig(1e4), num_heads=16, head_dim=128)
    assert [line.split("`")[1] for line in differences(other, LLAMA_32_1B_CONFIG, "config.json")] == [
        "rope",
        "num_heads",
    ]
