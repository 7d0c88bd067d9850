"""Masked prediction: hide some tokens of a text, and learn to say which they were (Devlin et al., 2018, arXiv:1810.04805).

Rows are windows of the pool's documents, one after the other with a mark between them, as RoBERTa packs them (Liu et al.,
2019, arXiv:1907.11692); which tokens are hidden is drawn anew for every row of every step. Some windows are held out:
the loss on them stands in `pretraining.json` beside the entropy of the tokens alone, which needs no model.
"""

import dataclasses
import functools
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int32

from marin.data.documents import read_documents, text_bytes
from marin.data.permutation import in_passes
from marin.data.tokenizer.for_encoders import EncoderTokenizer, train_encoder_tokenizer
from marin.data.tokenizer.training import sample
from marin.datashop.encoder import CPU_SIZE, ENCODER, ORIGIN_FILE
from marin.datashop.fitting import Fit, descent, fit
from marin.datashop.masked import PretrainEncoderConfig
from marin.errors import DataError
from marin.models.encoder import EncoderModelConfig, MaskedHead
from marin.models.encoder_files import save_encoder
from marin.models.lm import count_parameters
from marin.nn import RotaryConfig
from marin.nn.precision import Precision, compute_on
from marin.optim import AdamConfig
from marin.storage import files
from marin.training.compile_cache import use_compile_cache

_TOKENIZER, _TOKENS = "tokenizer", "tokens.npy"
_MASKED, _REPLACED = 0.8, 0.1
_TEXTS_AT_ONCE = 512
# Streams of different draws from one seed.
_BATCHES, _HELD_OUT = 0, 1


@dataclasses.dataclass(frozen=True)
class MaskedRows:
    """Windows of tokens as rows with hidden tokens.

    Args:
        windows: without the marks at their ends.
    """

    windows: Int32[np.ndarray, "W t"]
    tokenizer: EncoderTokenizer
    mask_fraction: float
    seed: int

    @property
    def num_hidden(self) -> int:
        """Tokens of a row to predict."""
        return max(1, round(self.mask_fraction * self.windows.shape[1]))

    def rows(self, chosen: np.ndarray, *draw: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(tokens [B, T], hidden positions [B, M], the tokens there [B, M]) of these windows; `draw` seeds what is hidden."""
        generator = np.random.default_rng([self.seed, *draw])
        begin, end = self.tokenizer.marks
        windows = self.windows[chosen]
        count, length = windows.shape
        tokens = np.concatenate(
            [np.full((count, 1), begin, np.int32), windows, np.full((count, 1), end, np.int32)], axis=1
        )
        # The places with the smallest of `length` random numbers are a draw without repetition.
        places = (
            1 + np.argpartition(generator.random((count, length)), self.num_hidden - 1, axis=1)[:, : self.num_hidden]
        )
        places = np.sort(places, axis=1).astype(np.int32)
        targets = np.take_along_axis(tokens, places, axis=1)
        what = generator.random(places.shape)
        others = generator.integers(0, self.tokenizer.vocab_size, places.shape, np.int32)
        hidden = np.where(what < _MASKED, self.tokenizer.mask_id, np.where(what < _MASKED + _REPLACED, others, targets))
        np.put_along_axis(tokens, places, hidden.astype(np.int32), axis=1)
        return tokens, places, targets


def pretrain(config: PretrainEncoderConfig) -> None:
    """Writes the encoder's folder; goes on where a killed attempt stopped."""
    output = Path(files.local_path(config.output_path))
    if (output / ENCODER / ORIGIN_FILE).is_file():
        _remove_leftovers(output)  # of an attempt that was killed between its last file and here
        return
    use_compile_cache()
    started = time.perf_counter()

    # ---- tokens ------------------------------------------------------------------------------------------------------
    documents, folder = str(config.documents), output / _TOKENIZER
    if not (output / _TOKENS).is_file():
        train_encoder_tokenizer(documents, config.vocab_size, str(folder), config.max_tokenizer_bytes)
    tokenizer = EncoderTokenizer.load(folder)
    windows = _windows(config, documents, tokenizer, output / _TOKENS)
    is_held_out = np.zeros(len(windows), bool)
    is_held_out[np.linspace(0, len(windows) - 1, config.held_out_windows).astype(int)] = True
    held_out, learn = windows[is_held_out], windows[~is_held_out]
    rows = MaskedRows(learn, tokenizer, config.mask_fraction, config.seed)
    num_tokens = config.num_steps * config.batch_size * config.max_tokens
    print(
        f"masked prediction: {learn.size:,} tokens of the pool, {num_tokens:,} in training ({num_tokens / learn.size:.1f} passes)",
        flush=True,
    )

    # ---- model, optimizer, loop --------------------------------------------------------------------------------------
    precision = Precision(config.compute or compute_on(jax.default_backend()))
    weights, static = eqx.partition(_model(config, tokenizer.vocab_size), eqx.is_array)
    optimizer = AdamConfig(
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        warmup=config.warmup,
        lr_schedule="linear",
        min_lr_ratio=0.0,
        beta2=0.98,
        max_grad_norm=1.0,
    ).build(None, config.num_steps)

    def losses(weights: Any, tokens_BT: Array, places_BM: Array, targets_BM: Array) -> Array:
        """Nats of each hidden token."""
        parts = eqx.combine(precision.cast(weights), static)
        lengths_B = jnp.full(tokens_BT.shape[0], tokens_BT.shape[1], jnp.int32)
        x_BTD = parts["encoder"].activations(tokens_BT, lengths_B)
        x_BMD = jnp.take_along_axis(x_BTD, places_BM[..., None], axis=1)
        logits_NV = parts["head"](x_BMD.reshape(-1, x_BMD.shape[-1]), parts["encoder"].embedding)
        return optax.softmax_cross_entropy_with_integer_labels(logits_NV, targets_BM.reshape(-1))

    def batch_of(index: int) -> tuple[np.ndarray, ...]:
        places = np.arange(index * config.batch_size, (index + 1) * config.batch_size)
        return rows.rows(in_passes(places, len(learn), config.seed, "masked prediction"), _BATCHES, index)

    state = {"weights": weights, "moments": optimizer.init(weights)}
    run = Fit("masked prediction", config.num_steps, output, config.checkpoint_interval)
    state = fit(run, state, descent(optimizer, lambda *given: jnp.mean(losses(*given))), batch_of)

    # ---- the folder --------------------------------------------------------------------------------------------------
    score = functools.partial(jax.jit(losses), state["weights"])
    unigram = _nats_of_frequencies(learn, held_out, tokenizer.vocab_size)
    pretraining = {
        "note": CPU_SIZE,
        "held_out_nats": _mean_nats(score, dataclasses.replace(rows, windows=held_out), config.batch_size),
        "held_out_nats_of_frequencies": unigram,
        "parameters": count_parameters(state["weights"]["encoder"]),
        "layers": config.num_layers,
        "width": config.hidden_dim,
        "pool_tokens": int(windows.size),
        "training_tokens": num_tokens,
        "steps": config.num_steps,
        "seconds": round(time.perf_counter() - started, 1),
    }
    documents_of_folder = {**tokenizer.files, ORIGIN_FILE: (json.dumps(pretraining, indent=2) + "\n").encode()}
    encoder = eqx.combine(state["weights"], static)["encoder"]
    save_encoder(output / ENCODER, encoder, documents_of_folder, tokenizer.pad_id)
    _remove_leftovers(output)
    print(
        f"masked prediction: {pretraining['held_out_nats']:.3f} nats a hidden token on held-out windows; frequencies alone"
        f" {unigram:.3f} ({CPU_SIZE})",
        flush=True,
    )


def _model(config: PretrainEncoderConfig, vocab_size: int) -> dict[str, Any]:
    """The encoder, and the head that only masked prediction needs."""
    model = EncoderModelConfig(
        max_seq_len=config.max_tokens,
        hidden_dim=config.hidden_dim,
        intermediate_dim=config.intermediate_dim,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        rope=RotaryConfig() if config.rotary else None,
        gated=config.rotary,
        num_token_types=0 if config.rotary else 2,
    )
    encoder_key, head_key = jax.random.split(jax.random.key(config.seed))
    return {
        "encoder": model.build(vocab_size, key=encoder_key),
        "head": MaskedHead.init(model, vocab_size, key=head_key),
    }


def _mean_nats(score: Callable[..., Array], held_out: MaskedRows, batch_size: int) -> float:
    """The mean of what `score` gives the hidden tokens of all windows."""
    nats: list[float] = []
    count = len(held_out.windows)
    for start in range(0, count, batch_size):
        chosen = np.arange(start, min(start + batch_size, count))
        nats += np.asarray(score(*held_out.rows(chosen, _HELD_OUT, start)), np.float64).tolist()
    return float(np.mean(nats))


def _nats_of_frequencies(learn: np.ndarray, held_out: np.ndarray, vocab_size: int) -> float:
    """Nats a held-out token by how often each stands in `learn`, counted from 1: what needs no model."""
    counts = np.bincount(learn.reshape(-1), minlength=vocab_size) + 1.0
    return float(-np.mean(np.log(counts[held_out.reshape(-1)] / counts.sum())))


def _remove_leftovers(output: Path) -> None:
    for name in ("checkpoints", _TOKENIZER, _TOKENS):
        files.remove_tree(str(output / name))


def _windows(
    config: PretrainEncoderConfig, documents: str, tokenizer: EncoderTokenizer, path: Path
) -> Int32[np.ndarray, "W t"]:
    """The documents' tokens with a mark behind each, cut into windows; no more than training and measuring need."""
    length = config.max_tokens - 2
    most = (config.num_steps * config.batch_size + config.held_out_windows) * length
    if not path.is_file():
        pieces, size = [], 0
        for piece in _token_pieces(documents, tokenizer, most):
            pieces.append(piece)
            size += len(piece)
            if size >= most:
                break
        with files.writing(str(path)) as stream:
            np.save(stream, np.concatenate(pieces)[:most])
    tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    count = len(tokens) // length
    if count < 2 * config.held_out_windows:
        raise DataError(
            f"{documents} has {len(tokens):,} tokens, {count} rows of {length}, of which `held_out_windows`"
            f" {config.held_out_windows} are held out: use more documents, shorter rows or fewer held-out rows"
        )
    return np.asarray(tokens[: count * length]).reshape(count, length)


def _token_pieces(documents: str, tokenizer: EncoderTokenizer, most: int) -> Iterator[Int32[np.ndarray, " n"]]:
    """The tokens of documents from all over the pool, about `most` of them."""
    end = np.array([tokenizer.marks[1]], np.int32)
    first = [document.text for document in itertools.islice(read_documents(documents), _TEXTS_AT_ONCE)]
    num_tokens = sum(len(ids) + 1 for ids in tokenizer.encode_whole(first))
    bytes_a_token = sum(text_bytes(text) for text in first) / max(num_tokens, 1)
    texts = (document.text for document in sample(documents, int(1.2 * most * bytes_a_token) + 1))
    while batch := list(itertools.islice(texts, _TEXTS_AT_ONCE)):
        for ids in tokenizer.encode_whole(batch):
            yield ids
            yield end
