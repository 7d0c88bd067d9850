"""The training engine: one compiled step, a loop that can be killed at any instant, checkpoints that prove themselves."""

from marin.training.config import SimpleTrainConfig, TrainLmConfig, WatchConfig

__all__ = ["SimpleTrainConfig", "TrainLmConfig", "WatchConfig"]
