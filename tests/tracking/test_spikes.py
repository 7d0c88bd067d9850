"""When a loss is told as a spike."""

import numpy as np
import pytest

from marin.tracking.spikes import SpikeWatch


def _told(losses) -> list[int]:
    watch = SpikeWatch()
    return [step for step, loss in enumerate(losses) if watch.begins(float(loss)) is not None]


def _noise(count: int, seed: int = 0) -> np.ndarray:
    return 3.0 + 0.05 * np.random.default_rng(seed).standard_normal(count)


def test_spike_is_told_once_when_it_begins_and_again_after_it_has_ended():
    losses = _noise(200)
    losses[100:105] += 2.0
    losses[150] += 2.0
    assert _told(losses) == [100, 150]


def test_spike_says_what_was_usual_and_the_limit_that_it_passed():
    watch = SpikeWatch()
    for loss in _noise(64):
        assert watch.begins(loss) is None
    found = watch.begins(5.0)
    assert found["usual"] == pytest.approx(3.0, abs=0.05)
    assert 3.15 <= found["limit"] < 3.8  # 8 deviations of 0.05 above 3.0, as estimated from 64 losses


@pytest.mark.parametrize("seed", range(20))
def test_noise_and_a_falling_loss_are_no_spikes(seed):
    steps = np.arange(1000)
    assert _told(_noise(1000, seed)) == []
    assert _told(9.0 * (1 + steps) ** -0.2 + 0.05 * np.random.default_rng(seed).standard_normal(1000)) == []


def test_loss_that_hardly_varies_needs_five_percent_to_be_a_spike():
    assert _told([2.0] * 50 + [2.09]) == []
    assert _told([2.0] * 50 + [2.11]) == [50]


def test_new_level_that_stays_is_told_once():
    assert _told(np.concatenate([_noise(150), 2 + _noise(300, 1)])) == [150]


def test_spike_is_not_told_before_enough_losses_were_seen_and_nan_is_not_a_loss():
    assert _told([3.0] * 31 + [9.0]) == []
    assert _told([3.0] * 20 + [float("nan")] * 20 + [3.0] * 5 + [9.0]) == []
