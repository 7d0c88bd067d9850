"""What a submission is: who, which model, how trained, on what data, on which hardware; and what that will cost."""

import dataclasses
import functools
import re
from typing import Any

from marin import hardware
from marin.data.mixture import Mixture
from marin.errors import ConfigError, HardwareError
from marin.execution.step import ExecutorStep
from marin.models.lm import LmConfig
from marin.resources import GpuConfig, Resources
from marin.speedrun import web_address
from marin.speedrun.dataset import SpeedrunDataset, describe_dataset
from marin.speedrun.run_info_text import flop_notes, run_info_text
from marin.training.config import SimpleTrainConfig
from marin.training.config_json import config_to_json
from marin.training.traced_flops import FlopCount, forward_flops

_PLACEHOLDER = re.compile(r"__[A-Z][A-Z_]*__")


@dataclasses.dataclass(frozen=True)
class Author:
    """Who submits a run."""

    name: str
    affiliation: str
    url: str | None = None

    def __post_init__(self) -> None:
        for field in ("name", "affiliation"):
            if not isinstance(getattr(self, field), str) or not getattr(self, field).strip():
                raise ConfigError(f"`author.{field}` is {getattr(self, field)!r}: write it, or 'Independent'")


@dataclasses.dataclass(frozen=True)
class HardwareConfig:
    """The hardware as the first submissions stated it; `resources` of the train config says the same in the newer form."""

    device_type: str
    num_devices: int
    device_flops: float

    def __post_init__(self) -> None:
        if not isinstance(self.num_devices, int) or self.num_devices < 1:
            raise ConfigError(
                f"`hardware_config.num_devices` is {self.num_devices!r}: use a whole number of at least 1"
            )
        if not isinstance(self.device_flops, int | float) or not self.device_flops > 0:
            raise ConfigError(
                f"`hardware_config.device_flops` is {self.device_flops!r}: give the peak FLOP/s of one device"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpeedrunConfig:
    """One speedrun.

    Args:
        tokenized_dataset: the step whose output is the token cache to train on, or a `Mixture` of such steps; it also says
            which tokenizer and which evaluation documents belong to it.
        hardware_config: only in the oldest form; if given it must agree with the resources of `train_config`.
    """

    author: Author | None = None
    description: str = ""
    model_config: Any
    train_config: SimpleTrainConfig
    tokenized_dataset: ExecutorStep | Mixture
    hardware_config: HardwareConfig | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.train_config, SimpleTrainConfig):
            raise ConfigError(f"`train_config` is a {type(self.train_config).__name__}: use SimpleTrainConfig(...)")
        if not isinstance(self.model_config, LmConfig):
            raise ConfigError(
                f"`model_config` is a {type(self.model_config).__name__}: it needs build(), flops_per_token(),"
                " total_trainable_params() and max_seq_len, as LlamaConfig and the template's config have"
            )
        if self.author is not None and not isinstance(self.author, Author):
            raise ConfigError(f"`author` is {self.author!r}: use Author(name=..., affiliation=..., url=...)")
        if not isinstance(self.description, str):
            raise ConfigError(f"`description` is {self.description!r}: use a string")
        if not isinstance(self.tokenized_dataset, ExecutorStep | Mixture):
            raise ConfigError(
                f"`tokenized_dataset` is {self.tokenized_dataset!r}: use a step, such as fineweb_edu_subcache_10B, or a Mixture"
            )
        if self.hardware_config is not None and not isinstance(self.hardware_config, HardwareConfig):
            raise ConfigError(
                f"`hardware_config` is {self.hardware_config!r}: use HardwareConfig(...), or leave it out"
            )
        self.train_config.check_seq_len(self.model_config)
        self._check_hardware()
        self._check_tokenizer()

    @property
    def resources(self) -> Resources:
        return self.train_config.resources

    @property
    def dataset(self) -> SpeedrunDataset:
        return describe_dataset(self.tokenized_dataset)

    @property
    def vocab_size(self) -> int:
        return self.dataset.vocab_size

    @property
    def total_tokens(self) -> int:
        return self.train_config.num_train_sequences * self.train_config.seq_len(self.model_config)

    @property
    def flops_per_token(self) -> float:
        """Forward FLOPs for one token, by the config's own formula."""
        return float(self.model_config.flops_per_token(self.vocab_size, self.train_config.seq_len(self.model_config)))

    @functools.cached_property
    def counted_flops(self) -> FlopCount:
        """Forward FLOPs for one token as the traced program has them, attention over the full square as in the formula."""
        return forward_flops(self.model_config, self.vocab_size, "all", self.train_config.seq_len(self.model_config))

    def compute_model_flops(self) -> float:
        """FLOPs of the whole training run: three forward passes a token."""
        return 3 * self.flops_per_token * self.total_tokens

    def as_json(self, *, omit_defaults: bool = False) -> dict[str, Any]:
        """The config in the order that a dry run prints it, resources last."""
        train = config_to_json(self.train_config, omit_defaults=omit_defaults)
        resources = train.pop("resources")
        config = {
            "author": config_to_json(self.author),
            "description": self.description,
            "model_config": config_to_json(self.model_config, omit_defaults=omit_defaults),
            "train_config": train,
            "tokenized_dataset": config_to_json(self.tokenized_dataset),
            "resources": resources,
        }
        if self.hardware_config is not None:
            config["hardware_config"] = config_to_json(self.hardware_config)
        return config

    def run_info(self) -> str:
        """What `print_run_info` prints."""
        return run_info_text(
            self.as_json(omit_defaults=True),
            model_flops=self.compute_model_flops(),
            model_size=self.model_config.total_trainable_params(self.vocab_size),
            num_devices=self.resources.num_devices,
            num_chips=self.resources.num_chips,
            device_flops=self.resources.device_flops,
            notes=flop_notes(self.flops_per_token, self.counted_flops.flops, self.counted_flops.uncounted),
        )

    def print_run_info(self) -> None:
        """Prints the config, the estimated hardware FLOPs, the model's FLOPs and its size."""
        print(self.run_info())

    def check_before_run(self, *, on_this_machine: bool = True) -> None:
        """Refuses to start what could not be submitted or cannot run here, before data is fetched or anything trained.

        Raises:
            ConfigError: if the author is still the template's placeholder, or the author's page is no web address.
            HardwareError: if the config asks for GPUs that this machine does not have, and is to run on it.
        """
        for field in ("name", "affiliation", "url"):
            value = getattr(self.author, field, None)
            if value and _PLACEHOLDER.search(value):
                raise ConfigError(
                    f"`author.{field}` is still the placeholder {value}: write yours into the file (a dry run works without),"
                    " or start from `marin init NAME`, which fills it in"
                )
        url = None if self.author is None else self.author.url
        if url and (problem := web_address.problem_of(url)):
            raise ConfigError(f"`author.url` {url!r} {problem}, or None")
        if _PLACEHOLDER.search(self.description):
            print("note: the description is still the template's placeholder; write it before you submit")
        resources = self.resources
        if on_this_machine and isinstance(resources, GpuConfig):
            found = hardware.detect_gpus()
            if len(found) < resources.gpu_count:
                raise HardwareError(
                    f"the config asks for {resources.gpu_count} GPU(s) ({resources.accelerator_type}), this machine shows"
                    f" {len(found)}: run it where they are, change `resources`, or look at it with --dry_run true"
                )

    def _check_hardware(self) -> None:
        stated = self.hardware_config
        if stated is None:
            return
        resources = self.resources
        if resources.platform != "cpu":
            named, asked = hardware.lookup_device(stated.device_type), hardware.lookup_device(resources.device_name)
            if named.name != asked.name:
                raise ConfigError(
                    f"`hardware_config.device_type` is {stated.device_type!r}, `train_config.resources` asks for"
                    f" {resources.device_name}: make them agree, or leave `hardware_config` out"
                )
        if stated.num_devices not in (resources.num_devices, resources.num_chips):
            raise ConfigError(
                f"`hardware_config.num_devices` is {stated.num_devices}, `train_config.resources` has {resources.num_devices}"
                f" devices on {resources.num_chips} chips: make them agree, or leave `hardware_config` out"
            )
        if abs(stated.device_flops / resources.device_flops - 1) > 0.01:
            raise ConfigError(
                f"`hardware_config.device_flops` is {stated.device_flops:.4g}, the catalogue has {resources.device_flops:.4g} for"
                f" {resources.device_name}: make them agree, or leave `hardware_config` out"
            )

    def _check_tokenizer(self) -> None:
        wanted = getattr(self.model_config, "tokenizer", None)
        if wanted is not None and wanted != self.dataset.tokenizer_name:
            raise ConfigError(
                f"`model_config.tokenizer` is {wanted!r}, the dataset was tokenized with {self.dataset.tokenizer_name!r}: "
                "use a dataset of that tokenizer, or leave `tokenizer` None"
            )
