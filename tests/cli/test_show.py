"""`marin show`: a run as its files say."""

import json
from pathlib import Path

import pytest

from marin.cli.main import dispatch
from marin.errors import ResultsError

INFO = {
    "run_name": "tiny",
    "num_parameters": 1_000_000,
    "precision": "f32",
    "num_chips": 2,
    "device_name": "cpu",
    "device_flops": 1e6,
    "config": {"train": {"num_train_steps": 10}},
    "model_flops_per_token": 1000.0,
    "traced_flops_per_token": {"forward": 900.0, "training": 2700.0, "uncounted": []},
}


def _write(directory: Path, events: list[dict], info: dict | None = None) -> str:
    directory.mkdir(exist_ok=True)
    (directory / "run.json").write_text(json.dumps(info or INFO))
    (directory / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return str(directory)


def _start(when: float, step: int = 0) -> dict:
    return {"event": "start", "time": when, "from_step": step, "setup_time": 1.0, "compile_time": 1.0}


def _step(number: int, when: float, loss: object = 2.5) -> dict:
    return {
        "event": "step",
        "time": when,
        "step": number,
        "tokens": 100,
        "step_time": 1.0,
        "data_wait": 0.0,
        "loss": loss,
    }


@pytest.mark.parametrize("lost", ["config", "num_parameters", "device_flops"])
def test_show_of_a_record_that_lacks_a_field_names_it(lost, tmp_path):
    info = {name: value for name, value in INFO.items() if name != lost}
    with pytest.raises(ResultsError, match=f"run.json has no `{lost}"):
        dispatch(["show", _write(tmp_path / "run", [_start(100)], info)])


@pytest.mark.parametrize(
    ("event", "field"),
    [
        ({"event": "step", "step": 0}, "time"),
        ({"event": "clock", "time": None}, "time"),
        (_step(0, 101) | {"step_time": "nan"}, "step_time"),
        (_step(0, 101) | {"tokens": True}, "tokens"),
        ({"event": "pause", "time": 101, "reason": "checkpoint"}, "seconds"),
    ],
)
def test_show_of_a_line_that_training_does_not_write_names_it(event, field, tmp_path):
    with pytest.raises(ResultsError, match=f"metrics.jsonl:2 has the {field} .*expected a number"):
        dispatch(["show", _write(tmp_path / "run", [_start(100), event])])


def test_show_of_a_killed_run_says_how_far_how_fast_and_what_was_lost(tmp_path, capsys):
    events = [_start(100), _step(0, 101), _step(1, 102), _start(120, 1), _step(1, 121)]
    events += [
        {"event": "spike", "time": 121, "step": 1, "loss": 9.0, "usual": 2.5, "limit": 3.0, "num_rows": 1, "rows": []}
    ]
    assert dispatch(["show", _write(tmp_path / "run", events)]) == 0
    out = capsys.readouterr().out
    assert "2 of 10 steps, not ended" in out
    assert "100 tokens/s" in out
    # 3 x 1,000 FLOPs a token at 100 tokens/s on 2 MFLOP/s is 15 %; traced 2,700 a token are 13.5 %.
    assert "15.0% (model FLOPs), 13.5% (traced FLOPs)" in out
    assert "step 1 (9.0000)" in out
    assert "1 steps, after kills" in out
    assert "0:23 in 2 processes" in out
    assert "goodput       8.7% of the wall time is training" in out


def test_show_of_a_run_of_another_version_leaves_out_what_it_does_not_know(tmp_path, capsys):
    info = {name: value for name, value in INFO.items() if "flops_per_token" not in name}
    start = {"event": "start", "time": 100.0, "from_step": 0, "compile_time": 1.0}
    assert dispatch(["show", _write(tmp_path / "run", [start, _step(0, 101, "nan")], info)]) == 0
    out = capsys.readouterr().out
    assert "MFU" not in out
    assert "nan at step 0" in out


def test_show_of_a_directory_that_is_no_run_says_what_to_give(tmp_path):
    with pytest.raises(ResultsError, match="give the output directory of a training run"):
        dispatch(["show", str(tmp_path)])


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl"])
def test_show_of_a_file_of_a_run_shows_the_run(name, tmp_path, capsys):
    dispatch(["show", _write(tmp_path, [_start(100), _step(0, 101)])])
    of_run = capsys.readouterr().out
    dispatch(["show", str(tmp_path / name)])
    assert capsys.readouterr().out == of_run


def test_show_of_a_file_names_what_is_missing(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ResultsError, match="give the output directory of a training run"):
        dispatch(["show", str(file)])
