"""Checkpoints as a run makes them: beside training, recorded, and a reason to stop when one cannot be written."""

import errno
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from marin.errors import CheckpointError, clean_exit
from marin.nn import Precision
from marin.nn.trees import named_leaves
from marin.parallel import Parallelism
from marin.storage import files
from marin.tracking import RunRecord
from marin.training import checkpoint as checkpoints
from marin.training.checkpoint_writer import CheckpointWriter
from marin.training.loop import Measurement, train_lm
from marin.training.placement import InitialProgram


def _saved_steps(config) -> list[int]:
    return [checkpoint.step for checkpoint in checkpoints.list_checkpoints(Path(config.output_path) / "checkpoints")]


def test_training_whose_background_save_fails_stops_and_goes_on_from_the_checkpoint_before(make_config, monkeypatch):
    # Both in one format: a run that chooses by itself takes what measures faster.
    options = {"num_train_steps": 9, "steps_per_export": 3, "steps_per_hf_export": -1, "precision": Precision("f32")}
    alone = make_config("alone", **options)
    whole = train_lm(alone)
    config = make_config("full", **options)
    real, calls = files.sync_tree, []

    def sync_tree(path: str) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_tree", sync_tree)
        with pytest.raises(CheckpointError, match="step 6 could not be written"):
            train_lm(config)
    assert len(calls) == 2
    assert _saved_steps(config) == [3]
    assert not RunRecord.open(config.output_path).is_complete
    resumed = train_lm(config)
    assert RunRecord.open(config.output_path).of("start")[-1]["from_step"] == 3
    for name, value in named_leaves(whole).items():
        np.testing.assert_array_equal(named_leaves(resumed)[name], value, err_msg=name)
    losses = [[step["loss"] for step in RunRecord.open(c.output_path).steps()] for c in (alone, config)]
    assert losses[0] == losses[1]


def test_training_that_goes_on_makes_no_first_state(make_config, monkeypatch):
    """Neither its time nor its memory are needed beside what the checkpoint holds."""
    config = make_config(num_train_steps=4, steps_per_export=2, steps_per_hf_export=-1)
    whole = train_lm(config)
    shutil.rmtree(Path(config.output_path) / "checkpoints" / "step-00000004")
    monkeypatch.setattr(InitialProgram, "run", None)
    resumed = train_lm(config)
    for name, value in named_leaves(whole).items():
        np.testing.assert_array_equal(named_leaves(resumed)[name], value, err_msg=name)


def test_training_records_the_wait_for_a_checkpoint_and_its_time_in_the_background(make_config):
    config = make_config(num_train_steps=6, steps_per_export=2, steps_per_hf_export=-1)
    train_lm(config)
    record = RunRecord.open(config.output_path)
    pauses = [event for event in record.of("pause") if event["reason"] == "checkpoint"]
    assert [event["step"] for event in pauses] == [2, 4, 6]
    assert [event["step"] for event in record.of("checkpoint")] == [2, 4, 6]
    assert all(event["seconds"] > 0 and event["bytes"] > 0 for event in record.of("checkpoint"))
    assert [event["event"] for event in record.events[-3:]] == ["checkpoint", "pause", "end"]


def test_training_that_goes_on_on_other_devices_says_that_bits_may_differ(make_config, capsys):
    config = make_config(num_train_steps=4, steps_per_export=2, parallelism=Parallelism(data=8))
    eight = train_lm(config)
    shutil.rmtree(Path(config.output_path) / "checkpoints" / "step-00000004")
    capsys.readouterr()
    two = train_lm(make_config(num_train_steps=4, steps_per_export=2, parallelism=Parallelism(data=2)))
    printed = capsys.readouterr().out
    assert "saved on 8 cpu devices (data 8), this process goes on with 2 cpu devices (data 2)" in printed
    assert "bits may differ" in printed
    assert len(two.model.lm_head.weight_IO.sharding.device_set) == 2
    for name, value in named_leaves(eight).items():
        np.testing.assert_allclose(named_leaves(two)[name], value, rtol=2e-3, atol=2e-4, err_msg=name)


def test_a_state_that_was_saved_within_an_evaluation_is_not_saved_again(make_config, monkeypatch):
    """Other measurements and a checkpoint may be due after the same step, and to write the state can take minutes."""
    config = make_config(num_train_steps=5, steps_per_eval=3, steps_per_export=3)
    saves, save = [], CheckpointWriter.save

    def counted(self, state, step):
        saves.append(step)
        save(self, state, step)

    def evaluate(model, limit):
        os.kill(os.getpid(), signal.SIGTERM)
        deadline = time.monotonic() + 60
        while not checkpoints.list_checkpoints(Path(config.output_path) / "checkpoints"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return {}

    monkeypatch.setattr(CheckpointWriter, "save", counted)
    with pytest.raises(SystemExit), clean_exit():
        train_lm(config, evaluate, [Measurement("samples", every=3, measure=lambda model, done: {})])
    assert saves == [3, 4]
    assert [saved["step"] for saved in RunRecord.open(config.output_path).of("checkpoint")] == [3, 4]
