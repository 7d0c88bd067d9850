"""What holds for every optimizer of the package, also for one that is added: found by looking, named nowhere."""

import ast
import dataclasses
import importlib
import inspect
import pkgutil
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import marin.optim
from marin.data.rows import Batch
from marin.errors import ConfigError
from marin.nn import Embedding, Linear, RmsNorm, RmsNormConfig
from marin.nn.precision import Precision
from marin.optim import AdamConfig, OptimizerConfig, ParameterGroup
from marin.training.config_json import config_to_json
from marin.training.state import StepConfig, init_state, make_train_step
from marin.training.warm_start import with_fresh_schedules

FOLDER = Path(marin.optim.__file__).parent
# The two that the package itself exports, and the one that makes optimizers out of others.
EXPORTED = {"AdamConfig", "MuonConfig", "GroupsConfig"}
# Those that a pipeline of the package chooses for the user.
APPLIED = {"GptMuonConfig"}


def _all_configs() -> dict[str, type[OptimizerConfig]]:
    found = {}
    for info in pkgutil.iter_modules([str(FOLDER)]):
        module = importlib.import_module(f"marin.optim.{info.name}")
        for name, value in vars(module).items():
            own = inspect.isclass(value) and value.__module__ == module.__name__
            if own and issubclass(value, OptimizerConfig) and value is not OptimizerConfig:
                found[name] = value
    return found


CONFIGS = _all_configs()
NEEDED = {"GroupsConfig": {"learning_rate": 3e-3, "groups": [ParameterGroup("*", AdamConfig(learning_rate=3e-3))]}}


def _make(name: str, **options: object) -> OptimizerConfig:
    return CONFIGS[name](**(NEEDED.get(name, {}) | options))


def test_the_package_has_the_optimizers_that_the_reference_and_the_contest_use():
    wanted = "Adam Lion Muon NorMuon AdamH MuonH Scion Soap Sophia Mars Adopt Ademamix Groups"
    assert {f"{name}Config" for name in wanted.split()} <= CONFIGS.keys()


@pytest.mark.parametrize("name", CONFIGS)
def test_optimizer_is_one_file_that_names_its_paper_and_stands_nowhere_else(name: str, repository: Path):
    home = Path(inspect.getfile(CONFIGS[name]))
    if name not in EXPORTED | APPLIED:
        about = ast.get_docstring(ast.parse(home.read_text())) or ""
        assert "et al., 20" in about, (
            f"{home.name}: its docstring names no paper, such as (Chen et al., 2023, arXiv:2302.06675)"
        )
        others = [path for path in (repository / "marin").rglob("*.py") if path != home]
        assert [path.name for path in others if name in path.read_text()] == []
    assert len(home.read_text().splitlines()) <= 300


@pytest.mark.parametrize("name", CONFIGS)
def test_optimizer_config_is_frozen_documented_and_plain_json(name: str):
    config = _make(name)
    usual = {field.name for field in dataclasses.fields(AdamConfig)}
    own = [field for field in CONFIGS[name].__annotations__ if field not in usual]
    unsaid = [field for field in own if field not in (CONFIGS[name].__doc__ or "")]
    assert not unsaid, f"{name}: its docstring does not say what {', '.join(unsaid)} are"
    assert isinstance(config_to_json(config), dict)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.learning_rate = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "field"),
    [(n, f.name) for n in CONFIGS for f in dataclasses.fields(CONFIGS[n]) if isinstance(f.default, float)],
)
def test_optimizer_refuses_a_number_that_is_none_and_names_the_field(name: str, field: str):
    for bad in (float("nan"), "0.1", -1.0):
        refused = ""
        try:
            _make(name, **{field: bad})
        except ConfigError as error:
            refused = str(error)
        assert field in refused, f"{name}({field}={bad!r}): refuse it in `__post_init__`, as with `check_range`"


class Tiny(eqx.Module):
    """One layer without attention, with a parameter of each role: it learns which token follows which."""

    embedding: Embedding
    blocks: tuple[Linear, Linear]
    norm: RmsNorm
    lm_head: Linear
    logit_softcap: float | None = eqx.field(static=True, default=None)

    @property
    def lm_head_DV(self) -> jax.Array:
        return self.lm_head.weight_IO

    def activations(self, tokens_BT: jax.Array, segment_ids_BT: jax.Array) -> jax.Array:
        x_BTD = self.embedding(tokens_BT)
        up, down = self.blocks
        return self.norm(x_BTD + down(jax.nn.relu(up(x_BTD))))


@pytest.fixture(scope="module")
def model() -> Tiny:
    def build() -> Tiny:
        keys = jax.random.split(jax.random.key(0), 4)
        return Tiny(
            Embedding.init(30, 16, key=keys[0], std=0.5),
            (Linear.init(16, 24, key=keys[1], std=0.2), Linear.init(24, 16, key=keys[2], std=0.2)),
            RmsNormConfig().build(16),
            Linear.init(16, 30, key=keys[3], std=0.02),
        )

    return eqx.filter_jit(build)()


@pytest.mark.parametrize("name", CONFIGS)
def test_optimizer_lowers_the_loss_of_a_tiny_model_and_keeps_the_types_of_its_state(name: str, model: Tiny):
    options = {"lr_schedule": "constant", "warmup": 0} if name not in NEEDED else {}
    config = _make(name, **options)
    optimizer = config.build(eqx.filter(model, eqx.is_array), 40)
    step = jax.jit(make_train_step(optimizer, config.schedule(40), StepConfig(Precision("f32"))))
    tokens = np.random.default_rng(1).integers(0, 30, (4, 9)).astype(np.int32)
    batch = Batch(tokens[:, :-1], tokens[:, 1:], np.ones((4, 8), np.float32), np.zeros((4, 8), np.int32))
    state, losses = jax.jit(lambda model: init_state(model, optimizer, None))(model), []
    types = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state)
    for _ in range(40):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    assert np.all(np.isfinite(losses))
    assert losses[-1] < losses[0] - 0.05
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state) == types


@pytest.mark.parametrize("name", CONFIGS)
def test_gradient_of_zero_moves_no_hidden_matrix(name: str):
    """As that of what stands before a projection that begins at zero, which is how `Gpt` begins."""
    options = {"lr_schedule": "constant", "warmup": 0, "weight_decay": 0.0}
    config = CONFIGS["AdamConfig"](**options) if name in NEEDED else _make(name, **options)
    if name in NEEDED:
        config = CONFIGS[name](learning_rate=config.learning_rate, groups=[ParameterGroup("*", config)])
    matrix = np.random.default_rng(0).normal(size=(48, 96)).astype(np.float32)
    start = jax.tree.map(jnp.asarray, {"up": matrix, "down": matrix.T, "zero": np.zeros_like(matrix)})
    optimizer = optax.with_extra_args_support(config.build(start, 4))
    params, state, gradients = start, optimizer.init(start), jax.tree.map(jnp.zeros_like, start)
    for _ in range(3):
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimizer.update(gradients, state, params, obj_fn=lambda params: jnp.zeros(()))
        params = optax.apply_updates(params, updates)
    for before, after in zip(start.values(), params.values(), strict=True):
        np.testing.assert_allclose(after, before, atol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_optimizer_that_begins_with_gathered_moments_has_the_rates_of_a_first_step(name: str, model: Tiny):
    options = {"lr_schedule": "linear", "warmup": 0, "decay": None, "min_lr_ratio": 0.0, "weight_decay": 0.0}
    config, steps = CONFIGS["AdamConfig"](**options) if name in NEEDED else _make(name, **options), 4
    if name in NEEDED:
        config = CONFIGS[name](learning_rate=config.learning_rate, groups=[ParameterGroup("*", config)])
    optimizer = config.build(eqx.filter(model, eqx.is_array), steps)
    step = jax.jit(make_train_step(optimizer, config.schedule(steps), StepConfig(Precision("f32"))))
    tokens = np.random.default_rng(1).integers(0, 30, (4, 9)).astype(np.int32)
    batch = Batch(tokens[:, :-1], tokens[:, 1:], np.ones((4, 8), np.float32), np.zeros((4, 8), np.int32))

    def moves(state) -> list[float]:
        after, _ = step(state, batch)
        pairs = zip(*(jax.tree.leaves(eqx.filter(one.model, eqx.is_array)) for one in (state, after)), strict=True)
        return [float(np.linalg.norm(after - before)) for before, after in pairs]

    state = fresh = jax.jit(lambda model: init_state(model, optimizer, None))(model)
    largest = moves(state)
    for _ in range(steps):
        largest = [max(pair) for pair in zip(largest, moves(state), strict=True)]
        state, _ = step(state, batch)
    begun = dataclasses.replace(state, opt_state=with_fresh_schedules(fresh.opt_state, state.opt_state))
    for most, at_the_end, again in zip(largest, moves(state), moves(begun), strict=True):
        assert most > 0
        assert at_the_end < 1e-3 * most
        assert again > 0.05 * most
