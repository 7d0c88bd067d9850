"""The order of a mixture against the shares that its weights promise, and against itself."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.data.mixture_order import _SHIFT, _UNIT, BLOCK, MixtureOrder, Stage, _floor_sum
from marin.data.permutation import derive_seed, permute
from marin.errors import ConfigError

WEIGHTS = st.lists(st.one_of(st.just(0.0), st.floats(1e-4, 1.0)), min_size=1, max_size=6).filter(any)


@given(weights=WEIGHTS, seed=st.integers(0, 2**63), block=st.integers(0, 10**9))
@settings(max_examples=25)
def test_every_block_has_each_weight_within_one_row(weights, seed, block):
    order = MixtureOrder([5000] * len(weights), [Stage(0, tuple(weights))])
    component_B, _ = order.locate(seed, np.arange(block * BLOCK, (block + 1) * BLOCK))
    counts = np.bincount(component_B, minlength=len(weights))
    shares = BLOCK * np.array(weights) / sum(weights)
    assert (np.abs(counts - shares) < 1 + 1e-6).all()
    assert (counts[shares == 0] == 0).all()


@given(weights=WEIGHTS, num_blocks=st.integers(1, 10**9))
@settings(max_examples=25)
def test_long_runs_keep_their_weights_too(weights, num_blocks):
    order = MixtureOrder([5000] * len(weights), [Stage(0, tuple(weights))])
    total = num_blocks * BLOCK
    shares = total * np.array(weights) / sum(weights)
    # Rounding that did not change from block to block would drift by up to half a row a block.
    assert (np.abs(order.drawn(total) - shares) < 20 + total * 1e-12).all()


def test_component_that_is_due_less_than_a_row_a_block_comes_all_the_same():
    order = MixtureOrder([10, 10], [Stage(0, (1.0, 1e-5))])
    assert order.drawn(10**8) == pytest.approx([10**8 * (1 - 1e-5), 1000], abs=3)


@given(
    sizes=st.lists(st.integers(150, 3000), min_size=1, max_size=4),
    seed=st.integers(0, 2**63),
    stage_starts=st.lists(st.integers(1, 5999), max_size=3, unique=True),
    data=st.data(),
)
@settings(max_examples=25)
def test_order_is_a_function_of_the_sample_and_each_component_goes_through_its_epochs(sizes, seed, stage_starts, data):
    weights = st.tuples(*[st.floats(0, 1)] * len(sizes)).filter(any)
    stages = [Stage(start, data.draw(weights)) for start in [0, *sorted(stage_starts)]]
    order = MixtureOrder(sizes, stages)
    component_B, row_B = order.locate(seed, np.arange(6000))
    # Asked in parts, from any place, as after a restart.
    cuts = sorted({0, 6000, *data.draw(st.lists(st.integers(0, 6000), max_size=4))})
    for begin, end in itertools.pairwise(cuts):
        parts = MixtureOrder(sizes, stages).locate(seed, np.arange(begin, end))
        np.testing.assert_array_equal(parts, (component_B[begin:end], row_B[begin:end]))
    for component, size in enumerate(sizes):
        rows = row_B[component_B == component]
        for epoch in range(len(rows) // size):
            expected = permute(np.arange(size), size, derive_seed(seed, "epoch", epoch))
            np.testing.assert_array_equal(rows[epoch * size : (epoch + 1) * size], expected)
    ends = [*[stage.start for stage in stages[1:]], 6000]
    for end in ends:
        segment = int(np.searchsorted([stage.start for stage in stages], end - 1, side="right")) - 1
        if end in ends[:-1] or (end - stages[segment].start) % BLOCK == 0:
            assert order.drawn(end) == np.bincount(component_B[:end], minlength=len(sizes)).tolist()


@given(
    sizes=st.lists(st.integers(1, 500), min_size=1, max_size=4),
    seed=st.integers(0, 2**63),
    data=st.data(),
)
@settings(max_examples=25)
def test_limited_components_give_their_rows_and_no_more(sizes, seed, data):
    limits = data.draw(st.tuples(*[st.floats(0.1, 5)] * len(sizes)))
    weights = data.draw(st.tuples(*[st.floats(0.01, 1)] * len(sizes)))
    most = [int(limit * size) for limit, size in zip(limits, sizes, strict=True)]
    if not any(most):
        with pytest.raises(ConfigError, match="leaves no rows"):
            MixtureOrder(sizes, [Stage(0, weights)], limits)
        return
    order = MixtureOrder(sizes, [Stage(0, weights)], limits)
    assert order.num_samples is not None
    component_B, _ = order.locate(seed, np.arange(order.num_samples))
    counts = np.bincount(component_B, minlength=len(sizes))
    # At most a row or two of a component stay behind where a cut block rounds its share up.
    assert all(limit - 2 <= count <= limit for count, limit in zip(counts, most, strict=True)), (counts, most)
    with pytest.raises(ConfigError, match="beyond the end"):
        order.locate(seed, np.array([order.num_samples]))


def test_weight_of_a_component_that_has_ended_goes_to_the_others_in_their_ratio():
    order = MixtureOrder([10_000, 10_000, 5], [Stage(0, (2, 1, 1))], [None, None, 1])
    first, second, third = order.drawn(30_000)
    assert third == 5
    assert first / second == pytest.approx(2, rel=0.01)


@pytest.mark.parametrize("count", [0, 1, 2, 1000, 4097])
@pytest.mark.parametrize("offset", [0, 1, _UNIT // 3, _UNIT - 1])
def test_floor_sum_is_the_sum_of_floors(count, offset):
    assert _floor_sum(count, offset) == sum((b * _SHIFT + offset) // _UNIT for b in range(count))


@pytest.mark.parametrize(
    "stages",
    [[], [Stage(5, (1.0,))], [Stage(0, (1.0,)), Stage(0, (1.0,))], [Stage(0, (0.0,))], [Stage(0, (float("nan"),))]],
)
def test_stages_that_make_no_order_are_refused(stages):
    with pytest.raises(ConfigError):
        MixtureOrder([5], stages)


def test_order_is_the_same_on_every_machine():
    order = MixtureOrder([100, 37, 11], [Stage(0, (0.7, 0.2, 0.1))])
    component_B, row_B = order.locate(3, np.arange(10**15, 10**15 + 8))
    assert component_B.tolist() == [0, 0, 0, 0, 0, 0, 0, 1]
    assert row_B.tolist() == [26, 67, 93, 4, 64, 80, 61, 19]
