"""The encoder against the obvious NumPy program, against transformers where it is, and on disk."""

import dataclasses
import json
import math
import os
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from scipy.special import erf

from marin.errors import CheckpointError, ConfigError
from marin.models.encoder import Encoder, EncoderModelConfig, MaskedHead, pooled
from marin.models.encoder_files import load_encoder, save_encoder
from marin.models.encoder_layout import from_hf_encoder_config, to_hf_encoder_config
from marin.models.hf_layout import parameters_of
from marin.nn import NtkRotaryConfig, RotaryConfig

VOCAB = 61
BERT = EncoderModelConfig(max_seq_len=16, hidden_dim=24, intermediate_dim=40, num_layers=2, num_heads=3)
ROBERTA = dataclasses.replace(BERT, first_position=2, num_token_types=1, layer_norm_epsilon=1e-5)
GTE = dataclasses.replace(BERT, rope=NtkRotaryConfig(500000, 2.0), gated=True, num_token_types=0)
CONFIGS = {"bert": BERT, "roberta": ROBERTA, "gte": GTE, "gte-plain": dataclasses.replace(GTE, rope=RotaryConfig())}


def built(config: EncoderModelConfig) -> Encoder:
    """Weights in which every bias and every scale says something."""
    model = config.build(VOCAB, key=jax.random.key(0))
    leaves, structure = jax.tree.flatten(model)
    draw = np.random.default_rng(1)  # NumPy's, as JAX compiles a program for each shape
    noise = [np.float32(0.2) * draw.standard_normal(leaf.shape, np.float32) for leaf in leaves]
    noisy = [jnp.asarray(np.asarray(leaf) + each) for leaf, each in zip(leaves, noise, strict=True)]
    return jax.tree.unflatten(structure, noisy)


def inputs() -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(0).integers(0, VOCAB, (3, 11)).astype(np.int32), np.array([11, 5, 1], np.int32)


def reference(
    weights: dict[str, np.ndarray], config: EncoderModelConfig, tokens: np.ndarray, length: int
) -> np.ndarray:
    """One text [length] through the encoder, in float64, position by position and head by head."""
    w = {name: np.asarray(value, np.float64) for name, value in weights.items()}

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + config.layer_norm_epsilon)
        return scaled * w[f"{name}.weight_D"] + w[f"{name}.bias_D"]

    def gelu(x: np.ndarray) -> np.ndarray:
        return 0.5 * x * (1 + erf(x / math.sqrt(2)))

    def turned(head: np.ndarray, position: int) -> np.ndarray:
        if config.rope is None:
            return head
        half, out = config.head_dim // 2, head.copy()
        for pair in range(half):
            frequency = config.rope.theta ** (-2 * pair / config.head_dim)
            if isinstance(config.rope, NtkRotaryConfig):
                base = config.rope.theta * config.rope.factor
                frequency = base ** (-2 * pair / config.head_dim) / config.rope.factor ** (2 / config.head_dim)
            angle = position * frequency
            first, second = head[pair], head[pair + half]
            out[pair] = first * math.cos(angle) - second * math.sin(angle)
            out[pair + half] = second * math.cos(angle) + first * math.sin(angle)
        return out

    x = w["embedding.weight_VD"][tokens[:length]]
    if config.num_token_types:
        x = x + w["type_embedding.weight_VD"][0]
    if config.rope is None:
        x = x + w["position_embedding.weight_VD"][config.first_position : config.first_position + length]
    x = norm(x, "embedding_norm")
    for layer in range(config.num_layers):
        at = f"blocks.{layer}."
        qkv = x @ w[at + "attention.qkv.weight_IO"] + w[at + "attention.qkv.bias_O"]
        q, k, v = (part.reshape(length, config.num_heads, -1) for part in np.split(qkv, 3, axis=-1))
        out = np.zeros_like(q)
        for head in range(config.num_heads):
            queries = np.stack([turned(q[t, head], t) for t in range(length)])
            keys = np.stack([turned(k[t, head], t) for t in range(length)])
            scores = queries @ keys.T / math.sqrt(config.head_dim)
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, head] = shares / shares.sum(-1, keepdims=True) @ v[:, head]
        attended = out.reshape(length, -1) @ w[at + "attention.output.weight_IO"] + w[at + "attention.output.bias_O"]
        x = norm(x + attended, at + "attention_norm")
        up = x @ w[at + "mlp.up.weight_IO"]
        hidden = gelu(x @ w[at + "mlp.gate.weight_IO"]) * up if config.gated else gelu(up + w[at + "mlp.up.bias_O"])
        x = norm(x + hidden @ w[at + "mlp.down.weight_IO"] + w[at + "mlp.down.bias_O"], at + "mlp_norm")
    return x


@pytest.mark.parametrize("name", CONFIGS)
def test_hidden_states_of_padded_rows_are_those_of_the_numpy_program(name: str) -> None:
    config, (tokens, lengths) = CONFIGS[name], inputs()
    model = built(config)
    x_BTD = np.asarray(model.activations(jnp.asarray(tokens), jnp.asarray(lengths)))
    weights = {name: np.asarray(leaf) for name, leaf in parameters_of(model).items()}
    for row, length in enumerate(lengths):
        expected = reference(weights, config, tokens[row], length)
        assert np.abs(x_BTD[row, :length] - expected).max() < 1e-5 < np.abs(expected).max()


def test_what_stands_behind_a_text_changes_nothing() -> None:
    model, (tokens, lengths) = built(GTE), inputs()
    others = tokens.copy()
    others[1, 5:] = 7
    first = pooled(model.activations(jnp.asarray(tokens), jnp.asarray(lengths)), jnp.asarray(lengths), "mean")
    second = pooled(model.activations(jnp.asarray(others), jnp.asarray(lengths)), jnp.asarray(lengths), "mean")
    assert np.array_equal(first, second)


def test_pooling_takes_the_first_position_or_the_mean_of_the_text() -> None:
    x_BTD = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    lengths = jnp.array([2, 4])
    assert np.array_equal(pooled(jnp.asarray(x_BTD), lengths, "cls"), x_BTD[:, 0])
    expected = np.stack([x_BTD[0, :2].mean(0), x_BTD[1].mean(0)])
    assert np.allclose(pooled(jnp.asarray(x_BTD), lengths, "mean"), expected)


def test_masked_head_is_tied_to_the_embedding() -> None:
    model, head = built(BERT), MaskedHead.init(BERT, VOCAB, key=jax.random.key(2))
    x = jax.random.normal(jax.random.key(3), (5, BERT.hidden_dim))
    dense = np.asarray(x @ head.dense.weight_IO, np.float64)
    hidden = 0.5 * dense * (1 + erf(dense / math.sqrt(2)))
    hidden = (hidden - hidden.mean(-1, keepdims=True)) / np.sqrt(hidden.var(-1, keepdims=True) + 1e-12)
    expected = hidden @ np.asarray(model.embedding.weight_VD, np.float64).T
    assert np.abs(head(x, model.embedding) - expected).max() < 1e-4


def test_flops_and_parameters_of_bert_base_are_the_published_ones() -> None:
    base = EncoderModelConfig()
    assert base.total_trainable_params(30522) == 108_891_648  # 109,482,240 with the pooler's 590,592
    assert base.flops_per_token(512) == 2 * 84_934_656 + 12 * 4 * 768 * 512


def test_texts_longer_than_the_encoder_are_refused() -> None:
    with pytest.raises(ConfigError, match="16 at most"):
        built(BERT).activations(jnp.zeros((1, 17), jnp.int32), jnp.array([17]))


@pytest.mark.parametrize("name", CONFIGS)
def test_saved_encoder_is_read_back_bit_by_bit(name: str, tmp_path: Path) -> None:
    model = built(CONFIGS[name])
    save_encoder(tmp_path / "model", model, {"tokenizer.json": b"{}"}, pad_id=ROBERTA.first_position - 1)
    config, again = load_encoder(tmp_path / "model")
    assert config == CONFIGS[name]
    ours, theirs = parameters_of(model), parameters_of(again)
    assert list(ours) == list(theirs)
    assert all(np.array_equal(ours[key], theirs[key]) for key in ours)


def test_published_gte_config_is_understood() -> None:
    described = {
        "model_type": "new", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "hidden_act": "gelu", "layer_norm_eps": 1e-12, "layer_norm_type": "layer_norm", "max_position_embeddings": 8192,
        "pack_qkv": True, "position_embedding_type": "rope", "rope_scaling": {"factor": 2.0, "type": "ntk"}, "rope_theta": 500000,
        "type_vocab_size": 0, "vocab_size": 30528, "logn_attention_scale": False,
    }  # fmt: skip
    config = from_hf_encoder_config(described, "config.json")
    assert config.rope == NtkRotaryConfig(500000, 2.0) and config.gated and config.max_seq_len == 8192
    assert config.total_trainable_params(30528) == 136_776_192
    assert from_hf_encoder_config(to_hf_encoder_config(config, 30528, 0), "again") == config


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "llama"}, "llama"),
        ({"hidden_act": "mystery"}, "hidden_act"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder"),
        ({"hidden_size": None}, "hidden_size"),
    ],
)
def test_config_of_another_model_is_refused_by_name(change: dict, named: str) -> None:
    described = {**to_hf_encoder_config(BERT, VOCAB, 0), **change}
    described = {name: value for name, value in described.items() if value is not None}
    with pytest.raises(CheckpointError, match=named):
        from_hf_encoder_config(described, "config.json")


ROTATING = {"model_type": "new", "position_embedding_type": "rope"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hidden_size": None}, "`hidden_size` None"),
        ({"layer_norm_eps": None}, "`layer_norm_eps` None"),
        ({"model_type": "roberta", "pad_token_id": "1"}, "`pad_token_id` '1'"),
        ({**ROTATING, "rope_scaling": [2.0]}, r"`rope_scaling` \[2.0\]"),
        ({**ROTATING, "rope_scaling": {"type": "ntk", "factor": "2"}}, "`factor` of `rope_scaling` '2'"),
        ({"num_attention_heads": 7}, "cannot be built"),
    ],
)
def test_config_with_a_value_that_its_key_cannot_have_is_refused_by_file_and_key(change: dict, named: str) -> None:
    with pytest.raises(CheckpointError, match=f"models/x/config.json .*{named}"):
        from_hf_encoder_config({**to_hf_encoder_config(BERT, VOCAB, 0), **change}, "models/x/config.json")


def test_folder_with_heads_old_names_and_whole_numbers_is_read(tmp_path: Path) -> None:
    model = built(BERT)
    save_encoder(tmp_path / "model", model, {}, pad_id=0)
    stored = load_file(tmp_path / "model" / "model.safetensors")
    renamed = {
        "bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in stored.items()
    }
    renamed |= {"cls.predictions.bias": np.zeros(VOCAB, np.float32), "bert.pooler.dense.bias": np.zeros(24, np.float32)}
    renamed["bert.embeddings.position_ids"] = np.arange(16)[None]
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "config.json").write_bytes((tmp_path / "model" / "config.json").read_bytes())
    save_file(renamed, folder / "model.safetensors")
    _, again = load_encoder(folder)
    ours, theirs = parameters_of(model), parameters_of(again)
    assert all(np.array_equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.parametrize("damage", ["missing", "shape", "extra", "cut"])
def test_damaged_folder_is_refused(damage: str, tmp_path: Path) -> None:
    save_encoder(tmp_path / "model", built(BERT), {}, pad_id=0)
    path = tmp_path / "model" / "model.safetensors"
    (tmp_path / "model" / "marin.json").unlink()  # what it says of the digests would stop all of this at once
    stored = load_file(path)
    if damage == "missing":
        del stored["encoder.layer.1.output.dense.weight"]
    elif damage == "shape":
        stored["encoder.layer.1.output.dense.weight"] = np.zeros((24, 41), np.float32)
    elif damage == "extra":
        stored["encoder.layer.9.output.dense.weight"] = np.zeros((24, 40), np.float32)
    save_file(stored, path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-10])
    named = "cut short" if damage == "cut" else "encoder.layer"
    with pytest.raises(CheckpointError, match=named):
        load_encoder(tmp_path / "model")


def test_encoder_without_a_layout_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no published layout"):
        save_encoder(tmp_path / "model", built(dataclasses.replace(BERT, rope=RotaryConfig())), {}, pad_id=0)


# --- transformers -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def peer(plain_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder that transformers has filled, and how to run it again."""
    python = os.environ.get("MARIN_PEER_PYTHON")
    if not python:
        pytest.skip("MARIN_PEER_PYTHON names no Python with torch and transformers (benchmarks/hf_parity.py tells how)")
    command = [python, str(Path(__file__).parent / "encoder_peer.py")]
    folder = tmp_path_factory.mktemp("peer")
    done = subprocess.run([*command, "make", str(folder)], env=plain_environment, capture_output=True, text=True)
    if "No module named" in done.stderr:
        pytest.skip(f"{python} (MARIN_PEER_PYTHON) cannot import torch and transformers")
    assert done.returncode == 0, done.stderr
    return folder, command


def hidden_states(model: Encoder, tokens: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """The stream behind the embedding and behind each block."""
    shorter = [dataclasses.replace(model, blocks=model.blocks[:depth]) for depth in range(len(model.blocks) + 1)]
    return [np.asarray(each.activations(jnp.asarray(tokens), jnp.asarray(lengths))) for each in shorter]


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_hidden_states_are_those_of_transformers(name: str, peer: tuple[Path, list[str]]) -> None:
    folder, _ = peer
    theirs = np.load(folder / f"{name}.npy")
    tokens = np.random.default_rng(0).integers(5, 99, (3, 24)).astype(np.int32)
    _, model = load_encoder(folder / name)
    lengths = np.array([24, 7, 1], np.int32)
    ours = hidden_states(model, tokens, lengths)
    assert len(ours) == len(theirs) == 4
    for mine, other in zip(ours, theirs, strict=True):
        for row, length in enumerate(lengths):
            assert np.abs(mine[row, :length] - other[row, :length]).max() < 1e-4 < np.abs(other).max()


@pytest.mark.timeout(1500)
def test_our_encoder_computes_the_same_in_transformers(
    peer: tuple[Path, list[str]], plain_environment: dict[str, str]
) -> None:
    folder, command = peer
    config = dataclasses.replace(BERT, max_seq_len=40)
    model = jax.tree.map(lambda leaf: 3.0 * leaf, config.build(99, key=jax.random.key(0)))
    save_encoder(folder / "ours", model, {}, pad_id=0)
    done = subprocess.run([*command, "read", str(folder)], env=plain_environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    tokens, lengths = np.random.default_rng(0).integers(5, 99, (3, 24)).astype(np.int32), np.array([24, 7, 1], np.int32)
    for mine, other in zip(hidden_states(model, tokens, lengths), np.load(folder / "ours.npy"), strict=True):
        for row, length in enumerate(lengths):
            assert np.abs(mine[row, :length] - other[row, :length]).max() < 1e-4


@pytest.mark.timeout(1500)
def test_word_pieces_are_those_of_transformers(peer: tuple[Path, list[str]]) -> None:
    from marin.data.tokenizer.for_encoders import EncoderTokenizer

    texts = ["The quick brown fox.", "naïve café, 東京 and ümlauts!", "unaffable unknownword 42", "", "a" * 150]
    folder, _ = peer
    assert json.loads((folder / "bert" / "config.json").read_text())["model_type"] == "bert"
    ours = EncoderTokenizer.load(folder / "bert").encode(texts, 12)
    theirs = np.load(folder / "ids.npz")
    assert [each.tolist() for each in ours] == [theirs[str(index)].tolist() for index in range(len(texts))]


def test_positions_are_read_back_whatever_the_tokenizer_pads_with(tmp_path: Path) -> None:
    model = ROBERTA.build(VOCAB, key=jax.random.key(0))
    save_encoder(tmp_path / "model", model, {"tokenizer.json": b"{}"}, pad_id=0)
    config, read = load_encoder(tmp_path / "model")
    assert (config.first_position, config.max_seq_len) == (ROBERTA.first_position, ROBERTA.max_seq_len)
    tokens, lengths = np.arange(8, dtype=np.int32)[None], np.full(1, 8, np.int32)
    np.testing.assert_array_equal(read.activations(tokens, lengths), model.activations(tokens, lengths))
