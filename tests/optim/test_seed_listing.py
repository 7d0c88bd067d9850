"""The seed's whole `optimizer_config` listing is honoured: each field, set to another value, changes what it should."""

import dataclasses
import functools
import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin.errors import ConfigError
from marin.optim import MuonConfig
from marin.training.config_json import config_to_json

STEPS = 10
SHAPES = {"embedding.w": (5, 3), "blocks.up.w": (3, 6), "blocks.down.w": (6, 3), "norm.w": (3,), "lm_head.w": (3, 5)}
MATRICES = {"blocks.up.w", "blocks.down.w"}
REST = SHAPES.keys() - MATRICES

# field -> (another value, what changes). `rates` are the schedule's; names are parameters whose weights differ after 10 steps.
EFFECTS = {
    "learning_rate": (0.064, {"rates", *MATRICES}),
    "weight_decay": (0.3, SHAPES.keys() - {"norm.w"}),
    "min_lr_ratio": (0.5, {"rates", *SHAPES}),
    "warmup": (0.2, {"rates", *SHAPES}),
    "decay": (0.5, {"rates", *SHAPES}),
    "rewarmup": (3, {"rates", *SHAPES}),
    "weight_decay_modules": ("up", SHAPES.keys() - {"norm.w", "blocks.up.w"}),
    "default_weight_decay_mask": (False, {"norm.w"}),
    "lr": (0.032, set()),  # the reference does not read it either; only a value that contradicts is refused
    "adam_lr": (0.0128, REST),
    "momentum": (0.5, MATRICES),
    "nesterov": (False, MATRICES),
    "backend_steps": (3, MATRICES),
    "adam_weight_decay": (0.3, REST - {"norm.w"}),
    "beta1": (0.5, REST),
    "beta2": (0.5, REST),
    "epsilon": (1.0, REST),
    "muon_epsilon": (1.0, MATRICES),
    "max_grad_norm": (0.5, REST),
    "use_kimi_scaling": (True, MATRICES),
}


@pytest.fixture(autouse=True)
def _optax_promotion():
    """Optax raises float decay rates to integer counts; the training step allows it that too."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(scope="module")
def listing(seeds: Path) -> dict[str, object]:
    """The `optimizer_config` of the seeds' dry-run output, as it stands there."""
    found = [
        match[1]
        for path in sorted(seeds.iterdir())
        for match in re.finditer(r'"optimizer_config":\s*(\{[^{}]*\})', path.read_text())
    ]
    assert len(found) == 1
    return dict(json.loads(found[0]))


@functools.cache
def _observe(config: MuonConfig) -> dict[str, np.ndarray]:
    """Rates by step, and the weights after ten steps of random gradients of a size that is clipped by 0.5 only."""
    random = np.random.default_rng(0)
    params = {path: jnp.asarray(random.normal(size=shape), jnp.float32) for path, shape in SHAPES.items()}
    optimizer = config.build(params, STEPS)
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for _ in range(STEPS):
        gradients = {p: jnp.asarray(random.normal(size=shape) * 0.1, jnp.float32) for p, shape in SHAPES.items()}
        updates, state = update(gradients, state, params)
        params = jax.tree.map(jnp.add, params, updates)
    rates = np.asarray(config.schedule(STEPS)(jnp.arange(STEPS)))
    return {"rates": rates} | {path: np.asarray(value) for path, value in params.items()}


def test_listing_makes_a_config_that_prints_as_the_listing(listing: dict[str, object]):
    config = MuonConfig(**listing)
    assert config_to_json(config, omit_defaults=True) == listing


def test_effects_name_every_field_of_the_listing(listing: dict[str, object]):
    assert EFFECTS.keys() == listing.keys()


@pytest.mark.parametrize("field", EFFECTS)
def test_field_of_the_listing_changes_what_it_says_and_nothing_else(listing: dict[str, object], field: str):
    # `rewarmup` needs a second cycle to act on, and no clipping hides what is not clipped.
    setting = {"cycles": 2, "decay": 0.4} if field == "rewarmup" else {}
    config = MuonConfig(**listing | {"max_grad_norm": None} | setting)
    value, expected = EFFECTS[field]
    before, after = _observe(config), _observe(dataclasses.replace(config, **{field: value}))
    assert {name for name in before if not np.array_equal(before[name], after[name])} == set(expected)


def test_lr_that_contradicts_is_refused_and_not_ignored(listing: dict[str, object]):
    with pytest.raises(ConfigError, match=r"optimizer_config\.lr"):
        MuonConfig(**listing | {"lr": 0.5})
