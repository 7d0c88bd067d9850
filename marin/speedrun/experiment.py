"""An experiment that was preregistered: a sweep, and the step that records what came of it.

    runs = sweep(make, z_loss=[0.0, 1e-4], seed=[0, 1, 2])
    executor_main(steps=[*runs, experiment_step(preregistration, runs)])

The step runs when every run is done and writes `experiment.json`: the preregistration, a row for each run, and the verdict. Its
record in `.executor_info` and the one below `{prefix}/experiments` tie these to the code, the commit and every step. `marin
report` reads the same at any time, whatever is done by then.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from marin.execution.graph import Graph
from marin.execution.step import ExecutorStep, this_output_path
from marin.execution.sweep import PointOutputs, Row, Sweep, checked_metrics, done_rows, rows_now
from marin.speedrun.statistics.preregistration import Observation, Preregistration, Verdict, check_decision, decide
from marin.storage import files

RECORD_FILE = "experiment.json"


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
    """What was written down, the runs that answer it, and further metrics that the report shows and that decide nothing."""

    preregistration: Preregistration
    points: list[PointOutputs]
    shown: dict[str, str]
    output_path: str = this_output_path()

    @property
    def metrics(self) -> dict[str, str]:
        """The deciding metric first."""
        metric = self.preregistration.metric
        return {metric.name: metric.source} | {
            name: source for name, source in self.shown.items() if name != metric.name
        }


@dataclasses.dataclass(frozen=True)
class Results:
    """What is there of an experiment under a prefix, and the verdict as the rule has it now."""

    preregistration: Preregistration
    rows: tuple[Row, ...]
    verdict: Verdict

    @property
    def num_done(self) -> int:
        return sum(row.status == "SUCCESS" for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        runs = [{**dataclasses.asdict(row), "metrics": dict(row.metrics)} for row in self.rows]
        return {
            "preregistration": dataclasses.asdict(self.preregistration),
            "runs": runs,
            "verdict": self.verdict.as_json(),
        }


def experiment_step(
    preregistration: Preregistration, runs: Sweep, *, shown: Mapping[str, str] | None = None
) -> ExecutorStep:
    """The step that records the experiment.

    Args:
        shown: further metrics for the report, by name, as FILE:KEY.
    Raises:
        ConfigError: the decision names a parameter, an arm or a seed that the sweep does not have.
    """
    config = ExperimentConfig(preregistration, runs.outputs(), dict(shown or {}))
    checked_metrics(config.metrics)
    check_decision(preregistration.decision, [point.parameters for point in config.points])
    description = f"{preregistration.question} {preregistration.hypothesis}"
    return ExecutorStep(f"experiment_records/{preregistration.name}", record_experiment, config, description)


def record_experiment(config: ExperimentConfig) -> None:
    """Writes `experiment.json` and prints the verdict."""
    results = results_of(config.preregistration, done_rows(config.points, config.metrics))
    files.write_json(files.join(config.output_path, RECORD_FILE), results.as_json())
    print(f"{config.preregistration.name}: {results.verdict.outcome}: {results.verdict.reason}")
    print(
        f"write its report with: marin report exp{config.preregistration.number} (with the --prefix of this run, if it had one)"
    )


def results_now(config: ExperimentConfig, graph: Graph) -> Results:
    """The results as they are under the graph's prefix now; `config` is that of the step in the graph."""
    return results_of(config.preregistration, rows_now(config.points, graph, config.metrics))


def results_of(preregistration: Preregistration, rows: Sequence[Row]) -> Results:
    """The verdict over the rows of a sweep."""
    metric = preregistration.metric
    observations = [Observation(row.parameters, _figure(row.metrics.get(metric.name))) for row in rows]
    return Results(preregistration, tuple(rows), decide(preregistration.decision, metric, observations))


def _figure(value: object) -> float | None:
    """A metric as a number; what JSON could not hold was written as a word."""
    if isinstance(value, str) and value in ("nan", "inf", "-inf"):
        return math.nan
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
