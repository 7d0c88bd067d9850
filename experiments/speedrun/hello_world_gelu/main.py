"""Hello world with GELU gates in place of SiLU: does the activation matter at this size?

    python -m experiments.speedrun.hello_world_gelu.main --force_run_failed true --prefix local_store

Everything else is `experiments/speedrun/hello_world/main.py`, so that the two results differ by one idea.
"""

import dataclasses

from experiments.speedrun.hello_world.main import speedrun_config as hello_world
from marin.execution.executor import executor_main
from marin.speedrun.speedrun import default_speedrun

speedrun_config = dataclasses.replace(
    hello_world,
    description="Hello world with GEGLU in place of SwiGLU.",
    model_config=dataclasses.replace(hello_world.model_config, activation_function="gelu_new"),
)

if __name__ == "__main__":
    executor_main(steps=default_speedrun("hello_world_gelu", speedrun_config))
