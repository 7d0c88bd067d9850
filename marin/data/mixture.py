"""What a training run reads: named token caches, how much of each, and how rows are made of them.

    Mixture(
        components={"web": fineweb_edu_subcache_10B, "docs": python_docs_tokenized},
        weights=[(0, {"web": 0.9, "docs": 0.1}), (4000, {"web": 0.5, "docs": 0.5})],
        max_epochs={"docs": 4},
    )

Weights count rows of the context length. A config: it may hold steps, which the executor replaces by paths.
`marin.data.loader` opens it; `marin.data.mixture_order` defines the order exactly.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from marin.data.mixture_order import Stage
from marin.data.packing import Packing, check_packing
from marin.errors import ConfigError
from marin.execution.step import Input, added_later
from marin.number_checks import is_finite, is_whole

Weights = Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Named token caches and their weights.

    Args:
        components: token caches by name: steps that make them, or paths. Their order decides when the rows of each come, and so counts.
        weights: by name, of which only the ratios matter; or a list of (first training step, weights by name), each
            holding until the next. A component that a list entry leaves out has weight 0 there. Where a run goes on in the data of
            another (`reset_data_loader_on_init=False`), these steps count from where that data begins, in the new run's batches.
        max_epochs: by name, how often a component's rows may be seen before it leaves the mixture and the others share its
            weight. A component without an entry repeats without end, and training says so when it does.
        packing: "concatenate" cuts the stream of documents, "best_fit" keeps documents whole (`marin.data.packing`).
    Raises:
        ConfigError: a name or a number that makes no mixture.
    """

    components: Mapping[str, Input]
    weights: Weights | Sequence[tuple[int, Weights]]
    max_epochs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    packing: Packing = "concatenate"
    # The order of the rows follows from that of the components, which a dict's identity leaves out. By name it needs no telling.
    order: tuple[str, ...] | None = added_later(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.components, Mapping) or not self.components:
            raise ConfigError("`components` of a mixture is empty: give token caches by name, {'web': step}")
        for name, component in self.components.items():
            if not isinstance(name, str) or not isinstance(component, Input):
                raise ConfigError(
                    f"component {name!r} of a mixture is {component!r}: give a step or a path by its name"
                )
        previous = -1
        for start, weights in self.staged_weights:
            if not is_whole(start, previous + 1) or previous < 0 < start:
                raise ConfigError(
                    f"`weights` of a mixture have an entry for step {start!r}: begin with step 0 and give steps in rising order"
                )
            previous = start
            self._check_weights(start, weights)
        self._check_names("max_epochs", self.max_epochs)
        for name, most in self.max_epochs.items():
            if not is_finite(most) or most <= 0:
                raise ConfigError(f"`max_epochs` of component {name!r} is {most!r}: use a number above 0, such as 4")
        check_packing(self.packing)
        if list(self.components) != sorted(self.components):
            object.__setattr__(self, "order", tuple(self.components))

    @property
    def staged_weights(self) -> list[tuple[int, Weights]]:
        """(first step, weights) for each stage."""
        if isinstance(self.weights, Mapping):
            return [(0, self.weights)]
        if not isinstance(self.weights, Sequence) or not self.weights or isinstance(self.weights, str):
            raise ConfigError(
                f"`weights` of a mixture are {self.weights!r}: use {{name: weight}}, or a list of (first step, {{name: weight}})"
            )
        for entry in self.weights:
            if not isinstance(entry, Sequence) or len(entry) != 2 or not isinstance(entry[1], Mapping):
                raise ConfigError(
                    f"`weights` of a mixture have the entry {entry!r}: use (first step, {{name: weight}})"
                )
        return [(entry[0], entry[1]) for entry in self.weights]

    def stages(self, sample_at: Callable[[int], int]) -> list[Stage]:
        """The weights in the order of `components`, from the samples with which their steps begin."""
        return [
            Stage(sample_at(start), tuple(float(weights.get(name, 0)) for name in self.components))
            for start, weights in self.staged_weights
        ]

    def as_json(self) -> dict[str, Any]:
        """All but which caches the names stand for."""
        return {
            "components": list(self.components),
            "weights": [[start, dict(weights)] for start, weights in self.staged_weights],
            "max_epochs": dict(self.max_epochs),
            "packing": self.packing,
        }

    def _check_weights(self, start: int, weights: Weights) -> None:
        self._check_names("weights", weights)
        for name, weight in weights.items():
            if not is_finite(weight) or weight < 0:
                raise ConfigError(
                    f"the weight of component {name!r} from step {start} is {weight!r}: use a finite number of at least 0"
                )
        if not any(weights.values()):
            raise ConfigError(f"the weights from step {start} are all 0: give at least one component a weight")
        if start == 0 and isinstance(self.weights, Mapping) and set(weights) != set(self.components):
            missing = sorted(set(self.components) - set(weights))
            raise ConfigError(f"`weights` of a mixture leave out {missing}: give each component one, 0 to leave it out")

    def _check_names(self, field: str, values: object) -> None:
        if not isinstance(values, Mapping):
            raise ConfigError(f"`{field}` of a mixture is {values!r}: use {{name: number}}")
        unknown = [name for name in values if name not in self.components]
        if unknown:
            raise ConfigError(
                f"`{field}` of a mixture names {unknown[0]!r}, which is no component: use {', '.join(self.components)}"
            )
