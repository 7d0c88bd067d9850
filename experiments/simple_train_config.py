"""`SimpleTrainConfig` under the name that experiments import it by."""

from marin.training.config import SimpleTrainConfig, WatchConfig

__all__ = ["SimpleTrainConfig", "WatchConfig"]
