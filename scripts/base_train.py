"""Trains a base model of a depth; everything else follows from it (see marin.gpt2.depth).

    python -m scripts.base_train --depth=12
    torchrun --standalone --nproc_per_node=8 -m scripts.base_train -- --depth=26 --fp8 --target-param-data-ratio=8.25

Run again, it continues where it was, or says that there is nothing to do.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

from marin.data.mixture import Mixture
from marin.errors import ConfigError
from marin.execution.step import InputName, this_output_path
from marin.flags import named_as_flags
from marin.gpt2.command import (
    check_numbers,
    flags_table,
    keep_off_wandb_unless_named,
    parse_flags,
    run_command,
    run_name,
)
from marin.gpt2.datasets import (
    Dataset,
    ValidationConfig,
    open_dataset,
    open_tokenizer,
    tokenize_dataset_step,
    warning_of_other_text,
)
from marin.gpt2.places import Places
from marin.gpt2.stages import process_index, refuse_other_settings, report_section, run_stage, stage

if TYPE_CHECKING:  # what imports JAX is imported where it is used, as `--help` does not need it
    from marin.gpt2.depth import Recipe
    from marin.gpt2.pretraining import BaseTrainConfig

# What the flags that are None by default become: the published guide's figures, and those of nanochat at HEAD.
PRESETS: dict[str, dict[str, Any]] = {
    "guide": {
        "depth": 24,
        "target_param_data_ratio": 10.5,
        "total_batch_size": 524_288,
        "core_metric_every": 3000,
        "save_every": 2000,
    },
    "head": {
        "depth": 20,
        "target_param_data_ratio": 12.0,
        "total_batch_size": -1,
        "core_metric_every": 2000,
        "save_every": -1,
    },
}


@dataclasses.dataclass(frozen=True)
class Flags:
    """Flags of base_train. Of the horizon, the first of num_iterations, target_flops and the ratio that is above 0 counts.

    Args:
        preset: where depth, ratio, batch and two intervals come from, unless they are given: "guide" is the contest's
            (24, 10.5, 524288, CORE every 3000 and checkpoints every 2000 steps), "head" that of nanochat at HEAD (20, 12,
            by rule, 2000, at the end).
        run: name on W&B; "dummy" does not log there.
        device_type: auto, cpu, cuda, or a TPU slice such as v6e-8.
        fp8: 8-bit floating-point products where the GPU has them.
        fp8_recipe: tensorwise is the only one.
        depth: layers.
        aspect_ratio: width is depth times this, rounded up to whole heads.
        head_dim: width of a head.
        max_seq_len: tokens of a sequence.
        window_pattern: a letter a layer, L for the whole context and S for a quarter of it.
        num_iterations: steps; -1 for what the others say.
        target_flops: training FLOPs; -1 for what the ratio says.
        target_param_data_ratio: tokens for each parameter of matrices and head.
        device_batch_size: sequences that a device takes at once; lower it where memory is short.
        total_batch_size: tokens a step; -1 for the rule's.
        embedding_lr: of token embeddings, at width 768 and 2^19 tokens a step, as are the next three.
        unembedding_lr: of the head.
        matrix_lr: of the matrices.
        scalar_lr: of input scales, and a hundredth of it of residual scales.
        weight_decay: of the matrices at depth 12.
        warmup_steps: steps over which rates rise.
        warmdown_ratio: share of the steps at the end over which they fall.
        final_lr_frac: what they fall to.
        resume_from_step: a checkpoint to go back to; -1 for the newest.
        eval_every: steps between validations; -1 for never.
        eval_tokens: tokens of a validation, counted as four bytes each.
        core_metric_every: steps between two measurements of CORE, the last step included; -1 for never.
        core_metric_max_per_task: examples of a task; -1 for all.
        sample_every: steps between samples, the last step included; -1 for never.
        save_every: steps between checkpoints that are kept; -1 for the last only. Those to resume from are always written.
        checkpoint_interval: seconds between checkpoints to resume from.
        model_tag: name of the run's directory; d and the depth by default.
        seed: of the initial weights and of the order of the data.
        packing: how documents become rows: best_fit keeps all tokens, best_fit_truncate loses what of a document is longer than
            a row, best_fit_crop cuts documents at the end of each row, as nanochat does, so that none has padding.
        dataset: climbmix, embedded, or local files (see marin.gpt2.datasets).
        text_key: the field or column of files that has the text.
        base_dir: where everything is kept (default: $MARIN_BASE_DIR, $NANOCHAT_BASE_DIR, ~/.cache/marin/gpt2).
    """

    preset: Literal["guide", "head"] = "guide"
    run: str = "dummy"
    device_type: str = ""
    fp8: bool = False
    fp8_recipe: Literal["tensorwise"] = "tensorwise"
    depth: int | None = None
    aspect_ratio: int = 64
    head_dim: int = 128
    max_seq_len: int = 2048
    window_pattern: str = "SSSL"
    num_iterations: int = -1
    target_flops: float = -1.0
    target_param_data_ratio: float | None = None
    device_batch_size: int = 32
    total_batch_size: int | None = None
    embedding_lr: float = 0.3
    unembedding_lr: float = 0.008
    matrix_lr: float = 0.02
    scalar_lr: float = 0.5
    weight_decay: float = 0.28
    warmup_steps: int = 40
    warmdown_ratio: float = 0.65
    final_lr_frac: float = 0.05
    resume_from_step: int = -1
    eval_every: int = 250
    eval_tokens: int = 80 * 524_288
    core_metric_every: int | None = None
    core_metric_max_per_task: int = 500
    sample_every: int = 2000
    save_every: int | None = None
    checkpoint_interval: float = 600.0
    model_tag: str | None = None
    seed: int = 42
    packing: Literal["best_fit", "best_fit_truncate", "best_fit_crop"] = "best_fit"
    dataset: str = "climbmix"
    text_key: str = "text"
    base_dir: str | None = None

    def filled(self) -> "Flags":
        """With the preset's values where none are given."""
        chosen = {name: value for name, value in PRESETS[self.preset].items() if getattr(self, name) is None}
        return dataclasses.replace(self, **chosen)


_OR_MINUS_ONE = (
    "num_iterations", "target_flops", "target_param_data_ratio", "total_batch_size",
    "eval_every", "core_metric_every", "core_metric_max_per_task", "sample_every", "save_every",
)  # fmt: skip


def tag_of(flags: Flags) -> str:
    """The name of the run's directory, of filled flags."""
    return flags.model_tag or f"d{flags.depth}"


def make_recipe(flags: Flags, vocab_size: int) -> "Recipe":
    """The model, horizon and optimizer that filled flags ask for."""
    from marin.gpt2.depth import Horizon, Rates, Shape, recipe

    assert flags.depth is not None and flags.target_param_data_ratio is not None and flags.total_batch_size is not None
    if flags.resume_from_step < -1:
        raise ConfigError(f"`--resume-from-step` is {flags.resume_from_step}: use a step, or -1 for the newest")
    check_numbers(flags, ("device_batch_size", "eval_tokens", "checkpoint_interval"), _OR_MINUS_ONE)
    pattern = flags.window_pattern.upper()
    with named_as_flags({"window_pattern": "--window-pattern"}):
        return recipe(
            Shape(flags.depth, vocab_size, flags.aspect_ratio, flags.head_dim, flags.max_seq_len, pattern),
            Horizon(flags.num_iterations, flags.target_flops, flags.target_param_data_ratio),
            Rates(flags.embedding_lr, flags.unembedding_lr, flags.matrix_lr, flags.scalar_lr, flags.weight_decay),
            total_batch_size=flags.total_batch_size,
            warmup_steps=flags.warmup_steps,
            warmdown_ratio=flags.warmdown_ratio,
            final_lr_frac=flags.final_lr_frac,
        )


def make_config(flags: Flags, places: Places, made: "Recipe", dataset: Dataset) -> "BaseTrainConfig":
    """The stage's config for filled flags, and the recipe and the data set that they name."""
    from marin.gpt2.devices import precision_of, take_devices
    from marin.gpt2.pretraining import BaseTrainConfig
    from marin.training import SimpleTrainConfig, TrainLmConfig, WatchConfig

    resources = take_devices(flags.device_type)
    rows = made.total_batch_size // flags.max_seq_len
    save_every = flags.save_every if flags.save_every and flags.save_every > 0 else made.num_iterations
    with named_as_flags({"per_device_parallelism": "--device-batch-size"}):
        train = SimpleTrainConfig(
            resources,
            train_batch_size=rows,
            num_train_steps=made.num_iterations,
            learning_rate=made.optimizer.learning_rate,
            optimizer_config=made.optimizer,
            data_seed=flags.seed,
            seed=flags.seed,
            steps_per_export=save_every,
            steps_per_hf_export=-1,
            precision=precision_of(resources, flags.fp8),
            per_device_parallelism=flags.device_batch_size,
            checkpoint_interval=flags.checkpoint_interval,
            watch=WatchConfig(watch_targets=[]),
        )
    step = tokenize_dataset_step(dataset, places)
    return BaseTrainConfig(
        train=TrainLmConfig(
            model=made.model,
            train=train,
            data=Mixture({dataset.name: step}, {dataset.name: 1.0}, packing=flags.packing),
            tokenizer=InputName.hardcoded(places.relative(places.tokenizer)),
            vocab_size=made.vocab_size,
            output_path=this_output_path(),
            run_name=run_name(flags.run, tag_of(flags)),
        ),
        validation=ValidationConfig(dataset.validation, dataset.text_key, flags.eval_tokens),
        eval_every=max(flags.eval_every, 0),
        core_every=max(flags.core_metric_every or 0, 0),
        sample_every=max(flags.sample_every, 0),
        core_bundle=str(places.eval_bundle) if (places.eval_bundle / "core.yaml").is_file() else None,
        core_max_per_task=flags.core_metric_max_per_task,
        flags=dataclasses.asdict(flags),
    )


def main() -> None:
    flags = parse_flags(Flags, __doc__).filled()

    from marin.evaluation.core import check_core
    from marin.gpt2.pretraining import FIGURES_FILE, read_figures, train_base
    from marin.gpt2.rollback import roll_back
    from marin.gpt2.samples import samples_markdown

    places = Places.of(flags.base_dir)
    keep_off_wandb_unless_named(flags.run)
    run = places.checkpoints("base", tag_of(flags))
    made = make_recipe(flags, open_tokenizer(places).vocab_size)
    dataset = open_dataset(places, flags.dataset, flags.text_key)
    config = make_config(flags, places, made, dataset)
    say = print if process_index() == 0 else lambda text: None
    say(
        f"d{flags.depth}: width {made.model.hidden_dim}, {made.num_params:,} parameters ({made.scaling_params:,} of them count for"
        f" the ratio), {made.flops_per_token:.3g} FLOPs a token; {made.num_iterations:,} steps of {made.total_batch_size:,} tokens:"
        f" {made.total_tokens:,} tokens, {made.param_data_ratio:.2f} a parameter, {made.total_flops:.3g} FLOPs"
    )
    if config.core_every and config.core_bundle is not None:
        with named_as_flags({"max_per_task": "--core-metric-max-per-task"}):
            check_core(config.core_bundle, config.core_max_per_task)
    elif config.core_every:
        say(
            f"note: CORE is not measured, as its data is not in {places.eval_bundle}: `python -m scripts.eval_bundle` fetches it"
        )
    if warning := warning_of_other_text(dataset, places):
        say(warning)
    step = stage("base_train", train_base, config, places, run)
    if flags.resume_from_step >= 0 and process_index() == 0:
        refuse_other_settings(places, step)  # before anything is removed
        roll_back(run, flags.resume_from_step)
    output = run_stage(places, step, FIGURES_FILE)
    if output is None:
        return
    samples = sorted(output.glob("samples-*.json"))
    figures = {
        "model": run.name,
        **read_figures(output),
        "tokens per scaling parameter": made.param_data_ratio,
        "batch, tokens": made.total_batch_size,
        "flags": flags_table(flags),
    }
    report_section(places, "Base model training", figures, samples_markdown(samples[-1]) if samples else "")


if __name__ == "__main__":
    run_command(main)
