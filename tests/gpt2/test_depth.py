"""The transfer rules from `--depth` against the published table, and what horizons and bad flags do."""

import math

import pytest

from marin.errors import ConfigError
from marin.gpt2.depth import Horizon, Rates, Shape, recipe

# depth: width, parameters, scaling parameters, FLOPs a token, batch, tokens, steps; ratio 12, vocabulary 32,768.
TABLE = {
    6: (384, 73.5e6, 23.2e6, 1.68e8, 2**18, 0.28e9, 1062),
    12: (768, 286e6, 110e6, 7.60e8, 2**19, 1.32e9, 2520),
    20: (1280, 897e6, 435e6, 2.89e9, 2**20, 5.22e9, 4980),
    24: (1536, 1384e6, 730e6, 4.78e9, 2**20, 8.76e9, 8352),
    26: (1664, 1682e6, 918e6, 5.99e9, 2**20, 11.0e9, 10510),
}


def _digits(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


@pytest.mark.parametrize("depth", TABLE)
def test_depth_gives_the_published_table(depth):
    width, parameters, scaling, flops, batch, tokens, steps = TABLE[depth]
    made = recipe(Shape(depth, 32768), Horizon())
    assert made.model.hidden_dim == width and made.model.head_dim == 128
    assert made.num_params == pytest.approx(parameters, rel=1e-3)
    assert made.scaling_params == pytest.approx(scaling, rel=3e-3)
    assert _digits(made.flops_per_token, 3) == pytest.approx(flops, rel=2e-3)
    assert (made.total_batch_size, made.num_iterations) == (batch, steps)
    assert made.total_tokens == pytest.approx(tokens, rel=2e-2)


def test_ratio_8_at_depth_24_has_the_published_steps_and_flops():
    made = recipe(Shape(24, 32768), Horizon(target_param_data_ratio=8))
    assert (made.total_batch_size, made.num_iterations) == (2**20, 5568)
    assert _digits(made.total_flops, 3) == 2.79e19 and _digits(made.total_tokens, 3) == 5.84e9


def test_rates_and_decay_are_those_of_depth_12_there_and_follow_batch_width_and_tokens():
    base = recipe(Shape(12, 32768), Horizon()).optimizer
    assert (base.learning_rate, base.embedding_lr, base.head_lr, base.weight_decay) == (0.02, 0.3, 0.008, 0.28)
    assert (base.value_embedding_lr, base.residual_scale_lr, base.input_scale_lr) == (0.15, 0.005, 0.5)
    deep = recipe(Shape(24, 32768), Horizon()).optimizer
    assert deep.learning_rate == pytest.approx(0.02 * 2**0.5)
    assert deep.embedding_lr == pytest.approx(0.3)  # sqrt(2) for the batch, 1 / sqrt(2) for the width
    assert deep.weight_decay == pytest.approx(0.28 * 2**0.5 * 110.1e6 / 729.8e6, rel=1e-3)
    assert deep.mixing_lr == base.mixing_lr == 0.2
    small = recipe(Shape(12, 32768), Horizon(), Rates(matrix_lr=0.04), total_batch_size=2**17).optimizer
    assert small.learning_rate == pytest.approx(0.02) and small.weight_decay == pytest.approx(0.14)


@pytest.mark.parametrize(
    ("horizon", "steps"),
    [
        (Horizon(num_iterations=7, target_flops=1e18), 7),
        (Horizon(target_flops=7.6e8 * 2**19 * 100), 100),
        (Horizon(target_param_data_ratio=1.2), 252),
    ],
)
def test_horizon_takes_steps_before_flops_before_the_ratio(horizon, steps):
    assert recipe(Shape(12, 32768), horizon).num_iterations == steps


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Horizon(target_param_data_ratio=-1), "no training horizon"),
        (lambda: recipe(Shape(12, 32768), Horizon(), total_batch_size=3000), "no whole number of sequences of 2048"),
        (lambda: recipe(Shape(12, 32768), Horizon(target_flops=1.0)), "less than one step"),
        (lambda: Shape(0, 32768), "--depth"),
        (lambda: Shape(4, 100, head_dim=31), "--head-dim"),
        (lambda: recipe(Shape(4, 100, window_pattern="SXL"), Horizon()), "window_pattern"),
        (
            lambda: recipe(Shape(2, 300), Horizon(9), warmdown_ratio=2.0),
            "`--warmdown-ratio` is 2.0: use a share from 0 to 1",
        ),
        (lambda: recipe(Shape(2, 300), Horizon(9), final_lr_frac=-0.1), "`--final-lr-frac` is -0.1"),
        (lambda: recipe(Shape(2, 300), Horizon(9), warmup_steps=-3), "`--warmup-steps` is -3"),
        (lambda: Rates(matrix_lr=0.0), "`--matrix-lr` is 0.0: use a number above 0"),
        (lambda: Rates(scalar_lr=math.nan), "`--scalar-lr` is nan"),
        (lambda: Rates(weight_decay=-1.0), "`--weight-decay` is -1.0"),
    ],
)
def test_flags_that_cannot_be_are_refused_by_name(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_short_run_warms_up_no_longer_than_until_its_warmdown():
    optimizer = recipe(Shape(2, 300, max_seq_len=64), Horizon(num_iterations=20), total_batch_size=128).optimizer
    assert optimizer.warmup == 7
    assert float(optimizer.schedule(20)(6)) == pytest.approx(optimizer.learning_rate)
