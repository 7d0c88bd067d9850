"""The optimizer groups of the GPT against the description's stages, written out with NumPy in float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from marin.errors import ConfigError
from marin.models.gpt import GptConfig
from marin.nn.trees import named_leaves
from marin.optim.gpt_muon import GptMuonConfig, group_of
from marin.optim.orthogonalize import POLAR_EXPRESS

STEPS = 9
SHAPES = {
    "embedding.weight_VD": (6, 4),
    "value_embeddings.1.weight_VD": (6, 4),
    "blocks.0.mlp.up.weight_IO": (4, 8),
    "blocks.0.mlp.down.weight_IO": (8, 4),
    "blocks.0.attention.output.weight_IO": (4, 4),
    "lm_head.weight_IO": (4, 6),
    "residual_scale_L": (2,),
    "input_scale_L": (2,),
    "smear_scale": (),
}
CONFIG = GptMuonConfig(warmup=3, decay=4, momentum_steps=4)
# Rate at the peak, beta1, beta2, decay.
ADAM = {
    "embedding.weight_VD": (0.3, 0.8, 0.995, 0.001),
    "value_embeddings.1.weight_VD": (0.15, 0.8, 0.995, 0.01),
    "lm_head.weight_IO": (0.008, 0.8, 0.96, 0.01),
    "residual_scale_L": (0.005, 0.8, 0.95, 0.05),
    "input_scale_L": (0.5, 0.96, 0.95, 0.0),
    "smear_scale": (0.2, 0.8, 0.95, 0.0),
}


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


def _multiplier(step: int) -> float:
    if step < 3:
        return (step + 1) / 3
    if step <= STEPS - 4:
        return 1.0
    left = (STEPS - step) / 4
    return left + (1 - left) * 0.05


def _momentum(step: int) -> float:
    if step < max(4, STEPS - 4):
        return 0.85 + 0.12 * min(step / 4, 1)
    return 0.97 - 0.07 * (step - (STEPS - 4)) / 4


def _adam(weight, gradients, rate, beta1, beta2, decay):
    first = second = np.zeros_like(weight)
    for t, gradient in enumerate(gradients):
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        direction = (first / (1 - beta1 ** (t + 1))) / (np.sqrt(second / (1 - beta2 ** (t + 1))) + 1e-10)
        weight = weight - rate * _multiplier(t) * (direction + decay * weight)
    return weight


def _polar(x):
    x = x / (np.linalg.norm(x) * 1.01 + 1e-6)
    for a, b, c in POLAR_EXPRESS[:5]:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def _muon(weight_IO, gradients):
    """Written for rows that are outputs, as the original stores its weights."""
    weight = weight_IO.T
    rows, columns = weight.shape
    buffer = np.zeros_like(weight)
    along_rows = rows >= columns  # one mean square for each of the longer side
    variance = np.zeros((rows, 1) if along_rows else (1, columns))
    for t, gradient_IO in enumerate(gradients):
        gradient, mu = gradient_IO.T, _momentum(t)
        buffer = mu * buffer + (1 - mu) * gradient
        g = mu * buffer + (1 - mu) * gradient
        g = g / np.linalg.norm(g, axis=1, keepdims=True)
        g = _polar(g) if rows <= columns else _polar(g.T).T
        g = g * math.sqrt(min(rows, columns)) / np.linalg.norm(g)
        size = np.linalg.norm(g)
        variance = 0.9 * variance + 0.1 * np.mean(g**2, axis=1 if along_rows else 0, keepdims=True)
        g = g / np.sqrt(variance)
        g = g * size / np.linalg.norm(g)
        rate = 0.02 * _multiplier(t) * math.sqrt(max(1, rows / columns))
        decay = 0.28 * 0.5 * (1 + math.cos(math.pi * t / STEPS))
        weight = weight - rate * (g + decay * weight * (g * weight >= 0))
    return weight.T


def test_every_group_follows_the_stages_written_out():
    random = np.random.default_rng(0)
    start = {path: random.normal(size=shape) for path, shape in SHAPES.items()}
    gradients = [{path: random.normal(size=shape) for path, shape in SHAPES.items()} for _ in range(STEPS)]
    params = {path: jnp.asarray(value) for path, value in start.items()}
    optimizer = CONFIG.build(params, STEPS)

    @jax.jit
    def step(gradient, state, params):
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    for gradient in gradients:
        params, state = step({path: jnp.asarray(g) for path, g in gradient.items()}, state, params)
    for path, value in start.items():
        own = [gradient[path] for gradient in gradients]
        expected = _adam(value, own, *ADAM[path]) if path in ADAM else _muon(value, own)
        # The schedules are float32.
        np.testing.assert_allclose(np.asarray(params[path]), expected, rtol=2e-5, atol=2e-6, err_msg=path)


def test_every_parameter_of_the_model_is_in_its_group():
    config = GptConfig(seq_len=16, hidden_dim=32, num_layers=3, num_heads=2)
    with jax.enable_x64(False), jax.numpy_dtype_promotion("strict"):
        shapes = jax.eval_shape(lambda: config.build(70, key=jax.random.key(0)))
    groups: dict[str, list[str]] = {}
    for path, leaf in named_leaves(shapes).items():
        groups.setdefault(group_of(path, leaf), []).append(path)
    assert set(groups.pop("rest")) == {"smear_gate_I", "smear_scale", "backout_scale"}
    assert groups.pop("residual_scale") == ["residual_scale_L"] and groups.pop("input_scale") == ["input_scale_L"]
    assert groups.pop("embedding") == ["embedding.weight_VD"] and groups.pop("head") == ["lm_head.weight_IO"]
    assert len(groups.pop("value_embeddings")) == 2
    assert len(groups["matrix"]) == 3 * 6 + 2 and {path.split(".")[0] for path in groups["matrix"]} == {"blocks"}


def test_a_gradient_of_zero_changes_a_matrix_by_nothing_but_its_decay():
    params = {"blocks.0.mlp.up.weight_IO": jnp.ones((4, 8))}
    optimizer = CONFIG.build(params, STEPS)
    updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
    change = np.asarray(updates["blocks.0.mlp.up.weight_IO"])
    np.testing.assert_allclose(change, -0.02 / 3 * math.sqrt(2) * 0.28, rtol=1e-5)


def test_schedule_rises_rests_and_falls():
    rates = [float(CONFIG.schedule(STEPS)(step)) / 0.02 for step in range(STEPS)]
    assert rates == pytest.approx([_multiplier(step) for step in range(STEPS)], rel=1e-6)
    assert rates[0] == pytest.approx(1 / 3, rel=1e-6) and rates[-1] < 0.3


@pytest.mark.parametrize(
    "options",
    [
        {"weight_decay_modules": ["mlp"]}, {"default_weight_decay_mask": False}, {"default_weight_decay_mask": True},
        {"cycles": 2}, {"cycle_length": 100}, {"rewarmup": 0.1},
    ],
    ids=str,
)  # fmt: skip
def test_what_the_groups_cannot_honour_is_refused_by_the_field_s_name(options):
    with pytest.raises(ConfigError, match=f"`{next(iter(options))}` is"):
        GptMuonConfig(**options)
