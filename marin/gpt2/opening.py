"""Opening a model of the pipeline by the flags that the scripts share: a source with a tag, or a path."""

from typing import Protocol

from marin.gpt2.devices import DTYPES, resources_of
from marin.gpt2.places import Places, Source
from marin.nn.precision import Precision
from marin.training.preflight import check_devices
from marin.training.run_model import RunModel, load_any_model, load_run_model


class ModelFlags(Protocol):
    """The flags."""

    @property
    def source(self) -> Source: ...
    @property
    def model_tag(self) -> str | None: ...
    @property
    def step(self) -> int | None: ...
    @property
    def dtype(self) -> str | None: ...
    @property
    def checkpoint(self) -> str | None: ...
    @property
    def device_type(self) -> str: ...
    @property
    def base_dir(self) -> str | None: ...


def open_model(flags: ModelFlags) -> tuple[RunModel, Precision]:
    """The model that the flags name, and the number format to compute in.

    Raises:
        DataError: there is no such run.
        CheckpointError: it has no such checkpoint.
    """
    check_devices(resources_of(flags.device_type))
    if flags.checkpoint is not None:
        loaded = load_any_model(flags.checkpoint, step=flags.step)
    else:
        loaded = load_run_model(Places.of(flags.base_dir).find_run(flags.source, flags.model_tag), step=flags.step)
    return loaded, precision_for(loaded, flags.dtype)


def precision_for(loaded: RunModel, dtype: str | None) -> Precision:
    """The number format of a `--dtype`; by default the one that the run was trained in."""
    return Precision(DTYPES[dtype]) if dtype else loaded.precision
