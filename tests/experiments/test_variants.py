"""The variants made by copying the template: small changes, exact figures, and training losses that do what they say."""

import importlib
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from marin.data.rows import Batch
from marin.errors import ConfigError
from marin.nn.precision import Precision
from marin.optim.orthogonalize import orthogonalize_all
from marin.training.state import StepConfig, init_state, make_train_step
from marin.training.traced_flops import forward_flops

TEMPLATE = "experiments.hackable_transformer_starter_template"
VARIANTS = ["hackable_moe", "hackable_multi_token", "hackable_adamuon"]
MOST_CHANGED_LINES = 149
ROWS, LENGTH, VOCAB = 4, 16, 64
SMALL = {"seq_len": LENGTH, "hidden_dim": 16, "intermediate_dim": 32, "num_layers": 2, "num_heads": 2,
         "num_kv_heads": 2, "gradient_checkpointing": False}  # fmt: skip


def _module(name: str) -> ModuleType:
    return importlib.import_module(name if "." in name else f"experiments.speedrun.{name}.main")


def _tokens(seed: int = 0) -> tuple[Any, Any]:
    """Tokens that each follow from the two before, in documents of about eight."""
    random = np.random.default_rng(seed)
    tokens = random.integers(0, VOCAB, (ROWS, LENGTH + 1)).astype(np.int32)
    for position in range(2, LENGTH + 1):
        tokens[:, position] = (tokens[:, position - 1] + tokens[:, position - 2]) % VOCAB
    segments = np.cumsum(random.random((ROWS, LENGTH)) < 0.12, axis=1).astype(np.int32)
    return tokens, segments


def _batch(seed: int = 0) -> Batch:
    tokens, segments = _tokens(seed)
    return Batch(tokens[:, :-1], tokens[:, 1:], np.ones((ROWS, LENGTH), np.float32), segments)


def _small(name: str, **fields: Any) -> Any:
    return _module(name).HackableTransformerConfig(**SMALL | fields)


# ---- what a variant may change ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_is_the_template_but_for_a_few_lines(name: str, repository: Path):
    template, variant = Path(*TEMPLATE.split(".")).with_suffix(".py"), Path("experiments", "speedrun", name, "main.py")
    done = subprocess.run(
        ["git", "diff", "--no-index", "--numstat", str(template), str(variant)],
        cwd=repository, capture_output=True, text=True, check=False,
    )  # fmt: skip
    added, removed, *_ = done.stdout.split()
    assert 0 < int(added) + int(removed) <= MOST_CHANGED_LINES


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_asks_for_the_sizes_and_data_of_the_template(name: str):
    theirs, ours = _module(TEMPLATE).PRESETS, _module(name).PRESETS
    assert ours.keys() == theirs.keys()
    for size, preset in ours.items():
        same = ("train_batch_size", "num_gpus", "tpu_type", "num_train_steps")
        assert [getattr(preset, field) for field in same] == [getattr(theirs[size], field) for field in same]
        assert preset.model.hidden_dim == theirs[size].model.hidden_dim
        assert preset.dataset.name == theirs[size].dataset.name


@pytest.mark.parametrize("name", [TEMPLATE, *VARIANTS])
def test_flops_that_a_variant_states_are_those_of_its_program_but_for_the_softmax(name: str):
    config = _module(name).PRESETS["cpu"].model
    counted = forward_flops(config, 2048, "all").flops
    assert counted == pytest.approx(config.flops_per_token(2048, 256), rel=0.01)


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_takes_steps_that_lower_its_loss(name: str):
    module = _module(name)
    model = _small(name, num_layers=1).build(VOCAB, key=jax.random.key(0))
    optimizer_config = module.PRESETS["cpu"].optimizer
    optimizer = optimizer_config.build(eqx.filter(model, eqx.is_array), 20)
    config = StepConfig(Precision("f32"), loss_block=64)
    step = jax.jit(make_train_step(optimizer, optimizer_config.schedule(20), config))
    state, losses = init_state(model, optimizer, None), []
    for _ in range(20):
        state, metrics = step(state, _batch())
        losses.append(float(metrics["loss"]))
    assert losses[0] == pytest.approx(np.log(VOCAB), rel=0.02)
    assert losses[-1] < 0.6 * losses[0]


# ---- mixture of experts ----------------------------------------------------------------------------------------------


def _experts(**fields: Any) -> Any:
    config = _small("hackable_moe", **fields)
    return _module("hackable_moe").Experts.init(config, key=jax.random.key(1))


def test_experts_give_each_token_the_weighted_sum_of_its_best_two():
    experts = _experts(num_experts=5, intermediate_dim=24)
    x_BTD = jax.random.normal(jax.random.key(2), (2, 7, 16))
    out_BTD, _ = eqx.filter_jit(experts)(x_BTD)
    plain = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), eqx.filter(experts, eqx.is_array))
    for x_D, out_D in zip(np.asarray(x_BTD).reshape(-1, 16), np.asarray(out_BTD).reshape(-1, 16), strict=True):
        chance_E = np.exp(x_D @ plain.router.weight_IO)
        best = np.argsort(-chance_E)[:2]
        expected = np.zeros(16)
        for e in best:
            expert = plain.experts[e]
            gate_F = x_D @ expert.gate.weight_IO
            hidden_F = gate_F / (1 + np.exp(-gate_F)) * (x_D @ expert.up.weight_IO)
            expected += chance_E[e] / chance_E[best].sum() * (hidden_F @ expert.down.weight_IO)
        np.testing.assert_allclose(out_D, expected, rtol=1e-4, atol=1e-7)


def test_balance_loss_is_least_where_routing_is_even_and_rises_where_one_expert_has_all():
    config = _small("hackable_moe", experts_per_token=1)
    experts = _module("hackable_moe").Experts.init(config, key=jax.random.key(1))
    x_BTD = jnp.tile(jnp.eye(4, 16), (1, 4, 1))  # four kinds of tokens

    losses = eqx.filter_jit(lambda experts: experts(x_BTD)[1])

    def balance(router_DE: jax.Array) -> float:
        changed = eqx.tree_at(lambda e: e.router.weight_IO, experts, router_DE)
        return float(losses(changed)["balance_loss"])

    even, all_to_one = 50.0 * jnp.eye(16, 4), 50.0 * jnp.ones((16, 4)) * jnp.array([[1.0, 0.0, 0.0, 0.0]])
    assert balance(even) == pytest.approx(config.balance_loss_weight, rel=1e-3)
    assert balance(all_to_one) == pytest.approx(4 * config.balance_loss_weight, rel=1e-3)


def test_router_learns_from_its_losses_and_scoring_does_not_see_them():
    model = _small("hackable_moe").build(VOCAB, key=jax.random.key(0))
    batch = _batch()

    def own(router_IO: jax.Array) -> jax.Array:
        changed = eqx.tree_at(lambda m: m.blocks[0].mlp.router.weight_IO, model, router_IO)
        return sum(changed.training_activations(batch.tokens_BT, batch.segment_ids_BT)[1].values())

    assert float(jnp.abs(jax.jit(jax.grad(own))(model.blocks[0].mlp.router.weight_IO)).max()) > 0
    x_BTD, losses = eqx.filter_jit(lambda m: m.training_activations(batch.tokens_BT, batch.segment_ids_BT))(model)
    assert losses.keys() == {"balance_loss", "router_z_loss"}
    scored_BTD = eqx.filter_jit(lambda m: m.activations(batch.tokens_BT, batch.segment_ids_BT))(model)
    np.testing.assert_allclose(x_BTD, scored_BTD, rtol=1e-6)


def test_experts_parameters_are_all_counted_and_flops_only_of_those_that_a_token_takes():
    few, many = _small("hackable_moe", num_experts=4), _small("hackable_moe", num_experts=8)
    expert = 3 * 16 * (32 // 2)
    router = 16
    added = many.total_trainable_params(VOCAB) - few.total_trainable_params(VOCAB)
    assert added == 2 * 4 * (expert + router)
    assert many.flops_per_token(VOCAB, LENGTH) - few.flops_per_token(VOCAB, LENGTH) == 2 * 4 * 2 * router


# ---- multi-token prediction ------------------------------------------------------------------------------------------


def test_second_token_loss_is_the_mean_loss_of_the_token_after_the_next_within_documents():
    config = _small("hackable_multi_token")
    model = config.build(VOCAB, key=jax.random.key(0))
    batch = _batch()
    tokens, segments = np.asarray(batch.tokens_BT), np.asarray(batch.segment_ids_BT)
    _, losses = model.training_activations(batch.tokens_BT, batch.segment_ids_BT)

    x_BTD = model._vectors(batch.tokens_BT, batch.segment_ids_BT)
    next_BTD = model.embedding(np.roll(tokens, -1, axis=1))
    logits_BTV = np.asarray(model.second_token(x_BTD, next_BTD, segments) @ model.lm_head_DV, np.float64)
    found = []
    for row in range(ROWS):
        for position in range(LENGTH - 2):
            if segments[row, position] == segments[row, position + 2]:
                logits_V = logits_BTV[row, position]
                found.append(np.log(np.exp(logits_V).sum()) - logits_V[tokens[row, position + 2]])
    assert 0 < len(found) < ROWS * (LENGTH - 2)
    assert float(losses["second_token_loss"]) == pytest.approx(config.second_token_weight * np.mean(found), rel=1e-5)


def test_second_token_sees_the_next_token_and_not_the_one_it_predicts():
    model = _small("hackable_multi_token").build(VOCAB, key=jax.random.key(0))
    tokens, _ = _tokens()
    tokens, position = tokens[:, :-1], 6

    def vector(tokens_BT: Any) -> np.ndarray:
        x_BTD = model._vectors(tokens_BT, None)
        next_BTD = model.embedding(np.roll(tokens_BT, -1, axis=1))
        return np.asarray(model.second_token(x_BTD, next_BTD, None)[:, position])

    changed = [tokens.copy() for _ in range(2)]
    for ahead, other in enumerate(changed, start=1):
        other[:, position + ahead] = (other[:, position + ahead] + 1) % VOCAB
    assert not np.array_equal(vector(changed[0]), vector(tokens))
    np.testing.assert_array_equal(vector(changed[1]), vector(tokens))


def test_scoring_of_the_multi_token_model_begins_as_the_templates():
    ours, theirs = (_small(name).build(VOCAB, key=jax.random.key(0)) for name in ("hackable_multi_token", TEMPLATE))
    batch = _batch()
    np.testing.assert_array_equal(
        ours.activations(batch.tokens_BT, batch.segment_ids_BT),
        theirs.activations(batch.tokens_BT, batch.segment_ids_BT),
    )


# ---- AdaMuon ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nesterov", [False, True])
def test_adamuon_follows_its_paper_and_gives_the_rest_to_adamw(nesterov: bool):
    config = _module("hackable_adamuon").AdaMuonConfig(
        learning_rate=0.125, adam_lr=0.125, weight_decay=0.0625, momentum=0.9, nesterov=nesterov, warmup=0,
        lr_schedule="constant", max_grad_norm=None,
    )  # fmt: skip
    random = np.random.default_rng(0)
    shapes = {"blocks.up.weight_IO": (3, 6), "blocks.down.weight_IO": (6, 3), "norm.weight_D": (3,)}
    start = {path: random.normal(size=shape) for path, shape in shapes.items()}
    gradients = [{path: random.normal(size=shape) for path, shape in shapes.items()} for _ in range(5)]

    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        params = jax.tree.map(jnp.asarray, start)
        optimizer = config.build(params, 5)
        state, update = optimizer.init(params), jax.jit(optimizer.update)
        orthogonalize = jax.jit(lambda m: orthogonalize_all([m], num_steps=5, epsilon=config.muon_epsilon)[0])
        for gradient in gradients:
            updates, state = update(jax.tree.map(jnp.asarray, gradient), state, params)
            params = optax.apply_updates(params, updates)

        for path in ("blocks.up.weight_IO", "blocks.down.weight_IO"):
            weight, momentum, variance = start[path].copy(), 0.0, 0.0
            for gradient in gradients:
                momentum = 0.9 * momentum + gradient[path]
                ahead = 0.9 * momentum + gradient[path] if nesterov else momentum
                orthogonal = np.asarray(orthogonalize(np.sign(ahead)))
                variance = 0.9 * variance + 0.1 * orthogonal**2
                direction = orthogonal / (np.sqrt(variance) + 1e-8)
                direction *= 0.2 * np.sqrt(direction.size) / np.linalg.norm(direction)
                weight -= 0.125 * (direction + 0.0625 * weight)
            np.testing.assert_allclose(params[path], weight, rtol=1e-9, err_msg=path)
    assert not np.array_equal(params["norm.weight_D"], start["norm.weight_D"])


def test_adamuon_refuses_a_scale_that_it_does_not_use():
    with pytest.raises(ConfigError, match="use_kimi_scaling"):
        _module("hackable_adamuon").AdaMuonConfig(use_kimi_scaling=True)
