"""A minimal speedrun on one GPU: a 30-million-parameter Llama and 100 steps, to see that everything works.

    python -m experiments.speedrun.hello_world_gpu_speedrun.hello_world_gpu_speedrun --force_run_failed true --prefix local_store

`accelerator_type="auto"` would take what the machine has; the type is named here so that a dry run works anywhere.
"""

from experiments.exp72_baselines import fineweb_edu_tokenized
from experiments.llama import llama_30m
from experiments.simple_train_config import SimpleTrainConfig
from marin.execution.executor import executor_main
from marin.resources import GpuConfig
from marin.speedrun.speedrun import Author, SpeedrunConfig, default_speedrun

speedrun_config = SpeedrunConfig(
    author=Author(name="Marin", affiliation="Marin", url="https://marin.community"),
    description="Hello world on one GPU: a 30M Llama for 100 steps.",
    model_config=llama_30m,
    train_config=SimpleTrainConfig(
        GpuConfig(gpu_count=1, accelerator_type="A100-80G"),
        train_batch_size=32,
        num_train_steps=100,
        learning_rate=3e-3,
        weight_decay=0.1,
        steps_per_eval=100,
    ),
    tokenized_dataset=fineweb_edu_tokenized,
)

if __name__ == "__main__":
    executor_main(steps=default_speedrun("hello_world_gpu_speedrun", speedrun_config))
