"""The model of the runs that tests of this folder train, and a finished one."""

import dataclasses

from marin.models import LlamaConfig
from marin.training import TrainLmConfig
from marin.training.state import TrainState

MODEL = LlamaConfig(
    seq_len=32,
    hidden_dim=16,
    intermediate_dim=24,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    gradient_checkpointing=False,
)
VOCAB = 300


@dataclasses.dataclass(frozen=True)
class Trained:
    """A finished run."""

    config: TrainLmConfig
    state: TrainState

    @property
    def path(self) -> str:
        return self.config.output_path
