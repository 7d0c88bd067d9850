"""`marin explain` and `marin table`: why a step would run, and what became of a sweep, for an experiment file."""

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from marin.cli.main import dispatch
from marin.errors import ConfigError, StepFailedError, Terminated
from marin.execution import Executor, ExecutorMainConfig
from marin.execution.attempts import ledger_directory
from marin.execution.experiment_file import with_steps_of
from marin.execution.status import INFO_NAME, STATUS_NAME, Status, write_status
from marin.storage.lease import Lease

EXPERIMENT = """
import dataclasses, os, pathlib
from marin.execution import ExecutorStep, executor_main, this_output_path

@dataclasses.dataclass(frozen=True)
class Data:
    size: int
    hf_token: str
    output_path: str = this_output_path()

@dataclasses.dataclass(frozen=True)
class Train:
    data: object
    rate: float
    layers: int
    output_path: str = this_output_path()

def collect(config):
    pathlib.Path(config.output_path, "x.txt").write_text(str(config.size))

def train(config):
    if config.rate > 1:
        raise ValueError("diverged")
    pathlib.Path(config.output_path, "result.json").write_text('{"loss": %r}' % config.rate)

def setting(name, default):
    return type(default)(os.environ.get(name, default))

if __name__ == "__main__":
    print("an experiment may print")
    data = ExecutorStep("data/raw", collect, Data(setting("SIZE", 10), setting("TOKEN", "t")))
    run = ExecutorStep("runs/train", train, Train(data / "x.txt", setting("RATE", 0.1), setting("LAYERS", 2)))
    executor_main(steps=[run], description="a test")
"""

SWEEP = (
    EXPERIMENT.split("if __name__")[0].replace(
        "import dataclasses", "from marin.execution.sweep import sweep\nimport dataclasses"
    )
    + """
def make(rate):
    return ExecutorStep("runs/train", train, Train(None, rate, 1))

if __name__ == "__main__":
    runs = sweep(make, rate=[0.5, 2.0])
    executor_main(steps=[*runs, runs.table_step("sweeps/rates", {"loss": "result.json:loss"})])
"""
)


@pytest.fixture
def experiment(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs the experiment with some settings changed; the changes hold until the next call."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiment.py").write_text(EXPERIMENT)

    def run(**settings: Any) -> None:
        change(monkeypatch, **settings)
        with_steps_of("experiment.py", lambda steps: Executor(ExecutorMainConfig(prefix="store")).run(steps) and None)

    return run


def test_a_stop_while_steps_are_looked_at_is_a_stop(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiment.py").write_text(EXPERIMENT)

    def stopped(steps: object) -> None:
        raise Terminated

    with pytest.raises(Terminated):
        with_steps_of("experiment.py", stopped)


def change(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
    for name in ("SIZE", "TOKEN", "RATE", "LAYERS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, str(value))


@pytest.fixture
def explained(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert dispatch(["explain", *arguments, "--prefix", "store"]) == 0
        return capsys.readouterr().out

    return run


def test_explain_of_a_finished_step_says_that_it_would_skip(experiment: Any, explained: Any) -> None:
    experiment()
    out = explained("experiment.py", "runs/train")
    assert out.startswith("would skip: runs/train\n")
    assert "already done" in out
    assert "differs" not in out


def test_explain_names_the_first_setting_that_differs_from_the_closest_version(
    experiment: Any, explained: Any, monkeypatch: Any
) -> None:
    experiment(RATE=0.1, LAYERS=2)
    experiment(RATE=0.2, LAYERS=3)
    change(monkeypatch, RATE=0.3, LAYERS=3)
    out = explained("experiment", "train")
    assert out.startswith("would run: runs/train\n")
    assert "differs  config.rate: 0.2 -> 0.3\n" in out
    assert "more" not in out
    change(monkeypatch, RATE=0.3, LAYERS=4)
    out = explained("experiment", "train")
    assert "differs  config.layers: " in out
    assert "config.rate" not in out
    assert "and 1 more differs" in out
    assert "differs  config.rate: " in explained("experiment", "train", "--all")


def test_explain_follows_a_dependency_to_the_setting_that_changed(
    experiment: Any, explained: Any, monkeypatch: Any
) -> None:
    experiment()
    change(monkeypatch, SIZE=11)
    lines = [line.strip() for line in explained("experiment", "train").splitlines()]
    at = lines.index("as data/raw differs:")
    assert lines[at - 1].startswith("differs  config.data: step data/raw-")
    assert lines[at + 1] == "differs  config.size: 10 -> 11"
    (found,) = json.loads(explained("experiment", "runs/train", "--json"))
    (outer,) = found["comparison"]["changes"]
    assert [(inner["place"], inner["old"], inner["new"]) for inner in outer["inside"]["changes"]] == [
        ("config.size", "10", "11")
    ]


def test_explain_sees_an_edit_of_the_code(experiment: Any, explained: Any) -> None:
    experiment()
    pathlib.Path("edited.py").write_text(EXPERIMENT.replace('"diverged"', '"too high"'))
    assert "differs  fn: train (code " in explained("edited.py", "train")


def test_explain_hides_a_secret_and_says_that_a_hidden_value_differs(
    experiment: Any, explained: Any, monkeypatch: Any
) -> None:
    experiment(TOKEN="hunter2")
    change(monkeypatch, TOKEN="hunter3")
    out = explained("experiment", "data/raw", "--all")
    assert "a value that records hide" in out
    assert "hunter" not in out + explained("data/raw", "--all", "--json")


def test_explain_of_a_whole_experiment_has_every_step(experiment: Any, explained: Any, monkeypatch: Any) -> None:
    experiment()
    change(monkeypatch, RATE=0.7)
    out = explained("experiment")
    assert out.index("would skip: data/raw") < out.index("would run: runs/train")


def test_explain_of_a_failed_step_shows_its_error(experiment: Any, explained: Any) -> None:
    with pytest.raises(StepFailedError, match="diverged"):
        experiment(RATE=2.0)
    out = explained("experiment", "train")
    assert "failed before" in out
    assert "error    ValueError: diverged" in out


def test_explain_of_a_step_that_never_ran_says_so(experiment: Any, explained: Any) -> None:
    out = explained("experiment", "train")
    assert "no version of it is recorded" in out
    assert "there is no directory" in out
    assert not pathlib.Path("store").exists()


def test_explain_of_an_overridden_path_names_what_another_config_left(
    experiment: Any, explained: Any, monkeypatch: Any
) -> None:
    source = EXPERIMENT.replace('("LAYERS", 2))', '("LAYERS", 2)), override_output_path="fixed"')
    pathlib.Path("experiment.py").write_text(source)
    experiment()
    change(monkeypatch, RATE=0.4)
    out = explained("experiment", "train")
    assert out.startswith("would be refused: runs/train")
    assert "differs  config.rate: 0.1 -> 0.4" in out


def test_explain_lists_recorded_versions_newest_first_with_what_differs(experiment: Any, explained: Any) -> None:
    experiment(RATE=0.1)
    experiment(RATE=0.2)
    folders = sorted(
        pathlib.Path("store/runs").glob("train-*"), key=lambda path: "0.2" in (path / INFO_NAME).read_text()
    )
    for folder, date in zip(folders, ("2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00"), strict=True):
        info = json.loads((folder / INFO_NAME).read_text())
        (folder / INFO_NAME).write_text(json.dumps(info | {"start_date": date}))
    out = explained("runs/train")
    assert out.startswith("runs/train: 2 versions")
    assert out.index(str(folders[1])) < out.index("differs  config.rate: 0.1 -> 0.2")
    assert explained("train") == out
    assert explained(str(folders[0])) == out
    (folders[0] / INFO_NAME).write_text("{")
    assert "unreadable" in explained("runs/train")


@pytest.mark.parametrize(
    "change", [{"version": {"config": [1], "dependencies": 5}}, {"version": 5}, {"dependencies": "x"}]
)
def test_explain_of_a_record_with_parts_of_other_kinds_does_without_them(
    experiment: Any, explained: Any, change: Any
) -> None:
    experiment(RATE=0.1)
    (record,) = pathlib.Path("store/runs").glob(f"train-*/{INFO_NAME}")
    record.write_text(json.dumps(json.loads(record.read_text()) | change))
    assert f"{record.parent.absolute()} (SUCCESS" in explained("runs/train")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["experiment", "runs/trian"], "did you mean runs/train"),
        (["experiment", "zzz"], "the steps are data/raw, runs/train"),
        (["runs/trian"], "did you mean runs/train"),
        (["experiment", "a", "b"], "3 names"),
        (["no.such.module", "train"], "no module"),
        (["silent.py", "train"], "never calls executor_main"),
        (["broken.py", "train"], "before it called executor_main"),
        (["failing.py", "train"], r"ZeroDivisionError in .*failing.py, line 2: division by zero; `python failing.py`"),
    ],
)
def test_explain_of_what_is_not_there_is_refused_with_what_is(
    experiment: Any, explained: Any, arguments: list[str], message: str
) -> None:
    experiment()
    pathlib.Path("silent.py").write_text("x = 1\n")
    pathlib.Path("failing.py").write_text("def half():\n    1 / 0\nhalf()\n")
    pathlib.Path("broken.py").write_text("import sys\nsys.exit('no')\n")
    with pytest.raises(ConfigError, match=message):
        explained(*arguments)


def test_explain_of_a_record_without_a_prefix_is_refused(experiment: Any, explained: Any) -> None:
    with pytest.raises(ConfigError, match="there is no prefix"):
        explained("runs/train")


@pytest.mark.parametrize("damage", ["{", "directory", "status"])
def test_explain_of_an_experiment_with_one_unreadable_record_still_has_every_step(
    experiment: Any, explained: Any, monkeypatch: Any, damage: str
) -> None:
    experiment()
    (record,) = pathlib.Path("store/data").glob(f"raw-*/{INFO_NAME}")
    if damage == "status":
        (record.parent / STATUS_NAME).write_text("nonsense")
    else:
        record.unlink()
        record.write_text(damage) if damage == "{" else record.mkdir()
    assert "would skip: runs/train" in explained("experiment")
    change(monkeypatch, RATE=0.7)
    out = explained("experiment")
    assert "would run: runs/train" in out
    assert "would be refused: data/raw" in out
    assert str(record.parent.absolute()) in out


def test_explain_changes_nothing_under_the_prefix(experiment: Any, explained: Any, monkeypatch: Any) -> None:
    def snapshot() -> dict[str, tuple[int, int]]:
        found = {}
        for folder, _, names in os.walk("store"):
            for name in names:
                info = os.stat(os.path.join(folder, name))
                found[os.path.join(folder, name)] = (info.st_mtime_ns, info.st_size)
        return found

    experiment()
    before = snapshot()
    change(monkeypatch, RATE=0.9, SIZE=12)
    explained("experiment")
    explained("runs/train")
    assert snapshot() == before


def test_table_command_shows_a_sweep_with_its_failures(experiment: Any, capsys: Any) -> None:
    pathlib.Path("grid.py").write_text(SWEEP)
    with pytest.raises(StepFailedError, match="diverged"):
        with_steps_of("grid.py", lambda steps: Executor(ExecutorMainConfig(prefix="store")).run(steps) and None)
    capsys.readouterr()
    assert dispatch(["table", "grid.py", "--prefix", "store", "--csv", "-"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[:3] for line in lines] == [
        ["rate", "status", "loss"],
        ["0.5", "SUCCESS", "0.5"],
        ["2.0", "FAILED", ""],
    ]
    begun = lines[2].split(",")[3]
    write_status(begun, Status.RUNNING)
    assert dispatch(["table", "grid.py", "--prefix", "store"]) == 0
    assert "stopped" in capsys.readouterr().out  # nobody is at it
    with Lease(ledger_directory(begun)).acquire():
        assert dispatch(["table", "grid.py", "--prefix", "store", "--csv", "out.csv"]) == 0
    assert "RUNNING" in pathlib.Path("out.csv").read_text()
    assert "RUNNING" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="no table step"):
        dispatch(["table", "experiment.py"])


def test_explain_diff_and_table_import_no_jax_of_their_own(experiment: Any, repository: pathlib.Path) -> None:
    experiment()
    (folder,) = pathlib.Path("store/runs").glob("train-*")
    pathlib.Path("grid.py").write_text(SWEEP)
    calls = [
        ["explain", "experiment.py"],
        ["explain", "runs/train"],
        ["table", "grid.py"],
        ["diff", *[str(folder)] * 2],
    ]
    program = (
        "import sys; from marin.cli.main import dispatch\n"
        f"for call in {calls!r}: dispatch([*call, '--prefix', 'store'])\n"
        "print(sorted({'jax', 'numpy', 'equinox'} & sys.modules.keys()))"
    )
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
