"""What every optimizer config shares: the schedule's fields, clipping, weight decay, and how parameters are told apart."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import optax

from marin.errors import ConfigError
from marin.nn.trees import map_named
from marin.number_checks import check_switches, is_finite
from marin.optim.schedule import PowerSchedule, Schedule, build_schedule, find_decay

OMIT_DEFAULT = {"marin.omit_default": True}
_HEAD, _TABLES = "lm_head", ("position", "positions", "wte", "wpe")
# The least epsilon: below it a float32 is zero, or taken for it, and a gradient of zero is divided by nothing.
LEAST_EPSILON = 2.0**-126
_SHAPE = re.compile(r"_[A-Z]+$")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Learning rate, schedule and weight decay.

    Args:
        warmup, decay, rewarmup: stages of the schedule, fractions up to 1 or steps above (see `marin.optim.schedule`).
        weight_decay_modules: regular expressions; a parameter decays if one is found in its path. None for the default mask.
        default_weight_decay_mask: True or None decays matrices only; False decays every parameter. With
            `weight_decay_modules`, True decays matrices too, and None and False only what the expressions find.
        lr_schedule: the form of the decay: constant, cosine, linear, inv_sqrt, inv, or a `PowerSchedule`.
        cycles: the number of cycles, or the steps at which they end.
        cycle_length: the length of each cycle, or a list of lengths; what is left of the run is a last, shorter cycle, as is
            all of a run that is shorter than one cycle. At most one of this and `cycles`.
    """

    learning_rate: float = 6e-4
    weight_decay: float = 0.1
    min_lr_ratio: float = 0.1
    warmup: float = 0.01
    decay: float | None = None
    rewarmup: float = 0.0
    weight_decay_modules: list[str] | str | None = None
    default_weight_decay_mask: bool | None = None
    lr_schedule: str | PowerSchedule = dataclasses.field(default="cosine", kw_only=True, metadata=OMIT_DEFAULT)
    cycles: int | list[int] | None = dataclasses.field(default=None, kw_only=True, metadata=OMIT_DEFAULT)
    cycle_length: float | list[int] | None = dataclasses.field(default=None, kw_only=True, metadata=OMIT_DEFAULT)

    def __post_init__(self) -> None:
        check_switches("config field `{}`", self)
        check_range("learning_rate", self.learning_rate, above=0.0)
        check_range("weight_decay", self.weight_decay, at_least=0.0)
        check_range("min_lr_ratio", self.min_lr_ratio, at_least=0.0, at_most=1.0)
        for field in ("warmup", "rewarmup"):
            check_range(field, getattr(self, field), at_least=0.0)
        if self.decay is not None:
            check_range("decay", self.decay, at_least=0.0)
        find_decay(self.lr_schedule)
        for count in self.cycles if isinstance(self.cycles, list | tuple) else [self.cycles]:
            if count is not None:
                check_range("cycles", count, at_least=1, whole=True)
        if isinstance(self.cycle_length, list | tuple):
            if not self.cycle_length:
                raise ConfigError("`cycle_length` is an empty list: give the steps of each cycle, or None")
            for length in self.cycle_length:
                check_range("cycle_length", length, at_least=1, whole=True)
        elif self.cycle_length is not None:
            check_range("cycle_length", self.cycle_length, above=0.0)
        self._check_patterns()

    def _check_patterns(self) -> None:
        given = self.weight_decay_modules
        patterns = [given] if isinstance(given, str) else given
        if patterns is None:
            return
        if not isinstance(patterns, list | tuple) or not all(isinstance(each, str) for each in patterns):
            raise ConfigError(
                f"config field `weight_decay_modules` is {given!r}: use regular expressions, such as ['mlp'], or None"
            )
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigError(
                    f"config field `weight_decay_modules` has {pattern!r}, which is no regular expression: {error}"
                ) from None

    def build(self, model: object, num_train_steps: int) -> optax.GradientTransformation:
        """The transformation from gradients to updates for a model of these parameters."""
        raise AssertionError("an OptimizerConfig subclass defines build")

    def schedule(self, num_train_steps: int, peak: float | None = None) -> Schedule:
        """The learning rate by step; `peak` takes the place of `learning_rate` for a group of its own."""
        peak = self.learning_rate if peak is None else peak
        if not peak > 0:
            raise ConfigError(f"`learning_rate` is {peak}: use a number above 0")
        return build_schedule(
            peak=peak,
            num_train_steps=num_train_steps,
            kind=self.lr_schedule,
            warmup=self.warmup,
            decay=self.decay,
            rewarmup=self.rewarmup,
            min_lr_ratio=self.min_lr_ratio,
            cycles=self.cycles,
            cycle_length=self.cycle_length,
        )

    def decay_and_rate(self, num_train_steps: int) -> tuple[optax.GradientTransformation, ...]:
        """The end of most chains: decoupled weight decay, then the schedule's rate with the sign of a descent."""
        return (
            optax.add_decayed_weights(self.weight_decay, self.decay_mask()),
            optax.scale_by_learning_rate(self.schedule(num_train_steps)),
        )

    def decay_mask(self) -> Callable[[object], object]:
        """A function from parameters to a tree of booleans: which ones weight decay applies to."""
        patterns = (
            [self.weight_decay_modules] if isinstance(self.weight_decay_modules, str) else self.weight_decay_modules
        )

        def decays(path: str, leaf: jax.Array) -> bool:
            if patterns is not None:
                found = any(re.search(pattern, path) for pattern in patterns)
                return found or (self.default_weight_decay_mask is True and leaf.ndim >= 2)
            return self.default_weight_decay_mask is False or leaf.ndim >= 2

        return lambda params: map_named(decays, params)


def check_range(
    field: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    whole: bool = False,
) -> None:
    """Raises:
    ConfigError: naming the field, if the value is no finite number within the bounds.
    """
    bounds = {"above": above, "at least": at_least, "at most": at_most, "below": below}
    wanted = " and ".join(f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None)
    if not (
        is_finite(value)
        and (not whole or isinstance(value, int))
        and (above is None or value > above)
        and (at_least is None or value >= at_least)
        and (at_most is None or value <= at_most)
        and (below is None or value < below)
    ):
        raise ConfigError(f"config field `{field}` is {value!r}: use a {'whole ' if whole else ''}number {wanted}")


def clip(max_grad_norm: float | None) -> optax.GradientTransformation:
    """Clips by the norm of all gradients that it is given together, in a group of parameters by that group's; None and 0 leave
    them."""
    return optax.clip_by_global_norm(max_grad_norm) if max_grad_norm else optax.identity()


def by_name(
    rules: dict[str, optax.GradientTransformation], name: Callable[[str, jax.Array], str]
) -> optax.GradientTransformationExtraArgs:
    """Each parameter takes the rule whose name `name(path, parameter)` gives; each rule sees its own parameters only.

    A rule that asks for the loss as a function, `obj_fn`, gets it as one of its own parameters, the others being as they are.
    """
    parted = optax.partition(rules, lambda params: map_named(name, params))

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None, **extra: Any
    ) -> tuple[optax.Updates, optax.OptState]:
        loss = extra.get("obj_fn")
        if loss is not None:
            extra["obj_fn"] = lambda own: loss(_filled_up(own, params))
        return parted.update(updates, state, params, **extra)

    return optax.GradientTransformationExtraArgs(parted.init, update)


def _filled_up(own: optax.Params, params: optax.Params | None) -> optax.Params:
    """One rule's parameters with those of all the others in their places."""

    def is_of_another(leaf: object) -> bool:
        return isinstance(leaf, optax.MaskedNode)

    return jax.tree.map(lambda leaf, whole: whole if is_of_another(leaf) else leaf, own, params, is_leaf=is_of_another)


def is_hidden_matrix(path: str, leaf: jax.Array) -> bool:
    """Whether a parameter is a matrix between hidden activations: neither embedding nor head, and of two dimensions.

    An embedding has "embed" in its path, or is named for what it is a table of: `position`, `wte`, `wpe`. A head is named
    `lm_head`, the module or the array itself.
    """
    return leaf.ndim == 2 and not any("embed" in name or name in _TABLES or name == _HEAD for name in _names(path))


def _names(path: str) -> list[str]:
    """The names in a path in small letters, without the shape that ends that of an array, as in `lm_head_DV`."""
    return [_SHAPE.sub("", part).lower() for part in path.split(".")]


def parameter_role(path: str, leaf: jax.Array) -> str:
    """What a parameter is: "matrix" (between hidden activations), "embedding", "head" or "other" (norms, biases, ...).

    An embedding that is also the head is an embedding.
    """
    if is_hidden_matrix(path, leaf):
        return "matrix"
    if leaf.ndim != 2:
        return "other"
    return "head" if _HEAD in _names(path) else "embedding"
