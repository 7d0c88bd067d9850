"""The model of a training run, opened for use: base training, SFT and RL all leave such a run.

    loaded = load_run_model("RUN")                         # the newest whole checkpoint
    loaded = load_run_model("RUN/checkpoints/step-00000400")

Where the run keeps an average of its weights, that is what is loaded, as it is what evaluation scores. A fused attention kernel that
its config names is left out: the device's best is taken.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax

from marin.data.tokenizer import TOKENIZER_FILE, Tokenizer
from marin.errors import CheckpointError, ConfigError, DataError
from marin.models import gpt2
from marin.models.described import config_of_class
from marin.models.hf_config import config_from_json
from marin.models.hf_files import CONFIG_FILE, read_json
from marin.models.hf_import import load_hf_model as load_hf_weights
from marin.models.llama import parse_attention_backend
from marin.models.lm import shapes_of
from marin.nn.precision import Precision
from marin.nn.trees import is_shape
from marin.tracking.run_record import RUN_FILE, require_fields
from marin.training import checkpoint as checkpoints
from marin.training.checkpoint import Checkpoint
from marin.training.run_info import read_run_info, recorded_digest
from marin.training.run_paths import recorded_path


@dataclasses.dataclass(frozen=True)
class RunModel:
    """A model with what is needed to use it.

    Args:
        config: an `LmConfig`.
        step: how many training steps the weights have seen; 0 where that is not known.
        checkpoint: where the weights were read from; None for a Hugging Face folder.
        info: what `run.json` says; empty for a Hugging Face folder.
    """

    model: Any
    tokenizer: Tokenizer
    config: Any
    step: int
    checkpoint: Checkpoint | None
    info: dict[str, Any]

    @property
    def precision(self) -> Precision:
        """The number format that the run trained in; float32 where that is not known."""
        return Precision(self.info.get("precision") or "f32")

    @property
    def name(self) -> str:
        """What to call the model: the run's name with its step, or the folder's name."""
        named = self.info.get("run_name") or (self.checkpoint.path.parents[1].name if self.checkpoint else "model")
        return f"{named}-step-{self.step}" if self.checkpoint else str(named)


def load_run_model(path: str | Path, *, step: int | None = None, tokenizer: str | None = None) -> RunModel:
    """Opens a run's model.

    Args:
        path: a run's output directory, or one of its checkpoints/step-*.
        step: the checkpoint after exactly so many steps; None for the newest whole one.
        tokenizer: a `tokenizer.json` or a directory with one, where another one than the run's is only warned of; None for
            the run's.
    Raises:
        CheckpointError: there is no such checkpoint, or it is damaged or of another model.
        ConfigError: the model's class cannot be loaded, or the given tokenizer has more tokens than the model.
        DataError: the tokenizer is not there, or is another one than the run was trained with.
        ResultsError: `run.json` is not that of a training run.
    """
    root = Path(path)
    if not root.exists():
        raise CheckpointError(f"{path} is not there: give a run's output directory, or one of its checkpoints/step-*")
    found = checkpoints.find(str(root)) if step is None else checkpoints.at_step(root, step)
    run = found.path.parents[1]
    info = read_run_info(run)
    if info is None:
        raise CheckpointError(f"{run} has no run.json beside its checkpoints: it is not a whole training run")
    require_fields(info, run / RUN_FILE, "config.model", "config.tokenizer")
    config = _config(info)
    opened = _tokenizer_of_run(info, run) if tokenizer is None else Tokenizer.load(tokenizer)
    vocab_size = int(info["config"].get("vocab_size") or opened.vocab_size)
    if tokenizer is None:
        check_tokenizer_of_run(opened, info, run)
    else:
        _check_given_tokenizer(opened, tokenizer, vocab_size, info, run)
    shapes = shapes_of(config, vocab_size)
    model = _restored(found, shapes)
    return RunModel(model, opened, config, found.step, found, info)


def _tokenizer_of_run(info: dict[str, Any], run: Path) -> Tokenizer:
    """Raises:
    DataError: it is not where the run's record says; a person may have moved one of them and not the other.
    """
    try:
        return Tokenizer.load(recorded_path(str(info["config"]["tokenizer"]), run))
    except DataError as error:
        raise DataError(
            f"{error}; if {run} was moved away from its tokenizer, name that one with `--tokenizer PATH` where the command has it, or"
            " move the run back"
        ) from None


def check_tokenizer_of_run(tokenizer: Tokenizer, info: dict[str, Any], run: Path) -> None:
    """Raises:
    DataError: where the run's tokenizer was lies another one, whose numbers mean other text.
    """
    if recorded_digest(info, "tokenizer") not in (None, tokenizer.digest):
        raise DataError(
            f"{recorded_path(str(info['config']['tokenizer']), run)} is another tokenizer than the one that {run} was trained with:"
            " put that one back, or train again"
        )


def _check_given_tokenizer(tokenizer: Tokenizer, name: str, vocab_size: int, info: dict[str, Any], run: Path) -> None:
    """Warns of a tokenizer that a person has named in place of the run's, where it is another one.

    Raises:
        ConfigError: the model does not have all of its tokens.
    """
    if tokenizer.vocab_size > vocab_size:
        raise ConfigError(
            f"{name} has {tokenizer.vocab_size:,} tokens and the model of {run} {vocab_size:,}: use the tokenizer that it was trained with"
        )
    try:
        check_tokenizer_of_run(tokenizer, info, run)
    except DataError:
        print(
            f"warning: {name} is another tokenizer than the one that {run} was trained with: where its numbers mean other text,"
            " the model reads and writes nonsense",
            file=sys.stderr,
        )


def load_hf_model(folder: str | Path, *, tokenizer: str | None = None) -> RunModel:
    """Opens a local folder in Hugging Face's layout, of Llama's, Qwen3's or GPT-2's architecture.

    Raises:
        CheckpointError: the folder is not whole, or of another model than its config describes.
        DataError: there is no tokenizer in it.
    """
    folder = Path(folder)
    is_gpt2 = read_json(folder, CONFIG_FILE).get("model_type") == gpt2.MODEL_TYPE
    config, model = gpt2.load_gpt2(folder) if is_gpt2 else load_hf_weights(folder)
    opened = Tokenizer.load(tokenizer or str(folder / TOKENIZER_FILE))
    return RunModel(model, opened, config, 0, None, {"run_name": folder.resolve().name})


def load_any_model(path: str | Path, *, step: int | None = None, tokenizer: str | None = None) -> RunModel:
    """A run's model or that of a Hugging Face folder, whichever `path` is."""
    if (Path(path) / CONFIG_FILE).is_file() and step is None:
        return load_hf_model(path, tokenizer=tokenizer)
    return load_run_model(path, step=step, tokenizer=tokenizer)


def _config(info: dict[str, Any]) -> Any:
    described, kind = info["config"]["model"], info.get("model_class")
    if kind is None:
        return config_from_json(described)
    try:
        return for_any_device(config_of_class(kind, described))
    except ConfigError as error:
        raise ConfigError(f"the run's model cannot be built: {error}") from None


def for_any_device(config: Any) -> Any:
    """A model's config without the fused kernel that it may name, which may be that of another device than this one.

    What a model computes does not depend on the kernel that trained it.
    """
    kernel = parse_attention_backend(getattr(config, "attn_backend", None))
    return dataclasses.replace(config, attn_backend=None) if kernel is not None and kernel.is_fused else config


def _restored(found: Checkpoint, shapes: Any) -> Any:
    """The model of these shapes with the saved weights, on the first device."""
    sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    arrays, static = eqx.partition(shapes, is_shape)
    placed = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), arrays)
    has_average = any(name.startswith("average.") for name in checkpoints.stored_shapes(found))
    return eqx.combine(checkpoints.restore(found, placed, prefix="average." if has_average else "model."), static)
