"""One step for each point of a parameter grid, and their results as one table.

    def run(name, learning_rate, seed):
        return default_speedrun(name, dataclasses.replace(speedrun_config, ...))

    runs = sweep(run, learning_rate=[0.01, 0.02], seed=[0, 1])
    table = runs.table_step("sweeps/rates", metrics={"loss": "metrics.jsonl:loss"})
    executor_main(steps=[*runs, table])

The table step runs when every run is done. While they run, and when some have failed, `runs.table(prefix)` or `marin
table EXPERIMENT` gives the same table with a row for each of them, whatever became of it.

A metric is `FILE:KEY`, a file below the output of one of the point's steps: of a .jsonl file the last line that has the
key counts; of a .json file the key, or a path of keys with dots; in `speedrun_results.json` keys are those of its run.
"""

import csv
import dataclasses
import inspect
import io
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

from marin.errors import ConfigError, ExecutionError, MarinError
from marin.execution import attempts
from marin.execution.graph import Graph
from marin.execution.status import Status
from marin.execution.step import ExecutorStep, this_output_path
from marin.storage import files

TABLE_NAME = "table.csv"
_MAX_VALUE_IN_NAME = 24
_MAX_SHOWN = 80

Made = ExecutorStep | Sequence[ExecutorStep]


@dataclasses.dataclass(frozen=True, eq=False)
class Point:
    """One point of a sweep: its parameters as text, and its steps, of which the last is its result."""

    name: str
    parameters: Mapping[str, str]
    steps: tuple[ExecutorStep, ...]


@dataclasses.dataclass(frozen=True)
class Row:
    """What became of a point; a metric that is not there is None, and `note` says why."""

    parameters: Mapping[str, str]
    status: str
    output_path: str
    metrics: Mapping[str, Any]
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Table:
    """The results of a sweep, a row for each point in the order of the grid."""

    rows: tuple[Row, ...]

    def columns(self) -> list[str]:
        first = self.rows[0]
        notes = ["note"] if any(row.note for row in self.rows) else []
        return [*first.parameters, "status", *first.metrics, "output_path", *notes]

    def cells(self, digits: int | None = None) -> Iterator[list[str]]:
        """The text of each row; numbers with fractions to so many digits, or whole."""
        columns = self.columns()
        for row in self.rows:
            metrics = {
                name: ""
                if value is None
                else f"{value:.{digits}g}"
                if digits and isinstance(value, float)
                else _text(value)
                for name, value in row.metrics.items()
            }
            values = {
                **row.parameters,
                "status": row.status,
                **metrics,
                "output_path": row.output_path,
                "note": row.note,
            }
            yield [values[column] for column in columns]

    def to_csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([self.columns(), *self.cells()])
        return text.getvalue()

    def show(self) -> None:
        """Prints the table for a terminal, with metrics to six digits; the CSV has all."""
        from rich import box
        from rich.console import Console
        from rich.table import Table as Printed
        from rich.text import Text

        printed = Printed(box=box.SIMPLE_HEAD)
        for column in self.columns():
            is_metric = column in self.rows[0].metrics
            printed.add_column(Text(column), justify="right" if is_metric else "left", overflow="fold")
        for cells in self.cells(digits=6):
            printed.add_row(*map(Text, cells))
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = 240
        console.print(printed)


class Sweep(Sequence[ExecutorStep]):
    """The steps of all points, one after the other, as `executor_main` takes them."""

    def __init__(self, points: Sequence[Point]):
        self.points = tuple(points)
        self._steps = [step for point in self.points for step in point.steps]

    def __len__(self) -> int:
        return len(self._steps)

    @overload
    def __getitem__(self, index: int) -> ExecutorStep: ...
    @overload
    def __getitem__(self, index: slice) -> list[ExecutorStep]: ...
    def __getitem__(self, index: int | slice) -> ExecutorStep | list[ExecutorStep]:
        return self._steps[index]

    def table(self, prefix: str, metrics: Mapping[str, str] | None = None) -> Table:
        """The results as they are under `prefix` now; see the module for what a metric is."""
        return _table_now(self.points, Graph(self._steps, prefix), checked_metrics(metrics or {}))

    def outputs(self) -> list["PointOutputs"]:
        """The points as a step's config refers to them."""
        return [PointOutputs(dict(point.parameters), point.steps) for point in self.points]

    def table_step(self, name: str, metrics: Mapping[str, str] | None = None) -> ExecutorStep:
        """A step that needs all points and writes `table.csv`."""
        config = SweepTableConfig(self.outputs(), checked_metrics(metrics or {}))
        return ExecutorStep(name, write_table, config, description=f"table of {len(self.points)} runs")


def sweep(make: Callable[..., Made], /, **grid: Iterable[Any]) -> Sweep:
    """One point for each combination of the values, the last parameter varying fastest.

    Args:
        make: called with one value of each parameter, by keyword; gives a step, or the steps of one run of which the last
            is the result. If it has a parameter `name`, it also gets a readable name for the point, and gives its steps
            names of their own with it; otherwise that name is added to the step's.
        grid: values for each parameter: anything that a config may hold.
    Raises:
        ConfigError: no list of values, none in it, two equal points, or two points with the same steps.
    """
    for name, choices in grid.items():
        if isinstance(choices, str | bytes) or not isinstance(choices, Iterable):
            raise ConfigError(f"the sweep's `{name}` is {choices!r}: give a list of values, {name}=[{choices!r}]")
    values = {name: list(choices) for name, choices in grid.items()}
    for name, choices in values.items():
        if not choices:
            raise ConfigError(f"the sweep has no values for `{name}`: give at least one")
    return sweep_points(
        make, [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]
    )


def sweep_points(make: Callable[..., Made], points: Iterable[Mapping[str, Any]]) -> Sweep:
    """`sweep` over points that are listed one by one; all have the same parameters."""
    chosen = [dict(point) for point in points]
    if not chosen or not chosen[0]:
        raise ConfigError("the sweep has no parameters: give each a list of values, such as learning_rate=[0.01, 0.02]")
    for point in chosen:
        if point.keys() != chosen[0].keys():
            raise ConfigError(f"a point of the sweep has the parameters {list(point)}, the first has {list(chosen[0])}")
    _refuse_equal_points(chosen)
    if "name" in chosen[0]:
        raise ConfigError(
            "a parameter of a sweep cannot be called `name`: that is what `make` gets to call its steps by"
        )
    takes_name = "name" in inspect.signature(make).parameters
    made = []
    for point, name in zip(chosen, _names(chosen), strict=True):
        steps = make(**point, name=name) if takes_name else make(**point)
        if isinstance(steps, ExecutorStep):
            steps = (steps,) if takes_name else (dataclasses.replace(steps, name=f"{steps.name}/{name}"),)
        if not steps or not all(isinstance(step, ExecutorStep) for step in steps):
            raise ConfigError(f"`{make.__name__}` gave {steps!r} for {name}: give a step, or a list of steps")
        made.append(Point(name, {key: _text(value) for key, value in point.items()}, tuple(steps)))
    _refuse_equal_steps(made, make.__name__)
    return Sweep(made)


# --- points -------------------------------------------------------------------------------------------------------


def _refuse_equal_points(points: Sequence[Mapping[str, Any]]) -> None:
    seen: dict[str, Mapping[str, Any]] = {}
    for point in points:
        if seen.setdefault(_digest(dict(point)), point) is not point:
            shown = ", ".join(f"{name}={_text(value)}" for name, value in point.items())
            raise ConfigError(f"the sweep has the point {shown} twice: give each value once")


def _refuse_equal_steps(points: Sequence[Point], make_name: str) -> None:
    """Points with one fingerprint would be computed twice, and most likely `make` forgot a parameter."""
    graph = Graph([step for point in points for step in point.steps], "/")
    by_fingerprint: dict[str, Point] = {}
    by_name: dict[str, Point] = {}
    for point in points:
        node = graph.node(point.steps[-1])
        twin = by_fingerprint.setdefault(node.fingerprint, point)
        if twin is not point:
            raise ConfigError(
                f"the points {twin.name} and {point.name} of the sweep have the same step: does `{make_name}` use every "
                "parameter? Resources and other placement make no difference to a step"
            )
        if by_name.setdefault(node.name, point) is not point:
            raise ConfigError(
                f"the points {by_name[node.name].name} and {point.name} of the sweep have steps of one name, {node.name!r}: "
                f"give `{make_name}` a parameter `name` and use it in the names"
            )


def _names(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """`learning_rate=0.01-seed=0`; a value that is too long for a name is given by its number among the values."""
    columns = []
    for key in points[0]:
        texts = [_name_of(point[key]) for point in points]
        digests = [_digest(point[key]) for point in points]
        numbers = {digest: str(number) for number, digest in enumerate(dict.fromkeys(digests))}
        if None in texts or len(set(texts)) < len(numbers):
            texts = [numbers[digest] for digest in digests]
        columns.append([f"{key}={text}" for text in texts])
    return ["-".join(parts) for parts in zip(*columns, strict=True)]


def _name_of(value: Any) -> str | None:
    if value is None or isinstance(value, bool | int | float | str):
        text = re.sub(r"[^\w.+-]+", "_", str(value))
        return text if 0 < len(text) <= _MAX_VALUE_IN_NAME and text.strip("._") else None
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) and name.isidentifier() and len(name) <= _MAX_VALUE_IN_NAME else None


def _digest(value: Any) -> str:
    """Equal exactly for equal values of one type, which may refer to steps."""
    step = ExecutorStep("a value of the sweep", _digest, value)
    return Graph([step], "/").node(step).fingerprint


def _text(value: Any) -> str:
    if isinstance(value, ExecutorStep):
        return value.name
    text = value.__name__ if callable(value) and hasattr(value, "__name__") else str(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


# --- the table as a step ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class PointOutputs:
    """A point's parameters as text and where its steps write."""

    parameters: dict[str, str]
    outputs: Any


@dataclasses.dataclass(frozen=True)
class SweepTableConfig:
    points: list[PointOutputs]
    metrics: dict[str, str]
    output_path: str = this_output_path()


def write_table(config: SweepTableConfig) -> None:
    """Writes the table of a sweep whose points are all done, and prints it."""
    table = Table(done_rows(config.points, config.metrics))
    files.write_bytes(files.join(config.output_path, TABLE_NAME), table.to_csv().encode())
    table.show()


def rows_now(points: Sequence[PointOutputs], graph: Graph, metrics: Mapping[str, str]) -> tuple[Row, ...]:
    """The rows of points whose steps stand in `graph`, as things are under its prefix now."""
    return _table_now([Point("", point.parameters, tuple(point.outputs)) for point in points], graph, metrics).rows


def done_rows(points: Sequence[PointOutputs], metrics: Mapping[str, str]) -> tuple[Row, ...]:
    """The rows of points that are all done, in a step that depends on them: `outputs` are paths."""
    return tuple(
        _row(point.parameters, Status.SUCCESS.value, point.outputs[-1], point.outputs, metrics) for point in points
    )


def tables_now(steps: Sequence[ExecutorStep], prefix: str) -> dict[str, Table]:
    """The tables that an experiment's table steps would write, by the steps' names, as things are under `prefix` now."""
    graph = Graph(steps, prefix)
    found = {}
    for node in graph.nodes:
        if node.step.fn is write_table:
            config = node.step.config
            found[node.name] = Table(rows_now(config.points, graph, config.metrics))
    return found


# --- reading ------------------------------------------------------------------------------------------------------


def _table_now(points: Sequence[Point], graph: Graph, metrics: Mapping[str, str]) -> Table:
    rows = []
    for point in points:
        paths = [graph.node(step).output_path for step in point.steps]
        try:
            status = _status(paths)
            locations = [attempts.location(path) for path in paths]
            rows.append(_row(point.parameters, status, paths[-1], locations, metrics))
        except MarinError as error:  # one unreadable record must not hide the other rows
            rows.append(Row(point.parameters, "unreadable", paths[-1], dict.fromkeys(metrics), _first_line(error)))
    return Table(tuple(rows))


def _status(paths: Sequence[str]) -> str:
    """Of a point's steps: done when the last is; else the worst that is known of any."""
    statuses = [attempts.read_step_status(path) for path in paths]
    if statuses[-1] is Status.SUCCESS:
        return Status.SUCCESS.value
    for status in (Status.FAILED, Status.RUNNING, Status.DEP_FAILED):
        if status not in statuses:
            continue
        if status is Status.RUNNING and not any(map(attempts.is_held, paths)):
            return "stopped"  # the next run continues it
        return status.value
    return "not finished" if any(statuses) else "not run"


def _row(
    parameters: Mapping[str, str], status: str, output_path: str, locations: Sequence[str], metrics: Mapping[str, str]
) -> Row:
    found: dict[str, Any] = dict.fromkeys(metrics)
    problems = []
    if status == Status.SUCCESS.value:  # of any other output a part may be missing
        for name, source in metrics.items():
            try:
                found[name] = _read_metric(locations, source)
            except MarinError as error:
                problems.append(f"{name}: {_first_line(error)}")
    return Row(parameters, status, output_path, found, "; ".join(problems))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def checked_metrics(metrics: Mapping[str, str]) -> dict[str, str]:
    """Raises:
    ConfigError: a metric is not FILE:KEY.
    """
    for name, source in metrics.items():
        file, _, key = source.partition(":")
        if not file or not key or not file.endswith((".json", ".jsonl")):
            raise ConfigError(f"the metric `{name}` is {source!r}: give FILE.json:KEY or FILE.jsonl:KEY")
    return dict(metrics)


def _read_metric(locations: Sequence[str], source: str) -> Any:
    file, _, key = source.partition(":")
    for location in reversed(locations):
        path = files.join(location, file)
        if files.exists(path):
            return _last_with(key, path) if file.endswith(".jsonl") else _inside(files.read_json(path), key, path)
    raise ExecutionError(f"no step of this point has written {file}")


def _last_with(key: str, path: str) -> Any:
    for line in reversed(files.read_bytes(path).splitlines()):
        try:
            record = json.loads(line)
        except ValueError:
            continue  # a torn last line
        if isinstance(record, dict) and key in record:
            return record[key]
    raise ExecutionError(f"{path} has no line with {key!r}")


def _inside(content: Any, key: str, path: str) -> Any:
    if isinstance(content, dict) and key not in content and isinstance(content.get("runs"), list):
        content = content["runs"][0]["run_info"]
    if isinstance(content, dict) and key in content:
        return content[key]
    for part in key.split("."):
        if isinstance(content, list) and part.isdecimal() and int(part) < len(content):
            content = content[int(part)]
        elif isinstance(content, dict) and part in content:
            content = content[part]
        else:
            raise ExecutionError(f"{path} has no {key!r}")
    return content
