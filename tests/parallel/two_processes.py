"""One process of a multi-host run: trains the tiny model of the tests on the tokens below a folder.

    python tests/parallel/two_processes.py DATA OUTPUT STEPS [--stop-after N]

The environment says who the others are. With `--stop-after`, this process gets SIGTERM after that many batches. `TEST_LATE` is by
how many seconds process 1 is behind at its checkpoint, as one on a busy machine is; with `TEST_FAILS` the process of that rank
fails at its fourth batch. `TEST_EXPORT=1` exports the model every three steps. `TEST_INTERVAL` is the `checkpoint_interval`.
`TEST_MODEL=template` trains the template's copy of it.
"""

import os
import signal
import sys
import time
from typing import Any

from marin.data.prefetch import Prefetcher
from marin.models import LlamaConfig
from marin.optim import MuonConfig
from marin.parallel import Parallelism
from marin.resources import CpuOnlyConfig
from marin.training import SimpleTrainConfig, TrainLmConfig, WatchConfig, checkpoint
from marin.training.loop import train_lm

SHAPE = {
    "seq_len": 32,
    "hidden_dim": 16,
    "intermediate_dim": 24,
    "num_layers": 1,
    "num_heads": 2,
    "num_kv_heads": 1,
    "gradient_checkpointing": False,
}


def model() -> Any:
    if os.environ.get("TEST_MODEL") == "template":
        from experiments.hackable_transformer_starter_template import HackableTransformerConfig

        return HackableTransformerConfig(**SHAPE)
    return LlamaConfig(**SHAPE)


def config(data: str, output: str, steps: int, parallelism: Parallelism | None) -> TrainLmConfig:
    return TrainLmConfig(
        model=model(),
        train=SimpleTrainConfig(
            CpuOnlyConfig(),
            train_batch_size=8,
            num_train_steps=steps,
            learning_rate=0.02,
            optimizer_config=MuonConfig(learning_rate=0.02, adam_lr=0.01, warmup=0, decay=0.5),
            watch=WatchConfig(watch_targets=[]),
            parallelism=parallelism,
            steps_per_hf_export=3 if os.environ.get("TEST_EXPORT") == "1" else None,
            checkpoint_interval=float(os.environ.get("TEST_INTERVAL", "600")),
        ),
        data=os.path.join(data, "tokens"),
        tokenizer=data,
        vocab_size=300,
        output_path=output,
    )


def main() -> None:
    data, output, steps, *rest = sys.argv[1:]
    if rest:
        limit, take, taken = int(rest[1]), Prefetcher.take, []

        def counted(self):
            taken.append(1)
            if len(taken) == limit:
                os.kill(os.getpid(), signal.SIGTERM)
            return take(self)

        Prefetcher.take = counted
    if os.environ.get("TEST_FAILS") == os.environ.get("RANK", "none"):
        whole, batches = Prefetcher.take, []

        def broken(self):
            batches.append(1)
            if len(batches) == 4:
                raise RuntimeError("this process is out of luck")
            return whole(self)

        Prefetcher.take = broken
    if os.environ.get("RANK") == "1" and "TEST_LATE" in os.environ:
        find = checkpoint.latest_valid

        def late(directory, **named):
            time.sleep(float(os.environ["TEST_LATE"]))
            return find(directory, **named)

        checkpoint.latest_valid = late
    fsdp = os.environ.get("TEST_FSDP") == "1"
    train_lm(config(data, output, int(steps), Parallelism(data=1, fsdp=-1) if fsdp else None))
    print("trained to the end")


if __name__ == "__main__":
    main()
