"""Runs that export their model in Hugging Face's layout, and runs that begin from such a folder."""

import dataclasses
import shutil
from pathlib import Path

import equinox as eqx
import numpy as np
import pytest

from marin.errors import CheckpointError, ConfigError
from marin.models.hf_import import load_hf_model
from marin.models.hf_layout import parameters_of
from marin.tracking import RunRecord
from marin.training.loop import train_lm


def _exports(config) -> list[str]:
    folder = Path(config.output_path) / "hf"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def _losses(config) -> list[float]:
    return [step["loss"] for step in RunRecord.open(config.output_path).steps()]


def _content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_training_exports_its_average_every_so_many_steps_and_at_the_end(make_config):
    config = make_config(num_train_steps=5, steps_per_hf_export=2, ema_beta=0.9)
    state = train_lm(config)
    assert _exports(config) == ["step-2", "step-4", "step-5"]
    scored = parameters_of(eqx.combine(state.average, state.model))
    read, model = load_hf_model(Path(config.output_path) / "hf" / "step-5")
    for name, value in parameters_of(model).items():
        np.testing.assert_array_equal(value, scored[name], err_msg=name)
    assert read.seq_len == config.model.seq_len
    record = RunRecord.open(config.output_path)
    assert [pause["step"] for pause in record.of("pause") if pause["reason"] == "hf export"] == [1, 3, 4]


@pytest.mark.parametrize(("asked", "found"), [(-1, []), (None, ["step-2", "step-4"])])
def test_training_exports_with_the_checkpoints_that_stay_unless_told_otherwise(make_config, asked, found):
    config = make_config(num_train_steps=5, steps_per_export=2, steps_per_hf_export=asked)
    train_lm(config)
    assert _exports(config) == found


def test_training_killed_before_an_export_makes_up_for_it_with_the_same_bytes(make_config):
    config = make_config(num_train_steps=6, steps_per_export=4, steps_per_hf_export=2)
    train_lm(config)
    hf = Path(config.output_path) / "hf"
    before = {name: _content(hf / name) for name in _exports(config)}
    assert list(before) == ["step-2", "step-4", "step-6"]
    # As a kill between the checkpoint of step 4 and its export leaves it, in the middle of writing.
    shutil.rmtree(Path(config.output_path) / "checkpoints" / "step-00000006")
    (hf / "step-4").rename(hf / ".exporting-step-4-0123456789ab")
    train_lm(config)
    assert {name: _content(hf / name) for name in _exports(config)} == before
    # And as one between the last checkpoint and the last export does.
    shutil.rmtree(hf / "step-6")
    train_lm(config)
    assert {name: _content(hf / name) for name in _exports(config)} == before
    # Or one that came while checkpoints that are not needed any more were removed.
    left = Path(config.output_path) / "checkpoints" / ".saving-step-00000002-removed-0123abcd"
    (left / "state").mkdir(parents=True)
    train_lm(config)
    assert not left.exists()


@pytest.mark.slow
def test_training_from_an_export_goes_on_with_its_loss_in_its_data_or_anew(make_config):
    origin = make_config("origin", num_train_steps=6, steps_per_hf_export=3)
    train_lm(origin)
    folder = f"{origin.output_path}/hf/step-3"
    began = {}
    for reset in (True, False):
        config = make_config(
            f"reset{reset}", num_train_steps=1, initialize_from_hf=folder, reset_data_loader_on_init=reset, ema_beta=0.9
        )
        train_lm(config)
        (began[reset],) = _losses(config)
    # The loss of a step is that of the weights before it: those of the export, on the origin's fourth batch.
    assert began[False] == _losses(origin)[3]
    assert began[True] < _losses(origin)[0] - 0.3 and began[True] != began[False]


def test_training_from_a_folder_that_does_not_fit_says_what_differs(make_config, tmp_path):
    origin = make_config("origin", num_train_steps=1, steps_per_hf_export=1)
    train_lm(origin)
    folder = Path(origin.output_path) / "hf" / "step-1"
    config = make_config("larger", initialize_from_hf=str(folder))
    with pytest.raises(
        CheckpointError, match=r"has 300 rows for tokens, the run 320: .* `vocab_size=300` in `TrainLmConfig`"
    ):
        train_lm(dataclasses.replace(config, vocab_size=320))
    (folder / "marin.json").unlink()
    config = make_config("goes on", initialize_from_hf=str(folder), reset_data_loader_on_init=False)
    with pytest.raises(ConfigError, match="does not say how many steps its weights have seen"):
        train_lm(config)
    biased = dataclasses.replace(config.model, use_bias=True)
    config = make_config("biased", model=biased, initialize_from_hf=str(folder))
    with pytest.raises(CheckpointError, match=r"no `model\.layers\.0\..*bias` for the parameter"):
        train_lm(config)
    partial = make_config(
        "partial", model=biased, initialize_from_hf=str(folder), allow_partial_checkpoint=True, num_train_steps=1
    )
    assert int(train_lm(partial).step) == 1


def test_training_that_cannot_export_is_refused_before_it_begins_if_it_was_asked_to(make_config, capsys):
    model = dataclasses.replace(make_config().model, use_attention_sink=True)
    config = make_config("asked", model=model, steps_per_hf_export=2)
    with pytest.raises(
        ConfigError,
        match="`steps_per_hf_export` is 2, but config field `use_attention_sink` is True.*=-1. trains it without",
    ):
        train_lm(config)
    assert not (Path(config.output_path) / "metrics.jsonl").exists()
    config = make_config("not asked", model=model, num_train_steps=2, steps_per_export=2)
    train_lm(config)
    assert _exports(config) == []
    assert "no export in Hugging Face's layout: config field `use_attention_sink`" in capsys.readouterr().out
