"""Weights of a Llama or Qwen3 checkpoint in Hugging Face's layout, as a model of ours or into one.

    config, model = load_hf_model(hf_folder("meta-llama/Llama-3.2-1B@main"))

Values are kept exactly: bfloat16 and float16 become the float32 of the same value. Every array of the checkpoint must
have its parameter and every parameter its array, of the same shape; nothing is cut, padded or left out in silence.
"""

import os
import sys
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from marin.data.hub_models import hub_model_folder, is_hub_name
from marin.errors import CheckpointError, ConfigError
from marin.models.hf_config import differences, from_hf_config
from marin.models.hf_files import CONFIG_FILE, RECORD_FILE, WeightFolder, read_json
from marin.models.hf_layout import is_derived, parameters_of, place_of
from marin.models.hf_values import HfValues
from marin.models.llama import LlamaConfig, LlamaModel
from marin.models.lm import shapes_of
from marin.models.partial import note_of_part
from marin.nn.trees import with_arrays

Model = TypeVar("Model")
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


def hf_folder(name: str) -> Path:
    """The folder that `name` means: itself, or that of `owner/name[@revision]` on the hub, fetched if it is not here.

    Raises:
        ConfigError: `name` is neither.
        DataError: it cannot be fetched; the message says what to fetch by hand and where to put it.
    """
    path = Path(os.path.expanduser(name))
    if path.is_dir():
        return path
    if is_hub_name(name):
        return hub_model_folder(name)
    raise ConfigError(
        f"{name!r} is no folder here and no model of the hub: give a folder in Hugging Face's layout, or `owner/name[@revision]`"
    )


def load_hf_model(folder: str | Path) -> tuple[LlamaConfig, LlamaModel]:
    """The model in a folder and its config, which builds the same shapes.

    Raises:
        CheckpointError: the folder is not whole, or holds another model than its config describes.
    """
    hf = read_json(Path(folder), CONFIG_FILE)
    where = str(Path(folder) / CONFIG_FILE)
    config = from_hf_config(hf, where)
    shapes = shapes_of(config, HfValues(hf, where).whole("vocab_size"))
    return config, _filled(shapes, WeightFolder.open(Path(folder)), tied=config.tie_word_embeddings, partial=False)


def initialize_from_hf(folder: str | Path, model: Model, config: Any, *, partial: bool = False) -> Model:
    """`model` with the weights of a folder, in the formats and shardings of its arrays.

    What `config` says otherwise than the folder's `config.json` and shapes do not show, such as another rotary base, is
    printed: it may be meant.

    Args:
        config: that of `model`, with LlamaConfig's fields.
        partial: parameters that the checkpoint lacks keep their value, and those that only it has are left out; both are
            printed.
    Raises:
        CheckpointError: naming the first parameter that is missing or has another shape, or that `model` has no use for.
    """
    hf = read_json(Path(folder), CONFIG_FILE)
    for line in differences(config, hf, str(Path(folder) / CONFIG_FILE)):
        _warn(f"{line}: the weights were trained with the latter")
    tied = bool(getattr(config, "tie_word_embeddings", False))
    return _filled(model, WeightFolder.open(Path(folder)), tied=tied, partial=partial)


def trained_steps(folder: str | Path) -> int:
    """How many steps of training the weights of one of our own exports have seen.

    Raises:
        ConfigError: the folder does not say it.
    """
    recorded = read_json(Path(folder), RECORD_FILE) if (Path(folder) / RECORD_FILE).is_file() else {}
    step = recorded.get("step")
    if not isinstance(step, int):
        raise ConfigError(
            f"{folder} does not say how many steps its weights have seen, as only exports of runs here do: set"
            " `reset_data_loader_on_init=True` to begin the data anew"
        )
    return step


def _filled(like: Any, weights: WeightFolder, *, tied: bool, partial: bool) -> Any:
    """`like` with its arrays, or shapes of arrays, replaced by those of the folder."""
    parameters = parameters_of(like)
    taken, left_out = _check(parameters, weights, tied=tied, partial=partial)
    kept = [name for name in parameters if name not in taken]
    if note := note_of_part(str(weights.folder), len(taken), kept, left_out):
        _warn(note)
    leaves = []
    for name, leaf in parameters.items():
        place = place_of(name)
        if place is None or place.name not in weights.shapes:
            leaves.append(leaf)
            continue
        value = weights.read(place.name).astype(leaf.dtype)
        value = np.ascontiguousarray(value.T) if place.transposed else value
        sharding = leaf.sharding if isinstance(leaf, jax.Array) else None
        leaves.append(jax.device_put(value, sharding))
    return with_arrays(like, leaves)


def _warn(text: str) -> None:
    if jax.process_index() == 0:  # of the processes that train together, one speaks
        print(f"warning: {text}", file=sys.stderr)


def _check(
    parameters: dict[str, Any], weights: WeightFolder, *, tied: bool, partial: bool
) -> tuple[set[str], list[str]]:
    """The parameters that the folder has, and its entries that are left out."""
    taken, used, left_out = set(), set(), []
    for name, leaf in parameters.items():
        place = place_of(name)
        if place is None or place.name not in weights.shapes:
            _refuse_missing(name, place.name if place else None, weights, partial)
            continue
        taken.add(name)
        used.add(place.name)
        stored = weights.shapes[place.name]
        ours = tuple(reversed(leaf.shape)) if place.transposed else tuple(leaf.shape)
        if stored == ours:
            continue
        if place.name in (_EMBEDDING, _HEAD) and stored[1:] == ours[1:]:
            raise CheckpointError(
                f"{weights.folder} has {stored[0]:,} rows for tokens, the run {ours[0]:,}: use the checkpoint's own tokenizer, as"
                f" its rows stand for that tokenizer's ids, and `vocab_size={stored[0]}` in `TrainLmConfig`, as a model may have"
                " more rows than its tokenizer has tokens (Qwen3 does)"
            )
        raise CheckpointError(
            f"{weights.folder} holds `{place.name}` with shape {stored}, the config makes {ours} (`{name}`): it is of another model"
        )
    for entry in sorted(weights.shapes.keys() - used):
        if is_derived(entry) or (entry == _HEAD and tied and _says_tied(weights.folder)):
            continue
        if partial:
            left_out.append(entry)
            continue
        hint = "set `tie_word_embeddings=False`" if entry == _HEAD else "use a config of the same architecture"
        raise CheckpointError(f"{weights.folder} holds `{entry}`, for which the run's model has no parameter: {hint}")
    return taken, left_out


def _refuse_missing(name: str, place: str | None, weights: WeightFolder, partial: bool) -> None:
    if place == _HEAD and _says_tied(weights.folder):
        raise CheckpointError(
            f"{weights.folder} has no `{_HEAD}`, as its head is its embedding: set `tie_word_embeddings=True`"
        )
    if partial:
        return
    what = f"no `{place}` for the parameter `{name}`" if place else f"no place in its layout for the parameter `{name}`"
    raise CheckpointError(
        f"{weights.folder} has {what}: it is of another model (in training, `allow_partial_checkpoint=True` leaves such parameters as"
        " they are)"
    )


def _says_tied(folder: Path) -> bool:
    return bool(read_json(folder, CONFIG_FILE).get("tie_word_embeddings", False))
