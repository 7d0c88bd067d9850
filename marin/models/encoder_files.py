"""Encoders on disk, in Hugging Face's layouts: read from a local folder, and written as one.

    config, encoder = load_encoder("/models/gte-base-en-v1.5")
    save_encoder(folder, encoder, tokenizer_files)

Weights are safetensors; heads in the folder are passed over. What else does not fit is refused by name.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from marin.errors import CheckpointError
from marin.models.encoder import Encoder, EncoderModelConfig
from marin.models.encoder_layout import (
    EncoderPlace,
    from_hf_encoder_config,
    is_beside,
    layout_of,
    place_of,
    to_hf_encoder_config,
)
from marin.models.hf_files import CONFIG_FILE, Weight, WeightFolder, json_bytes, read_json, write_folder
from marin.models.hf_layout import parameters_of
from marin.models.lm import shapes_of
from marin.nn.trees import with_arrays

_FIRST = "embeddings.word_embeddings.weight"
# Old BERT checkpoints have TensorFlow's names for the weights of their normalizations.
_OLD_NAMES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}


def load_encoder(folder: str | Path) -> tuple[EncoderModelConfig, Encoder]:
    """The encoder in a folder, as float32, and its config.

    Raises:
        CheckpointError: the folder is not whole, or holds another model than an encoder that can be read.
    """
    folder = Path(folder)
    where = str(folder / CONFIG_FILE)
    hf = read_json(folder, CONFIG_FILE)
    config = from_hf_encoder_config(hf, where)
    weights = WeightFolder.open(folder, is_beside)
    prefix = _prefix(weights)
    vocab_size = weights.shapes[prefix + _FIRST][0]
    shapes = shapes_of(config, vocab_size)
    kind, used = layout_of(config), set[str]()

    def value(parameter: str, shape: tuple[int, ...]) -> jax.Array:
        place = place_of(parameter, kind)
        names = tuple(_stored_name(prefix + name, weights, parameter) for name in place.names)
        used.update(names)
        array = _joined([weights.read(name) for name in names], place)
        if array.shape != shape:
            raise CheckpointError(
                f"{folder} holds {' and '.join(f'`{name}`' for name in names)} as {array.shape} for the parameter `{parameter}`,"
                f" {CONFIG_FILE} makes {shape}: the folder was put together from two models; fetch it again"
            )
        return jnp.asarray(array.astype(np.float32))

    leaves = [value(parameter, tuple(leaf.shape)) for parameter, leaf in parameters_of(shapes).items()]
    left = sorted(weights.shapes.keys() - used)
    if left:
        raise CheckpointError(
            f"{folder} holds `{left[0]}`, for which this encoder has no parameter: it is of another model"
        )
    return config, with_arrays(shapes, leaves)


def save_encoder(folder: str | Path, encoder: Encoder, documents: Mapping[str, bytes], pad_id: int) -> None:
    """Writes an encoder, in the layout that can say it, into a folder that is complete or absent.

    Args:
        documents: other files by name, such as `tokenizer.json`.
    Raises:
        ConfigError: no layout can say the encoder.
        StorageError: there is something at `folder`, or it cannot be written.
    """
    kind = layout_of(encoder.config)
    stored: dict[str, np.ndarray] = {}
    for parameter, leaf in parameters_of(encoder).items():
        place, array = place_of(parameter, kind), np.asarray(leaf, np.float32)
        array = np.ascontiguousarray(array.T) if place.transposed else array
        if place.part[1] > 1:  # parts come in any order, and each array is whole once all have come
            (name,) = place.names
            rows = stored.setdefault(name, np.zeros((place.part[1] * array.shape[0], *array.shape[1:]), np.float32))
            rows[place.part[0] * array.shape[0] : (place.part[0] + 1) * array.shape[0]] = array
            continue
        for name, piece in zip(place.names, np.split(array, len(place.names)), strict=True):
            stored[name] = np.ascontiguousarray(piece)
    vocab_size = encoder.embedding.weight_VD.shape[0]
    described = to_hf_encoder_config(encoder.config, vocab_size, pad_id)

    def weight(name: str) -> Weight:
        return Weight(name, stored[name].shape, stored[name].dtype, lambda: stored[name])

    write_folder(
        Path(folder), [weight(name) for name in stored], {CONFIG_FILE: json_bytes(described), **documents}, record={}
    )


def _prefix(weights: WeightFolder) -> str:
    for prefix in ("", "bert.", "roberta.", "new.", "model."):
        if prefix + _FIRST in weights.shapes:
            return prefix
    raise CheckpointError(f"{weights.folder} has no `{_FIRST}`: its weights are not those of an encoder")


def _stored_name(name: str, weights: WeightFolder, parameter: str) -> str:
    for ours, old in (("", ""), *_OLD_NAMES.items()):
        candidate = name.replace(ours, old) if ours else name
        if candidate in weights.shapes:
            return candidate
    raise CheckpointError(f"{weights.folder} has no `{name}` for the parameter `{parameter}`: it is of another model")


def _joined(arrays: list[Any], place: EncoderPlace) -> np.ndarray:
    array = np.concatenate(arrays) if len(arrays) > 1 else np.asarray(arrays[0])
    index, count = place.part
    if count > 1:
        array = np.split(array, count)[index]
    return np.ascontiguousarray(array.T) if place.transposed else array
