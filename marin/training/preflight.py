"""What is checked before anything is computed: devices, tokenizer, data. Each refusal says what would work."""

import contextlib
import os
from typing import Any

import jax

from marin import hardware
from marin.data.loader import BatchSource
from marin.data.tokenizer import Tokenizer
from marin.errors import ConfigError, HardwareError
from marin.parallel.distributed import process_index, start_devices, warn
from marin.training.config import TrainLmConfig

_JAX_FRACTION = {"XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"}


def keep_to_cpus(resources: Any) -> None:
    """Limits this process to the cores that a CPU config asks for; before JAX starts its threads."""
    wanted = getattr(resources, "num_cpus", None)
    if wanted is None or not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    if wanted < len(cores):
        os.sched_setaffinity(0, cores[:wanted])
    elif wanted > hardware.usable_cores() and process_index(os.environ) == 0:
        print(
            f"note: the config is sized for {wanted} cores, this machine has {hardware.usable_cores()}: it takes longer"
        )


def take_gpu_memory(resources: Any) -> None:
    """Lets JAX have what a memory plan counts on; before JAX looks at its devices. What the environment says stands.

    By itself JAX takes three quarters of a GPU's memory, so that plans between the two would fail once trained.
    """
    if resources.platform == "gpu" and not _JAX_FRACTION & os.environ.keys():
        os.environ["XLA_CLIENT_MEM_FRACTION"] = str(hardware.USABLE_MEMORY)


def check_devices(resources: Any) -> None:
    """Raises:
    HardwareError: if this process does not have what the config asks for; a result must name the hardware it ran on.
    """
    actual = start_devices()
    if actual != resources.platform:
        hint = "use CpuOnlyConfig()" if actual == "cpu" else f"use a config for {actual}"
        flag = f" (`--device-type {actual}` of a command that has this flag)" if actual in ("cpu", "gpu") else ""
        raise HardwareError(
            f"the config asks for {resources.device_name} ({resources.platform}), JAX sees only {actual} here: {hint} in the"
            f" config{flag}, run on such a machine, or look at it with --dry_run true; `marin doctor` shows what this machine has"
        )
    if actual == "gpu":
        found = jax.devices()[0].device_kind
        look_up = hardware.lookup_device if resources.device_flops_override is None else _known
        asked = look_up(resources.device_name)
        if asked is not None and look_up(found) != asked:
            raise HardwareError(
                f"the config says {asked.name}, this machine has {found}: set `accelerator_type` to it, or to 'auto'"
            )


def _known(name: str) -> hardware.Device | None:
    """The catalogue's entry of a device; None where it has none, as for one whose peak is given."""
    with contextlib.suppress(HardwareError):
        return hardware.lookup_device(name)
    return None


def check_tokenizer(config: TrainLmConfig, source: BatchSource, tokenizer: Tokenizer) -> None:
    """Raises:
    ConfigError: if the tokens were made by another tokenizer, or do not fit the model's vocabulary.
    """
    for component in source.components:
        cache = component.cache
        if cache.tokenizer_digest is not None and cache.tokenizer_digest != tokenizer.digest:
            raise ConfigError(
                f"the token cache {cache.path} was made with another tokenizer than {config.tokenizer}: tokenize again"
            )
    if tokenizer.vocab_size > config.vocab_size:
        raise ConfigError(
            f"`vocab_size` is {config.vocab_size:,}, the tokenizer has {tokenizer.vocab_size:,} tokens: use at least as many"
        )


def check_data(source: BatchSource, begin: int, end: int) -> None:
    """Says what a run on these samples takes from the components of a mixture, and which of them have repeated by its end.

    Raises:
        ConfigError: if the mixture's epoch limits end the data before.
    """
    source.check_enough(end)
    used = source.use(end, begin)
    before = ", with what was trained before it" if begin else ""
    for component, of_all in zip(used, source.use(end), strict=True):
        if len(used) > 1:
            counts = component.counts
            print(
                f"data: `{component.name}` has {counts.num_tokens:,} tokens in {component.num_rows:,} rows, gone through"
                f" {component.epochs:.2f} times; {counts.num_lost_tokens:,} tokens are in no row, {counts.num_padding:,} positions"
                " are padding"
            )
        if of_all.epochs > 1 and not component.limited:
            warn(
                f"warning: training goes {of_all.epochs:.1f} times through the {component.num_rows:,} rows of"
                f" `{component.name}`{before}: use more data or fewer steps (in a `Mixture`, `max_epochs` says how often is meant)"
            )
