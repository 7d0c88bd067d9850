"""The policy gradient against its formula, and pass@k against enumeration."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin.finetuning.policy import Rollout, advantages, pass_at, policy_batch
from marin.nn.loss import weighted_cross_entropy

GROUPS = [
    [Rollout([1, 2], [3, 4, 5], [1, 0, 1], 1.0), Rollout([1, 2], [6], [1], 0.0)],
    [Rollout([1, 7, 7], [8, 9], [1, 1], 0.0), Rollout([1, 7, 7], [9, 9, 9], [1, 1, 1], 0.0)],
    [Rollout([2], [3], [1], 1.0), Rollout([2], [4, 4], [1, 1], 0.0)],
]


def test_advantages_are_rewards_less_their_mean():
    assert advantages([1.0, 0.0, 0.0, 1.0]) == [0.5, -0.5, -0.5, 0.5]
    assert advantages([1.0, 1.0]) == [0.0, 0.0]


def test_policy_batch_is_the_worked_example():
    batch = policy_batch(GROUPS, pad_id=0)
    assert batch.tokens_BT.shape == (6, 64)
    assert batch.tokens_BT[0, :6].tolist() == [1, 2, 3, 4, 0, 0]
    assert batch.targets_BT[0, :6].tolist() == [2, 3, 4, 5, 0, 0]
    # The first question's three chosen tokens share it: +-1/2 by three tokens by three questions; a tool's token counts nothing.
    share = 0.5 / 9
    assert batch.weight_BT[0, :6].tolist() == pytest.approx([0, share, 0, share, 0, 0])
    assert batch.weight_BT[1, :3].tolist() == pytest.approx([0, -share, 0])
    assert not batch.weight_BT[2:4].any()  # samples that are all wrong say nothing
    assert abs(batch.weight_BT.sum()) <= 1


def test_gradient_is_that_of_the_formula():
    """The framework's loss of the batch, and -(1/Q) sum over questions of sum A log p / (chosen tokens), written out."""
    keys = jax.random.split(jax.random.key(0), 2)
    embedding_VD, head_DV = (jax.random.normal(key, shape) for key, shape in zip(keys, [(10, 4), (4, 10)], strict=True))
    batch = policy_batch(GROUPS, pad_id=0)

    def framework(embedding_VD):
        nats, _ = weighted_cross_entropy(embedding_VD[batch.tokens_BT], head_DV, batch.targets_BT, batch.weight_BT, 64)
        return nats / jnp.maximum(jnp.sum(batch.weight_BT), 1.0)

    def formula(embedding_VD):
        total = 0.0
        for group in GROUPS:
            mean = sum(rollout.reward for rollout in group) / len(group)
            chosen = sum(sum(rollout.mask) for rollout in group)
            for rollout in group:
                ids = [*rollout.prompt, *rollout.tokens]
                for place, (token, mask) in enumerate(zip(rollout.tokens, rollout.mask, strict=True)):
                    before = ids[len(rollout.prompt) + place - 1]
                    logp = jax.nn.log_softmax(embedding_VD[before] @ head_DV)[token]
                    total -= (rollout.reward - mean) * mask * logp / chosen
        return total / len(GROUPS)

    ours, theirs = (jax.jit(jax.value_and_grad(loss))(embedding_VD) for loss in (framework, formula))
    assert float(ours[0]) == pytest.approx(float(theirs[0]), abs=1e-6)
    np.testing.assert_allclose(ours[1], theirs[1], atol=1e-6)


def test_pass_at_k_is_the_share_of_choices_with_a_right_one():
    for count, k in itertools.product(range(6), range(1, 6)):
        samples = [1] * count + [0] * (5 - count)
        share = sum(any(chosen) for chosen in itertools.combinations(samples, k)) / math.comb(5, k)
        assert pass_at(k, [count], 5) == pytest.approx(share)
    assert pass_at(1, [0, 5], 5) == 0.5


def test_rows_have_one_of_few_lengths():
    for longest, length in ((3, 64), (64, 64), (65, 128), (200, 256)):
        batch = policy_batch([[Rollout([1], [2] * longest, [1] * longest, 1.0)]], pad_id=0)
        assert batch.tokens_BT.shape == (1, length)
