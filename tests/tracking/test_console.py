"""What a person who watches a run is told."""

import threading

import pytest

from marin.tracking import console
from marin.tracking.console import TrainingProgress, duration, said_if_long


def test_a_log_ends_with_the_last_step_and_the_last_words(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingProgress(num_steps=3, first_step=0, tokens_left=300, flops_per_token=1e6, peak_flops=1e12) as progress:
        for step in range(3):
            progress.update(step, 3.0 - step, 0.5, 100, 0.0)
        progress.note("a word in between")
        progress.after("the last word")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a word in between" and lines[-1] == "the last word"
    assert lines[-2].startswith("step 3/3  loss 2.000  200 tokens/s  MFU 0.1% (model FLOPs)  left 0:00")


def test_a_log_says_each_step_once_the_last_one_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "_LOG_INTERVAL", -1.0)  # as if each step took longer than a line is kept back
    with TrainingProgress(num_steps=3, first_step=0, tokens_left=300, flops_per_token=1e6, peak_flops=1e12) as progress:
        for step in range(3):
            progress.update(step, 3.0 - step, 0.5, 100, 0.0)
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == [
        "step 1/3",
        "step 2/3",
        "step 3/3",
    ]


def test_a_step_without_a_finite_loss_that_was_skipped_does_not_hide_the_losses_after_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with TrainingProgress(num_steps=5, first_step=0, tokens_left=500, flops_per_token=1e6, peak_flops=1e12) as progress:
        for step, loss in enumerate((float("inf"), 3.0, float("nan"), 2.0, 1.0)):
            progress.update(step, loss, 0.5, 100, 0.0)
    assert "step 5/5  loss 2.000 " in capsys.readouterr().out
    with TrainingProgress(num_steps=1, first_step=0, tokens_left=100, flops_per_token=1e6, peak_flops=1e12) as progress:
        progress.update(0, float("nan"), 0.5, 100, 0.0)
    assert "step 1/1  loss nan " in capsys.readouterr().out


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (65, "1:05"), (7384, "2:03:04")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_what_goes_on_is_said_where_it_takes_long_and_only_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[threading.Timer] = []
    monkeypatch.setattr(threading.Timer, "start", lambda timer: waiting.append(timer))  # a clock that the test moves
    with said_if_long("working", after=5.0):
        (timer,) = waiting
        assert timer.interval == 5.0 and timer.daemon
        assert capsys.readouterr().out == ""
        timer.function()
        assert capsys.readouterr().out == "working\n"
    assert timer.finished.is_set()  # what ends in time says nothing
