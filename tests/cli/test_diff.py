"""`marin diff`: two runs side by side."""

import json
import pathlib
from typing import Any

import pytest

from marin.cli.main import dispatch
from marin.errors import ConfigError
from marin.execution import Executor, ExecutorMainConfig, ExecutorStep
from marin.tracking.run_record import RunWriter

RECORDED = "git_commit git_dirty lock_digest host start_date end_date seconds output_digest"


def work(config: dict[str, Any]) -> None:
    writer = RunWriter(pathlib.Path(config["out"]))
    writer.write_info({"run_name": "r"})
    writer.append("start", from_step=0, compile_time=1.5)
    for step in range(2):
        writer.append("step", step=step, loss=config["rate"] / (step + 1), step_time=0.5, tokens=10)
    writer.append("evaluation", step=2, bits_per_byte=config["rate"] / 10)
    writer.append("end", steps=2)
    writer.close()


def collect(config: Any) -> None:
    pass


@pytest.fixture
def runs(tmp_path: pathlib.Path) -> list[str]:
    """Two runs that differ in a setting and in one of what they read, which differs in another."""
    from marin.execution import this_output_path

    executor = Executor(ExecutorMainConfig(prefix=str(tmp_path / "store")))
    paths = []
    for rate, size in ((4.0, 1), (2.0, 2)):
        data = ExecutorStep("data/raw", collect, {"size": size})
        step = ExecutorStep("runs/train", work, {"rate": rate, "data": data, "out": this_output_path(), "same": 1})
        paths.append(list(executor.run([step]))[-1].output_path)
    return paths


def compared(capsys: Any, *arguments: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    status = dispatch(["diff", *arguments, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_diff_has_what_differs_and_what_each_run_recorded(runs: list[str], capsys: Any) -> None:
    status, found = compared(capsys, *runs)
    lines = {(line["section"], line["key"]): (line["a"], line["b"]) for line in found["lines"]}
    assert status == 1
    assert not found["same_identity"]
    assert lines["config", "config['rate']"] == ("4.0", "2.0")
    assert lines["config", "data/raw: config['size']"] == ("1", "2")
    assert not any("same" in key for section, key in lines if section == "config")
    assert lines["dependencies", "data/raw"][0] != lines["dependencies", "data/raw"][1]
    assert {key for _, key in lines} >= set(RECORDED.split())
    assert lines["metrics", "loss"] == (2.0, 1.0)
    assert lines["metrics", "bits_per_byte"] == (0.4, 0.2)
    assert lines["metrics", "training_time"] == (1.0, 1.0)


def test_diff_of_a_run_with_itself_finds_one_identity(runs: list[str], capsys: Any) -> None:
    status, found = compared(capsys, runs[0], f"{runs[0]}/metrics.jsonl")
    assert status == 0
    assert found["same_identity"]
    assert not any(line["differs"] for line in found["lines"])


def test_diff_takes_paths_below_the_prefix_and_prints_both_sides(runs: list[str], capsys: Any) -> None:
    prefix, names = runs[0].split("/runs/")[0], [path.split("/store/")[1] for path in runs]
    capsys.readouterr()
    assert dispatch(["diff", *names, "--prefix", prefix]) == 1
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if "config['rate']" in line]
    assert line.split()[-4:] == ["config['rate']", "≠", "4.0", "2.0"]
    assert "different identities" in out
    assert "code: no difference" in out


def test_diff_of_a_run_that_goes_on_takes_what_it_has_written(runs: list[str], capsys: Any) -> None:
    metrics = pathlib.Path(runs[1], "metrics.jsonl")
    metrics.write_bytes(metrics.read_bytes()[:150])
    _, found = compared(capsys, *runs)
    figures = {line["key"]: line["b"] for line in found["lines"] if line["section"] == "metrics"}
    assert figures["complete"] is False
    assert "unreadable" not in figures


def test_diff_of_what_is_no_output_is_refused_with_what_is_there(runs: list[str], tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match=r"nor any file.*`marin explain runs/train` lists"):
        dispatch(["diff", runs[0], "runs/tarin-12345678", "--prefix", str(tmp_path / "store")])
    with pytest.raises(ConfigError, match=r"is no output of a step"):
        dispatch(["diff", str(tmp_path), runs[0]])
