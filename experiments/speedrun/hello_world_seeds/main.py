"""The first run with ten seeds: how much of a difference between two runs of its size is chance.

    python -m experiments.speedrun.hello_world_seeds.main --force_run_failed true --prefix local_store

Only the initial weights differ; the order of the data is the contest's, the same for everyone. About half an hour on two cores.
"""

import dataclasses

from experiments.speedrun.hello_world.main import speedrun_config
from marin.execution.executor import executor_main
from marin.speedrun.speedrun import SpeedrunConfig, default_speedrun

SEEDS = range(10)


def with_seed(seed: int) -> SpeedrunConfig:
    train_config = dataclasses.replace(speedrun_config.train_config, seed=seed)
    description = f"Hello world, seed {seed} of {len(SEEDS)}: the noise of the processor track."
    return dataclasses.replace(speedrun_config, train_config=train_config, description=description)


if __name__ == "__main__":
    steps = [step for seed in SEEDS for step in default_speedrun(f"hello_world_seeds/seed_{seed}", with_seed(seed))]
    executor_main(steps=steps, description="The first run with ten seeds")
