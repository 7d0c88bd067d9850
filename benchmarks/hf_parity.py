"""Whether transformers and this project compute the same from the same safetensors, and read each other's folders.

    python -m benchmarks.hf_parity --peer DIR/bin/python      # or MARIN_PEER_PYTHON=DIR/bin/python

transformers and torch are the peer's, never dependencies of this project, so they get an environment of their own:

    python3.11 -m venv DIR && DIR/bin/pip install torch==2.13.0 transformers safetensors

For each architecture transformers makes a small model whose every array is random, norms and biases too, and saves it. We load
the folder and compare logits in float32. Then we export that model, and transformers loads our folder: its arrays must
equal its own to the bit, and its tokenizer must give our ids. A model that we made goes the same way. Prints one JSON line;
exit status 1 if logits differ by more than 1e-4 anywhere or a bit is lost.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from marin.data.documents import Document, write_documents
from marin.data.tokenizer import Tokenizer, TrainTokenizerConfig, train_tokenizer
from marin.flags import HelpFormatter
from marin.models import LlamaConfig, LlamaModel
from marin.models.hf_export import export_hf
from marin.models.hf_files import WeightFolder
from marin.models.hf_import import load_hf_model
from marin.models.hf_layout import parameters_of
from marin.nn import Llama3RotaryConfig, RmsNormConfig

TOLERANCE = 1e-4
VOCAB, CONTEXT = 320, 128
_SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,  # well below the tokens compared, so that the scaling shows
}
# name -> (model_type, changes to the config, how it is saved)
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {}, {}),
    "llama_tied": ("llama", {"tie_word_embeddings": True}, {}),
    "llama_biases": ("llama", {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"}, {}),
    "llama_head_dim": ("llama", {"head_dim": 24}, {}),
    "llama_rope_linear": ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, {}),
    "llama_rope_llama3": ("llama", {"rope_theta": 10000.0, "rope_scaling": _LLAMA3}, {}),
    "llama_sharded": ("llama", {}, {"max_shard_size": "100KB"}),
    "llama_bfloat16": ("llama", {}, {"dtype": "bfloat16"}),
    "qwen3": ("qwen3", {"head_dim": 16}, {}),
    "qwen3_tied": ("qwen3", {"head_dim": 8, "tie_word_embeddings": True, "rms_norm_eps": 1e-6}, {}),
}
OURS = {
    "ours_llama3": LlamaConfig(CONTEXT, rope=Llama3RotaryConfig(original_max_position_embeddings=32)),
    "ours_qwen3": LlamaConfig(CONTEXT, qk_norm=RmsNormConfig(), tie_word_embeddings=True, activation_function="relu2"),
}  # fmt: skip

# Both run in the peer's environment, which has nothing of this project.
_MAKE = """
import json, sys, warnings
warnings.filterwarnings("ignore")
import numpy as np, torch, transformers
folder, tokens_path, cases = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
tokens = torch.tensor(np.load(tokens_path))
for index, (name, (model_type, changes, saving)) in enumerate(cases.items()):
    torch.manual_seed(index)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(model_type, **changes)).eval().float()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            centre = 1.0 if "norm" in parameter_name else 0.0
            parameter.normal_(centre, 0.15)
        if saving.get("dtype"):
            model = model.to(torch.bfloat16)
        model.save_pretrained(f"{folder}/{name}", **{k: v for k, v in saving.items() if k == "max_shard_size"})
        if saving.get("dtype"):  # casting a model rounds its table of rotary frequencies too; loading it does not
            model = type(model).from_pretrained(f"{folder}/{name}", dtype=torch.float32).eval()
        np.save(f"{folder}/{name}.npy", model(tokens).logits.numpy())
print(json.dumps({"transformers": transformers.__version__, "torch": torch.__version__}))
"""
_READ = """
import json, sys, warnings
warnings.filterwarnings("ignore")
import numpy as np, torch, transformers
folder, tokens_path, names, text = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]
tokens = torch.tensor(np.load(tokens_path))
found = {}
for name in names:
    model, info = transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/{name}", dtype=torch.float32, output_loading_info=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(f"{folder}/{name}")
    with torch.no_grad():
        np.save(f"{folder}/{name}.npy", model.eval()(tokens).logits.numpy())
    np.savez(f"{folder}/{name}.npz", **{key: value.numpy() for key, value in model.state_dict().items()})
    found[name] = {
        "class": type(model).__name__,
        "problems": sorted(sum((list(info[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), [])),
        "ids": tokenizer(text, add_special_tokens=False).input_ids,
        "text": tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids),
        "bos": tokenizer.bos_token_id,
    }
print(json.dumps(found))
"""
_TEXT = "The value of x_1 is 12.5,\n  and naïve words — 東京 — too."


def compare(peer: str, folder: Path) -> dict[str, Any]:
    """Runs all cases in `folder`; the figures that `main` prints."""
    tokens_BT = np.random.default_rng(0).integers(0, VOCAB, (2, CONTEXT))
    tokens_path = folder / "tokens.npy"
    np.save(tokens_path, tokens_BT)
    theirs, exported = folder / "theirs", folder / "exported"
    theirs.mkdir()
    exported.mkdir()
    cases = {name: (kind, _SHAPE | changes, saving) for name, (kind, changes, saving) in CASES.items()}
    versions = _run(peer, _MAKE, str(theirs), str(tokens_path), json.dumps(cases))
    tokenizer_path = str(_tokenizer(folder))
    gaps: dict[str, float] = {}
    largest = 0.0
    round_trips = True
    for name in CASES:
        config, model = load_hf_model(theirs / name)
        expected = np.load(theirs / f"{name}.npy")
        largest = max(largest, float(np.abs(expected).max()))
        gaps[f"{name}: theirs, read by us"] = _gap(_logits(model, tokens_BT), expected)
        export_hf(model, config, tokenizer_path, exported / name)
        again = parameters_of(load_hf_model(exported / name)[1])
        round_trips &= all(np.array_equal(again[key], value) for key, value in parameters_of(model).items())
    made = {name: _ours(config) for name, config in OURS.items()}
    for name, model in made.items():
        export_hf(model, model.config, tokenizer_path, exported / name)
    names = [*CASES, *OURS]
    found = _run(peer, _READ, str(exported), str(tokens_path), json.dumps(names), _TEXT)
    tokenizer = Tokenizer.load(tokenizer_path)
    problems = []
    for name in names:
        model = made.get(name) or load_hf_model(exported / name)[1]
        gaps[f"{name}: ours, read by them"] = _gap(_logits(model, tokens_BT), np.load(exported / f"{name}.npy"))
        problems += [f"{name}: {problem}" for problem in found[name]["problems"]]
        if (found[name]["ids"], found[name]["bos"]) != (tokenizer.encode(_TEXT), tokenizer.bos_id):
            problems.append(f"{name}: their tokenizer gives other ids")
        if found[name]["text"] != _TEXT:
            problems.append(f"{name}: their tokenizer decodes to {found[name]['text']!r}")
    for name in CASES:
        problems += [f"{name}: {key} differs" for key in _differing(theirs / name, exported / f"{name}.npz")]
    worst = max(gaps, key=lambda name: gaps[name])
    return {
        "name": "hf_parity",
        "ok": gaps[worst] <= TOLERANCE and round_trips and not problems,
        "cases": len(names),
        "largest_logit": round(largest, 2),
        "largest_difference": gaps[worst],
        "of": worst,
        "differences": {name: float(f"{gap:.2g}") for name, gap in gaps.items()},
        "round_trip_bit_equal": round_trips,
        "problems": problems,
        **versions,
        "jax": jax.__version__,
    }


def _run(peer: str, script: str, *arguments: str) -> dict[str, Any]:
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "JAX_", "XLA_"))}
    done = subprocess.run(
        [peer, "-c", script, *arguments],
        env=variables | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"error: the peer {peer} failed:\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _tokenizer(folder: Path) -> Path:
    text = "the value of a word is the sum of its parts " * 40
    documents = str(folder / "docs.jsonl.zst")
    write_documents(documents, [Document(str(i), text, "benchmark") for i in range(4)])
    train_tokenizer(TrainTokenizerConfig(documents=documents, vocab_size=270, output_path=str(folder / "tokenizer")))
    return folder / "tokenizer"


def _ours(config: LlamaConfig) -> LlamaModel:
    small = dataclasses.replace(
        config, hidden_dim=64, intermediate_dim=112, num_layers=3, num_heads=8, num_kv_heads=2, initializer_range=0.15
    )
    return small.build(VOCAB, key=jax.random.key(7))


def _logits(model: LlamaModel, tokens_BT: np.ndarray) -> np.ndarray:
    with jax.default_matmul_precision("highest"):
        x_BTD = jax.jit(lambda model, tokens: model.activations(tokens, None))(model, jnp.asarray(tokens_BT, jnp.int32))
        return np.asarray(x_BTD @ model.lm_head_DV)


def _gap(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max())


def _differing(saved: Path, loaded: Path) -> list[str]:
    """Arrays that transformers saved and that it does not find again, to the bit, in what we exported."""
    stored, arrays = WeightFolder.open(saved), np.load(loaded)
    return [
        name for name in stored.shapes
        if name not in arrays or not np.array_equal(stored.read(name).astype(np.float32), arrays[name])
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--peer", metavar="PYTHON", default=os.environ.get("MARIN_PEER_PYTHON"))
    args = parser.parse_args()
    if not args.peer or not os.path.isfile(args.peer):
        sys.exit(
            "error: --peer (or MARIN_PEER_PYTHON) names no Python with torch and transformers: make one as --help says"
        )
    with tempfile.TemporaryDirectory() as folder:
        figures = compare(args.peer, Path(folder))
    print(json.dumps(figures))
    sys.exit(0 if figures["ok"] else 1)


if __name__ == "__main__":
    main()
