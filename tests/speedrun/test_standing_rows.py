"""Which runs a later version of a submission's results lacks."""

from typing import Any

import pytest
from example_runs import run_info

from marin.speedrun.results import RunInfo
from marin.speedrun.standing_rows import changed_figures, missing_runs

PAGE, END = "https://wandb.ai/ada/runs/runs/{}", "2026-01-02 03:04:0{} UTC"
SCORE: dict[str, Any] = {"eval/paloma/c4_en/bpb": 1.2}
UNKNOWN = {"training_time": None, "training_hardware_flops": None, "run_completion_timestamp": None}


def _run(number: int, log: int | None = None, **changes: Any) -> RunInfo:
    digests = None if log is None else {"metrics_log": f"{log:064x}"}
    own = {
        "seed": number,
        "training_time": 20.5 + number,
        "run_completion_timestamp": END.format(number),
        "wandb_run_link": PAGE.format(number),
    }
    return run_info(**{**own, "digests": digests, **changes})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([_run(0, 0)], [_run(0, 0, description="put right", training_time=9.0)]),
        ([_run(0)], [_run(0, description="put right", training_time=9.0)]),
        ([_run(0, wandb_run_link=None)], [_run(0, 0, wandb_run_link=None, training_time=9.0)]),
        ([_run(0)], [_run(0, wandb_run_link=None, run_completion_timestamp=None)]),
        ([_run(0, **UNKNOWN, wandb_run_link=None)], [_run(0, **UNKNOWN, wandb_run_link=None, description="put right")]),
        ([_run(0, 0), _run(0, 0, description="in another file")], [_run(0, 0)]),
        ([_run(0)], [_run(0, **SCORE)]),
        ([_run(0), _run(1)], [_run(2), _run(1), _run(0)]),
    ],
    ids=["log", "page", "log added", "time", "figures", "twice", "score", "others beside"],
)
def test_run_that_is_put_right_is_not_missing(before: list[RunInfo], after: list[RunInfo]) -> None:
    assert missing_runs(before, after) == []


@pytest.mark.parametrize(
    ("before", "after", "missing"),
    [
        ([_run(n, n) for n in range(3)], [_run(0, 0)], [1, 2]),
        ([_run(n, training_time=600.0) for n in range(3)], [_run(0, training_time=600.0)], [1, 2]),
        ([_run(n, wandb_run_link=PAGE) for n in range(3)], [_run(2, wandb_run_link=PAGE)], [0, 1]),
        (
            [_run(0, 0), _run(1, 1), _run(2, 2)],
            [_run(0, 0, wandb_run_link=PAGE.format(1), run_completion_timestamp=END.format(2))],
            [1, 2],
        ),
        ([_run(0), _run(1)], [_run(0, wandb_run_link=PAGE.format(1))], [1]),
        ([_run(0)], [_run(5, wandb_run_link=PAGE.format(0), **SCORE)], [0]),
        ([_run(0)], [_run(5, training_time=20.5, **SCORE)], [0]),
        ([_run(0)], [_run(5, run_completion_timestamp=END.format(0), **SCORE)], [0]),
        ([_run(0)], [_run(5, wandb_run_link=PAGE.format(0), run_completion_timestamp=None, **SCORE)], [0]),
        ([_run(0)], [_run(5, 5, wandb_run_link=PAGE.format(0), **SCORE)], [0]),
        ([_run(0, 0)], [_run(5, 5, wandb_run_link=PAGE.format(0), run_completion_timestamp=END.format(0))], [0]),
        ([_run(0, 0)], [_run(0)], [0]),
        ([_run(0)], [_run(1)], [0]),
    ],
    ids=[
        "logs",
        "one time",
        "one page",
        "for all by log, page and end",
        "by page and time",
        "page typed anew",
        "time typed anew",
        "end typed anew",
        "page typed anew and no end",
        "page typed anew beside a log",
        "swapped",
        "without its log",
        "another",
    ],
)
def test_run_for_which_no_row_stands_is_missing(
    before: list[RunInfo], after: list[RunInfo], missing: list[int]
) -> None:
    assert [info.seed for info in missing_runs(before, after)] == missing


def test_figures_that_a_standing_row_says_otherwise_are_named() -> None:
    before, after = [_run(0), _run(1, 1)], [_run(1, 1), _run(0, total_tokens=9, **SCORE), _run(2)]
    assert changed_figures(before, after) == ["bits per byte 1.5 is 1.2", "total_tokens 51200 is 9"]
    assert changed_figures(before, [*before, _run(3)]) == []


def test_loss_and_last_digits_of_a_standing_row_do_not_change_unnamed() -> None:
    def scored(loss: float, core: float) -> RunInfo:
        score = {"name": "fineweb/validation", "loss": loss}
        return _run(0, 0, core_metric=core, core_version="v1", evaluation=score)

    assert changed_figures([scored(3.3, 0.25652499)], [scored(3.27, 0.25652501)]) == [
        "loss 3.3 is 3.27", "core_metric 0.25652499 is 0.25652501",
    ]  # fmt: skip
