"""Runs that stop at a budget: on a clock whose steps take a second each, killed and resumed, and by hand-made sums."""

import itertools
import shutil

import numpy as np
import pytest
from example_runs import run_info

from marin.errors import ConfigError
from marin.nn.trees import named_leaves
from marin.speedrun.arithmetic import consistency
from marin.speedrun.run_results import figures_of_log
from marin.tracking import RunRecord
from marin.training import Budget, loop, measured_step_time, steps_in_time, steps_within
from marin.training import checkpoint as checkpoints
from marin.training.clock import TrainingClock
from marin.training.loop import train_lm

PEAK = 1e11  # what make_config's machine has


@pytest.fixture
def second_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step takes one second on the clock."""

    def lap(clock: TrainingClock) -> float:
        clock.total += 1.0
        clock.recent.append(1.0)
        return 1.0

    monkeypatch.setattr(TrainingClock, "lap", lap)


@pytest.mark.parametrize(
    ("budget", "steps"),
    [(Budget(training_time=5.5), 5), (Budget(hardware_flops=7 * PEAK), 7), (Budget(7 * PEAK, 4.0), 4), (Budget(training_time=99), 12)],
)  # fmt: skip
def test_training_under_a_budget_ends_after_the_last_step_that_fits(budget, steps, make_config, second_steps):
    config = make_config(num_train_steps=12, budget=budget)
    state = train_lm(config)
    assert int(state.step) == steps
    record = RunRecord.open(config.output_path)
    assert record.is_complete and [step["step"] for step in record.steps()] == list(range(steps))
    end = record.of("end")[-1]
    assert end["steps"] == steps and end.get("stopped_by") == ("budget" if steps < 12 else None)
    assert checkpoints.find(config.output_path).step == steps
    again = train_lm(config)  # the same command again neither trains on nor adds to the log
    assert int(again.step) == steps and len(RunRecord.open(config.output_path).events) == len(record.events)


def test_process_that_is_not_the_first_needs_no_log_of_the_run_for_its_budget(make_config, second_steps, monkeypatch):
    monkeypatch.setattr(loop.distributed, "is_main", lambda: False)  # it may begin before the first has written one
    assert int(train_lm(make_config(num_train_steps=2, budget=Budget(hardware_flops=7 * PEAK))).step) == 2


def test_budget_of_less_than_a_step_ends_after_the_first(make_config, second_steps):
    config = make_config(num_train_steps=12, budget=Budget(training_time=0.5))
    assert int(train_lm(config).step) == 1


def test_training_under_a_budget_killed_and_resumed_stops_at_the_same_total_and_state(
    make_config, second_steps, monkeypatch
):
    options = {
        "num_train_steps": 12,
        "budget": Budget(training_time=8.5),
        "steps_per_export": 3,
        "steps_per_hf_export": -1,
    }
    whole = train_lm(make_config("whole", **options))
    config = make_config("killed", **options)
    laps = itertools.count()
    real = TrainingClock.lap

    def lap(clock: TrainingClock) -> float:
        if next(laps) == 6:  # the save of step 6 has waited for that of step 3
            raise KeyboardInterrupt
        return real(clock)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingClock, "lap", lap)
        with pytest.raises(KeyboardInterrupt):
            train_lm(config)
    assert not RunRecord.open(config.output_path).is_complete
    resumed = train_lm(config)
    record = RunRecord.open(config.output_path)
    first = record.of("start")[-1]["from_step"]
    assert first in (3, 6) and len(record.superseded()) == 6 - first  # the save of step 6 may have been done already
    assert record.of("end")[-1]["steps"] == len(record.steps()) == 8
    for name, value in named_leaves(whole).items():
        np.testing.assert_array_equal(named_leaves(resumed)[name], value, err_msg=name)


def test_training_killed_before_the_last_line_of_a_spent_budget_only_writes_that_line_and_the_export(
    make_config, second_steps
):
    config = make_config(num_train_steps=12, steps_per_hf_export=12, budget=Budget(training_time=4.0))
    train_lm(config)
    log = RunRecord.open(config.output_path).directory / "metrics.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:-1]))
    exports = log.parent / "hf"
    assert [path.name for path in exports.iterdir()] == ["step-4"]
    shutil.rmtree(exports / "step-4")
    train_lm(config)
    assert [path.name for path in exports.iterdir()] == ["step-4"]
    record = RunRecord.open(config.output_path)
    assert record.of("end")[-1]["stopped_by"] == "budget" and len(record.of("start")) == 1


def test_results_of_a_run_cut_by_its_budget_say_so_and_add_up(make_config, second_steps):
    config = make_config(num_train_steps=12, budget=Budget(training_time=5.0))
    train_lm(config)
    figures = figures_of_log(RunRecord.open(config.output_path), 1.0)
    assert figures["stopped_by"] == "budget" and figures["num_train_steps"] == 5 and figures["training_time"] == 5.0
    changed = {"num_train_steps": 30, "total_tokens": 30 * 8 * 128, "stopped_by": "budget"}
    train = {"train_batch_size": 8, "num_train_steps": 50}

    def errors(**more):
        found = consistency.check(run_info(**changed | more))
        return {finding.field for finding in found if finding.severity == "error"}

    assert "num_train_steps" not in errors(train_config=train | {"budget": {"training_time": 5.0}})
    assert "num_train_steps" in errors(train_config=train)  # cut, without a budget to be cut by
    assert "num_train_steps" in errors(train_config=train | {"budget": {"training_time": 5.0}}, stopped_by=None)


def test_steps_within_is_what_the_formula_gives_and_never_more():
    steps = steps_within(1e15, mfu=0.4, model_flops_per_token=2.5e8, tokens_per_step=4096)
    assert steps == int(1e15 * 0.4 / (3 * 2.5e8 * 4096)) == 130
    assert steps_in_time(10.0, step_time=0.3) == 33
    with pytest.raises(ConfigError, match="not one step fits"):
        steps_in_time(0.1, step_time=0.3)
    with pytest.raises(ConfigError, match="mfu"):
        steps_within(1e15, mfu=40, model_flops_per_token=1.0, tokens_per_step=1)


def test_measured_step_time_is_the_median_of_a_log(make_config, second_steps):
    config = make_config(num_train_steps=12)
    train_lm(config)
    assert measured_step_time(config.output_path) == 1.0


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "1e15", True])
def test_budget_that_is_no_positive_number_is_refused_by_name(value):
    with pytest.raises(ConfigError, match="training_time"):
        Budget(training_time=value)


def test_budget_without_a_limit_is_refused():
    with pytest.raises(ConfigError, match="no limit"):
        Budget()
