"""AdamW (Loshchilov and Hutter, 2019, arXiv:1711.05101), from Optax."""

import dataclasses
from typing import Any

import optax

from marin.optim.config import OptimizerConfig, check_range


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
        return optax.chain(
            optax.clip_by_global_norm(self.max_grad_norm) if self.max_grad_norm else optax.identity(),
            optax.scale_by_adam(self.beta1, self.beta2, self.epsilon, nesterov=self.nesterov),
            optax.add_decayed_weights(self.weight_decay, self.decay_mask()),
            optax.scale_by_learning_rate(self.schedule(num_train_steps)),
        )


def check_adam_fields(config: Any) -> None:
    """Raises:
    ConfigError: if a field of Adam's cannot work.
    """
    check_range("beta1", config.beta1, at_least=0.0, below=1.0)
    check_range("beta2", config.beta2, at_least=0.0, below=1.0)
    check_range("epsilon", config.epsilon, above=0.0)
    if config.max_grad_norm is not None:
        check_range("max_grad_norm", config.max_grad_norm, above=0.0)
