"""What an optimizer begins with in a run: radii of Hyperball, random signs of Sophia."""

import jax
import numpy as np
import pytest

from marin.errors import ConfigError
from marin.models import GptConfig
from marin.nn.trees import named_leaves
from marin.optim import AdamConfig, MuonConfig
from marin.optim.groups import GroupsConfig, ParameterGroup
from marin.optim.hyperball import AdamHConfig, MuonHConfig
from marin.optim.sophia import SophiaConfig
from marin.training.loop import train_lm

GPT = GptConfig(seq_len=32, hidden_dim=24, num_layers=1, num_heads=2)


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize(
    "optimizer",
    [
        MuonHConfig(learning_rate=0.02),
        AdamHConfig(learning_rate=0.02),
        GroupsConfig(
            learning_rate=0.02, groups=[ParameterGroup("matrix", MuonHConfig()), ParameterGroup("*", AdamConfig())]
        ),
    ],
    ids=["muonh", "adamh", "groups"],
)
def test_hyperball_refuses_matrices_that_begin_at_zero_before_training(make_config, tmp_path, optimizer, skips):
    config = make_config("zero", model=GPT, optimizer_config=optimizer, skip_bad_steps=skips)
    with pytest.raises(ConfigError, match=r"2 begin at zero, such as `blocks\.0\.attention\.output\.weight_IO`"):
        train_lm(config)
    assert not (tmp_path / "zero" / "run.json").exists()


def test_hyperball_moves_every_matrix_of_a_model_whose_zeros_have_the_optimizer_that_the_message_names(make_config):
    with pytest.raises(ConfigError) as caught:
        train_lm(make_config("zero", model=GPT, optimizer_config=MuonHConfig()))
    pattern = str(caught.value).split("ParameterGroup('")[1].split("'")[0]
    groups = [
        ParameterGroup(pattern, MuonConfig(learning_rate=0.02)),
        ParameterGroup("matrix", MuonHConfig(learning_rate=0.02)),
        ParameterGroup("*", AdamConfig()),
    ]
    optimizer = GroupsConfig(learning_rate=0.02, groups=groups)
    config = make_config("moved", model=GPT, optimizer_config=optimizer, steps_per_export=1, num_train_steps=3)
    last = named_leaves(train_lm(config).model)
    first = named_leaves(GPT.build(config.vocab_size, key=jax.random.key(0)))
    for name, value in last.items():
        if name.startswith("blocks"):
            assert not np.array_equal(np.asarray(value), np.asarray(first[name])), name


def _signs(state):
    return [np.asarray(value) for name, value in named_leaves(state.opt_state).items() if "signs" in name]


def test_signs_of_sophia_follow_from_the_seed_of_the_run_and_of_one_that_begins_from_its_weights(make_config):
    sophia = SophiaConfig(learning_rate=1e-3, warmup=0, update_interval=1)
    options = {"optimizer_config": sophia, "num_train_steps": 2}
    one = train_lm(make_config("one", seed=1, **options))
    again = train_lm(make_config("again", seed=1, **options))
    other = train_lm(make_config("other", seed=2, **options))
    np.testing.assert_array_equal(_signs(one), _signs(again))
    assert not np.array_equal(_signs(one), _signs(other))
    origin = make_config("one", seed=1, **options).output_path
    for more in ({}, {"initialize_optimizer": True}):
        warm = [
            train_lm(
                make_config(
                    f"warm-{seed}-{len(more)}", seed=seed, initialize_from_checkpoint_path=origin, **more, **options
                )
            )
            for seed in (1, 2)
        ]
        # The weights and moments that they begin with are the same: only the signs tell them apart.
        np.testing.assert_array_equal(_signs(warm[0]), _signs(one))
        np.testing.assert_array_equal(_signs(warm[1]), _signs(other))
        head = [np.asarray(named_leaves(state.model)["blocks.0.mlp.up.weight_IO"]) for state in warm]
        assert not np.array_equal(*head)
