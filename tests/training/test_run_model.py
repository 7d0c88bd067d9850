"""Opening a training run's model, as evaluation, fine-tuning and the server do."""

import dataclasses
import json
import pathlib
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

from marin.data.documents import Document, write_documents
from marin.data.tokenizer import TrainTokenizerConfig, train_tokenizer
from marin.errors import CheckpointError, ConfigError, DataError, ResultsError
from marin.models import GptConfig, LlamaConfig
from marin.models.hf_export import export_hf
from marin.nn import Llama3RotaryConfig, RmsNormConfig
from marin.tracking import RunWriter
from marin.training.checkpoint_writer import CheckpointWriter
from marin.training.config_json import config_to_json
from marin.training.run_model import load_any_model, load_run_model
from marin.training.run_paths import recorded_paths

GPT = GptConfig(seq_len=16, hidden_dim=32, num_layers=2, num_heads=2)
LLAMA = LlamaConfig(
    seq_len=16, hidden_dim=16, intermediate_dim=24, num_layers=1, num_heads=2, num_kv_heads=1, qk_norm=RmsNormConfig(),
    rope=Llama3RotaryConfig(factor=4.0), attn_backend="JAX_FLASH",
)  # fmt: skip


def weights(config: Any, seed: int) -> Any:
    return eqx.filter(config.build(300, key=jax.random.key(seed)), eqx.is_array)


def write_run(folder: pathlib.Path, config: Any, *, average: bool = False, **info: Any) -> pathlib.Path:
    """A run's directory with checkpoints of steps 3 and 7, whose weights are of seeds 3 and 7 (the average: 70)."""
    documents = str(folder / "documents.jsonl.zst")
    write_documents(documents, [Document(str(i), f"document {i} of a few " * 9, "test") for i in range(3)])
    train_tokenizer(TrainTokenizerConfig(documents, 265, str(folder / "tokenizer")))
    writer = RunWriter(folder / "run")
    described = {"model": config_to_json(config), "tokenizer": str(folder / "tokenizer"), "vocab_size": 300}
    kind = type(config)
    named = {"model_class": f"{kind.__module__}:{kind.__qualname__}", "precision": "bf16", "run_name": "tiny"}
    writer.write_info({"config": described} | named | info)
    writer.append("start", from_step=0)
    writer.close()
    with CheckpointWriter(folder / "run" / "checkpoints", keep_every=1) as saver:
        for step in (3, 7):
            saver.save({"model": weights(config, step), "average": weights(config, 70) if average else None}, step)
    return folder / "run"


def assert_weights(model: Any, expected: Any) -> None:
    actual = jax.tree.leaves(eqx.filter(model, eqx.is_array))
    for left, right in zip(actual, jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("config", [GPT, LLAMA], ids=["gpt", "llama"])
def test_a_run_opens_as_its_newest_step_or_the_step_asked_for(tmp_path, config):
    run = write_run(tmp_path, config)
    loaded = load_run_model(run)
    assert (loaded.config, loaded.step, loaded.name, loaded.precision.compute) == (config, 7, "tiny-step-7", "bf16")
    assert_weights(loaded.model, weights(config, 7))
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("a few")) == "a few"
    for earlier in (load_run_model(run, step=3), load_run_model(run / "checkpoints" / "step-00000003")):
        assert_weights(earlier.model, weights(config, 3))
    x_BTD = loaded.model.activations(np.zeros((1, 4), np.int32), None)
    assert x_BTD.shape == (1, 4, config.hidden_dim)


@pytest.mark.parametrize("kernel", ["CUDNN", "SPLASH"])
def test_a_run_that_was_trained_with_another_device_s_kernel_computes_here(tmp_path, kernel):
    config = dataclasses.replace(LLAMA, attn_backend=kernel)
    loaded = load_run_model(write_run(tmp_path, config))
    tokens = np.arange(8, dtype=np.int32)[None]
    x_BTD = LLAMA.build(300, key=jax.random.key(7)).activations(tokens, None)
    np.testing.assert_allclose(loaded.model.activations(tokens, None), x_BTD, rtol=1e-5, atol=1e-5)
    assert loaded.config == dataclasses.replace(LLAMA, attn_backend=None)


def test_a_run_opens_where_its_store_was_moved_to(tmp_path):
    (tmp_path / "before").mkdir()
    run = write_run(tmp_path / "before", GPT)
    info = json.loads((run / "run.json").read_text())
    info["config"] = recorded_paths(info["config"], str(run))
    (run / "run.json").write_text(json.dumps(info))
    (tmp_path / "before").rename(tmp_path / "after")
    assert_weights(load_run_model(tmp_path / "after" / "run").model, weights(GPT, 7))
    assert str(tmp_path) not in json.dumps(info)


def test_a_run_that_keeps_an_average_opens_as_the_average(tmp_path):
    assert_weights(load_run_model(write_run(tmp_path, GPT, average=True)).model, weights(GPT, 70))


def test_a_hugging_face_folder_opens_like_a_run(tmp_path):
    run = write_run(tmp_path, LLAMA)
    loaded = load_run_model(run)
    export_hf(loaded.model, loaded.config, str(tmp_path / "tokenizer"), tmp_path / "hf")
    opened = load_any_model(tmp_path / "hf")
    assert_weights(opened.model, weights(LLAMA, 7))
    assert (opened.name, opened.checkpoint, opened.tokenizer.digest) == ("hf", None, loaded.tokenizer.digest)


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"model_class": "os:system"}, "only classes of marin and experiments are loaded"),
        ({"model_class": "experiments.gone:Config"}, "not here: run this in a checkout"),
        ({"model_class": "marin.models.lm:count_parameters"}, "not the config of a model"),
    ],
)
def test_a_class_that_cannot_be_loaded_is_refused(tmp_path, info, message):
    with pytest.raises(ConfigError, match=message):
        load_run_model(write_run(tmp_path, GPT, **info))


def test_a_field_of_another_version_is_named(tmp_path):
    run = write_run(tmp_path, GPT)
    info = json.loads((run / "run.json").read_text())
    info["config"]["model"]["wings"] = 2
    (run / "run.json").write_text(json.dumps(info))
    with pytest.raises(ConfigError, match="no field `wings`"):
        load_run_model(run)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "holds list, expected an object"),
        ('{"config": ', "is not JSON"),
        ('{"config": 3}', "has no `config.model`"),
        ('{"config": {"model": {}}}', "has no `config.tokenizer`"),
    ],
)
def test_a_record_that_is_damaged_is_named(tmp_path, text, message):
    run = write_run(tmp_path, GPT)
    (run / "run.json").write_text(text)
    with pytest.raises(ResultsError, match=f"run.json {message}"):
        load_run_model(run)


def test_what_is_not_a_run_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="is not there"):
        load_run_model(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        load_run_model(tmp_path)


def test_a_run_that_was_moved_away_from_its_tokenizer_says_how_to_open_it(tmp_path):
    run = write_run(tmp_path, LLAMA)
    info = json.loads((run / "run.json").read_text())
    info["config"]["tokenizer"] = "../tokenizer"
    (tmp_path / "store").mkdir()
    moved = run.rename(tmp_path / "store" / "run")
    (moved / "run.json").write_text(json.dumps(info))
    with pytest.raises(DataError, match=rf"{tmp_path}/store/tokenizer/tokenizer.json.*moved away.*`--tokenizer PATH`"):
        load_run_model(moved)
    assert load_run_model(moved, tokenizer=str(tmp_path / "tokenizer")).step == 7


def test_a_run_is_not_opened_with_another_tokenizer_than_it_was_trained_with(tmp_path, capsys):
    run = write_run(tmp_path, LLAMA)
    info = json.loads((run / "run.json").read_text())
    digest = load_run_model(run).tokenizer.digest
    (run / "run.json").write_text(json.dumps(info | {"digests": {"tokenizer": digest}}))
    assert load_run_model(run).step == 7
    documents = str(tmp_path / "others.jsonl.zst")
    write_documents(documents, [Document(str(i), f"quite other words {i} " * 9, "test") for i in range(3)])
    train_tokenizer(TrainTokenizerConfig(documents, 265, str(tmp_path / "tokenizer")))
    moved = json.loads((run / "run.json").read_text())
    moved["config"]["tokenizer"] = "../tokenizer"  # as the pipeline has it
    (run / "run.json").write_text(json.dumps(moved))
    with pytest.raises(
        DataError, match=f"^{tmp_path}/tokenizer is another tokenizer than the one that .*run was trained with"
    ):
        load_run_model(run)
    assert load_run_model(run, tokenizer=str(tmp_path / "tokenizer")).step == 7  # asked for by name
    assert "warning: " in capsys.readouterr().err
    write_documents(documents, [Document(str(i), f"{i * 2**20:x} {i * 7**9:x} " * 9, "test") for i in range(99)])
    train_tokenizer(TrainTokenizerConfig(documents, 301, str(tmp_path / "larger")))
    with pytest.raises(ConfigError, match="larger has 301 tokens and the model of .* 300"):
        load_run_model(run, tokenizer=str(tmp_path / "larger"))
