"""What logging, metrics and a checkpoint every 100 steps add to the time of a step.

    python -m benchmarks.checkpoint_cost                        # 6 layers of width 384, 4,096 tokens a step: an hour on two cores
    python -m benchmarks.checkpoint_cost --width 128 --layers 4 --vocabulary 2048     # 5 minutes

Three kinds of blocks of steps take turns in one process: steps alone; steps whose metrics are read, checked, written to
`metrics.jsonl` and shown as the loop does it; and these with a checkpoint at the start of the block, whose background ends
within the block or is waited for. From the medians of their times the cost over 100 steps with one checkpoint is

    (100 x (recorded - alone) / steps of a block + (saved - recorded)) / (100 x alone / steps of a block)

Prints one JSON line: name, value, unit, n (blocks of each kind), context. The same from processor time is in the context as
`of_processor_time`: it counts what the background takes from training where cores are idle too, and other programs on
the machine disturb it less. `pause` is the part for which the loop waits, which the clock of a run does not count.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from marin.data.rows import Batch
from marin.flags import HelpFormatter
from marin.models import LlamaConfig
from marin.nn import Precision
from marin.optim import MuonConfig
from marin.resources import CpuOnlyConfig
from marin.tracking import RunRecord, RunWriter
from marin.tracking.console import TrainingProgress
from marin.tracking.mirrors import Mirrors
from marin.training import SimpleTrainConfig, TrainLmConfig
from marin.training.checkpoint_writer import CheckpointWriter
from marin.training.clock import TrainingClock
from marin.training.compile_cache import use_compile_cache
from marin.training.recorder import StepRecorder
from marin.training.state import StepConfig, init_state, make_train_step

_KINDS = ("alone", "recorded", "saved")
_EVERY, _TARGET = 100, 0.01


class Training:
    """A compiled step with its state, and the parts of the loop that record and save."""

    def __init__(self, args: argparse.Namespace, directory: Path) -> None:
        model_config = LlamaConfig(
            seq_len=args.context,
            hidden_dim=args.width,
            intermediate_dim=4 * args.width,
            num_layers=args.layers,
            num_heads=args.width // 64,
            num_kv_heads=args.width // 64,
            gradient_checkpointing=False,
        )
        optimizer_config = MuonConfig(learning_rate=0.01, adam_lr=1e-3, warmup=0)
        blocks = len(_KINDS) * (args.rounds + 1)
        train = SimpleTrainConfig(
            CpuOnlyConfig(), args.batch, blocks * args.steps, 0.01, optimizer_config=optimizer_config
        )
        config = TrainLmConfig(model_config, train, "", "", args.vocabulary, str(directory))
        model = model_config.build(args.vocabulary, key=jax.random.key(0))
        optimizer = optimizer_config.build(eqx.filter(model, eqx.is_array), train.num_train_steps)
        self.state = init_state(model, optimizer, None)
        tokens = np.random.default_rng(0).integers(0, args.vocabulary, (args.batch, args.context + 1), np.int32)
        self.batch = jax.device_put(
            Batch(
                tokens_BT=tokens[:, :-1],
                targets_BT=tokens[:, 1:],
                weight_BT=np.ones((args.batch, args.context), np.float32),
                segment_ids_BT=np.zeros((args.batch, args.context), np.int32),
            )
        )
        step = make_train_step(
            optimizer,
            optimizer_config.schedule(train.num_train_steps),
            StepConfig(Precision("f32"), watch=train.watch),
        )
        self.step = jax.jit(step, donate_argnums=0).lower(self.state, self.batch).compile()
        self.done, self.steps = 0, args.steps
        self.writer = RunWriter(directory)
        self.writer.write_info({})
        self.clock = TrainingClock(self.writer)
        progress = TrainingProgress(
            num_steps=train.num_train_steps, first_step=0, tokens_left=0, flops_per_token=1.0, peak_flops=1.0
        )
        self.recorder = StepRecorder(
            config, self.writer, self.clock, progress, Mirrors([]), lambda step: [], at_once=True
        )
        self.saver = CheckpointWriter(directory / "checkpoints", keep_every=10**9, record=self.writer)

    def block(self, kind: str) -> tuple[float, float]:
        """Seconds, and seconds of processor time, of one block."""
        jax.block_until_ready(self.state)
        begin, processor = time.perf_counter(), time.process_time()
        if kind == "saved":
            with self.clock.pause("checkpoint", self.done):
                self.saver.save(self.state, self.done)
        self.clock.start()
        for _ in range(self.steps):
            if kind != "alone":
                self.saver.check()
            self.state, metrics = self.step(self.state, self.batch)
            if kind != "alone":
                self.recorder.push(self.done, metrics, 0.0)
            self.done += 1
        self.recorder.flush()
        self.saver.wait()
        jax.block_until_ready(self.state)
        return time.perf_counter() - begin, time.process_time() - processor


def cost(medians: dict[str, float], steps: int) -> float:
    alone, recorded, saved = (medians[kind] for kind in _KINDS)
    return (_EVERY * (recorded - alone) / steps + saved - recorded) / (_EVERY * alone / steps)


def measure(args: argparse.Namespace, directory: Path) -> dict[str, Any]:
    training = Training(args, directory)
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in _KINDS}
    for number in range(args.rounds + 1):
        for kind in _KINDS:
            times = training.block(kind)
            if number:  # the first of each imports, and fills caches
                found[kind].append(times)
    wall, processor = (
        {kind: statistics.median(times[which] for times in found[kind]) for kind in _KINDS} for which in (0, 1)
    )
    training.writer.close()
    record = RunRecord.open(directory)
    return {
        "value": cost(wall, args.steps),
        "of_processor_time": round(cost(processor, args.steps), 5),
        "step_time": round(wall["alone"] / args.steps, 4),
        "blocks": {kind: [round(seconds, 2) for seconds, _ in found[kind]] for kind in _KINDS},
        "processor": {kind: [round(seconds, 2) for _, seconds in found[kind]] for kind in _KINDS},
        "pause": round(statistics.median(event["seconds"] for event in record.of("pause")[1:]), 4),
        "background": round(statistics.median(event["seconds"] for event in record.of("checkpoint")[1:]), 4),
        "checkpoint_mb": round(record.of("checkpoint")[-1]["bytes"] / 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    for name, default in (("width", 384), ("layers", 6), ("vocabulary", 8192), ("context", 512), ("batch", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--steps", type=int, default=20, help="steps of a block")
    parser.add_argument("--rounds", type=int, default=5, help="blocks of each kind")
    args = parser.parse_args()
    use_compile_cache()
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(sys.stderr):
        found = measure(args, Path(directory))
    value = float(f"{found.pop('value'):.3g}")
    context = vars(args) | found | {"target": _TARGET, "device": jax.devices()[0].device_kind, "cpus": os.cpu_count()}
    print(
        json.dumps({"name": "checkpoint_cost", "value": value, "unit": "ratio", "n": args.rounds, "context": context})
    )


if __name__ == "__main__":
    main()
