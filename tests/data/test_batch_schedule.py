import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin.data.batch_schedule import BatchSchedule
from marin.errors import ConfigError

SCHEDULES = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 512)), max_size=4, unique_by=lambda entry: entry[0])


@given(later=SCHEDULES, first=st.integers(1, 512), num_steps=st.integers(0, 100))
def test_offset_is_the_sum_of_the_sizes_before(later, first, num_steps):
    schedule = BatchSchedule.of([(0, first), *sorted(later)])
    sizes = [schedule.size_at(step) for step in range(num_steps)]
    assert schedule.offset_at(num_steps) == sum(sizes)
    for start in {0, num_steps // 2}:
        assert schedule.sizes(start, num_steps) == list(dict.fromkeys(sizes[start:])) or start == num_steps


def test_schedule_of_one_number_has_that_size_everywhere():
    schedule = BatchSchedule.of(8)
    assert [schedule.size_at(step) for step in (0, 10**9)] == [8, 8]
    assert schedule.offset_at(1000) == 8000
    assert schedule.sizes(0, 10) == [8]


def test_schedule_changes_with_the_step_it_names():
    schedule = BatchSchedule.of([[0, 4], [3, 16], [5, 4]])
    assert [schedule.size_at(step) for step in range(7)] == [4, 4, 4, 16, 16, 4, 4]
    assert [schedule.offset_at(step) for step in range(7)] == [0, 4, 8, 12, 28, 44, 48]
    assert schedule.sizes(0, 7) == [4, 16]
    assert schedule.sizes(5, 7) == [4]


@pytest.mark.parametrize(
    "value",
    [
        0, -1, 2.5, True, None, "8", "[(0, 8)]", [], [(1, 8)], [(0, 8), (0, 9)], [(0, 8), (5, 9), (4, 9)],
        [(0, 0)], [(0, 8, 1)], [8], [(0, 1.5)], [(False, 8)], {0: 8},
    ],
)  # fmt: skip
def test_schedule_that_makes_no_sense_is_refused_with_its_field(value):
    with pytest.raises(ConfigError, match="train_batch_size"):
        BatchSchedule.of(value)
