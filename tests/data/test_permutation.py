import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin.data.permutation import derive_seed, permute


@given(length=st.integers(1, 3000), seed=st.integers(-(2**70), 2**70))
def test_permute_of_every_index_is_a_bijection(length, seed):
    permuted = permute(np.arange(length), length, seed)
    np.testing.assert_array_equal(np.sort(permuted), np.arange(length))


@given(length=st.integers(1, 2**40), seed=st.integers(0, 2**64), data=st.data())
def test_permute_of_one_index_agrees_with_permute_of_many(length, seed, data):
    indices = data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=8))
    permuted = permute(np.array(indices).reshape(1, -1), length, seed)
    assert permuted.shape == (1, len(indices))
    assert permuted.dtype == np.int64
    assert permuted[0].tolist() == [permute(index, length, seed) for index in indices]
    assert all(0 <= value < length for value in permuted[0])


def test_permute_with_another_seed_gives_another_order():
    orders = {tuple(permute(np.arange(50), 50, derive_seed(7, "epoch", epoch))) for epoch in range(100)}
    assert len(orders) == 100


def test_permute_sends_each_index_everywhere_equally_often():
    # Chi-square over 64 cells with 4,000 seeds: mean 63, standard deviation 11.2; each index is one test.
    images = np.array([permute(np.arange(64), 64, seed) for seed in range(4000)])
    counts = np.stack([np.bincount(images[:, index], minlength=64) for index in range(64)])
    chi_square = ((counts - 4000 / 64) ** 2 / (4000 / 64)).sum(axis=1)
    assert 55 < chi_square.mean() < 71
    assert chi_square.max() < 63 + 6 * 11.2


def test_permute_leaves_no_neighbours_together():
    permuted = permute(np.arange(100_000), 100_000, 3)
    assert np.mean(np.abs(np.diff(permuted)) < 100) == pytest.approx(0.002, abs=0.001)


def test_permute_gives_the_same_order_on_every_machine():
    assert permute(np.arange(10), 10, 0).tolist() == [0, 2, 3, 1, 9, 4, 6, 5, 7, 8]
    assert permute(123_456_789, 10**12, 42) == 163354603135


@pytest.mark.parametrize(("index", "length"), [(5, 5), (-1, 5), (0, 0)])
def test_permute_outside_the_range_is_refused(index, length):
    with pytest.raises(ValueError, match=r"range\("):
        permute(index, length, 1)
