"""Our models as folders that `transformers` and other programs load: config.json, safetensors and the tokenizer.

Any model can be exported that has `LlamaModel`'s parameters, by name and shape, and a config with `LlamaConfig`'s fields,
such as a copy of the template. Names do not say what a model computes, so one of another class is also run beside the
`LlamaModel` of the same parameters, and refused if the two differ.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from marin.data.tokenizer import TOKENIZER_FILE, Tokenizer
from marin.errors import ConfigError
from marin.models.hf_config import CANNOT, llama_config_of, to_hf_config
from marin.models.hf_files import CONFIG_FILE, MAX_SHARD_BYTES, Weight, json_bytes, refuse_occupied, write_folder
from marin.models.hf_layout import parameters_of, place_of
from marin.models.llama import LlamaModel
from marin.models.lm import shapes_of
from marin.nn.attention import without_fused_kernels
from marin.nn.attention_counting import windows_of
from marin.nn.trees import is_array_or_shape, with_arrays
from marin.storage import files

TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
DTYPES = {"float32": np.dtype(np.float32), "bfloat16": jnp.dtype(jnp.bfloat16)}
_EMBEDDING = "embedding.weight_VD"
_COMPARED_TOKENS = 32
# Relative to the largest activation: float32 rounding of two programs for the same sums stays far below, a changed model
# (another activation, scale or order) far above.
_SAME = 1e-3
_MOVED = 0.05  # about what initial weights are


def export_hf(
    model: Any, config: Any, tokenizer_path: str, folder: str | Path, *, step: int | None = None, dtype: str = "float32"
) -> None:
    """Writes `model` and its tokenizer into `folder`, which is complete or absent.

    Args:
        config: that of `model`, with LlamaConfig's fields.
        tokenizer_path: a `tokenizer.json`, or a directory with one.
        step: how many steps it was trained, for who goes on from here.
        dtype: "float32", which keeps every bit, or "bfloat16", half the size.
    Raises:
        ConfigError: naming what the model or its config has that the layout cannot say.
        StorageError: `folder` is there already or cannot be written.
    """
    refuse_occupied(Path(folder))
    check_exportable(model, config)
    export_parameters(parameters_of(model), config, tokenizer_path, folder, step=step, dtype=dtype)


def check_exportable(model: Any, config: Any) -> None:
    """Whether the layout can say all that `model` is, and so every later state of its training.

    Raises:
        ConfigError: naming the first field or parameter that has no place, or saying that the model computes something else.
    """
    if getattr(model, "logit_softcap", None) is not None:
        raise ConfigError(
            f"the model caps its logits at {model.logit_softcap}, which Hugging Face's Llama layout cannot say: {CANNOT}"
        )
    _check_parameters(parameters_of(model), config)
    if not isinstance(model, LlamaModel):
        _check_computes_the_same(model, config)


def export_parameters(
    parameters: Mapping[str, Any],
    config: Any,
    tokenizer_path: str,
    folder: str | Path,
    *,
    step: int | None = None,
    dtype: str = "float32",
    max_shard_bytes: int = MAX_SHARD_BYTES,
    read: Callable[[Any], np.ndarray] = np.asarray,
) -> None:
    """`export_hf` for arrays by name, without the class that they belong to and so without a look at what it computes.

    Args:
        read: brings an array to this host. It is called once for each, in their order, when its turn comes.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"the format of exported weights is {dtype!r}: use one of {', '.join(DTYPES)}")
    _check_parameters(parameters, config)
    vocab_size = int(parameters[_EMBEDDING].shape[0])
    hf_config = to_hf_config(config, vocab_size) | {"torch_dtype": dtype}
    documents, special_ids = _tokenizer_documents(tokenizer_path, vocab_size, config.seq_len)
    hf_config |= special_ids
    documents[CONFIG_FILE] = json_bytes(hf_config)
    weights = [_weight(name, array, DTYPES[dtype], read) for name, array in parameters.items()]
    write_folder(Path(folder), weights, documents, {"step": step}, max_shard_bytes)


def _check_parameters(parameters: Mapping[str, Any], config: Any) -> None:
    """Compares names and shapes with those of the `LlamaModel` that `config` describes."""
    if _EMBEDDING not in parameters:
        raise ConfigError(f"the model has no parameter `{_EMBEDDING}`, so it has not LlamaModel's structure: {CANNOT}")
    to_hf_config(config, 1)  # first what the config says: its names tell more than those of parameters
    llama, vocab_size = llama_config_of(config), int(parameters[_EMBEDDING].shape[0])
    expected = parameters_of(shapes_of(llama, vocab_size))
    for name, array in parameters.items():
        if name not in expected:
            raise ConfigError(f"the parameter `{name}` has no place in Hugging Face's Llama layout: {CANNOT}")
        if tuple(array.shape) != expected[name].shape:
            raise ConfigError(
                f"the parameter `{name}` has shape {tuple(array.shape)}, its config makes {expected[name].shape} of a"
                f" LlamaModel: {CANNOT}"
            )
    for name in expected:
        if name not in parameters:
            raise ConfigError(f"the model has no parameter `{name}`, which Hugging Face's Llama layout needs: {CANNOT}")


def _check_computes_the_same(model: Any, config: Any) -> None:
    """Runs the model and the `LlamaModel` of the same parameters, moved a little, on a few random tokens.

    Raises:
        ConfigError: their activations or heads differ, or it does not attend to its whole context.
    """
    llama = llama_config_of(config)
    vocab_size = int(parameters_of(model)[_EMBEDDING].shape[0])
    shapes = shapes_of(llama, vocab_size)
    # On the host, so that the program may run on the devices of several processes.
    tokens_BT = np.random.default_rng(0).integers(0, vocab_size, (1, min(_COMPARED_TOKENS, llama.seq_len)), np.int32)

    @eqx.filter_jit
    def difference(model: Any, twin: Any) -> jax.Array:
        ours_BTD, theirs_BTD = (each.activations(tokens_BT, jnp.zeros_like(tokens_BT)) for each in (model, twin))
        scales = [jnp.max(jnp.abs(x)) for x in (theirs_BTD, twin.lm_head_DV)]
        gaps = [jnp.max(jnp.abs(ours_BTD - theirs_BTD)), jnp.max(jnp.abs(model.lm_head_DV - twin.lm_head_DV))]
        return jnp.maximum(gaps[0] / scales[0], gaps[1] / scales[1])

    # A window is found by asking, as few tokens do not fill it, and many take long to compile.
    context = jax.ShapeDtypeStruct((1, llama.seq_len), jnp.int32)
    arrays, static = eqx.partition(model, is_array_or_shape)
    windows = windows_of(
        lambda arrays, tokens: eqx.combine(arrays, static).activations(tokens, tokens), arrays, context
    )
    if narrow := [window for window in windows if window is not None and window < llama.seq_len]:
        raise ConfigError(
            f"{type(model).__name__} attends to the last {min(narrow)} of {llama.seq_len} tokens, and Hugging Face's Llama and Qwen3"
            f" layouts, as they are written here, to all: {CANNOT}"
        )
    # Where some begin at zero, what a block does with the others would not be seen.
    parameters = {
        name: _moved(array, np.uint32(number)) for number, (name, array) in enumerate(parameters_of(model).items())
    }
    model, twin = (with_arrays(like, [parameters[name] for name in parameters_of(like)]) for like in (model, shapes))
    with without_fused_kernels():  # weights are float32, and a model may name a kernel that is for 16 bits
        relative = float(difference(model, twin))
    if not relative <= _SAME:
        raise ConfigError(
            f"{type(model).__name__} has LlamaModel's parameters and computes something else (its activations differ by"
            f" {relative:.2g} of the largest): {CANNOT}"
        )


@jax.jit
def _moved(array: jax.Array, number: jax.Array) -> jax.Array:
    """A parameter a little elsewhere, by numbers that look random and are quick to compile.

    A program for each shape, where one for all parameters would take as long to compile as the comparison itself.
    """
    mixed = (jax.lax.iota(jnp.uint32, array.size) + number) * jnp.uint32(2654435761)
    mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(2246822519)
    unit = (mixed ^ (mixed >> 13)).astype(jnp.float32) * 2.0**-31 - 1.0
    return array + (_MOVED * unit).astype(array.dtype).reshape(array.shape)


def _weight(name: str, array: Any, dtype: np.dtype[Any], read: Callable[[Any], np.ndarray]) -> Weight:
    place = place_of(name)
    assert place is not None, name
    shape = tuple(reversed(array.shape)) if place.transposed else tuple(array.shape)

    def fetch() -> np.ndarray:
        value = read(array)
        return value.T if place.transposed else value

    return Weight(place.name, shape, dtype, fetch)


def _tokenizer_documents(path: str, vocab_size: int, context_length: int) -> tuple[dict[str, bytes], dict[str, int]]:
    """`tokenizer.json` as it is, the `tokenizer_config.json` beside it or one made for it, and config.json's special ids.

    What begins a document here also stands after the one before, so it is what ends a text that the model writes.
    """
    where = path if path.endswith(".json") else files.join(path, TOKENIZER_FILE)
    tokenizer = Tokenizer.load(where)
    if tokenizer.vocab_size > vocab_size:
        raise ConfigError(
            f"{where} has {tokenizer.vocab_size:,} tokens, the model {vocab_size:,}: use the run's tokenizer"
        )
    beside = files.join(where.rpartition("/")[0] or ".", TOKENIZER_CONFIG_FILE)
    if files.exists(beside):
        described = files.read_json(beside)
    else:
        bos = next(token for token, index in tokenizer.special_tokens.items() if index == tokenizer.bos_id)
        described = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": bos,
            "eos_token": bos,
            "clean_up_tokenization_spaces": False,
            "model_max_length": context_length,
        }
    special_ids = {"bos_token_id": tokenizer.bos_id}
    eos = described.get("eos_token")
    eos = eos.get("content") if isinstance(eos, dict) else eos
    if eos in tokenizer.special_tokens:
        special_ids["eos_token_id"] = tokenizer.special_tokens[eos]
    return {TOKENIZER_FILE: files.read_bytes(where), TOKENIZER_CONFIG_FILE: json_bytes(described)}, special_ids
