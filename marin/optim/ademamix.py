"""AdEMAMix (Pagliardini et al., 2024, arXiv:2409.03137), from Optax: Adam with a second, much slower momentum.

    update = (m1 / (1 - beta1^t) + alpha(t) m2) / (sqrt(v / (1 - beta2^t)) + epsilon)

m2 averages over thousands of steps. Its weight alpha grows linearly to its value, and its decay rate from beta1 to beta3
such that the half-life grows linearly, over the first `ramp` of the run.
"""

import dataclasses
import math

import jax.numpy as jnp
import optax
from jaxtyping import Array

from marin.optim.adamw import check_adam_fields
from marin.optim.config import OptimizerConfig, check_range, clip
from marin.optim.schedule import Schedule, steps_of


@dataclasses.dataclass(frozen=True)
class AdemamixConfig(OptimizerConfig):
    """AdEMAMix with decoupled weight decay; the defaults are the paper's for language models.

    Args:
        beta3: decay rate of the slow momentum.
        alpha: weight of the slow momentum.
        ramp: how long `alpha` and `beta3` take to their values: a fraction of the run up to 1, or steps.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    beta3: float = 0.9999
    alpha: float = 8.0
    ramp: float = 1.0
    epsilon: float = 1e-8
    max_grad_norm: float | None = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_adam_fields(self, "beta3")
        check_range("beta1", self.beta1, above=0.0, below=1.0)
        check_range("beta3", self.beta3, at_least=self.beta1, below=1.0)
        check_range("alpha", self.alpha, at_least=0.0)
        check_range("ramp", self.ramp, at_least=0.0)

    def build(self, model: object, num_train_steps: int) -> optax.GradientTransformation:
        steps = max(1, steps_of(self.ramp, num_train_steps, "ramp"))
        return optax.chain(
            clip(self.max_grad_norm),
            optax.contrib.scale_by_ademamix(
                self.beta1,
                self.beta2,
                slow_rate(self.beta1, self.beta3, steps),
                rising(self.alpha, steps),
                self.epsilon,
            ),
            *self.decay_and_rate(num_train_steps),
        )


def rising(value: float, steps: int) -> Schedule:
    """Linear to `value` at the step of this number."""
    return lambda count: value * _progress(count, steps)


def slow_rate(first: float, last: float, steps: int) -> Schedule:
    """A decay rate from `first` to `last` whose logarithm's inverse, the half-life, is linear in the step."""
    log_first, log_last = math.log(first), math.log(last)

    def rate(count: Array) -> Array:
        progress = _progress(count, steps)
        return jnp.exp(log_first * log_last / ((1.0 - progress) * log_last + progress * log_first))

    return rate


def _progress(count: Array, steps: int) -> Array:
    """Optax counts steps from 0, the paper from 1."""
    return jnp.minimum((count + 1).astype(float) / steps, 1.0)
