"""`marin export`, as a user runs it."""

import dataclasses
import json
import pathlib
import subprocess
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

from marin.cli.main import dispatch
from marin.data.documents import Document, write_documents
from marin.data.tokenizer import TrainTokenizerConfig, train_tokenizer
from marin.errors import MarinError, StorageError
from marin.models import LlamaConfig
from marin.models.hf_import import load_hf_model
from marin.models.hf_layout import parameters_of
from marin.nn import Llama3RotaryConfig, RmsNormConfig
from marin.tracking import RunWriter
from marin.training.checkpoint_writer import CheckpointWriter
from marin.training.config_json import config_to_json

Marin = Callable[..., subprocess.CompletedProcess[str]]
CONFIG = LlamaConfig(
    seq_len=16,
    hidden_dim=16,
    intermediate_dim=24,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    qk_norm=RmsNormConfig(),
    rope=Llama3RotaryConfig(factor=4.0),
)


def _model(config: LlamaConfig, seed: int) -> Any:
    return eqx.filter(config.build(300, key=jax.random.key(seed)), eqx.is_array)


def _run(folder: pathlib.Path, config: LlamaConfig = CONFIG, *, average: bool = False, **changes: Any) -> pathlib.Path:
    """A run's directory with checkpoints of steps 3 and 7, whose weights are of seeds 3 and 7 (the average: 70)."""
    documents = str(folder / "documents.jsonl.zst")
    write_documents(documents, [Document(str(i), f"document {i} of a few " * 9, "test") for i in range(3)])
    train_tokenizer(TrainTokenizerConfig(documents, 265, str(folder / "tokenizer")))
    run = folder / "run"
    writer = RunWriter(run)
    described = {"model": config_to_json(config) | changes, "tokenizer": str(folder / "tokenizer")}
    writer.write_info({"config": described, "model_class": "marin.models.llama:LlamaConfig"})
    writer.append("start", from_step=0)
    writer.close()
    with CheckpointWriter(run / "checkpoints", keep_every=100) as saver:
        for step in (3, 7):
            state = {"model": _model(config, step), "average": _model(config, 10 * step) if average else None}
            saver.save(state, step)
    return run


def _assert_holds(folder: pathlib.Path, seed: int) -> None:
    config, model = load_hf_model(folder)
    assert config.rope == CONFIG.rope
    for name, value in parameters_of(_model(CONFIG, seed)).items():
        np.testing.assert_array_equal(parameters_of(model)[name], value, err_msg=name)


def test_export_writes_the_newest_checkpoint_of_a_run_once(marin: Marin, tmp_path: pathlib.Path) -> None:
    run = _run(tmp_path)
    done = marin("export", str(run), str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "step 7, 14 arrays as float32" in done.stdout and "note:" not in done.stdout
    _assert_holds(tmp_path / "out", 7)
    with pytest.raises(StorageError, match="is there already: name another folder, or remove it first"):
        dispatch(["export", str(run), str(tmp_path / "out")])


def test_export_of_a_checkpoint_takes_its_step_and_format(tmp_path: pathlib.Path) -> None:
    run = _run(tmp_path)
    assert dispatch(["export", str(run / "checkpoints" / "step-00000003"), str(tmp_path / "out")]) == 0
    _assert_holds(tmp_path / "out", 3)
    dispatch(["export", str(run), str(tmp_path / "half"), "--dtype", "bfloat16"])
    assert json.loads((tmp_path / "half" / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_export_of_a_run_that_keeps_an_average_writes_it(tmp_path: pathlib.Path) -> None:
    dispatch(["export", str(_run(tmp_path, average=True)), str(tmp_path / "out")])
    _assert_holds(tmp_path / "out", 70)


def test_export_of_a_class_of_ones_own_says_what_was_not_compared(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _run(tmp_path)
    info = json.loads((run / "run.json").read_text()) | {"model_class": "experiments.speedrun.idea.main:IdeaConfig"}
    (run / "run.json").write_text(json.dumps(info))
    dispatch(["export", str(run), str(tmp_path / "out")])
    assert "IdeaConfig: names, shapes and config were compared with Llama's, not what it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda run: _run(run.parent, gate_width=3), "has a field `gate_width`, which Llama has not"),
        (lambda run: _run(run.parent, dataclasses.replace(CONFIG, use_attention_sink=True)), "`use_attention_sink` is"),
        (lambda run: _run(run.parent, num_layers=2), "the model has no parameter `blocks.1."),
        (lambda run: run, "holds no checkpoint: give a run's output directory"),
        (lambda run: (_run(run.parent) / "run.json").unlink(), "run.json is not there"),
        (lambda run: (_run(run.parent) / "run.json").write_text('{"config'), "run.json is not JSON"),
        (lambda run: (_run(run.parent) / "run.json").write_text("{}"), "run.json has no `config.model`"),
        (lambda run: (_run(run.parent).parent / "tokenizer" / "tokenizer.json").unlink(), "no tokenizer"),
    ],
)
def test_export_of_what_cannot_be_says_why_and_writes_nothing(
    spoil: Callable[[pathlib.Path], Any], said: str, tmp_path: pathlib.Path
) -> None:
    spoil(tmp_path / "run")
    with pytest.raises(MarinError) as refused:
        dispatch(["export", str(tmp_path / "run"), str(tmp_path / "out")])
    assert said in str(refused.value)
    assert not (tmp_path / "out").exists()
