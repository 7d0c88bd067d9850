"""`marin show`: a training run in a few lines, while it goes or when it is done."""

import argparse
import math
import pathlib
from typing import TYPE_CHECKING, Any

from marin.errors import ResultsError

if TYPE_CHECKING:
    from marin.tracking import RunRecord

HELP = """\
Say how far a training run is, how fast it goes, what went wrong, and where its wall time went.

RUN is the run directory (with run.json and metrics.jsonl) or one of these two files, also of a run that goes on."""

_LATEST = 20
_MOST_SHOWN = 5
_NEEDED = (
    "config.train.num_train_steps",
    "run_name",
    "num_parameters",
    "precision",
    "num_chips",
    "device_name",
    "device_flops",
)
_NUMBERS = {  # of each event, what is read of it here; a loss may be written as "nan"
    "step": ("step", "tokens", "step_time"),
    "pause": ("seconds",),
    "evaluation": ("step",),
    "spike": ("step",),
    "bad_step": ("step",),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="such as local_store/checkpoints/speedrun/hello_world-1a2b3c4d")


def run(args: argparse.Namespace) -> int:
    from marin.tracking import RunRecord
    from marin.tracking.run_record import METRICS_FILE, RUN_FILE

    place = pathlib.Path(args.run)
    is_of_run = place.name in (RUN_FILE, METRICS_FILE) and not place.is_dir()
    record = RunRecord.open(place.parent if is_of_run else args.run)
    record.require(*_NEEDED)
    _check_events(record)
    for name, text in _rows(record):
        print(f"{name:<12}  {text}")
    return 0


def _check_events(record: "RunRecord") -> None:
    """Raises:
    ResultsError: naming the line that has not what is read of it here.
    """
    from marin.tracking.run_record import METRICS_FILE

    for number, event in enumerate(record.events, start=1):
        for name in ("time", *_NUMBERS.get(event["event"], ())):
            value = event.get(name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ResultsError(
                    f"{record.directory / METRICS_FILE}:{number} has the {name} {value!r}, expected a number: the file was "
                    "changed after it was written, or is not that of a training run"
                )


def _rows(record: "RunRecord") -> list[tuple[str, str]]:
    from marin.tracking.console import duration
    from marin.tracking.goodput import wall_time

    info, steps, spent = record.info, record.steps(), wall_time(record.events)
    total = info["config"]["train"]["num_train_steps"]
    state = "done" if record.is_complete else "not ended"
    rows = [
        ("run", str(info["run_name"])),
        ("model", f"{info['num_parameters']:,} parameters, {info['precision']}"),
        (
            "hardware",
            f"{info['num_chips']} x {info['device_name']}, {info['num_chips'] * info['device_flops']:.3g} FLOP/s peak",
        ),
        ("progress", f"{len(steps):,} of {total:,} steps, {state}"),
    ]
    if steps:
        rows += _speed(info, steps)
    for evaluation in record.of("evaluation")[-1:]:
        figures = {name: value for name, value in evaluation.items() if name not in ("event", "time", "step")}
        rows.append(
            (
                "evaluation",
                "  ".join(f"{n} {_figure(v)}" for n, v in figures.items()) + f" at step {evaluation['step']:,}",
            )
        )
    for event, name in (("spike", "loss jumps"), ("bad_step", "not finite")):
        found = record.of(event)
        if found:
            shown = ", ".join(
                f"step {entry['step']:,} ({_figure(entry.get('loss'))})" for entry in found[-_MOST_SHOWN:]
            )
            rows.append(
                (name, shown + (f" and {len(found) - _MOST_SHOWN:,} before" if len(found) > _MOST_SHOWN else ""))
            )
    rows.append(
        ("wall time", f"{duration(spent.total)} in {spent.num_processes} process{'es' * (spent.num_processes != 1)}")
    )
    rows += [
        (f"  {name}", f"{_time(part):>8}  {part / spent.total:6.1%}") for name, part in spent.parts.items() if part > 0
    ]
    if spent.num_lost_steps:
        rows.append(("taken twice", f"{spent.num_lost_steps:,} steps, after kills"))
    rows.append(("goodput", f"{spent.goodput:.1%} of the wall time is training"))
    return rows


def _speed(info: dict[str, Any], steps: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Loss and rates over the latest steps; MFU by both counts of FLOPs where both are known."""
    latest = steps[-_LATEST:]
    rate = sum(step["tokens"] for step in latest) / max(sum(step["step_time"] for step in latest), 1e-9)
    peak = info["num_chips"] * info["device_flops"]
    shares = []
    if info.get("model_flops_per_token"):
        shares.append(f"{3 * info['model_flops_per_token'] * rate / peak:.1%} (model FLOPs)")
    if info.get("traced_flops_per_token"):
        shares.append(f"{info['traced_flops_per_token']['training'] * rate / peak:.1%} (traced FLOPs)")
    rows = [
        ("loss", f"{_figure(steps[-1].get('loss'))} at step {steps[-1]['step']:,}"),
        ("rate", f"{rate:,.0f} tokens/s"),
    ]
    return rows + ([("MFU", ", ".join(shares))] if shares else [])


def _figure(value: object) -> str:
    """A number; NaN and infinities are written as strings."""
    return f"{value:.4f}" if isinstance(value, int | float) and math.isfinite(value) else str(value)


def _time(seconds: float) -> str:
    from marin.tracking.console import duration

    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)
