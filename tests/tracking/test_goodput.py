"""Where a run's wall time went, worked out by hand on made records."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.tracking.goodput import wall_time


class _Log:
    """A `metrics.jsonl` whose clock the test moves."""

    def __init__(self, when: float = 1000.0):
        self.when, self.events = when, []

    def add(self, event: str, passed: float = 0.0, /, **fields) -> "_Log":
        self.when += passed
        self.events.append({"event": event, "time": self.when, **fields})
        return self

    def start(self, from_step: int, setup: float = 2.0, compile_time: float = 3.0) -> "_Log":
        return self.add("start", setup + compile_time, from_step=from_step, setup_time=setup, compile_time=compile_time)

    def step(self, number: int, seconds: float = 1.0, wait: float = 0.25) -> "_Log":
        return self.add("step", seconds, step=number, step_time=seconds, data_wait=wait)

    def pause(self, reason: str, seconds: float) -> "_Log":
        return self.add("pause", seconds, reason=reason, step=0, seconds=seconds)


def test_wall_time_of_one_process_is_divided_by_what_it_did():
    log = _Log().start(0).step(0).step(1).pause("evaluation", 4.0).pause("checkpoint", 0.5).step(2).add("end", 0.1)
    spent = wall_time(log.events)
    assert spent.total == pytest.approx(2 + 3 + 3 + 4 + 0.5 + 0.1)
    expected = {
        "training": 2.25,
        "data": 0.75,
        "lost": 0,
        "setup": 2,
        "compile": 3,
        "evaluation": 4,
        "checkpoint": 0.5,
        "down": 0,
        "other": 0.1,
    }
    assert spent.parts == pytest.approx(expected)
    assert spent.goodput == pytest.approx(2.25 / 12.6)
    assert (spent.num_processes, spent.num_lost_steps) == (1, 0)


def test_wall_time_of_a_killed_run_has_the_lost_steps_and_the_time_when_nothing_ran():
    log = _Log().start(0)
    for step in range(5):
        log.step(step)
    log.when += 60  # killed; started again a minute later
    log.start(3).step(3).step(4).add("end")
    spent = wall_time(log.events)
    assert spent.parts["lost"] == pytest.approx(2)  # steps 3 and 4 of the first process
    assert spent.parts["training"] == pytest.approx(5 * 0.75)
    assert (spent.parts["setup"], spent.parts["compile"], spent.parts["down"]) == pytest.approx((4, 6, 60))
    assert (spent.num_processes, spent.num_lost_steps) == (2, 2)
    assert spent.shares().startswith("down 78 %, compile 8 %")


def test_wall_time_of_a_run_killed_twice_at_one_checkpoint_loses_both_tries():
    log = _Log().start(0).step(0).step(1).start(0).step(0).start(0).step(0).step(1)
    spent = wall_time(log.events)
    assert spent.num_lost_steps == 3
    assert spent.parts["lost"] == pytest.approx(3)


def test_wall_time_with_a_clock_that_was_set_back_counts_no_time_in_between():
    log = _Log().start(0).step(0)
    log.when -= 500
    spent = wall_time(log.start(1).step(1).events)
    assert spent.parts["down"] == 0
    assert spent.total == pytest.approx(2 * (2 + 3 + 1))


def test_wall_time_of_an_empty_log_is_nothing():
    spent = wall_time([])
    assert (spent.total, spent.goodput, spent.shares()) == (0, 0, "no time")


_seconds = st.floats(0, 100)
_entries = st.one_of(
    st.tuples(st.just("step"), _seconds, _seconds),
    st.tuples(st.just("pause"), st.sampled_from(["evaluation", "checkpoint", "profiler"]), _seconds),
    st.tuples(st.just("start"), st.integers(0, 5), _seconds),
    st.tuples(st.just("nothing"), _seconds, _seconds),
)


@settings(max_examples=60)
@given(st.lists(_entries, max_size=30))
def test_wall_time_adds_up_to_what_passed_and_no_part_is_negative(entries):
    log = _Log().start(0)
    begin = log.when - 5
    done = 0
    for kind, first, second in entries:
        if kind == "step":
            log.step(done, first, second)
            done += 1
        elif kind == "pause":
            log.pause(first, second)
        elif kind == "start":
            done = min(done, first)
            log.when += second
            log.start(done)
        else:
            log.when += first
    log.add("end")
    spent = wall_time(log.events)
    assert spent.total == pytest.approx(log.when - begin)
    assert min(spent.parts.values()) >= 0
    assert 0 <= spent.goodput <= 1
