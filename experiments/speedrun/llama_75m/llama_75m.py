"""A 75-million-parameter Llama on four H100s, about 1.6 billion tokens.

python -m experiments.speedrun.llama_75m.llama_75m --dry_run true --prefix local_store
"""

from experiments.exp72_baselines import fineweb_edu_tokenized
from experiments.llama import llama_75m
from experiments.simple_train_config import SimpleTrainConfig
from marin.execution.executor import executor_main
from marin.resources import GpuConfig
from marin.speedrun.speedrun import Author, SpeedrunConfig, default_speedrun

speedrun_config = SpeedrunConfig(
    author=Author(name="Marin", affiliation="Marin", url="https://marin.community"),
    description="75M Llama with AdamW, the plainest baseline.",
    model_config=llama_75m,
    train_config=SimpleTrainConfig(
        GpuConfig(gpu_count=4, accelerator_type="H100"),
        train_batch_size=512,
        num_train_steps=3000,
        learning_rate=3e-3,
        weight_decay=0.1,
        steps_per_eval=1000,
    ),
    tokenized_dataset=fineweb_edu_tokenized,
)

if __name__ == "__main__":
    executor_main(steps=default_speedrun("llama_75m", speedrun_config))
