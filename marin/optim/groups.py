"""Groups of parameters by their role or name, each with an optimizer, rate and schedule of its own.

    GroupsConfig(
        learning_rate=0.02,
        groups=[
            ParameterGroup("matrix", MuonConfig(learning_rate=0.02)),
            ParameterGroup(r"re:value_embedding", AdamConfig(learning_rate=0.15)),
            ParameterGroup("embedding", AdamConfig(learning_rate=0.3, beta2=0.995)),
            ParameterGroup("*", AdamConfig(learning_rate=0.008)),
        ],
    )

A parameter belongs to the first group that takes it. Clipping by norm is within a group.
"""

import dataclasses
import re
from collections.abc import Sequence

import jax
import optax

from marin.errors import ConfigError
from marin.nn.trees import named_leaves
from marin.optim.config import OptimizerConfig, by_name, parameter_role
from marin.optim.schedule import Schedule

ROLES = ("matrix", "embedding", "head", "other")
EVERYTHING = "*"
_PATTERN = "re:"


@dataclasses.dataclass(frozen=True)
class ParameterGroup:
    """Some parameters and their optimizer.

    Args:
        parameters: a role (see `marin.optim.config.parameter_role`), "re:" and a regular expression that is found in the
            path (such as "re:blocks.0.mlp"), or "*" for all that are left.
        optimizer: any config of `marin.optim`, or your own.
    """

    parameters: str
    optimizer: OptimizerConfig

    def __post_init__(self) -> None:
        if self.parameters.startswith(_PATTERN):
            try:
                re.compile(self.parameters.removeprefix(_PATTERN))
            except re.error as error:
                raise ConfigError(f"`parameters` is {self.parameters!r}, no regular expression: {error}") from None
        elif self.parameters not in (*ROLES, EVERYTHING):
            raise ConfigError(
                f"`parameters` is {self.parameters!r}: use one of {', '.join(ROLES)}, '{EVERYTHING}', or"
                f" '{_PATTERN}' and a regular expression"
            )
        if not isinstance(self.optimizer, OptimizerConfig):
            raise ConfigError(f"`optimizer` of the group {self.parameters!r} is {self.optimizer!r}: use a config")

    def takes(self, path: str, leaf: jax.Array) -> bool:
        if self.parameters.startswith(_PATTERN):
            return re.search(self.parameters.removeprefix(_PATTERN), path) is not None
        return self.parameters in (EVERYTHING, parameter_role(path, leaf))


@dataclasses.dataclass(frozen=True)
class GroupsConfig(OptimizerConfig):
    """An optimizer for each group of parameters.

    Args:
        learning_rate: the first group's, which is the one that is recorded.
        groups: in order; a parameter belongs to the first that takes it. Every other field of `OptimizerConfig` is a
            group's own business and keeps its default here.
    """

    groups: Sequence[ParameterGroup] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.groups:
            raise ConfigError("`groups` is empty: give at least ParameterGroup('*', AdamConfig())")
        first = self.groups[0].optimizer.learning_rate
        if self.learning_rate != first:
            raise ConfigError(
                f"`learning_rate` is {self.learning_rate}, the first group's is {first}: make them the same"
            )
        for field in dataclasses.fields(OptimizerConfig):
            if field.name != "learning_rate" and getattr(self, field.name) != field.default:
                raise ConfigError(f"`{field.name}` is set beside `groups`: set it on the optimizers of the groups")

    def schedule(self, num_train_steps: int, peak: float | None = None) -> Schedule:
        """The first group's learning rate by step."""
        return self.groups[0].optimizer.schedule(num_train_steps, peak)

    def build(self, model: object, num_train_steps: int) -> optax.GradientTransformation:
        """Raises:
        ConfigError: if a parameter is in no group, or a group has no parameter.
        """
        rules = {str(i): group.optimizer.build(model, num_train_steps) for i, group in enumerate(self.groups)}
        used = {self._group_of(*named) for named in named_leaves(model).items()}
        for i, group in enumerate(self.groups):
            if str(i) not in used and group.parameters != EVERYTHING:
                raise ConfigError(
                    f"no parameter is left for the group {group.parameters!r}: correct it, or leave it out"
                )
        return by_name(rules, self._group_of)

    def _group_of(self, path: str, leaf: jax.Array) -> str:
        for i, group in enumerate(self.groups):
            if group.takes(path, leaf):
                return str(i)
        raise ConfigError(f"the parameter `{path}` is in no group: add one, such as ParameterGroup('*', AdamConfig())")
