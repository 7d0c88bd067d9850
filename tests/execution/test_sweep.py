"""Sweeps: a step for each point of a grid, and what became of them as one table."""

import csv
import dataclasses
import json
import pathlib
import re
from typing import Any

import pytest

from marin.errors import ConfigError, FingerprintError, StepFailedError
from marin.execution import Executor, ExecutorMainConfig, ExecutorStep, this_output_path
from marin.execution.experiment_file import with_steps_of
from marin.execution.status import STATUS_NAME
from marin.execution.sweep import Sweep, Table, sweep, sweep_points, tables_now


@dataclasses.dataclass(frozen=True)
class Config:
    rate: float
    model: Any = None
    seed: int = 0
    source: Any = None
    output_path: str = this_output_path()


def train(config: Config) -> None:
    if config.rate > 1:
        raise ValueError("diverged")
    folder = pathlib.Path(config.output_path)
    lines = [{"event": "step", "loss": config.rate * factor} for factor in (3, 2)] + [{"event": "end"}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"loss": 9')
    (folder / "result.json").write_text(json.dumps({"eval": {"bpb": [config.rate + config.seed]}}))


def report(config: Config) -> None:
    results = {"runs": [{"run_info": {"eval/c4/bpb": config.rate}}]}
    pathlib.Path(config.output_path, "speedrun_results.json").write_text(json.dumps(results))


def one(rate: float, seed: int) -> ExecutorStep:
    return ExecutorStep("runs/lm", train, Config(rate, seed=seed))


def chain(name: str, rate: float) -> list[ExecutorStep]:
    run = ExecutorStep(f"runs/{name}", train, Config(rate))
    return [run, ExecutorStep(f"results/{name}", report, Config(rate, source=run))]


METRICS = {"loss": "metrics.jsonl:loss", "bpb": "result.json:eval.bpb.0"}


@pytest.fixture
def executor(tmp_path: pathlib.Path) -> Executor:
    return Executor(ExecutorMainConfig(prefix=str(tmp_path / "store")))


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_sweep_has_a_step_with_a_readable_name_for_each_combination() -> None:
    runs = sweep(one, rate=[0.1, 0.2], seed=[0, 1])
    assert [step.name for step in runs] == [
        "runs/lm/rate=0.1-seed=0",
        "runs/lm/rate=0.1-seed=1",
        "runs/lm/rate=0.2-seed=0",
        "runs/lm/rate=0.2-seed=1",
    ]
    assert [step.config.rate for step in runs] == [0.1, 0.1, 0.2, 0.2]


def test_sweep_over_values_that_make_no_name_numbers_them() -> None:
    def make(model: Any) -> ExecutorStep:
        return ExecutorStep("m", train, Config(0.1, model=model))

    models = [Config(0.5), Config(0.6), "x" * 99, 1, "1", None, True, [1, 2], train, one(0.1, 0)]
    names = [step.name for step in sweep(make, model=models)]
    assert names == [f"m/model={number}" for number in range(len(models))]
    assert [step.name for step in sweep(make, model=[1, "1.0", 1.0, train])] == [f"m/model={n}" for n in range(4)]
    assert [step.name for step in sweep(make, model=[1, 1.0, train])] == ["m/model=1", "m/model=1.0", "m/model=train"]


def test_table_step_of_a_sweep_writes_parameters_status_metrics_and_paths(executor: Executor, capsys: Any) -> None:
    runs = sweep(one, rate=[0.1, 0.2], seed=[0, 1])
    table = runs.table_step("sweeps/rates", metrics=METRICS)
    executor.run([*runs, table])
    written = pathlib.Path(executor.output_path(table), "table.csv").read_text()
    expected = [
        {
            "rate": str(step.config.rate),
            "seed": str(step.config.seed),
            "status": "SUCCESS",
            "loss": str(step.config.rate * 2),
            "bpb": str(step.config.rate + step.config.seed),
            "output_path": executor.output_path(step),
        }
        for step in runs
    ]
    assert rows(written) == expected
    assert runs.table(executor.prefix, METRICS).to_csv() == written
    printed = capsys.readouterr().out
    assert all(executor.output_path(step) in printed for step in runs)
    third = sweep(one, rate=[1 / 3], seed=[0])
    executor.run([*third])
    shown = third.table(executor.prefix, METRICS)
    shown.show()
    assert " 0.666667 " in capsys.readouterr().out and f",{2 / 3!r}," in shown.to_csv()


def test_table_has_a_row_for_each_point_that_failed_or_never_ran(executor: Executor) -> None:
    runs = sweep(chain, rate=[0.1, 2.0, 0.3])
    table = runs.table_step("table", metrics={"c4": "speedrun_results.json:eval/c4/bpb"})
    with pytest.raises(StepFailedError):
        executor.run([*runs[:4], table.config.points[1].outputs[1]])
    (shown,) = tables_now([table], executor.prefix).values()
    assert [(row["rate"], row["status"], row["c4"]) for row in rows(shown.to_csv())] == [
        ("0.1", "SUCCESS", "0.1"),
        ("2.0", "FAILED", ""),
        ("0.3", "not run", ""),
    ]
    pathlib.Path(executor.output_path(runs[1]), STATUS_NAME).write_text("?")
    assert runs.table(executor.prefix).rows[0].status == "unreadable"


def test_table_says_which_metric_is_not_there(executor: Executor) -> None:
    runs = sweep(one, rate=[0.1], seed=[0])
    executor.run(runs)
    metrics = {
        "a": "metrics.jsonl:nothing",
        "b": "none.json:x",
        "c": "result.json:eval.bpb.7",
        "loss": "metrics.jsonl:loss",
    }
    (row,) = runs.table(executor.prefix, metrics).rows
    assert row.status == "SUCCESS"
    assert row.metrics == {"a": None, "b": None, "c": None, "loss": 0.2}
    assert all(f"{name}: " in row.note for name in "abc")


def test_sweep_is_a_sequence_of_steps_for_the_executor(executor: Executor) -> None:
    runs = sweep(chain, rate=[0.1, 0.2])
    assert isinstance(runs, Sweep)
    assert len(runs) == 4
    assert [result.kind for result in executor.run(runs).values()] == ["ran"] * 4
    assert [result.kind for result in executor.run(sweep(chain, rate=[0.2, 0.3])).values()] == ["skipped"] * 2 + [
        "ran"
    ] * 2


@pytest.mark.parametrize(
    ("make", "points", "message"),
    [
        (one, [{"rate": 0.1, "seed": 0}, {"rate": 0.1, "seed": 0}], "twice"),
        (lambda rate, seed: one(rate, 0), [{"rate": 0.1, "seed": 0}, {"rate": 0.1, "seed": 1}], "the same step"),
        (lambda rate: chain("x", rate), [{"rate": 0.1}, {"rate": 0.2}], "of one name"),
        (lambda rate: None, [{"rate": 0.1}], "gave None"),
        (one, [{"rate": 0.1, "seed": 0}, {"rate": 0.1}], "has the parameters"),
        (one, [], "no parameters"),
        (one, [{}], "no parameters"),
        (chain, [{"name": "a", "rate": 0.1}], "cannot be called `name`"),
    ],
)
def test_sweep_that_cannot_be_meant_is_refused(make: Any, points: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sweep_points(make, points)


def test_sweep_over_no_values_or_over_what_has_no_encoding_is_refused() -> None:
    with pytest.raises(ConfigError, match="no values for `rate`"):
        sweep(one, rate=[], seed=[0])
    with pytest.raises(ConfigError, match=r"`rate` is 0.1: give a list of values, rate=\[0.1\]"):
        sweep(one, rate=0.1, seed=[0])
    with pytest.raises(ConfigError, match=r"give a list of values, optimizer=\['adam'\]"):
        sweep(one, rate=[0.1], optimizer="adam")
    with pytest.raises(FingerprintError, match="lambda"):
        sweep(one, rate=[lambda: 1], seed=[0])


@pytest.mark.parametrize("source", ["loss", "metrics.jsonl", "a.csv:x", ":x", "a.json:"])
def test_metric_that_names_no_file_and_key_is_refused(source: str) -> None:
    with pytest.raises(ConfigError, match="metric `m`"):
        sweep(one, rate=[0.1], seed=[0]).table_step("t", {"m": source})


TUTORIAL = pathlib.Path(__file__).parents[2] / "docs" / "tutorials" / "sweep.md"


def test_sweep_tutorial_runs_as_it_says(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates, seeds = re.findall(r"^```python\n(.*?)^```", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    pathlib.Path("rates.py").write_text(rates)
    executor = Executor(ExecutorMainConfig(prefix="store"))
    with pytest.raises(StepFailedError, match="3 of 7 steps are not done"):
        with_steps_of("rates.py", lambda steps: executor.run(steps) and None)
    shown: list[Table] = []
    with_steps_of("rates.py", lambda steps: shown.extend(tables_now(steps, executor.prefix).values()))
    (table,) = shown
    assert [row.status for row in table.rows] == ["SUCCESS"] * 4 + ["FAILED"] * 2
    assert table.rows[0].metrics["loss"] == pytest.approx(0.8**10)

    pathlib.Path("seeds.py").write_text(seeds)
    names: list[str] = []
    with_steps_of("seeds.py", lambda steps: names.extend(step.name for step in steps))
    assert len(names) == 6 * 3 + 1
    assert "checkpoints/speedrun/seed=2-num_train_steps=230" in names
    assert names[-1] == "sweeps/seeds"
