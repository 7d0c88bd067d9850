"""The recipe of nanochat at HEAD (Karpathy, 2026) on the track of ten minutes on a processor: what others are measured against.

    python -m experiments.speedrun.cpu_nanochat.main --force_run_failed true --prefix local_store

Model, optimizer groups and rates follow from the depth by its own rules (`marin/gpt2/depth.py`), for steps of 2,048 tokens: the
batch that its rule asks for (65,536) would leave about a hundred steps. `CPU_DEPTH` chooses depth 3 or 4 in place of 2; depth 3 is the
best, and the results beside this file are of it. The number of steps is what fits into 600 seconds on two cores of the machine of
docs/LOG.md (depth 4 took 656 there when the machine was busy); a slower one takes longer, and then its run is none of the track.
"""

import os
from pathlib import Path

from experiments.python_docs import tokenized
from experiments.simple_train_config import SimpleTrainConfig
from marin.errors import ConfigError
from marin.execution.executor import executor_main
from marin.gpt2.depth import Horizon, Shape, recipe
from marin.nn import Precision
from marin.resources import CpuOnlyConfig
from marin.speedrun.speedrun import Author, SpeedrunConfig, default_speedrun
from marin.training import WatchConfig

NAME = Path(__file__).resolve().parent.name
VOCAB_SIZE = 4096
BATCH_SIZE = 8
NUM_STEPS = {2: 4600, 3: 2350, 4: 1180}  # by depth


def speedrun_config(depth: int) -> SpeedrunConfig:
    shape = Shape(depth, VOCAB_SIZE, head_dim=64, max_seq_len=256, window_pattern="L")
    plan = recipe(shape, Horizon(num_iterations=NUM_STEPS[depth]), total_batch_size=BATCH_SIZE * shape.max_seq_len)
    return SpeedrunConfig(
        author=Author(name="Marin", affiliation="Marin", url="https://marin.community"),
        description=f"nanochat's recipe at depth {depth}, its rules for width, rates and decay; ten minutes on two CPU cores.",
        model_config=plan.model,
        train_config=SimpleTrainConfig(
            CpuOnlyConfig(num_cpus=2),
            train_batch_size=BATCH_SIZE,
            num_train_steps=plan.num_iterations,
            learning_rate=plan.optimizer.learning_rate,
            optimizer_config=plan.optimizer,
            precision=Precision("f32"),
            watch=WatchConfig(watch_targets=[]),
            checkpoint_interval=120,
        ),
        tokenized_dataset=tokenized(VOCAB_SIZE),
    )


def chosen_depth(text: str) -> int:
    """The depth that `CPU_DEPTH` names."""
    if text not in map(str, NUM_STEPS):
        raise ConfigError(f"CPU_DEPTH is {text!r}: use one of {', '.join(map(str, NUM_STEPS))}")
    return int(text)


if __name__ == "__main__":
    depth = chosen_depth(os.environ.get("CPU_DEPTH", "2"))
    executor_main(
        steps=default_speedrun(f"{NAME}_d{depth}", speedrun_config(depth)),
        description="nanochat's recipe, ten minutes on a processor",
    )
