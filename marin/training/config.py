"""The two configs of a training run: `SimpleTrainConfig`, which people write, and `TrainLmConfig`, which the engine takes.

Every field of `SimpleTrainConfig` does what it says; a value that the engine cannot honour is refused when the config is
made, with what to use instead.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import optax

from marin.data.batch_schedule import BatchSchedule
from marin.errors import ConfigError
from marin.execution.step import added_later, placement
from marin.nn.precision import Precision, compute_on
from marin.number_checks import check_switches, check_whole, is_finite, is_whole
from marin.optim import AdamConfig, OptimizerConfig, skip_bad_steps
from marin.optim.config import OMIT_DEFAULT
from marin.parallel.mesh import Parallelism, check_rows, default_parallelism
from marin.resources import Resources
from marin.training.budget import Budget

# What `default_speedrun` fixes for every run, so that results compare.
SPEEDRUN_DATA_SEED = 42
SPEEDRUN_STEPS_PER_EVAL = 1000
STEPS_PER_TASK_EVAL = 10_000


@dataclasses.dataclass(frozen=True)
class WatchConfig:
    """Norms and histograms to write into `metrics.jsonl` every `interval` steps.

    Args:
        watch_targets: any of "grads", "params", "updates".
        include_norms: the norm of each whole target.
        include_per_parameter_norms: the norm of every parameter.
        include_histograms: of every parameter, 31 bins between the least and the largest value.
        split_scan_layers: name layers one by one; this engine stores them so, and False is refused.
        interval: steps between two records.
    """

    watch_targets: list[str] = dataclasses.field(default_factory=lambda: ["grads", "params"])
    include_norms: bool = True
    include_per_parameter_norms: bool = True
    include_histograms: bool = False
    split_scan_layers: bool = True
    interval: int = 10

    def __post_init__(self) -> None:
        targets = self.watch_targets
        known = ("grads", "params", "updates")
        if not isinstance(targets, list | tuple) or not all(isinstance(each, str) for each in targets):
            raise ConfigError(f"`watch.watch_targets` is {targets!r}: use a list of 'grads', 'params', 'updates'")
        if unknown := sorted(set(targets) - set(known)):
            raise ConfigError(f"`watch.watch_targets` names {unknown}: use 'grads', 'params', 'updates'")
        check_switches("`watch.{}`", self)
        if not self.split_scan_layers:
            raise ConfigError("`watch.split_scan_layers` is False, but layers are stored one by one: leave it True")
        if not is_whole(self.interval):
            raise ConfigError(f"`watch.interval` is {self.interval!r}: use a whole number of steps, at least 1")


# The least that a whole number may be, by field.
_WHOLE_NUMBERS = {
    "num_train_steps": 1,
    "steps_per_export": 1,
    "profiler_num_steps": 1,
    "seed": 0,
    "profiler_start_step": 0,
}
_WHOLE_NUMBERS_OR_NONE = {
    "data_seed": 0, "steps_per_eval": 1, "steps_per_task_eval": 1, "per_device_parallelism": 1,
    "per_device_eval_parallelism": 1, "max_eval_batches": 1, "train_seq_len": 1,
}  # fmt: skip
# What a field's object must be, and what to write for it.
_OBJECTS: dict[str, tuple[Any, str]] = {
    "watch": (WatchConfig, "WatchConfig(...); watch_targets=[] records nothing"),
    "precision": (Precision | None, "Precision('bf16'), Precision('f32') or None"),
    "budget": (Budget | None, "Budget(hardware_flops=...), Budget(training_time=...) or None"),
    "parallelism": (Parallelism | None, "Parallelism(...), or None"),
}


@dataclasses.dataclass(frozen=True)
class SimpleTrainConfig:
    """What most experiments say about training.

    `optimizer_config` wins where it is given; the optimizer fields here (`weight_decay` to `cycle_length`) then must be
    None or say the same.

    Args:
        train_batch_size: sequences a step; or a list of (first step, sequences a step), each holding until the next, such
            as [(0, 64), (1000, 128)]. The learning rate does not follow by itself.
        learning_rate: peak rate; also that of `optimizer_config` where one is given.
        z_loss_weight: weight of logsumexp^2 in the loss.
        ema_beta: keep an exponential moving average of the weights and evaluate it.
        skip_bad_steps: leave out updates whose loss or gradient is far from usual, or not finite.
        steps_per_eval: steps between evaluations; None for none during training, in a speedrun for every 1,000.
        steps_per_export: steps between checkpoints that are kept for good.
        steps_per_task_eval: steps between evaluations on tasks, the last step included; None for every 10,000.
        train_seq_len: tokens of a row in training, at most the model's context, in which it is evaluated; None for the context.
        task_eval_names: tasks of lm-eval (extra `eval`) by name, or paths of YAML files with such; none are evaluated without.
        steps_per_hf_export: steps between exports in Hugging Face's layout, the last step included; -1 for never; None for
            those of `steps_per_export`, where the layout can say the model.
        per_device_eval_parallelism: sequences on a device in evaluation; None chooses.
        max_eval_batches: limits evaluations during training, never the final one.
        initialize_from_checkpoint_path: start from the weights of this run or checkpoint, which must be of the same tokenizer;
            of a run with `ema_beta` they are the weights themselves, not their average.
        initialize_from_hf: start from the weights of this folder in Hugging Face's layout, or of `owner/name[@revision]` on
            the hub.
        reset_data_loader_on_init: with weights to start from, begin the data anew (True) or where their training stopped,
            by the record of their run; in steps of this run's batches where they lie without it.
        allow_partial_checkpoint: parameters that the checkpoint lacks keep their initial values, those that only it has are
            left out, and it may be of another tokenizer.
        initialize_optimizer: with `initialize_from_checkpoint_path`, take the moments of its optimizer too, which must be of
            the same kind; what schedules go by begins at the first step.
        int8: multiply the matrices of hidden layers in 8-bit whole numbers (see `marin.nn.quantized`).
        profiler: trace `profiler_num_steps` steps from `profiler_start_step` on.
        precision: number format of the forward and backward pass; None for bfloat16, on a CPU for what measures faster on it
            (see `marin.training.programs`).
        per_device_parallelism: sequences that a device takes at once; a batch of more is taken in parts, whose gradients
            are added up. None for the whole batch at once.
        parallelism: how devices share the work (see `marin.parallel.mesh`); None divides the batch over all of them, and on
            accelerators the parameters too.
        checkpoint_interval: seconds between checkpoints to resume from.
        seed: of the initial weights, and of what an optimizer draws at random.
        budget: end after the last step that fits into so many hardware FLOPs or seconds (see `marin.training.budget`, also
            for how many steps fit); `num_train_steps` is then the most.
    """

    resources: Resources
    train_batch_size: int | Sequence[tuple[int, int]]
    num_train_steps: int
    learning_rate: float
    data_seed: int | None = None
    weight_decay: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    epsilon: float | None = None
    max_grad_norm: float | None = None
    warmup: float | None = None
    decay: float | None = None
    rewarmup: float | None = None
    lr_schedule: str | None = None
    min_lr_ratio: float | None = None
    cycle_length: int | list[int] | None = None
    z_loss_weight: float | None = None
    ema_beta: float | None = None
    skip_bad_steps: bool = False
    steps_per_eval: int | None = None
    steps_per_export: int = 10000
    steps_per_task_eval: int | None = None
    steps_per_hf_export: int | None = None
    per_device_eval_parallelism: int | None = None
    max_eval_batches: int | None = None
    initialize_from_checkpoint_path: str | None = None
    initialize_from_hf: str | None = None
    reset_data_loader_on_init: bool = True
    allow_partial_checkpoint: bool = False
    int8: bool = False
    optimizer_config: OptimizerConfig | None = None
    watch: WatchConfig = dataclasses.field(default_factory=WatchConfig)
    profiler: bool = False
    profiler_start_step: int = 5
    profiler_num_steps: int = 100
    precision: Precision | None = dataclasses.field(default=None, kw_only=True, metadata=OMIT_DEFAULT)
    per_device_parallelism: int | None = placement(default=None, kw_only=True, metadata=OMIT_DEFAULT)
    parallelism: Parallelism | None = placement(default=None, kw_only=True, metadata=OMIT_DEFAULT)
    checkpoint_interval: float = placement(default=600.0, kw_only=True, metadata=OMIT_DEFAULT)
    seed: int = dataclasses.field(default=0, kw_only=True, metadata=OMIT_DEFAULT)
    budget: Budget | None = dataclasses.field(default=None, kw_only=True, metadata=OMIT_DEFAULT)
    initialize_optimizer: bool = dataclasses.field(default=False, kw_only=True, metadata=OMIT_DEFAULT)
    task_eval_names: Sequence[str] = added_later(default=(), kw_only=True, metadata=OMIT_DEFAULT)
    train_seq_len: int | None = added_later(default=None, kw_only=True, metadata=OMIT_DEFAULT)

    def __post_init__(self) -> None:
        if not isinstance(self.resources, Resources):
            raise ConfigError(
                f"`resources` is {self.resources!r}: use CpuOnlyConfig(), GpuConfig(...) or TpuPodConfig(...) of marin.resources"
            )
        self._check_fields()
        self._check_beginning()
        self._check_batch_sizes()
        self._refuse_unsupported()
        self.build_optimizer().schedule(self.num_train_steps)

    def _check_fields(self) -> None:
        """That each field by itself is of its type and in its range."""
        for field, least in _WHOLE_NUMBERS.items():
            check_whole(f"config field `{field}`", getattr(self, field), least)
        for field, least in _WHOLE_NUMBERS_OR_NONE.items():
            if getattr(self, field) is not None:
                check_whole(f"config field `{field}`", getattr(self, field), least)
        check_switches("config field `{}`", self)
        for field, (kind, use) in _OBJECTS.items():
            if not isinstance(getattr(self, field), kind):
                raise ConfigError(f"config field `{field}` is {getattr(self, field)!r}: use {use}")
        if self.num_train_steps >= 2**31:
            raise ConfigError(
                f"config field `num_train_steps` is {self.num_train_steps:.6g}: use less than {2**31:,}, as steps are counted in 32 bits"
            )
        if self.seed >= 2**32:
            raise ConfigError(
                f"config field `seed` is {self.seed}: use at most {2**32 - 1}, as JAX's keys are made from 32 bits"
            )
        if self.steps_per_hf_export is not None and self.steps_per_hf_export != -1:
            check_whole("config field `steps_per_hf_export`", self.steps_per_hf_export)
        if self.ema_beta is not None and not (is_finite(self.ema_beta) and 0 < self.ema_beta < 1):
            raise ConfigError(
                f"config field `ema_beta` is {self.ema_beta!r}: use a number between 0 and 1, such as 0.995"
            )
        if self.z_loss_weight is not None and not (is_finite(self.z_loss_weight) and self.z_loss_weight >= 0):
            raise ConfigError(
                f"config field `z_loss_weight` is {self.z_loss_weight!r}: use a number of at least 0, such as 1e-4"
            )
        if not is_finite(self.checkpoint_interval) or self.checkpoint_interval <= 0:
            raise ConfigError(
                f"config field `checkpoint_interval` is {self.checkpoint_interval!r}: use seconds above 0"
            )

    def _check_beginning(self) -> None:
        for field, what in (
            ("initialize_from_checkpoint_path", "a path"),
            ("initialize_from_hf", "a folder, `owner/name` or `owner/name@revision`"),
        ):
            value = getattr(self, field)
            if value is not None and not (isinstance(value, str) and value.strip()):
                raise ConfigError(f"config field `{field}` is {value!r}: use {what}, or None")
        if self.initialize_from_checkpoint_path is not None and self.initialize_from_hf is not None:
            raise ConfigError(
                "config fields `initialize_from_checkpoint_path` and `initialize_from_hf` are both set: a run starts from one"
            )

    def _check_batch_sizes(self) -> None:
        shards = self._batch_shards
        for first, size in self.batch_schedule.entries:
            check_rows(size, shards)
            self.micro_batches(size, shards)
            if first >= self.num_train_steps:
                raise ConfigError(
                    f"config field `train_batch_size` has an entry for step {first}, but training ends after"
                    f" {self.num_train_steps} steps: leave the entry out"
                )

    def _refuse_unsupported(self) -> None:
        if self.int8 and self.precision is not None and self.precision.products not in (None, "int8"):
            raise ConfigError(
                f"config field `int8` is True and `precision.products` is {self.precision.products!r}: set one of them"
            )
        if not isinstance(self.task_eval_names, list | tuple) or not all(
            isinstance(name, str) and name.strip() for name in self.task_eval_names
        ):
            raise ConfigError(
                f"config field `task_eval_names` is {self.task_eval_names!r}: use a list of names, such as ['piqa']"
            )
        if self.steps_per_task_eval is not None and not self.task_eval_names:
            raise ConfigError(
                "config field `steps_per_task_eval` is set without `task_eval_names`: name the tasks, or leave it None"
            )
        if self.initialize_optimizer and self.initialize_from_checkpoint_path is None:
            raise ConfigError("`initialize_optimizer` is True without `initialize_from_checkpoint_path`: set it too")
        origin = self.initialize_from_checkpoint_path or self.initialize_from_hf
        if origin is None and self.allow_partial_checkpoint:
            raise ConfigError(
                "`allow_partial_checkpoint` is True without `initialize_from_checkpoint_path` or `initialize_from_hf`: set"
                " one of them, or leave it False"
            )
        if origin is None and not self.reset_data_loader_on_init:
            raise ConfigError(
                "`reset_data_loader_on_init` is False without `initialize_from_checkpoint_path` or `initialize_from_hf`: set"
                " one of them, or leave it True, as a run that goes on by itself goes on in its data too"
            )

    def seq_len(self, model: Any) -> int:
        """Tokens of a row in training `model`."""
        return int(model.max_seq_len) if self.train_seq_len is None else self.train_seq_len

    def check_seq_len(self, model: Any) -> None:
        """Raises:
        ConfigError: rows of training are longer than the model's context.
        """
        if self.seq_len(model) > model.max_seq_len:
            raise ConfigError(
                f"config field `train_seq_len` is {self.train_seq_len}, the model's context is {model.max_seq_len}: use at most that"
            )

    @property
    def batch_schedule(self) -> BatchSchedule:
        """The batch size of each step."""
        return BatchSchedule.of(self.train_batch_size)

    @property
    def run_precision(self) -> Precision:
        """What is asked for, int8 products included."""
        asked = self.precision or Precision(compute_on(self.resources.platform))
        return dataclasses.replace(asked, products="int8") if self.int8 else asked

    @property
    def num_train_sequences(self) -> int:
        """Sequences in all steps together."""
        return self.batch_schedule.offset_at(self.num_train_steps)

    @property
    def _batch_shards(self) -> int:
        """Into how many parts the rows of a batch are divided; on a CPU as few as can be, until its devices are known."""
        parallelism = self.parallelism or default_parallelism(self.resources.platform)
        on_cpu = self.resources.platform == "cpu"
        return parallelism.num_batch_shards(parallelism.min_devices if on_cpu else self.resources.num_chips)

    def micro_batches(self, batch_size: int, num_devices: int) -> int:
        """Parts that a batch is taken in where so many devices divide its rows.

        Raises:
            ConfigError: if it cannot be taken in equal parts.
        """
        if self.per_device_parallelism is None:
            return 1
        at_once = self.per_device_parallelism * num_devices
        if batch_size > at_once and batch_size % at_once:
            raise ConfigError(
                f"config field `per_device_parallelism` is {self.per_device_parallelism}: a batch of {batch_size} has no equal parts"
                f" of {at_once} sequences on {num_devices} devices; use a divisor of {batch_size // num_devices}"
            )
        return max(1, batch_size // at_once)

    def build_optimizer(self) -> OptimizerConfig:
        """The optimizer that the fields name.

        Raises:
            ConfigError: if a field contradicts `optimizer_config`.
        """
        names = (
            "weight_decay beta1 beta2 epsilon max_grad_norm warmup decay rewarmup lr_schedule min_lr_ratio cycle_length"
        )
        given = {name: getattr(self, name) for name in names.split() if getattr(self, name) is not None}
        if self.optimizer_config is None:
            return AdamConfig(learning_rate=self.learning_rate, **given)  # checks every field
        if not isinstance(self.optimizer_config, OptimizerConfig):
            raise ConfigError(f"`optimizer_config` is {self.optimizer_config!r}: use a config of marin.optim, or None")
        for name, value in {"learning_rate": self.learning_rate, **given}.items():
            theirs = getattr(self.optimizer_config, name, None)
            if theirs != value:
                raise ConfigError(
                    f"config field `{name}` is {value} and `optimizer_config.{name}` is {theirs}: set one of them to the other"
                )
        return self.optimizer_config

    def build_transformation(self, params: Any) -> optax.GradientTransformation:
        """What turns gradients of these parameters, or of their shapes, into updates."""
        optimizer = self.build_optimizer().build(params, self.num_train_steps)
        return skip_bad_steps(optimizer) if self.skip_bad_steps else optimizer

    def replace(self, **changes: Any) -> "SimpleTrainConfig":
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass(frozen=True)
class TrainLmConfig:
    """All that decides a training run's numbers, and where it runs and writes.

    `data` is a token cache or a `marin.data.mixture.Mixture` of them. Caches, `tokenizer` and `output_path` are paths once
    the executor has resolved them. `model` keeps the `LmConfig` protocol. Fields marked as placement take no part in the
    run's identity.
    """

    marin_resumable = True
    marin_together = True

    model: Any
    train: SimpleTrainConfig
    data: Any
    tokenizer: Any
    vocab_size: int
    output_path: Any
    run_name: str = placement(default="run")
    tags: tuple[str, ...] = placement(default=())

    def __post_init__(self) -> None:
        self.train.check_seq_len(self.model)

    @property
    def precision(self) -> Precision:
        """What is asked for. Without a word about it a CPU takes what measures faster on it, usually float32."""
        return self.train.run_precision

    @property
    def data_seed(self) -> int:
        return SPEEDRUN_DATA_SEED if self.train.data_seed is None else self.train.data_seed

    @property
    def seq_len(self) -> int:
        """Tokens of a row in training."""
        return self.train.seq_len(self.model)

    @property
    def total_tokens(self) -> int:
        """Tokens in all steps together."""
        return self.train.num_train_sequences * self.seq_len
