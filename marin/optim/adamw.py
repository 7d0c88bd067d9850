"""AdamW (Loshchilov and Hutter, 2019, arXiv:1711.05101), from Optax."""

import dataclasses
from typing import Any

import optax

from marin.optim.config import LEAST_EPSILON, OptimizerConfig, check_range, clip


@dataclasses.dataclass(frozen=True)
class AdamConfig(OptimizerConfig):
    """Adam with decoupled weight decay and clipping by the global norm; `max_grad_norm=None` does not clip."""

    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    max_grad_norm: float | None = 1.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_adam_fields(self)

    def build(self, model: object, num_train_steps: int) -> optax.GradientTransformation:
        return adamw(
            self, num_train_steps, peak=self.learning_rate, weight_decay=self.weight_decay, nesterov=self.nesterov
        )


def adamw(
    config: Any, num_train_steps: int, *, peak: float, weight_decay: float, nesterov: bool = False
) -> optax.GradientTransformation:
    """AdamW with the clipping, moments and schedule of a config that has Adam's fields, at a rate of its own."""
    return optax.chain(
        clip(config.max_grad_norm),
        optax.scale_by_adam(config.beta1, config.beta2, config.epsilon, nesterov=nesterov),
        optax.add_decayed_weights(weight_decay, config.decay_mask()),
        optax.scale_by_learning_rate(config.schedule(num_train_steps, peak=peak)),
    )


def check_adam_fields(config: Any, *more_rates: str) -> None:
    """Checks `beta1`, `beta2`, `epsilon`, `max_grad_norm`, and decay rates of further moments by name.

    Raises:
        ConfigError: if one cannot work.
    """
    for field in ("beta1", "beta2", *more_rates):
        check_range(field, getattr(config, field), at_least=0.0, below=1.0)
    check_range("epsilon", config.epsilon, at_least=LEAST_EPSILON)
    if config.max_grad_norm is not None:
        check_range("max_grad_norm", config.max_grad_norm, above=0.0)
