"""Folders in Hugging Face's layout: written whole or not at all, read back to the bit, and refused when they are not whole."""

import dataclasses
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from marin.children import free_ports
from marin.data.documents import Document, write_documents
from marin.data.tokenizer import Tokenizer, TrainTokenizerConfig, train_tokenizer
from marin.errors import CheckpointError, ConfigError, StorageError
from marin.models import LlamaConfig
from marin.models.gpt import GptConfig
from marin.models.hf_export import export_hf, export_parameters
from marin.models.hf_files import WeightFolder
from marin.models.hf_import import hf_folder, initialize_from_hf, load_hf_model, trained_steps
from marin.models.hf_layout import parameters_of
from marin.models.lm import shapes_of
from marin.nn import RmsNormConfig, RotaryConfig

VOCAB = 300
LLAMA = LlamaConfig(
    seq_len=16,
    hidden_dim=32,
    intermediate_dim=40,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    gradient_checkpointing=False,
    layer_norm_epsilon=1e-5,
)
CASES = {
    "llama": LLAMA,
    "tied with biases": dataclasses.replace(LLAMA, tie_word_embeddings=True, use_bias=True, head_dim=16),
    "qwen3": dataclasses.replace(LLAMA, qk_norm=RmsNormConfig(), activation_function="gelu", rope=RotaryConfig(5e5)),
}


def _random(config, seed=0):
    """A model whose every array is random, so that two of them swapped would show."""
    shapes = eqx.filter_eval_shape(lambda: config.build(VOCAB, key=jax.random.key(0)))
    values = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jax.numpy.asarray(values.standard_normal(leaf.shape, np.float32)), shapes)


def _arrays(model):
    return {name: np.asarray(value) for name, value in parameters_of(model).items()}


def _assert_equal(one, other):
    one, other = _arrays(one), _arrays(other)
    assert list(one) == list(other)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    documents = str(folder / "docs.jsonl.zst")
    write_documents(documents, [Document(str(i), "the sum of the parts of a graph " * 20, "test") for i in range(4)])
    train_tokenizer(TrainTokenizerConfig(documents=documents, vocab_size=270, output_path=str(folder)))
    return str(folder)


@pytest.fixture(scope="module")
def exported(tokenizer, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hf") / "step-3"
    export_hf(_random(LLAMA), LLAMA, tokenizer, folder, step=3)
    return folder


@pytest.fixture
def folder(exported, tmp_path) -> Path:
    """A copy to damage."""
    shutil.copytree(exported, tmp_path / "model")
    return tmp_path / "model"


def test_export_may_be_read_by_whom_the_umask_lets_read(exported, tmp_path):
    (tmp_path / "as the umask says").touch()
    expected = (tmp_path / "as the umask says").stat().st_mode
    assert {path.name: path.stat().st_mode for path in exported.iterdir() if path.stat().st_mode != expected} == {}


@pytest.mark.parametrize("name", CASES)
def test_export_and_import_give_the_same_config_and_the_same_bits(name, tokenizer, tmp_path):
    config, model = CASES[name], _random(CASES[name])
    export_hf(model, config, tokenizer, tmp_path / "out")
    read, again = load_hf_model(tmp_path / "out")
    _assert_equal(model, again)
    ours = dataclasses.replace(read, head_dim=config.head_dim, gradient_checkpointing=False)
    assert ours == config
    assert read.actual_head_dim == config.actual_head_dim
    export_hf(again, read, tokenizer, tmp_path / "again")
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / which).iterdir()} for which in ("out", "again")
    )
    assert first == second


def test_export_holds_what_transformers_looks_for(exported, tokenizer):
    assert sorted(os.listdir(exported)) == [
        "config.json",
        "marin.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    config = json.loads((exported / "config.json").read_text())
    bos = Tokenizer.load(tokenizer).bos_id
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["vocab_size"], config["bos_token_id"], config["eos_token_id"]) == (VOCAB, bos, bos)
    assert (exported / "tokenizer.json").read_bytes() == Path(tokenizer, "tokenizer.json").read_bytes()
    assert json.loads((exported / "tokenizer_config.json").read_text())["bos_token"] == "<|bos|>"
    stored = load_file(exported / "model.safetensors")
    up = np.asarray(_random(LLAMA).blocks[1].mlp.up.weight_IO)
    np.testing.assert_array_equal(stored["model.layers.1.mlp.up_proj.weight"], up.T)
    assert trained_steps(exported) == 3


def test_export_in_bfloat16_is_half_as_large_and_read_as_the_same_values(exported, tokenizer, tmp_path):
    model = _random(LLAMA)
    export_hf(model, LLAMA, tokenizer, tmp_path / "half", dtype="bfloat16")
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (exported, tmp_path / "half")]
    assert sizes[1] < 0.55 * sizes[0]
    for name, value in _arrays(load_hf_model(tmp_path / "half")[1]).items():
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, _arrays(model)[name].astype(ml_dtypes.bfloat16).astype(np.float32))
    with pytest.raises(ConfigError, match="'int4': use one of float32, bfloat16"):
        export_hf(model, LLAMA, tokenizer, tmp_path / "none", dtype="int4")


def _sharded(tokenizer, folder, limit=20_000):
    export_parameters(parameters_of(_random(LLAMA)), LLAMA, tokenizer, folder, max_shard_bytes=limit)
    (folder / "marin.json").unlink()  # as folders of others are
    return folder


def test_export_above_the_limit_is_in_shards_that_read_back_to_the_bit(tokenizer, tmp_path):
    folder = _sharded(tokenizer, tmp_path / "out")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    assert len(shards) > 3 and set(index["weight_map"].values()) == set(shards)
    assert shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in _arrays(_random(LLAMA)).values())
    # A single array may be above the limit; of two, no file is.
    assert all(len(load_file(folder / name)) == 1 or (folder / name).stat().st_size < 23_000 for name in shards)
    _assert_equal(load_hf_model(folder)[1], _random(LLAMA))


def test_export_over_something_is_refused_and_leaves_it(exported, tokenizer, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "notes").write_text("mine")
    with pytest.raises(StorageError, match="is there already"):
        export_hf(_random(LLAMA), LLAMA, tokenizer, tmp_path / "there")
    assert (tmp_path / "there" / "notes").read_text() == "mine"


def test_export_that_fails_in_between_leaves_nothing_and_the_next_removes_what_a_kill_left(
    tokenizer, tmp_path, monkeypatch
):
    leftover = tmp_path / ".exporting-out-0123"
    leftover.mkdir()
    (leftover / "model.safetensors").write_bytes(b"part")
    with monkeypatch.context() as patch:
        patch.setattr("safetensors.numpy.save_file", _disk_is_full)
        with pytest.raises(StorageError, match="the disk is full"):
            export_hf(_random(LLAMA), LLAMA, tokenizer, tmp_path / "out")
    assert os.listdir(tmp_path) == []
    export_hf(_random(LLAMA), LLAMA, tokenizer, tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"]


def _disk_is_full(*args, **options):
    raise OSError(28, "No space left on device")


# --- what is no whole folder --------------------------------------------------------------------------------------


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1000] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: _flip(folder / "model.safetensors"), "model.safetensors was changed or damaged: its SHA-256"),
        (lambda folder: (folder / "model.safetensors").unlink(), "has neither model.safetensors nor"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json cannot be read"),
        (lambda folder: (folder / "config.json").write_text("[]"), "expected a JSON object"),
        (lambda folder: (folder / "config.json").unlink(), "config.json cannot be read"),
    ],
)
def test_load_of_a_damaged_export_names_the_file(damage, said, folder):
    damage(folder)
    with pytest.raises(CheckpointError) as refused:
        load_hf_model(folder)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda shard, folder: shard.unlink(), "lacks model-00002-of-"),
        (lambda shard, folder: _cut(shard), "is no whole safetensors file"),
        (lambda shard, folder: shard.write_bytes(b"<html>not found</html>"), "is no whole safetensors file"),
        (
            lambda shard, folder: shutil.copy(folder / shard.name.replace("00002", "00001", 1), shard),
            "which model.safetensors.index.json says it holds",
        ),
        (
            lambda shard, folder: (folder / "model.safetensors.index.json").write_text('{"weight_map": {"x": "../x"}}'),
            "expected a file of the folder",
        ),
    ],
)
def test_load_of_shards_that_are_not_whole_names_the_shard(damage, said, tokenizer, tmp_path):
    folder = _sharded(tokenizer, tmp_path / "out")
    damage(sorted(folder.glob("model-00002-*"))[0], folder)
    with pytest.raises(CheckpointError) as refused:
        load_hf_model(folder)
    assert said in str(refused.value)


def test_load_of_pickled_weights_is_refused_and_says_why(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is pickled, which is never read: convert it"):
        load_hf_model(folder)


def _with_arrays(folder: Path, change) -> Path:
    arrays = load_file(folder / "model.safetensors")
    change(arrays)
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "marin.json").unlink()
    return folder


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda a: a.pop("model.norm.weight"), "no `model.norm.weight` for the parameter `final_norm.weight_D`"),
        (
            lambda a: a.update({"model.norm.weight": np.ones(3, np.float32)}),
            "`model.norm.weight` with shape (3,), the config makes (32,)",
        ),
        (lambda a: a.update({"model.extra": np.ones(3, np.float32)}), "`model.extra`, for which"),
        (lambda a: a.update({"model.norm.weight": np.ones(32, np.int8)}), "as I8: this engine reads"),
        (lambda a: a.update({"lm_head.weight": np.ones((299, 32), np.float32)}), "299 rows for tokens, the run 300: use"),
    ],
)  # fmt: skip
def test_load_of_other_arrays_than_the_config_describes_names_the_first(change, said, folder):
    with pytest.raises(CheckpointError) as refused:
        load_hf_model(_with_arrays(folder, change))
    assert said in str(refused.value)


def test_load_passes_over_tables_that_old_checkpoints_hold(folder):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    _with_arrays(folder, lambda arrays: arrays.update({name: np.ones(4, np.float32)}))
    _assert_equal(load_hf_model(folder)[1], _random(LLAMA))


# --- into a model that is there -----------------------------------------------------------------------------------


def test_initialize_gives_a_model_the_weights_of_the_folder(exported, capsys):
    model = initialize_from_hf(exported, _random(LLAMA, seed=1), LLAMA)
    _assert_equal(model, _random(LLAMA))
    assert capsys.readouterr().err == ""


def test_initialize_of_another_base_of_rotation_warns(exported, capsys):
    config = dataclasses.replace(LLAMA, rope=RotaryConfig(7e5))
    initialize_from_hf(exported, _random(config, seed=1), config)
    assert "`rope` is RotaryConfig(theta=700000.0" in capsys.readouterr().err


def test_initialize_warns_once_however_many_processes_train_together(exported):
    (port,) = free_ports(1)
    program = f"""
import jax
from marin.models.hf_import import initialize_from_hf
from marin.parallel.distributed import start
start()
from tests.models.test_hf_folder import LLAMA, RmsNormConfig, RotaryConfig, _random, dataclasses
config = dataclasses.replace(LLAMA, rope=RotaryConfig(7e5), qk_norm=RmsNormConfig())
initialize_from_hf({str(exported)!r}, _random(config), config, partial=True)
"""
    named = {"MARIN_COORDINATOR": f"127.0.0.1:{port}", "MARIN_NUM_PROCESSES": "2", "JAX_PLATFORMS": "cpu"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=os.environ | named | {"MARIN_PROCESS_ID": str(number)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    first, second = (process.communicate(timeout=120)[1] for process in processes)
    assert [process.returncode for process in processes] == [0, 0], first + second
    assert first.count("warning: ") == 3 and "warning: " not in second, first + second


def test_initialize_of_another_model_is_refused_or_partial(exported):
    wider = dataclasses.replace(LLAMA, qk_norm=RmsNormConfig())
    start = _random(wider, seed=1)
    with pytest.raises(CheckpointError, match=r"q_norm\.weight` for the parameter `blocks\.0\.attention\.query_norm"):
        initialize_from_hf(exported, start, wider)
    partial = initialize_from_hf(exported, start, wider, partial=True)
    np.testing.assert_array_equal(partial.blocks[0].mlp.up.weight_IO, _random(LLAMA).blocks[0].mlp.up.weight_IO)
    assert partial.blocks[0].attention.query_norm.weight_D is start.blocks[0].attention.query_norm.weight_D
    tied = dataclasses.replace(LLAMA, tie_word_embeddings=True)
    with pytest.raises(CheckpointError, match="set `tie_word_embeddings=False`"):
        initialize_from_hf(exported, _random(tied), tied)


def test_initialize_of_a_model_whose_config_has_other_fields_is_refused_by_what_differs(exported):
    config = GptConfig(seq_len=32, hidden_dim=32, num_layers=1, num_heads=2)
    shapes = shapes_of(config, 300)
    with pytest.raises(CheckpointError, match="300 rows for tokens, the run 320: use"):
        initialize_from_hf(exported, shapes, config)


def test_initialize_from_a_tied_checkpoint_needs_a_tied_model(tokenizer, tmp_path):
    tied = dataclasses.replace(LLAMA, tie_word_embeddings=True)
    export_hf(_random(tied), tied, tokenizer, tmp_path / "tied")
    with pytest.raises(CheckpointError, match="set `tie_word_embeddings=True`"):
        initialize_from_hf(tmp_path / "tied", _random(LLAMA), LLAMA, partial=True)


def test_initialize_keeps_the_sharding_of_each_parameter(exported):
    mesh = jax.make_mesh((8,), ("data",))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    model = _random(LLAMA, seed=1)
    model = eqx.tree_at(lambda m: m.final_norm.weight_D, model, jax.device_put(model.final_norm.weight_D, spread))
    filled = initialize_from_hf(exported, model, LLAMA)
    assert filled.final_norm.weight_D.sharding == spread
    _assert_equal(filled, _random(LLAMA))


@pytest.mark.parametrize("name", ["./no-such-folder", "/no/such/folder", "folder", "a/b/c"])
def test_hf_folder_of_neither_a_folder_nor_a_hub_name_is_refused(name):
    with pytest.raises(ConfigError, match="is no folder here and no model of the hub"):
        hf_folder(name)


# --- copies of the template ---------------------------------------------------------------------------------------


def _template(repository: Path, folder: Path, changes: dict[str, str] | None = None):
    """The template as a module of its own, with some of its lines changed."""
    source = (repository / "experiments" / "hackable_transformer_starter_template.py").read_text()
    for old, new in (changes or {}).items():
        assert old in source
        source = source.replace(old, new)
    path = folder / "template" / "variant.py"
    path.parent.mkdir()
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(f"variant_{abs(hash(str(path)))}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _small(module, **changes):
    fields = {name: getattr(LLAMA, name) for name in ("seq_len", "hidden_dim", "intermediate_dim", "num_layers")}
    return module.HackableTransformerConfig(**fields, num_heads=4, num_kv_heads=2, attn_backend=None, **changes)


def test_export_of_the_template_reads_back_as_llama_with_the_same_activations(repository, tokenizer, tmp_path):
    config = _small(_template(repository, tmp_path), qk_norm=RmsNormConfig())
    model = config.build(VOCAB, key=jax.random.key(3))
    export_hf(model, config, tokenizer, tmp_path / "out")
    _, llama = load_hf_model(tmp_path / "out")
    _assert_equal(model, llama)
    tokens = jax.random.randint(jax.random.key(0), (1, 16), 0, VOCAB)
    ours, theirs = (jax.jit(lambda m: m.activations(tokens, None))(each) for each in (model, llama))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"x_BTD + self.mlp(self.mlp_norm(x_BTD))": "x_BTD + 1.1 * self.mlp(self.mlp_norm(x_BTD))"},
            "has LlamaModel's parameters and computes something else",
        ),
        (
            {
                "    final_norm: RmsNorm\n": "    final_norm: RmsNorm\n    scale_D: Array\n",
                "            lm_head=None if": "            scale_D=jnp.ones((width,)),\n            lm_head=None if",
            },
            "the parameter `scale_D` has no place",
        ),
        (
            {  # the feed-forward adds nothing before the first step
                "std=config.initializer_range,\n                activation": "std=0.0,\n                activation",
                "x_BTD + self.mlp(self.mlp_norm(x_BTD))": "x_BTD + jnp.square(self.mlp(self.mlp_norm(x_BTD)))",
            },
            "has LlamaModel's parameters and computes something else",
        ),
        ({"initializer_range": "init_scale"}, "HackableTransformerConfig has no field `initializer_range`"),
        ({"-> float | None:\n        return None": "-> float | None:\n        return 15.0"}, "caps its logits at 15"),
    ],
    ids=["forward", "parameter", "forward-from-zeros", "field", "softcap"],
)
def test_export_of_a_changed_template_is_refused_by_what_was_changed(repository, tokenizer, tmp_path, changes, said):
    config = _small(_template(repository, tmp_path, changes))
    model = config.build(VOCAB, key=jax.random.key(3))
    with pytest.raises(ConfigError) as refused:
        export_hf(model, config, tokenizer, tmp_path / "out")
    assert said in str(refused.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("recompute", [True, False, "products"])
def test_export_of_a_template_with_a_window_is_refused_however_wide_it_is(repository, tokenizer, tmp_path, recompute):
    """A window that a few tokens do not fill is seen too; one as wide as the context is none."""
    module = _template(repository, tmp_path, {"sink_H=self.sink_H,": "sink_H=self.sink_H, window=40,"})
    config = dataclasses.replace(_small(module, gradient_checkpointing=recompute), seq_len=64)
    with pytest.raises(ConfigError, match=r"attends to the last 40 of 64 tokens, .*: such a model cannot be exported"):
        export_hf(config.build(VOCAB, key=jax.random.key(3)), config, tokenizer, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    config = dataclasses.replace(config, seq_len=40)
    export_hf(config.build(VOCAB, key=jax.random.key(3)), config, tokenizer, tmp_path / "out")


@pytest.mark.parametrize("kernel", ["CUDNN", "SPLASH"])
def test_export_of_a_template_that_names_a_kernel_does_not_need_it(repository, tokenizer, tmp_path, kernel):
    """Nor would a GPU run it on the weights that training keeps, which are float32."""
    config = dataclasses.replace(_small(_template(repository, tmp_path)), attn_backend=kernel)
    model = config.build(VOCAB, key=jax.random.key(3))
    export_hf(model, config, tokenizer, tmp_path / "out")
    _assert_equal(model, load_hf_model(tmp_path / "out")[1])


def test_weight_folder_reads_nothing_before_it_is_asked(exported):
    weights = WeightFolder.open(exported)
    assert weights.shapes["model.norm.weight"] == (32,)
    np.testing.assert_array_equal(weights.read("model.norm.weight"), _random(LLAMA).final_norm.weight_D)
