"""Every schedule against a table worked by hand. Peak 1 unless the table says otherwise; one row is one run."""

import jax.numpy as jnp
import numpy as np
import pytest

from marin.errors import ConfigError
from marin.optim import AdamConfig, PowerSchedule
from marin.optim.schedule import build_schedule, steps_of

ROOT2, ROOT3 = 2**0.5, 3**0.5

TABLES = {
    "constant": (4, {"kind": "constant"}, [1, 1, 1, 1]),
    "constant after a warmup of a quarter": (8, {"kind": "constant", "warmup": 0.25}, [0, 1 / 2, 1, 1, 1, 1, 1, 1]),
    "linear to zero": (4, {"kind": "linear"}, [1, 3 / 4, 1 / 2, 1 / 4]),
    "linear to a tenth": (5, {"kind": "linear", "min_lr_ratio": 0.1}, [1, 0.82, 0.64, 0.46, 0.28]),
    "cosine to zero": (6, {"kind": "cosine"}, [1, (2 + ROOT3) / 4, 3 / 4, 1 / 2, 1 / 4, (2 - ROOT3) / 4]),
    "cosine to a half": (4, {"kind": "cosine", "min_lr_ratio": 0.5}, [1, (6 + ROOT2) / 8, 3 / 4, (6 - ROOT2) / 8]),
    # 1 / (1 + 9 max(k, 1) / 4): 1/rate goes in equal steps to 10 at the end.
    "inv to a tenth": (4, {"kind": "inv", "min_lr_ratio": 0.1}, [4 / 13, 4 / 13, 4 / 22, 4 / 31]),
    "inv to zero": (4, {"kind": "inv"}, [1 / 2, 1 / 2, 1 / 3, 1 / 4]),
    "warmup, then linear over what is left": (6, {"kind": "linear", "warmup": 2}, [0, 1 / 2, 1, 3 / 4, 1 / 2, 1 / 4]),
    "WSD in fractions": (
        8, {"kind": "linear", "warmup": 0.25, "decay": 0.5}, [0, 1 / 2, 1, 1, 1, 3 / 4, 1 / 2, 1 / 4],
    ),
    "WSD in steps": (8, {"kind": "linear", "warmup": 2, "decay": 4}, [0, 1 / 2, 1, 1, 1, 3 / 4, 1 / 2, 1 / 4]),
    "decay of 1 is the whole run, not one step": (4, {"kind": "linear", "decay": 1}, [1, 3 / 4, 1 / 2, 1 / 4]),
    "decay of 2 is two steps": (4, {"kind": "linear", "decay": 2}, [1, 1, 1, 1 / 2]),
    "no decay": (4, {"kind": "linear", "decay": 0.0}, [1, 1, 1, 1]),
    "a fraction is cut to whole steps": (7, {"kind": "linear", "warmup": 0.4, "decay": 0.3}, [0, 1 / 2, 1, 1, 1, 1, 1 / 2]),
    "two cycles": (8, {"kind": "linear", "cycles": 2}, [1, 3 / 4, 1 / 2, 1 / 4, 1, 3 / 4, 1 / 2, 1 / 4]),
    # The second cycle rises from the 1/2 that the first fell to.
    "rewarmup": (
        12, {"kind": "linear", "cycles": 2, "rewarmup": 2, "decay": 2, "min_lr_ratio": 0.5},
        [1, 1, 1, 1, 1, 3 / 4, 1 / 2, 3 / 4, 1, 1, 1, 3 / 4],
    ),
    "rewarmup after a cycle that did not fall": (6, {"kind": "constant", "cycles": 2, "rewarmup": 2}, [1] * 6),
    "warmup in the first cycle only": (
        8, {"kind": "constant", "cycles": 2, "warmup": 0.5}, [0, 1 / 2, 1, 1, 1, 1, 1, 1],
    ),
    "fractions are of a cycle": (
        8, {"kind": "linear", "cycles": 2, "decay": 0.5}, [1, 1, 1, 1 / 2, 1, 1, 1, 1 / 2],
    ),
    "cycle length in steps, the rest a last cycle": (5, {"kind": "linear", "cycle_length": 2}, [1, 1 / 2, 1, 1 / 2, 1]),
    "cycle length as a fraction": (6, {"kind": "linear", "cycle_length": 0.5}, [1, 2 / 3, 1 / 3, 1, 2 / 3, 1 / 3]),
    "a list of cycle lengths": (6, {"kind": "linear", "cycle_length": [4, 2]}, [1, 3 / 4, 1 / 2, 1 / 4, 1, 1 / 2]),
    "cycles by where they end": (6, {"kind": "linear", "cycles": [4]}, [1, 3 / 4, 1 / 2, 1 / 4, 1, 1 / 2]),
    "cycles by where they end, the last named": (6, {"kind": "linear", "cycles": [4, 6]}, [1, 3 / 4, 1 / 2, 1 / 4, 1, 1 / 2]),
    # 2 x 3 / (4 x 3 tokens a step x step) = 1 / (2 step), never over the peak.
    "power of -1": (5, {"kind": PowerSchedule(4, 3, a=1.5, b=-1.0)}, [1, 1 / 2, 1 / 4, 1 / 6, 1 / 8]),
    "power of -1/2": (5, {"kind": PowerSchedule(1, 1, a=0.5, b=-0.5)}, [1, 1 / 2, 1 / 2 / ROOT2, 1 / 2 / ROOT3, 1 / 4]),
}  # fmt: skip


def _rates(steps: int, at: list[int] | None = None, **options: object) -> np.ndarray:
    defaults = {"peak": 1.0, "warmup": 0.0, "decay": None, "rewarmup": 0.0, "min_lr_ratio": 0.0}
    schedule = build_schedule(num_train_steps=steps, **(defaults | options))
    if at is not None:
        return np.asarray(schedule(jnp.asarray(at)))
    return np.asarray(schedule(jnp.arange(100)))[:steps]  # one size, one program


@pytest.mark.parametrize("name", TABLES)
def test_schedule_is_the_table_worked_by_hand(name: str):
    steps, options, expected = TABLES[name]
    assert len(expected) == steps
    np.testing.assert_allclose(_rates(steps, **options), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("length", "total", "steps"),
    [
        (0, 9, 0), (0.001, 100, 0), (0.01, 5880, 58), (0.1, 30, 3), (0.65, 20, 13), (0.65, 21, 13), (0.9, 7, 6),
        # Levanter's figures, where the float64 product is below the whole number.
        (0.29, 100, 28), (0.57, 100, 56), (0.58, 50, 28),
        # And where it is above.
        (0.07, 100, 7), (0.28, 100, 28),
        (1, 100, 100), (1.0, 3, 3), (2, 100, 2), (40.0, 100, 40),
    ],
)  # fmt: skip
def test_length_in_steps_is_what_levanter_makes_of_it(length: float, total: int, steps: int):
    assert steps_of(length, total, "warmup") == steps


def test_inv_sqrt_holds_the_peak_for_its_timescale_and_then_falls_by_the_root():
    at = [0, 5_000, 10_000, 40_000, 90_000]
    np.testing.assert_allclose(_rates(100_000, at, kind="inv_sqrt"), [1, 1, 1, 1 / 2, 1 / 3], rtol=1e-6)


def test_inv_sqrt_counts_the_warmup_and_keeps_the_floor():
    at = [5_000, 10_000, 40_000, 90_000]
    rates = _rates(100_000, at, kind="inv_sqrt", warmup=10_000, min_lr_ratio=0.4)
    np.testing.assert_allclose(rates, [1 / 2, 1, 1 / 2, 0.4], rtol=1e-6)


def test_power_with_the_papers_values_follows_its_formula_in_tokens():
    rate = _rates(20_000, [10_000], kind=PowerSchedule(batch_size=128, seq_length=4096))[0]
    assert rate == pytest.approx(min(1.0, 128 * 4.6 * (10_000 * 128 * 4096) ** -0.51), rel=1e-4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AdamConfig(lr_schedule="power"), "PowerSchedule"),
        (lambda: AdamConfig(lr_schedule="step"), "cosine"),
        (lambda: PowerSchedule(0, 4096), "batch_size"),
        (lambda: PowerSchedule(8, 4096, b=0.5), "`b` below 0"),
        (lambda: PowerSchedule(8, 4096, a="much"), "a='much'"),
        (lambda: AdamConfig(cycle_length=[0.5, 0.5]), "`cycle_length` is 0.5: use a whole number"),
        (lambda: AdamConfig(weight_decay_modules=3), "`weight_decay_modules` is 3: use regular expressions"),
        (lambda: AdamConfig(weight_decay_modules=["mlp("]), "which is no regular expression"),
        (lambda: AdamConfig(cycles=[4, 3]).schedule(10), "cycles"),
        (lambda: AdamConfig(cycles=[40]).schedule(10), "cycles"),
        (lambda: AdamConfig(cycles=[]).schedule(10) and AdamConfig(cycles=[0.5]), "cycles"),
    ],
)
def test_schedule_config_that_cannot_be_is_refused(make, message: str):
    with pytest.raises(ConfigError, match=message):
        make()
