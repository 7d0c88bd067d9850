"""Lion (Chen et al., 2023, arXiv:2302.06675), from Optax: the sign of a momentum, with decoupled weight decay."""

import dataclasses

import optax

from marin.optim.config import OptimizerConfig, check_range, clip


@dataclasses.dataclass(frozen=True)
class LionConfig(OptimizerConfig):
    """Lion; its rates are about a tenth of AdamW's, as every element of an update has the size of the rate."""

    beta1: float = 0.9
    beta2: float = 0.99
    max_grad_norm: float | None = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("beta1", "beta2"):
            check_range(field, getattr(self, field), at_least=0.0, below=1.0)
        if self.max_grad_norm is not None:
            check_range("max_grad_norm", self.max_grad_norm, above=0.0)

    def build(self, model: object, num_train_steps: int) -> optax.GradientTransformation:
        return optax.chain(
            clip(self.max_grad_norm),
            optax.scale_by_lion(self.beta1, self.beta2),
            *self.decay_and_rate(num_train_steps),
        )
