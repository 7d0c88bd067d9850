"""ADOPT (Taniguchi et al., 2024, arXiv:2411.02853), from Optax: Adam whose second moment leaves out the newest gradient.

The gradient is divided by the root of the moment of the steps before, clipped to step^0.25, and only then averaged. The
first step only measures the moment and moves nothing.
"""

import dataclasses

import optax

from marin.optim.adamw import AdamConfig
from marin.optim.config import clip


@dataclasses.dataclass(frozen=True)
class AdoptConfig(AdamConfig):
    """ADOPT with decoupled weight decay; `epsilon` is the least that a gradient is divided by."""

    beta2: float = 0.9999
    epsilon: float = 1e-6

    def build(self, model: object, num_train_steps: int) -> optax.GradientTransformation:
        return optax.chain(
            clip(self.max_grad_norm),
            optax.contrib.scale_by_adopt(self.beta1, self.beta2, self.epsilon, nesterov=self.nesterov),
            *self.decay_and_rate(num_train_steps),
        )
