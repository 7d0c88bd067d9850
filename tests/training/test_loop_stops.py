"""What a run that is told to stop still does, and what is made up for where it goes on."""

import itertools
import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from stopping import stop_after

from marin.tracking import RunRecord
from marin.training import checkpoint as checkpoints
from marin.training.loop import Measurement, train_lm


def test_stop_at_a_step_with_an_evaluation_and_an_export_only_saves(make_config, monkeypatch):
    evaluated = []
    config = make_config(num_train_steps=9, steps_per_eval=3, steps_per_hf_export=3)
    measured = Measurement("samples", every=3, measure=lambda model, done: evaluated.append(done) or {})
    stop_after(config, 2, monkeypatch, lambda model, limit: evaluated.append(limit) or {}, [measured])
    assert evaluated == [] and not (Path(config.output_path) / "hf").exists()
    assert checkpoints.find(config.output_path).step == 3


def test_a_stop_within_an_evaluation_saves_before_the_evaluation_ends(make_config):
    """It may take minutes, and whoever sends SIGTERM waits for seconds; what is killed then is to be there, and measured anew."""
    config = make_config(num_train_steps=5, steps_per_eval=3)
    place, evaluated = Path(config.output_path) / "checkpoints", []

    def evaluate(model, limit):
        evaluated.append(model)
        if len(evaluated) > 1:
            return {}
        os.kill(os.getpid(), signal.SIGTERM)
        deadline = time.monotonic() + 60
        while not checkpoints.list_checkpoints(place):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        train_lm(config, evaluate)
    assert checkpoints.find(config.output_path).step == 3
    # As a process that is killed has not written the end of the pause.
    metrics = Path(config.output_path) / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines(keepends=True)
    while json.loads(lines[-1])["event"] != "step":
        lines.pop()
    metrics.write_bytes(b"".join(lines))
    train_lm(config, evaluate)
    assert len(evaluated) == 2  # both after 3 steps
    record = RunRecord.open(config.output_path)
    assert [step["step"] for step in record.steps()] == list(range(5)) and not record.superseded()


def test_what_a_stop_left_unmeasured_is_measured_once_where_training_goes_on(make_config, monkeypatch):
    measured = []

    def evaluate(model, limit):
        measured.append("evaluation")
        return {"bits_per_byte": float(np.sum(model.final_norm.weight_D))}

    def others(name):
        return Measurement(name, every=3, measure=lambda model, done: measured.append((name, done)) or {})

    measurements = [others("samples"), others("samples")]
    config = make_config(num_train_steps=8, steps_per_eval=3)
    stop_after(config, 2, monkeypatch, evaluate, measurements)
    stop_after(config, 0, monkeypatch, evaluate, measurements)  # after step 4, having made up
    assert measured == ["evaluation", ("samples", 3), ("samples", 3)]
    train_lm(config, evaluate, measurements)
    assert measured[3:] == ["evaluation", ("samples", 6), ("samples", 6)]
    found = [(line["step"], line["bits_per_byte"]) for line in RunRecord.open(config.output_path).of("evaluation")]
    whole = make_config("whole", num_train_steps=8, steps_per_eval=3)
    train_lm(whole, evaluate)
    assert found == [
        (line["step"], line["bits_per_byte"]) for line in RunRecord.open(whole.output_path).of("evaluation")
    ]


def test_evaluation_that_was_made_before_its_checkpoint_is_not_made_again(make_config, monkeypatch):
    measured = []
    config = make_config(num_train_steps=6, steps_per_eval=2, steps_per_export=2)
    with monkeypatch.context() as patch:
        from marin.training import loop

        original = loop.Prefetcher.take
        taken = itertools.count()

        def take(self):
            if next(taken) == 2:
                raise OSError("killed")
            return original(self)

        patch.setattr(loop.Prefetcher, "take", take)
        with pytest.raises(OSError, match="killed"):
            train_lm(config, lambda model, limit: measured.append(1) or {"bits_per_byte": 1.0})
    assert len(measured) == 1 and checkpoints.find(config.output_path).step == 2
    train_lm(config, lambda model, limit: measured.append(2) or {"bits_per_byte": 1.0})
    assert measured == [1, 2]  # after step 4 alone


def test_trace_that_a_stop_cuts_short_is_written_all_the_same(make_config, monkeypatch, capsys):
    config = make_config(num_train_steps=9, profiler=True, profiler_start_step=1, profiler_num_steps=100)
    stop_after(config, 3, monkeypatch)
    assert list((Path(config.output_path) / "profile").rglob("*.xplane.pb"))
    capsys.readouterr()
    train_lm(make_config("late", num_train_steps=2, profiler=True, profiler_start_step=5))
    assert "nothing is traced: the trace would begin with step 5, training ends after 2" in capsys.readouterr().err


def test_a_sigterm_that_is_sent_again_does_not_cost_the_checkpoint(make_config, monkeypatch):
    from marin.training import loop

    original = loop.Prefetcher.take
    taken = itertools.count()

    def take(self):
        if next(taken) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self)

    config = make_config(num_train_steps=6)
    with monkeypatch.context() as patch:
        patch.setattr(loop.Prefetcher, "take", take)
        with pytest.raises(SystemExit) as ended:
            train_lm(config)
    assert ended.value.code == 128 + signal.SIGTERM
    assert checkpoints.list_checkpoints(Path(config.output_path) / "checkpoints")[-1].step == 4
