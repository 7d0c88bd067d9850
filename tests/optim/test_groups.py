"""Parameter groups: each parameter takes its group's optimizer and nothing of the others."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from marin.errors import ConfigError
from marin.models.gpt2 import Gpt2Config
from marin.optim import AdamConfig, GroupsConfig, MuonConfig, ParameterGroup
from marin.optim.config import parameter_role
from marin.optim.lion import LionConfig
from marin.optim.sophia import SophiaConfig
from marin.resources import CpuOnlyConfig
from marin.training.config import SimpleTrainConfig
from marin.training.placement import parameter_shapes

SHAPES = {"embedding.w": (5, 3), "value_embeds.w": (5, 3), "blocks.up.w": (3, 4), "norm.w": (3,), "lm_head.w": (3, 5)}


@pytest.fixture(autouse=True)
def _optax_promotion():
    """Optax raises float decay rates to integer counts; the training step allows it that too."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def _tree(seed: int, names: dict[str, tuple[int, ...]] = SHAPES) -> dict[str, jax.Array]:
    return {
        path: jax.random.normal(jax.random.key(seed + i), SHAPES[path])
        for i, path in enumerate(SHAPES)
        if path in names
    }


def _updates(config, names=SHAPES) -> dict[str, jax.Array]:
    params = _tree(0, names)
    optimizer = config.build(params, 10)
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for seed in (10, 20, 30):
        updates, state = update(_tree(seed, names), state, params)
    return updates


def _constant(kind, rate, **options):
    return kind(learning_rate=rate, lr_schedule="constant", warmup=0, **options)


def test_parameter_role_tells_matrix_embedding_head_and_other_apart():
    roles = {path: parameter_role(path, jnp.zeros(shape)) for path, shape in SHAPES.items()}
    assert list(roles.values()) == ["embedding", "embedding", "matrix", "other", "head"]
    assert parameter_role("blocks.experts.w", jnp.zeros((2, 3, 4))) == "other"


def test_tables_and_heads_that_are_arrays_of_their_own_are_no_hidden_matrices():
    """A model may hold what `LmModel` asks for, `lm_head_DV`, as an array; GPT-2 learns a row for each position."""
    names = ("lm_head_DV", "position_SD", "wpe.weight_TD", "wte", "blocks.0.position_mixer.weight_IO", "blocks.0.up_DF")
    roles = [parameter_role(name, jnp.zeros((3, 4))) for name in names]
    assert roles == ["head", "embedding", "embedding", "embedding", "matrix", "matrix"]


def test_muon_gives_the_positions_of_gpt2_to_adam():
    shapes = parameter_shapes(Gpt2Config(seq_len=8, hidden_dim=4, num_layers=1, num_heads=2), 16)
    params = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), shapes)
    optimizer = _constant(MuonConfig, 0.1, adam_lr=0.001, weight_decay=0.0).build(params, 10)
    updates, _ = optimizer.update(jax.tree.map(jnp.ones_like, params), optimizer.init(params), params)
    assert jnp.allclose(updates.position_SD, -0.001) and not jnp.allclose(updates.blocks[0].up.weight_IO, -0.001)


def test_each_group_steps_as_its_optimizer_alone_would():
    muon, head = _constant(MuonConfig, 0.1), _constant(LionConfig, 0.2, max_grad_norm=None)
    values, rest = _constant(AdamConfig, 0.3, beta2=0.5), _constant(AdamConfig, 0.4, weight_decay=0.0)
    groups = [
        ParameterGroup("matrix", muon),
        ParameterGroup("head", head),
        ParameterGroup(r"re:value_\w+", values),
        ParameterGroup("*", rest),
    ]
    updates = _updates(GroupsConfig(learning_rate=0.1, groups=groups))
    for config, names in [
        (muon, ["blocks.up.w"]), (head, ["lm_head.w"]), (values, ["value_embeds.w"]), (rest, ["embedding.w", "norm.w"]),
    ]:  # fmt: skip
        alone = _updates(config, dict.fromkeys(names, ()))
        for name in names:
            np.testing.assert_allclose(updates[name], alone[name], rtol=1e-6)


def test_a_parameter_belongs_to_the_first_group_that_takes_it():
    still = _constant(AdamConfig, 1e-30, weight_decay=0.0)
    groups = [ParameterGroup("re:^value", still), ParameterGroup("embedding", _constant(LionConfig, 1.0)), ParameterGroup("*", still)]  # fmt: skip
    updates = _updates(GroupsConfig(learning_rate=1e-30, groups=groups))
    assert float(jnp.abs(updates["value_embeds.w"]).max()) < 1e-20
    assert float(jnp.abs(updates["embedding.w"]).min()) > 0.5


def test_recorded_rate_is_the_first_groups_schedule():
    linear = AdamConfig(learning_rate=0.5, warmup=0, lr_schedule="linear", min_lr_ratio=0.0)
    config = GroupsConfig(learning_rate=0.5, groups=[ParameterGroup("*", linear)])
    np.testing.assert_allclose(config.schedule(4)(jnp.arange(4)), [0.5, 0.375, 0.25, 0.125])


def test_groups_are_taken_by_a_train_config():
    config = GroupsConfig(learning_rate=0.5, groups=[ParameterGroup("*", AdamConfig(learning_rate=0.5))])
    train = SimpleTrainConfig(CpuOnlyConfig(), train_batch_size=8, num_train_steps=10, learning_rate=0.5, optimizer_config=config)  # fmt: skip
    assert train.build_optimizer() is config


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GroupsConfig(), "`groups` is empty"),
        (lambda: ParameterGroup("matrices", AdamConfig()), "use one of matrix, embedding, head, other"),
        (lambda: ParameterGroup("re:(", AdamConfig()), "no regular expression"),
        (lambda: ParameterGroup("*", optax.adam(0.1)), "use a config"),
        (lambda: GroupsConfig(learning_rate=0.1, groups=[ParameterGroup("*", AdamConfig())]), "first group's is 0.0006"),
        (lambda: GroupsConfig(groups=[ParameterGroup("*", AdamConfig())], warmup=0.5), "`warmup` is set beside"),
    ],
)  # fmt: skip
def test_groups_that_cannot_be_are_refused(make, message: str):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (["matrix", "embedding", "head"], "`norm.w` is in no group"),
        (["re:conv", "*"], "no parameter is left for the group 're:conv'"),
    ],
)
def test_groups_that_do_not_fit_the_model_are_refused_with_the_name(groups: list[str], message: str):
    config = GroupsConfig(groups=[ParameterGroup(name, AdamConfig()) for name in groups])
    with pytest.raises(ConfigError, match=message):
        config.build(_tree(0), 10)


@pytest.mark.parametrize("nested", [False, True])
def test_a_group_s_optimizer_that_asks_for_the_loss_gets_it_with_all_other_parameters(nested: bool):
    """The loss is half a weighted sum of squares, whose weights are of another group: its Hessian is known for any random signs."""
    sophia, rest = _constant(SophiaConfig, 1e-3, update_interval=1), _constant(AdamConfig, 1e-3)
    groups = [ParameterGroup("matrix", sophia), ParameterGroup("*", rest)]
    if nested:
        groups = [ParameterGroup("re:norm", rest), ParameterGroup("*", GroupsConfig(learning_rate=1e-3, groups=groups))]
    params = _tree(0)

    def loss(params):
        return 0.5 * jnp.sum(params["norm.w"][:, None] * jnp.square(params["blocks.up.w"]))

    def first_step(config, params, loss):
        optimizer = config.build(params, 10)
        gradients = jax.tree.map(lambda leaf: 1e-3 * leaf, params)
        return optimizer.update(gradients, optimizer.init(params), params, loss=loss(params), obj_fn=loss)[0]

    own = {"blocks.up.w": params["blocks.up.w"]}
    alone = first_step(sophia, own, lambda own: loss(params | own))
    grouped = first_step(GroupsConfig(learning_rate=1e-3, groups=groups), params, loss)
    np.testing.assert_allclose(grouped["blocks.up.w"], alone["blocks.up.w"], rtol=1e-6)
    assert len(np.unique(np.abs(grouped["blocks.up.w"]))) > 6  # not all are clipped to the rate
