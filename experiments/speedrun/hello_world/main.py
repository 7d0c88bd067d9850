"""The first run: a small Llama on the embedded corpus, on two CPU cores, with no account and no network.

    make hello

or, in an environment that is set up,

    python -m experiments.speedrun.hello_world.main --force_run_failed true --prefix local_store

trains in about two minutes on two cores, writes its bits per byte beside what gzip, xz and zstd need for the same
documents, and ends with a leaderboard page that opens from disk. The number of steps is fixed: a slower machine takes
longer and reaches the same figure.
"""

from experiments.python_docs import python_docs_tokenized
from experiments.simple_train_config import SimpleTrainConfig
from marin.execution.executor import executor_main
from marin.models.llama import LlamaConfig
from marin.nn import Precision, RmsNormConfig
from marin.optim import MuonConfig
from marin.resources import CpuOnlyConfig
from marin.site.leaderboard_step import leaderboard_step
from marin.speedrun.speedrun import Author, SpeedrunConfig, default_speedrun
from marin.training import WatchConfig

speedrun_config = SpeedrunConfig(
    author=Author(name="Marin", affiliation="Marin", url="https://marin.community"),
    description="Hello world: 2 layers of width 192 on the docstrings of Python packages, two minutes on two CPU cores.",
    model_config=LlamaConfig(
        seq_len=256,
        hidden_dim=192,
        intermediate_dim=512,
        num_layers=2,
        num_heads=3,
        num_kv_heads=3,
        qk_norm=RmsNormConfig(),
        gradient_checkpointing=False,
        cross_entropy_block_size=512,
    ),
    train_config=SimpleTrainConfig(
        CpuOnlyConfig(num_cpus=2),
        train_batch_size=8,
        num_train_steps=460,
        learning_rate=0.016,
        optimizer_config=MuonConfig(
            learning_rate=0.016,
            adam_lr=0.05,
            weight_decay=0.0,
            warmup=0,
            decay=0.6,
            min_lr_ratio=0.0,
            momentum=0.9,
            beta1=0.8,
            backend_steps=4,
        ),
        precision=Precision("f32"),  # a processor that is faster in bfloat16 would reach another figure
        watch=WatchConfig(watch_targets=[]),
        checkpoint_interval=20,
    ),
    tokenized_dataset=python_docs_tokenized,
)

if __name__ == "__main__":
    steps = default_speedrun("hello_world", speedrun_config)
    executor_main(
        steps=[*steps, leaderboard_step(steps[-1])], description="The first run, on a CPU and the embedded corpus"
    )
