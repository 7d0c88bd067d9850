"""The training engine: one compiled step, a loop that can be killed at any instant, checkpoints that prove themselves."""

from marin.training.budget import Budget, measured_step_time, steps_in_time, steps_within
from marin.training.config import SimpleTrainConfig, TrainLmConfig, WatchConfig

__all__ = [
    "Budget",
    "SimpleTrainConfig",
    "TrainLmConfig",
    "WatchConfig",
    "measured_step_time",
    "steps_in_time",
    "steps_within",
]
