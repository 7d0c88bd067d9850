"""Optimizers and learning-rate schedules: one file per family, each a config whose `build` gives an Optax transformation.

A new optimizer is a new file with a subclass of `OptimizerConfig`; it appears nowhere else, and is imported from its file.
"""

from marin.optim.adamw import AdamConfig
from marin.optim.config import OptimizerConfig
from marin.optim.groups import GroupsConfig, ParameterGroup
from marin.optim.muon import MuonConfig
from marin.optim.schedule import PowerSchedule
from marin.optim.skip import skip_bad_steps

__all__ = [
    "AdamConfig",
    "GroupsConfig",
    "MuonConfig",
    "OptimizerConfig",
    "ParameterGroup",
    "PowerSchedule",
    "skip_bad_steps",
]
