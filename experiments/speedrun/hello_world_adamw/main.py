"""Hello world with AdamW in place of Muon: what the optimizer is worth in two minutes.

    python -m experiments.speedrun.hello_world_adamw.main --force_run_failed true --prefix local_store

Everything else is `experiments/speedrun/hello_world/main.py`, so that the two results differ by one idea.
"""

import dataclasses

from experiments.speedrun.hello_world.main import speedrun_config as hello_world
from marin.execution.executor import executor_main
from marin.optim import AdamConfig
from marin.speedrun.speedrun import default_speedrun

speedrun_config = dataclasses.replace(
    hello_world,
    description="Hello world with AdamW for every parameter in place of Muon.",
    train_config=hello_world.train_config.replace(
        learning_rate=0.005,
        optimizer_config=AdamConfig(
            learning_rate=0.005,
            weight_decay=0.0,
            warmup=0.02,
            decay=0.6,
            min_lr_ratio=0.0,
            beta1=0.8,
            lr_schedule="linear",
        ),
    ),
)

if __name__ == "__main__":
    executor_main(steps=default_speedrun("hello_world_adamw", speedrun_config))
