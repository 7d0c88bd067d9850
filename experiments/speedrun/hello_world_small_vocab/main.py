"""Hello world with a vocabulary of 2,048 in place of 8,192: cheaper steps, fewer bytes a token.

    python -m experiments.speedrun.hello_world_small_vocab.main --force_run_failed true --prefix local_store

Everything else is `experiments/speedrun/hello_world/main.py`, so that the two results differ by one idea.
"""

import dataclasses

from experiments.python_docs import tokenized
from experiments.speedrun.hello_world.main import speedrun_config as hello_world
from marin.execution.executor import executor_main
from marin.speedrun.speedrun import default_speedrun

speedrun_config = dataclasses.replace(
    hello_world,
    description="Hello world with a vocabulary of 2,048 in place of 8,192.",
    tokenized_dataset=tokenized(2048),
)

if __name__ == "__main__":
    executor_main(steps=default_speedrun("hello_world_small_vocab", speedrun_config))
