"""What the report of an experiment is made from, read from the outputs of its steps: curves, cost, and who ran what."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marin.errors import ConfigError, ResultsError
from marin.execution import attempts
from marin.execution.graph import Graph, Node
from marin.execution.status import Status, read_info
from marin.execution.step import ExecutorStep
from marin.execution.sweep import PointOutputs
from marin.speedrun.experiment import ExperimentConfig, Results, record_experiment, results_now
from marin.speedrun.statistics.preregistration import arm_text
from marin.storage import files
from marin.tracking.run_record import METRICS_FILE, RunRecord


@dataclasses.dataclass(frozen=True)
class StepCost:
    """A step and what it took; `seconds` is the wall time of the attempt that made its output, None where it is not done."""

    name: str
    output_path: str
    status: str
    seconds: float | None
    flops: float | None
    git_commit: str | None
    git_dirty: bool | None
    host: str | None


@dataclasses.dataclass(frozen=True)
class CurveOfRun:
    """A run's measurements on the way: step -> the metric's value."""

    parameters: Mapping[str, str]
    values: Mapping[int, float]

    @property
    def arm(self) -> str:
        return arm_text(self.parameters)


@dataclasses.dataclass(frozen=True)
class Findings:
    """All that a report says."""

    results: Results
    curves: tuple[CurveOfRun, ...]
    steps: tuple[StepCost, ...]
    prefix: str


def find_experiment(steps: Sequence[ExecutorStep], prefix: str) -> tuple[ExperimentConfig, Graph]:
    """The experiment's config among the steps of a file.

    Raises:
        ConfigError: the file has none, or several.
    """
    graph = Graph(steps, prefix)
    found = [node.step.config for node in graph.nodes if node.step.fn is record_experiment]
    if len(found) != 1:
        raise ConfigError(
            f"its steps have {len(found)} experiment records, expected one: add `experiment_step(preregistration, runs)` to"
            " the steps of executor_main, as `marin experiment new` does"
        )
    return found[0], graph


def gather(steps: Sequence[ExecutorStep], prefix: str) -> Findings:
    """What there is under `prefix` now; nothing is run.

    Raises:
        ConfigError: the steps hold no experiment.
    """
    config, graph = find_experiment(steps, prefix)
    results = results_now(config, graph)
    key = config.preregistration.metric.curve
    curves = [_curve(point, graph, key) for point in config.points] if key else []
    costs = tuple(_cost(node) for node in graph.nodes)
    return Findings(results, tuple(curve for curve in curves if len(curve.values) > 1), costs, prefix)


def _curve(point: PointOutputs, graph: Graph, key: str) -> CurveOfRun:
    for step in reversed(point.outputs):
        record = _run_record(graph.node(step).output_path)
        values = _values(record, key) if record else {}
        if values:
            return CurveOfRun(point.parameters, values)
    return CurveOfRun(point.parameters, {})


def _values(record: RunRecord, key: str) -> dict[int, float]:
    return {
        entry["step"]: float(entry[key])
        for entry in record.of("evaluation")
        if isinstance(entry.get(key), int | float) and math.isfinite(entry[key])
    }


def _run_record(output_path: str) -> RunRecord | None:
    """The training run that a finished step is; None for any other."""
    if attempts.read_step_status(output_path) is not Status.SUCCESS:
        return None
    place = attempts.location(output_path)
    if not files.is_local(place) or not files.exists(files.join(place, METRICS_FILE)):
        return None
    try:
        return RunRecord.open(Path(files.local_path(place)))
    except ResultsError:
        return None


def _cost(node: Node) -> StepCost:
    status = attempts.read_step_status(node.output_path)
    info: Mapping[str, Any] = read_info(attempts.location(node.output_path)) or {} if status is Status.SUCCESS else {}
    record = _run_record(node.output_path)
    return StepCost(
        name=node.name,
        output_path=node.output_path,
        status="not run" if status is None else status.value,
        seconds=info.get("seconds"),
        flops=None if record is None else _flops(record),
        git_commit=info.get("git_commit"),
        git_dirty=info.get("git_dirty"),
        host=info.get("host"),
    )


def _flops(record: RunRecord) -> float | None:
    """Three forward passes for each token that was trained on, steps that a kill undid included."""
    per_token = record.info.get("model_flops_per_token")
    if not isinstance(per_token, int | float):
        return None
    tokens = sum(step["tokens"] for step in (*record.steps(), *record.superseded()))
    return 3.0 * float(per_token) * tokens
