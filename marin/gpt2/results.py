"""The results file of a base run, and whether it would stand as a record of the Time-to-GPT-2 track."""

import dataclasses
from pathlib import Path
from typing import Any

from marin.errors import DataError
from marin.speedrun.board.rows import Row, rows_of
from marin.speedrun.evaluation_record import EvaluationRecord
from marin.speedrun.importers import read_nanochat_table
from marin.speedrun.results import FILE_NAME, Author, Core, CoreCounts, Digests, RunInfo, write_results
from marin.speedrun.run_results import check_steps, digests_of_log, figures_of_log
from marin.speedrun.tracks import TIME_TO_GPT2
from marin.storage import files
from marin.tracking import RunRecord, log_chain
from marin.tracking.run_record import METRICS_FILE, RUN_FILE

_AUTHOR = Author(name="(none given)", affiliation="(none given)", url=None)


def write_run_results(run: Path, core: "CoreFigures | None", description: str, author: Author = _AUTHOR) -> RunInfo:
    """Writes `speedrun_results.json` into a finished run's directory, and returns what it says.

    Args:
        core: of the run's last checkpoint; None where it was not measured whole.
    Raises:
        ResultsError: the run has not ended, or its log was changed.
    """
    record = RunRecord.open(run)
    check_steps(record)
    figures = figures_of_log(record, record.info["model_flops_per_token"])
    log = (run / RUN_FILE).read_bytes(), (run / METRICS_FILE).read_bytes()
    head = log_chain.head_of(*log)
    counts = None if core is None else core.counts
    link = None if counts is None else EvaluationRecord(core=counts).link(head)
    info = RunInfo(
        author=author,
        description=description,
        tokenized_dataset=_caches_of(record.info["config"]["data"]),
        core_metric=None if core is None else core.metric,
        core_version=None if core is None else "v1",
        core=counts,
        digests=Digests(**digests_of_log(record, *log, head), evaluation_link=link),
        **figures,
    )
    write_results(run / FILE_NAME, info)
    return info


def _caches_of(data: Any) -> str:
    """The token caches of a `run.json`, each without the way that leads to it from the run."""
    paths = data["components"].values() if isinstance(data, dict) else [data]
    return " + ".join("/".join(part for part in str(path).split("/") if part not in ("", ".", "..")) for path in paths)


@dataclasses.dataclass(frozen=True)
class Condition:
    """One thing that the track asks of a record."""

    asked: str
    met: bool
    found: str

    def as_json(self) -> dict[str, Any]:
        return {"met": self.met, "found": self.found}


def record_conditions(info: RunInfo) -> list[Condition]:
    """What the Time-to-GPT-2 track asks of a new record, and whether this run alone gives it."""
    track = TIME_TO_GPT2
    (row,) = rows_of(info, "this run", FILE_NAME)
    best = _best_time()
    hardware = track.hardware.why_not(row)
    core = "not measured on all 22 tasks" if info.core_metric is None else f"{info.core_metric:.6f}"
    time = float("inf") if info.training_time is None else info.training_time
    conditions = [
        Condition(f"hardware: {track.hardware.text}", hardware is None, hardware or str(row.hardware)),
        *(
            Condition(str(gate), info.core_metric is not None and gate.holds(info.core_metric), core)
            for gate in track.gates
        ),
        Condition(f"training time below the record's {best / 3600:.2f} h", time < best, f"{time / 3600:.3f} h"),
        Condition(f"at least {track.min_runs} runs with different seeds", track.min_runs <= 1, "1 run"),
        Condition(
            "a clean commit", info.git_dirty is False, f"{info.git_commit}{' with changes' if info.git_dirty else ''}"
        ),
        Condition("figures that agree with one another", row.counts, "they do" if row.counts else row.status),
    ]
    return conditions


def _best_time() -> float:
    """Seconds of the fastest public row that is above GPT-2."""
    rows = [row for row in read_nanochat_table() if isinstance(row, Row)]
    gates = TIME_TO_GPT2.gates
    times = [
        row.training_time
        for row in rows
        if row.training_time is not None and row.core is not None and all(gate.holds(row.core) for gate in gates)
    ]
    return min(times)


@dataclasses.dataclass(frozen=True)
class CoreFigures:
    """CORE by v1, and the counts that it follows from."""

    metric: float
    counts: Core

    @staticmethod
    def of_run(base_eval: Path, run: RunRecord) -> "CoreFigures | None":
        """Of a run's last checkpoint; another run of as many steps may have left its evaluation in the same place.

        Args:
            base_eval: where evaluations of base models lie; see `marin.gpt2.base_evaluation`.
        """
        found = CoreFigures.read(base_eval / f"{run.directory.name}_{len(run.steps()):06d}" / "core.json")
        weights = run.of("end")[-1].get("checkpoint")
        return found if found is not None and found.counts.weights == weights else None

    @staticmethod
    def read(path: Path) -> "CoreFigures | None":
        """What the `core.json` of an evaluation states; None where it is absent, partial or an estimate.

        Raises:
            DataError: it is not what the evaluation writes.
        """
        if not path.is_file():
            return None
        found = files.read_json(str(path))
        try:
            if found["core_metric"] is None or found["max_per_task"] > 0:
                return None
            tasks = {
                label: CoreCounts(
                    num_items=task["num_items"],
                    num_correct=task["num_correct"],
                    data=task["data_sha256"],
                    records=task["records_sha256"],
                )
                for label, task in found["tasks"].items()
            }
            return CoreFigures(float(found["core_metric"]), Core(weights=found["weights"], tasks=tasks))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise DataError(f"{path} is not as this version writes it: run scripts.base_eval again") from None
