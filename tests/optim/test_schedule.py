"""Schedules in the reference's meaning of warmup, decay, rewarmup and cycles."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.errors import ConfigError
from marin.optim.schedule import DECAYS, build_schedule


def _rates(steps, **options):
    defaults = {"peak": 1.0, "kind": "linear", "warmup": 0.0, "decay": None, "rewarmup": 0.0, "min_lr_ratio": 0.0}
    schedule = build_schedule(num_train_steps=steps, **(defaults | options))
    return np.asarray(schedule(jnp.arange(100)))[:steps]  # one size, one program


def test_schedule_warmup_stable_and_decay_are_where_fractions_say():
    rates = _rates(100, warmup=0.1, decay=0.5, min_lr_ratio=0.1)
    np.testing.assert_allclose(rates[:10], np.arange(10) / 10, rtol=1e-6)
    np.testing.assert_allclose(rates[10:50], 1.0)
    np.testing.assert_allclose(rates[50:], 1.0 - 0.9 * np.arange(50) / 50, rtol=1e-5)


def test_schedule_lengths_above_one_are_steps():
    np.testing.assert_allclose(_rates(100, warmup=10, decay=50), _rates(100, warmup=0.1, decay=0.5))


def test_schedule_decay_of_one_is_the_whole_run_and_none_is_what_warmup_leaves():
    assert _rates(10, decay=1)[5] == pytest.approx(0.5)
    rates = _rates(20, warmup=10)
    assert rates[10] == pytest.approx(1.0)
    assert rates[19] == pytest.approx(0.1)


def test_schedule_cosine_is_half_way_in_the_middle():
    assert _rates(100, kind="cosine", min_lr_ratio=0.2)[50] == pytest.approx(0.6, abs=1e-5)


def test_schedule_cycles_start_again_with_rewarmup_from_the_minimum():
    rates = _rates(40, cycles=2, rewarmup=10, decay=10, min_lr_ratio=0.5)
    np.testing.assert_allclose(rates[:10], 1.0)
    assert rates[19] == pytest.approx(0.55)
    assert rates[20] == pytest.approx(0.5)
    assert rates[25] == pytest.approx(0.75)


def test_schedule_cycle_length_in_steps_leaves_the_rest_as_a_last_cycle():
    rates = _rates(25, cycle_length=10, decay=1)
    assert [rates[i] for i in (0, 10, 20)] == pytest.approx([1.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "step"}, "cosine"),
        ({"warmup": -0.1}, "warmup"),
        ({"warmup": 2.5}, "warmup"),
        ({"warmup": 60, "decay": 60}, "do not fit"),
        ({"warmup": 200, "decay": None}, "`warmup` of 200 steps does not fit into a run of 100 steps"),
        ({"cycle_length": 40, "rewarmup": 30, "decay": None}, "`rewarmup` of 30 steps does not fit into a cycle of 20"),
        ({"kind": ["cosine"]}, "cosine"),
        ({"min_lr_ratio": 2.0}, "min_lr_ratio"),
        ({"cycles": 2, "cycle_length": 5}, "both set"),
        ({"cycles": 0}, "cycles"),
        ({"cycle_length": [90, 20]}, "does not fit"),
    ],
    ids=str,
)
def test_schedule_that_cannot_be_is_refused_by_name(options, message):
    with pytest.raises(ConfigError, match=message):
        _rates(100, **options)


@settings(max_examples=15)
@given(
    kind=st.sampled_from(sorted(DECAYS)),
    warmup=st.floats(0, 0.5),
    decay=st.none() | st.floats(0, 0.5),
    ratio=st.just(0.0) | st.floats(1e-6, 1),
    steps=st.integers(1, 60),
)
def test_schedule_stays_between_zero_and_the_peak_and_above_the_minimum_after_warmup(kind, warmup, decay, ratio, steps):
    rates = _rates(steps, kind=kind, warmup=warmup, decay=decay, min_lr_ratio=ratio)
    assert np.all(rates >= 0)
    assert np.all(rates <= 1 + 1e-6)
    assert np.all(rates[int(warmup * steps) :] >= ratio - 1e-6)
