"""The 75-million-parameter Llama on a TPU slice, in the oldest form of a submission: hardware stated, no author.

    python experiments/speedrun/llama_75m_fineweb_edu/llama_75m_fineweb_edu.py --dry_run true --prefix local_store

New submissions state an `author` and leave `hardware_config` out; `llama_75m.py` is one.
"""

from experiments.exp72_baselines import fineweb_edu_tokenized
from experiments.llama import llama_75m
from experiments.simple_train_config import SimpleTrainConfig
from marin.execution.executor import executor_main
from marin.resources import TpuPodConfig
from marin.speedrun.speedrun import HardwareConfig, SpeedrunConfig, default_speedrun

speedrun_config = SpeedrunConfig(
    model_config=llama_75m,
    train_config=SimpleTrainConfig(
        TpuPodConfig(tpu_type="v4-128"),
        train_batch_size=512,
        num_train_steps=3000,
        learning_rate=3e-3,
        weight_decay=0.1,
        steps_per_eval=1000,
    ),
    tokenized_dataset=fineweb_edu_tokenized,
    hardware_config=HardwareConfig(device_type="v4-128", num_devices=64, device_flops=275e12),
)

if __name__ == "__main__":
    executor_main(steps=default_speedrun("llama_75m_fineweb_edu", speedrun_config))
