"""Improves a finetuned model by reinforcement learning on questions whose answers can be checked, into BASE/chatrl_checkpoints.

    python -m scripts.chat_rl                       # GSM8K, which must be in BASE/task_data, or --download
    python -m scripts.chat_rl --task arithmetic     # made questions: no network

Run again, it continues where it was, or says that there is nothing to do.
"""

import dataclasses
from typing import TYPE_CHECKING, Literal

from marin.gpt2.command import (
    check_numbers,
    flags_table,
    keep_off_wandb_unless_named,
    parse_flags,
    run_command,
    run_name,
    top_k_of,
)
from marin.gpt2.places import Places
from marin.gpt2.stages import process_index, report_section, run_stage, seen_by_others, stage
from marin.resources import CpuOnlyConfig

if TYPE_CHECKING:  # what imports JAX is imported where it is used, as `--help` does not need it
    from marin.finetuning.origin import Origin
    from marin.finetuning.rl import RlConfig


@dataclasses.dataclass(frozen=True)
class Flags:
    """Flags of chat_rl.

    Args:
        run: name on W&B; "dummy" does not log there.
        device_type: auto, cpu or cuda.
        source: the run to begin from: sft, or base.
        model_tag: its tag, and the name of this run; the deepest by default.
        model_step: its checkpoint; the newest by default.
        task: GSM8K, or questions that the project makes.
        num_questions: questions to learn from, where they are made.
        num_epochs: how often each question is asked.
        device_batch_size: samples that the gradient is computed of at once, and those of a question in an evaluation.
        examples_per_step: questions of a step.
        num_samples: samples of a question.
        max_new_tokens: of a sample.
        temperature: of sampling.
        top_k: how many likeliest tokens are chosen among; 0 for all.
        embedding_lr: of token embeddings, times init_lr_frac but scaled by no width or batch, unlike that of base_train; so are the next two.
        unembedding_lr: of the head.
        matrix_lr: of the matrices.
        init_lr_frac: share of these rates to begin with; they fall to 0 over the run.
        eval_every: steps between measurements of pass@k; -1 for the end only.
        eval_examples: held-out questions of a measurement.
        save_every: steps between checkpoints that are kept; -1 for the last only.
        checkpoint_interval: seconds between checkpoints to resume from.
        seed: of the questions' order and of sampling.
        download: fetch GSM8K where it is not there.
        base_dir: where everything is kept (default: $MARIN_BASE_DIR, $NANOCHAT_BASE_DIR, ~/.cache/marin/gpt2).
    """

    run: str = "dummy"
    device_type: str = ""
    source: Literal["sft", "base"] = "sft"
    model_tag: str | None = None
    model_step: int | None = None
    task: Literal["gsm8k", "arithmetic", "counting", "spelling"] = "gsm8k"
    num_questions: int = 2048
    num_epochs: int = 1
    device_batch_size: int = 8
    examples_per_step: int = 16
    num_samples: int = 16
    max_new_tokens: int = 256
    temperature: float = 1.0
    top_k: int = 50
    embedding_lr: float | None = None
    unembedding_lr: float | None = None
    matrix_lr: float | None = None
    init_lr_frac: float = 0.05
    eval_every: int = 60
    eval_examples: int = 400
    save_every: int = 60
    checkpoint_interval: float = 600.0
    seed: int = 42
    download: bool = False
    base_dir: str | None = None

    def __post_init__(self) -> None:
        check_numbers(
            self,
            (
                *("num_questions", "num_epochs", "device_batch_size", "examples_per_step", "num_samples"),
                *("max_new_tokens", "eval_examples", "checkpoint_interval"),
            ),
            ("eval_every", "save_every"),
        )
        _ = self.config

    @property
    def config(self) -> "RlConfig":
        """What the flags say of the stage's config by themselves."""
        from marin.finetuning.origin import FinetuneRates
        from marin.finetuning.rl import RlConfig

        return RlConfig(
            CpuOnlyConfig(),
            "",
            self.task,
            FinetuneRates(
                self.embedding_lr, self.unembedding_lr, self.matrix_lr, self.init_lr_frac, warmdown_ratio=1.0
            ),
            self.num_questions,
            self.num_epochs,
            self.examples_per_step,
            self.num_samples,
            self.max_new_tokens,
            self.temperature,
            top_k_of(self.top_k),
            self.seed,
            device_batch_size=self.device_batch_size,
            eval_every=self.eval_every,
            eval_examples=self.eval_examples,
            save_every=self.save_every,
            checkpoint_interval=self.checkpoint_interval,
        )


def make_config(flags: Flags, places: Places, origin: "Origin", tag: str) -> "RlConfig":
    """The stage's config."""
    from marin.gpt2.devices import take_devices

    return dataclasses.replace(
        flags.config,
        resources=take_devices(flags.device_type),
        origin_digest=origin.digest,
        origin=str(origin.checkpoint.path),
        task_data=str(places.task_data),
        run_name=run_name(flags.run, tag),
        flags=dataclasses.asdict(flags),
    )


def main() -> None:
    flags = parse_flags(Flags, __doc__)

    from marin.evaluation.chat.datasets import GSM8K_TEST, GSM8K_TRAIN, download
    from marin.finetuning.origin import Origin
    from marin.finetuning.rl import FIGURES_FILE, read_figures, train_rl

    places = Places.of(flags.base_dir)
    keep_off_wandb_unless_named(flags.run)
    with seen_by_others(places):
        if flags.task == "gsm8k" and flags.download and process_index() == 0:  # all processes write to one place
            for source in (GSM8K_TRAIN, GSM8K_TEST):
                download(source, places.task_data)
        begin = places.find_run(flags.source, flags.model_tag)
        origin = Origin.open(begin, flags.model_step)
        config = make_config(flags, places, origin, begin.name)
        run = places.checkpoints("rl", begin.name)
        if process_index() == 0:
            print(f"{flags.task}: {begin.name} goes on from its step {origin.checkpoint.step:,}, into {run}")
        output = run_stage(places, stage("chat_rl", train_rl, config, places, run), FIGURES_FILE)
    if output is None:
        return
    started = f"{flags.source} {begin.name}, step {origin.checkpoint.step}"
    figures = {"model": run.name, "begins from": started, **read_figures(output)}
    report_section(places, "Chat RL", figures | {"flags": flags_table(flags)})


if __name__ == "__main__":
    run_command(main)
