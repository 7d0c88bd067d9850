"""Optimizers and learning-rate schedules: one file per family, each a config whose `build` gives an Optax transformation.

A new optimizer is a new file with a subclass of `OptimizerConfig`; it appears nowhere else.
"""

from marin.optim.adamw import AdamConfig
from marin.optim.config import OptimizerConfig
from marin.optim.muon import MuonConfig
from marin.optim.skip import skip_bad_steps

__all__ = ["AdamConfig", "MuonConfig", "OptimizerConfig", "skip_bad_steps"]
