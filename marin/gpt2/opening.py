"""Opening a model of the pipeline by the flags that the scripts share: a source with a tag, or a path.

JAX is imported where a model is opened, so that a command with these flags shows its `--help` without it.
"""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from marin.errors import ConfigError
from marin.gpt2.places import Places, Source

if TYPE_CHECKING:
    from marin.nn.precision import Precision
    from marin.training.run_model import RunModel


@dataclasses.dataclass(frozen=True)
class ModelFlags:
    """The flags that name a model; a command's own flags are added to them.

    Args:
        source: which model: base, sft or rl.
        model_tag: the run; the deepest by default.
        step: its checkpoint; the newest by default.
        dtype: number format; by default the one that the run was trained in.
        checkpoint: a run, a checkpoint or a Hugging Face folder, in place of a source and a tag.
        device_type: auto, cpu or cuda.
        base_dir: where everything is kept (default: $MARIN_BASE_DIR, $NANOCHAT_BASE_DIR, ~/.cache/marin/gpt2).
    """

    source: Annotated[Source, tyro.conf.arg(aliases=["-i"])] = "sft"
    model_tag: Annotated[str | None, tyro.conf.arg(aliases=["-g"])] = None
    step: Annotated[int | None, tyro.conf.arg(aliases=["-s"])] = None
    dtype: Annotated[Literal["float32", "bfloat16"] | None, tyro.conf.arg(aliases=["-d"])] = None
    checkpoint: str | None = None
    device_type: str = ""
    base_dir: str | None = None


def open_model(flags: ModelFlags) -> "tuple[RunModel, Precision]":
    """The model that the flags name, and the number format to compute in.

    Raises:
        ConfigError: a path and a tag are given.
        DataError: there is no such run.
        CheckpointError: it has no such checkpoint.
    """
    if flags.checkpoint is not None and flags.model_tag is not None:
        raise ConfigError("`--checkpoint` names the model: leave out `--model-tag`")
    from marin.gpt2.devices import take_devices
    from marin.training.preflight import check_devices
    from marin.training.run_model import load_any_model, load_run_model

    check_devices(take_devices(flags.device_type))
    if flags.checkpoint is not None:
        loaded = load_any_model(flags.checkpoint, step=flags.step)
    else:
        loaded = load_run_model(Places.of(flags.base_dir).find_run(flags.source, flags.model_tag), step=flags.step)
    return loaded, precision_for(loaded, flags.dtype)


def precision_for(loaded: "RunModel", dtype: str | None) -> "Precision":
    """The number format of a `--dtype`; by default the one that the run was trained in."""
    from marin.gpt2.devices import DTYPES
    from marin.nn.precision import Precision

    return Precision(DTYPES[dtype]) if dtype else loaded.precision
