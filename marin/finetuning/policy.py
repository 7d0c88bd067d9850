"""The arithmetic of policy gradients on samples that are right or wrong.

On-policy REINFORCE (Williams, 1992) with the mean reward of a question's samples as baseline: the advantage of a sample is
r - mu, not divided by a deviation, with neither a ratio to an older policy nor a penalty for leaving a reference. The loss of a
question is the sum over all chosen tokens of its samples of -advantage x log-probability, divided by how many such tokens there
are, so that long samples do not count less per token (Yu et al., 2025, arXiv:2503.14476); a step takes the mean over questions.
"""

import dataclasses
from collections.abc import Sequence
from math import comb

import numpy as np

from marin.data.rows import Batch

_LEAST_LENGTH = 64


@dataclasses.dataclass(frozen=True)
class Rollout:
    """A sample of a question.

    Args:
        prompt, tokens: what was given, and what followed.
        mask: for each of `tokens` 1 where the model chose it.
        reward: 0 or 1.
    """

    prompt: Sequence[int]
    tokens: Sequence[int]
    mask: Sequence[int]
    reward: float


def advantages(rewards: Sequence[float]) -> list[float]:
    """Each reward less their mean."""
    mean = sum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def policy_batch(groups: Sequence[Sequence[Rollout]], pad_id: int) -> Batch:
    """The samples of a step's questions as rows whose weighted cross-entropy is the loss.

    Weights add up to at most 1, and training divides a loss by the larger of 1 and the sum of the weights: so the loss and its
    gradient are exactly those of the module's text. Rows have one of few lengths, powers of two.
    """
    rows = [rollout for group in groups for rollout in group]
    longest = max(len(rollout.prompt) + len(rollout.tokens) for rollout in rows) - 1
    length = max(_LEAST_LENGTH, 1 << (longest - 1).bit_length())
    tokens_BT = np.full((len(rows), length), pad_id, np.int32)
    targets_BT = np.full((len(rows), length), pad_id, np.int32)
    weight_BT = np.zeros((len(rows), length), np.float32)
    row = 0
    for group in groups:
        chosen = max(1, sum(sum(rollout.mask) for rollout in group))
        for rollout, advantage in zip(group, advantages([rollout.reward for rollout in group]), strict=True):
            ids = [*rollout.prompt, *rollout.tokens]
            tokens_BT[row, : len(ids) - 1] = ids[:-1]
            targets_BT[row, : len(ids) - 1] = ids[1:]
            begin = len(rollout.prompt) - 1
            share = advantage / (chosen * len(groups))
            weight_BT[row, begin : begin + len(rollout.tokens)] = share * np.asarray(rollout.mask, np.float32)
            row += 1
    return Batch(tokens_BT, targets_BT, weight_BT, np.zeros_like(tokens_BT))


def pass_at(k: int, right: Sequence[int], num_samples: int) -> float:
    """The chance that one of `k` samples is right, from how many of `num_samples` were for each question.

    The unbiased estimate of Chen et al. (2021, arXiv:2107.03374): 1 - C(n - c, k) / C(n, k), averaged.
    """
    return sum(1.0 - comb(num_samples - count, k) / comb(num_samples, k) for count in right) / len(right)
