"""GPT-2 from a folder in Hugging Face's layout: against plain NumPy, against transformers where it is, and what is refused."""

import json
import os
import subprocess
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from marin.errors import CheckpointError, ConfigError
from marin.models.gpt2 import Gpt2Config, load_gpt2

CONFIG = {
    "model_type": "gpt2", "n_positions": 24, "n_embd": 16, "n_layer": 2, "n_head": 4, "vocab_size": 40, "n_inner": None,
    "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
}  # fmt: skip


def made_weights(seed: int = 0) -> dict[str, np.ndarray]:
    """Weights under their published names; matrices have inputs first."""
    rng = np.random.default_rng(seed)
    width, shapes = 16, {"wte.weight": (40, 16), "wpe.weight": (24, 16)}
    for layer in range(2):
        for name, inputs, outputs in (
            ("attn.c_attn", width, 3 * width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", width, 4 * width),
            ("mlp.c_proj", 4 * width, width),
        ):
            shapes |= {f"h.{layer}.{name}.weight": (inputs, outputs), f"h.{layer}.{name}.bias": (outputs,)}
        shapes |= {f"h.{layer}.{norm}.{kind}": (width,) for norm in ("ln_1", "ln_2") for kind in ("weight", "bias")}
    shapes |= {"ln_f.weight": (width,), "ln_f.bias": (width,)}
    return {name: (0.3 * rng.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()}


def write_folder(folder: Path, weights: dict[str, np.ndarray], **changes: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def numpy_logits(w: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """The model for one row, in float64, by its paper's words."""
    w = {name: value.astype(np.float64) for name, value in w.items()}

    def norm(x, name):
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / np.sqrt(variance + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x, name):
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["wte.weight"][tokens] + w["wpe.weight"][: len(tokens)]
    for layer in ("h.0", "h.1"):
        q, k, v = np.split(linear(norm(x, f"{layer}.ln_1"), f"{layer}.attn.c_attn"), 3, axis=-1)
        heads = []
        for head in range(4):
            part = slice(4 * head, 4 * head + 4)
            scores = q[:, part] @ k[:, part].T / 2.0
            scores[np.triu_indices(len(tokens), 1)] = -np.inf
            weight = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(weight / weight.sum(-1, keepdims=True) @ v[:, part])
        x = x + linear(np.concatenate(heads, -1), f"{layer}.attn.c_proj")
        h = linear(norm(x, f"{layer}.ln_2"), f"{layer}.mlp.c_fc")
        h = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
        x = x + linear(h, f"{layer}.mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


def our_logits(folder: Path, tokens: list[int]) -> np.ndarray:
    _, model = load_gpt2(folder)
    return np.asarray(model.activations(jnp.array([tokens]), None)[0] @ model.lm_head_DV)


TOKENS = [0, 7, 31, 7, 39, 2, 11]


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_logits_are_those_of_plain_numpy_whichever_way_the_weights_are_named(tmp_path, prefix):
    weights = made_weights()
    # Old checkpoints hold masks too, and newer ones the head, which is the embedding.
    extra = {f"{prefix}h.0.attn.bias": np.ones((1, 1, 24, 24), np.float32), "lm_head.weight": weights["wte.weight"]}
    folder = write_folder(tmp_path / "gpt2", {prefix + name: value for name, value in weights.items()} | extra)
    found, expected = our_logits(folder, TOKENS), numpy_logits(weights, TOKENS)
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_documents_of_a_row_are_apart_and_count_positions_from_its_beginning(tmp_path):
    _, model = load_gpt2(write_folder(tmp_path, made_weights()))
    both = jnp.array([TOKENS])
    apart = model.activations(both, jnp.array([[0, 0, 0, 1, 1, 1, 1]]))
    changed = model.activations(both.at[0, 0].set(5), jnp.array([[0, 0, 0, 1, 1, 1, 1]]))
    assert (apart[0, 3:] == changed[0, 3:]).all() and (apart[0, :3] != changed[0, :3]).any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_head": 3}, "not a multiple of `num_heads` 3"),
        ({"n_embd": None}, "`n_embd` None: expected a whole number"),
        ({"n_inner": "wide"}, "`n_inner` 'wide': expected a whole number"),
        ({"layer_norm_epsilon": "small"}, "`layer_norm_epsilon` 'small': expected a number"),
        ({"activation_function": None}, "`activation_function` None: expected a string"),
        ({"scale_attn_by_inverse_layer_idx": True}, "`scale_attn_by_inverse_layer_idx` True"),
        ({"activation_function": "mish"}, "`activation_function` is 'mish'"),
        ({"vocab_size": "many"}, "`vocab_size` 'many'"),
        ({"n_layer": 3}, r"holds `h.2.ln_1.weight` not, its config.json makes \(16,\)"),
        ({"n_layer": 1}, r"holds `h.1.attn.c_attn.bias`, for which"),
        ({"n_positions": 12}, r"`wpe.weight` with shape \(24, 16\), its config.json makes \(12, 16\)"),
    ],
)
def test_folder_of_another_model_is_refused_with_what_differs(tmp_path, changes, message):
    folder = write_folder(tmp_path / "gpt2", made_weights(), **changes)
    with pytest.raises(CheckpointError, match=message):
        load_gpt2(folder)


def test_row_beyond_the_positions_is_refused(tmp_path):
    _, model = load_gpt2(write_folder(tmp_path, made_weights()))
    with pytest.raises(ConfigError, match="a row of 25 tokens, and the model knows 24"):
        model.activations(jnp.zeros((1, 25), jnp.int32), None)


def test_published_sizes_have_their_parameters():
    sizes = {124_439_808: (768, 12, 12), 1_557_611_200: (1600, 48, 25)}
    for parameters, (width, layers, heads) in sizes.items():
        config = Gpt2Config(hidden_dim=width, num_layers=layers, num_heads=heads)
        assert config.total_trainable_params(50257) == parameters


PEER = """
import sys, json, torch, transformers
model = transformers.GPT2LMHeadModel.from_pretrained(sys.argv[1]).eval()
with torch.no_grad():
    print(json.dumps(model(torch.tensor([json.loads(sys.argv[2])])).logits[0].tolist()))
"""


@pytest.mark.slow
def test_logits_are_those_of_transformers(tmp_path, plain_environment):
    python = os.environ.get("MARIN_PEER_PYTHON")
    if not python:
        pytest.skip("MARIN_PEER_PYTHON names no Python with torch and transformers")
    weights = {f"transformer.{name}": value for name, value in made_weights().items()}
    folder = write_folder(tmp_path, weights, architectures=["GPT2LMHeadModel"])
    done = subprocess.run(
        [python, "-c", PEER, str(folder), json.dumps(TOKENS)], env=plain_environment, capture_output=True, text=True
    )
    if "No module named 'transformers'" in done.stderr:
        pytest.skip(f"{python} has no transformers")
    assert done.returncode == 0, done.stderr[-2000:]
    np.testing.assert_allclose(our_logits(folder, TOKENS), json.loads(done.stdout), atol=1e-4)
