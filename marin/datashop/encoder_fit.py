"""Trains the encoder classifier: first the head alone, then if asked all weights from there.

    learn    most of the documents that may be learned from
    select   the rest of them: which regularization, which weights to keep; drawn by a hash of the id
    held out never seen here; `quality.json` is measured on them

The head of a frozen encoder is a ridge regression on its vectors, solved exactly. Fine-tuning begins with that head (Kumar et
al., 2022, arXiv:2202.10054), so that the first steps do not spoil the encoder for a head that knows nothing, and minimizes
the squared error of the label. The weights with the best macro-F1 of rounded labels on `select` are kept, those before the
first step among them.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, Int32

from marin.datashop.classifier import CLASSIFIER, finish_classifier, read_sample
from marin.datashop.encoder import ENCODER, HEAD, TRAINING, EncoderConfig, encoder_folder, origin_of
from marin.datashop.encoder_scoring import EncoderClassifier, RegressionHead, TextEncoder, open_text_encoder, padded
from marin.datashop.fitting import Fit, descent, fit
from marin.datashop.labels import LabelledSample, held_out
from marin.errors import DataError
from marin.models.encoder import pooled
from marin.models.encoder_files import save_encoder
from marin.models.lm import count_parameters
from marin.optim import AdamConfig
from marin.storage import files
from marin.training.compile_cache import use_compile_cache

# Strengths of the ridge that are tried, on vectors whose every component has a variance of one.
_RIDGES = tuple(10.0**power for power in range(-2, 6))
# Batches whose documents are sorted by length together: little padding, and still a shuffled order.
_SORTED_BATCHES = 16
_VECTORS = "vectors"
_BLOCK = 8192


@dataclasses.dataclass(frozen=True)
class Labelled:
    """Tokenized documents with their labels."""

    ids: Sequence[Int32[np.ndarray, " n"]]
    labels: Float64[np.ndarray, " N"]

    def where(self, chosen: Bool[np.ndarray, " N"]) -> "Labelled":
        return Labelled([self.ids[index] for index in np.flatnonzero(chosen).tolist()], self.labels[chosen])


def train_encoder(config: EncoderConfig) -> None:
    """Writes the classifier's folder; goes on where a killed attempt stopped.

    Raises:
        DataError: sample and labels do not belong together, the labels cannot be learned from, or the encoder's record is damaged.
        ConfigError: the encoder is not there, or does not take `max_tokens`.
        CheckpointError: the encoder's folder is damaged or of another architecture.
    """
    output = Path(files.local_path(config.output_path))
    if (output / CLASSIFIER).is_file():
        _remove_leftovers(output)  # of an attempt that was killed between its last file and here
        return
    use_compile_cache()
    started = time.perf_counter()
    folder = encoder_folder(str(config.encoder))
    origin = origin_of(folder)  # first, as a damaged record must not be found after hours of training
    sample, threshold = read_sample(config)
    encoder = open_text_encoder(folder, config.pooling, config.max_tokens, config.compute)
    texts, labels = sample.part(held_out=False)
    data = Labelled(encoder.encode(texts), labels)
    selects = _selection(sample, config)
    learn, select = data.where(~selects), data.where(selects)
    print(f"encoder: {len(learn.labels):,} documents to learn from, {len(select.labels):,} to choose by", flush=True)

    # ---- the head alone ----------------------------------------------------------------------------------------------
    vectors = _stored_vectors(encoder, data.ids, output / _VECTORS)
    head, ridge = fit_head(vectors[~selects], learn.labels, vectors[selects], select.labels)
    frozen = choice_key(head(vectors[selects]), select.labels, sample.scale)
    tried: list[dict[str, float]] = [{"step": 0, "macro_f1": frozen[0], "squared_error": -frozen[1]}]
    print(f"encoder: frozen, macro-F1 {frozen[0]:.4f}, squared error {-frozen[1]:.4f} (ridge {ridge:g})", flush=True)

    # ---- all weights -------------------------------------------------------------------------------------------------
    num_steps = 0
    if config.fine_tune:
        trainer = FineTuner(config, encoder, head, learn, select, sample.scale)
        num_steps = trainer.num_steps
        encoder, head, found = trainer.run(output, frozen)
        tried += found
    best = kept_look(tried)

    # ---- the folder --------------------------------------------------------------------------------------------------
    files.remove_tree(str(output / ENCODER))
    save_encoder(output / ENCODER, encoder.module, encoder.tokenizer.files, encoder.tokenizer.pad_id)
    head.save(str(output / HEAD))
    files.write_json(
        str(output / TRAINING), {"ridge": ridge, "steps": num_steps, "kept_step": best["step"], "tried": tried}
    )
    record = {
        "pooling": config.pooling,
        "max_tokens": config.max_tokens,
        "fine_tuned": config.fine_tune,
        "kept_step": best["step"],
        "num_steps": num_steps,
        "num_selected_on": len(select.labels),
        "selection_macro_f1": best["macro_f1"],
        "frozen_selection_macro_f1": frozen[0],
        "parameters": count_parameters(encoder.weights),
        "training_seconds": round(time.perf_counter() - started, 1),
        "compute": encoder.precision.compute,
        "num_processes": 1,  # JAX uses all processors, or the accelerator, from one
        **origin,
    }
    finish_classifier(config, EncoderClassifier(encoder, head), sample, threshold, record)
    _remove_leftovers(output)


def fit_head(
    learn_ND: Float[np.ndarray, "N D"],
    labels_N: Float64[np.ndarray, " N"],
    select_MD: Float[np.ndarray, "M D"],
    select_M: Float64[np.ndarray, " M"],
) -> tuple[RegressionHead, float]:
    """The ridge regression from vectors to labels whose squared error is least on `select`, and its strength."""
    from sklearn.linear_model import Ridge

    mean_D, std_D = learn_ND.mean(0, dtype=np.float64), learn_ND.std(0, dtype=np.float64)
    std_D = np.where(std_D > 1e-6 * (np.abs(mean_D) + 1e-6), std_D, np.inf)  # what does not vary says nothing
    inputs = (learn_ND - mean_D) / std_D
    found: list[tuple[float, float, RegressionHead]] = []
    for strength in _RIDGES:
        ridge = Ridge(alpha=strength, solver="cholesky").fit(inputs, labels_N)
        weight_D = ridge.coef_ / std_D
        head = RegressionHead(weight_D, float(ridge.intercept_ - mean_D @ weight_D))
        found.append((float(np.mean((head(select_MD) - select_M) ** 2)), strength, head))
    error, strength, head = min(found, key=lambda each: each[:2])
    if not math.isfinite(error):
        raise DataError("the encoder's vectors are not finite: its weights are damaged, fetch it again")
    return head, strength


def choice_key(
    scores: Float64[np.ndarray, " N"], labels: Float64[np.ndarray, " N"], scale: tuple[float, float]
) -> tuple[float, float]:
    """(macro-F1 of rounded labels, minus the squared error): the larger, the better."""
    from sklearn.metrics import f1_score

    rounded = np.rint(np.clip(scores, *scale)).astype(int)
    macro = f1_score(np.rint(labels).astype(int), rounded, average="macro", zero_division=0.0)
    return float(macro), -float(np.mean((scores - labels) ** 2))


def kept_look(tried: Sequence[dict[str, float]]) -> dict[str, float]:
    """The look whose weights `FineTuner` keeps: the first of the best ones, as float32 sees them, in which it compares."""
    return max(tried, key=lambda each: (np.float32(each["macro_f1"]), -np.float32(each["squared_error"])))


class FineTuner:
    """All weights of the encoder and the head, by AdamW on the squared error.

    Its state holds the weights, the optimizer's moments and the best weights so far, so a resumed run chooses as one that
    was never stopped.
    """

    def __init__(
        self,
        config: EncoderConfig,
        encoder: TextEncoder,
        head: RegressionHead,
        learn: Labelled,
        select: Labelled,
        scale: tuple[float, float],
    ) -> None:
        self._config, self._encoder, self._head = config, encoder, head
        self._learn, self._select, self._scale = learn, select, scale
        self._lengths = np.array([len(each) for each in learn.ids])
        self._order_of = functools.lru_cache(maxsize=2)(self._order)
        self._unit = max(float(learn.labels.std()), 1e-6)
        self._batches_an_epoch = max(1, math.ceil(len(learn.labels) / config.batch_size))
        self.num_steps = max(1, round(self._batches_an_epoch * config.num_epochs))

    def run(
        self, output: Path, frozen: tuple[float, float]
    ) -> tuple[TextEncoder, RegressionHead, list[dict[str, float]]]:
        """The best weights, and what was measured at each look."""
        config = self._config
        optimizer = AdamConfig(
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
            warmup=config.warmup,
            lr_schedule="linear",
            min_lr_ratio=0.0,
            beta2=0.999,
            max_grad_norm=1.0,
        ).build(None, self.num_steps)
        weights = {
            "encoder": jax.tree.map(jnp.copy, self._encoder.weights),  # each step gives up the buffers that it is given
            "head": {"weight_D": jnp.asarray(self._head.weight_D, jnp.float32), "bias": jnp.float32(self._head.bias)},
        }
        looks = self.num_steps // config.eval_every + 1
        state = {
            "weights": weights,
            "moments": optimizer.init(weights),
            "best": jax.tree.map(jnp.copy, weights),
            "best_key": jnp.asarray(frozen, jnp.float32),
            "looks": jnp.full((looks, 3), jnp.nan, jnp.float32),
        }
        run = Fit("fine-tuning", self.num_steps, output, config.checkpoint_interval, config.eval_every)
        state = fit(run, state, descent(optimizer, self._loss()), self._batch, self._look)
        looked = np.asarray(state["looks"], np.float64)
        found = [
            {"step": int(step), "macro_f1": macro, "squared_error": error}
            for step, macro, error in looked[~np.isnan(looked[:, 0])].tolist()
        ]
        best = state["best"]
        return self._encoder.with_weights(best["encoder"]), _head_of(best["head"]), found

    def _batch(self, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Tokens, lengths, labels and weights of the rows of a step."""
        epoch, index = divmod(step, self._batches_an_epoch)
        size = self._config.batch_size
        rows = self._order_of(epoch)[index * size : (index + 1) * size]
        ids = [self._learn.ids[row] for row in rows]
        longest = max(len(each) for each in ids)
        bucket = next(length for length in self._encoder.buckets if length >= longest)
        tokens, lengths = padded(ids, size, bucket, self._encoder.tokenizer.pad_id)
        labels, weights = np.zeros(size, np.float32), np.zeros(size, np.float32)
        labels[: len(rows)], weights[: len(rows)] = self._learn.labels[rows], 1.0
        return tokens, lengths, labels, weights

    def _order(self, epoch: int) -> Int32[np.ndarray, " N"]:
        """All documents shuffled, those of some batches sorted by length, and the batches shuffled again."""
        generator = np.random.default_rng([self._config.seed, epoch])
        size, count = self._config.batch_size, len(self._learn.labels)
        order = generator.permutation(count)
        window = size * _SORTED_BATCHES
        parts = [order[start : start + window] for start in range(0, count, window)]
        order = np.concatenate([part[np.argsort(self._lengths[part], kind="stable")] for part in parts])
        whole = count // size
        batches = order[: whole * size].reshape(whole, size)[generator.permutation(whole)]
        return np.concatenate([batches.reshape(-1), order[whole * size :]])

    def _loss(self) -> Callable[..., Array]:
        """The squared error of a batch's labels, in units of their variance."""
        precision, static, pooling = self._encoder.precision, self._encoder.static, self._config.pooling
        unit = self._unit

        def loss_of(weights: Any, tokens_BT: Array, lengths_B: Array, labels_B: Array, weights_B: Array) -> Array:
            encoder = eqx.combine(precision.cast(weights["encoder"]), static)
            vectors_BD = pooled(encoder.activations(tokens_BT, lengths_B), lengths_B, pooling)
            scores_B = vectors_BD @ weights["head"]["weight_D"] + weights["head"]["bias"]
            errors_B = jnp.square((scores_B - labels_B) / unit)
            return jnp.sum(errors_B * weights_B) / jnp.maximum(jnp.sum(weights_B), 1.0)

        return loss_of

    def _look(self, state: Any, done: int) -> Any:
        """Measures on the selection part, and keeps the weights if none before were better."""
        head = _head_of(state["weights"]["head"])
        vectors = self._encoder.with_weights(state["weights"]["encoder"]).vectors_of(self._select.ids)
        key = choice_key(head(vectors), self._select.labels, self._scale)
        index = min((done - 1) // self._config.eval_every, state["looks"].shape[0] - 1)
        looks = state["looks"].at[index].set(jnp.asarray([done, key[0], -key[1]], jnp.float32))
        state = {**state, "looks": looks}
        before = np.asarray(state["best_key"], np.float64)
        print(f"fine-tuning: step {done:,}, macro-F1 {key[0]:.4f}, squared error {-key[1]:.4f}", flush=True)
        if tuple(np.array(key, np.float32).tolist()) > tuple(before.tolist()):
            best = jax.tree.map(jnp.copy, state["weights"])
            state = {**state, "best": best, "best_key": jnp.asarray(key, jnp.float32)}
        return state


def _remove_leftovers(output: Path) -> None:
    for name in ("checkpoints", _VECTORS):
        files.remove_tree(str(output / name))


def _selection(sample: LabelledSample, config: EncoderConfig) -> Bool[np.ndarray, " N"]:
    """Which of the documents to learn from weights are chosen on."""
    ids = [document.id for document, is_out in zip(sample.documents, sample.is_held_out, strict=True) if not is_out]
    # Of another seed than the held-out part, which would else be the same lowest hashes.
    selects = held_out([f"select {each}" for each in ids], config.selection_fraction, config.seed)
    if selects.all() or not selects.any():
        raise DataError(
            f"of {len(ids):,} documents to learn from, `selection_fraction` {config.selection_fraction:g} leaves"
            f" {int((~selects).sum()):,} to learn and {int(selects.sum()):,} to choose by: label more documents"
        )
    return selects


def _stored_vectors(encoder: TextEncoder, ids: Sequence[np.ndarray], folder: Path) -> Float[np.ndarray, "N D"]:
    """The vectors of all documents; blocks that an earlier attempt has written are read."""
    blocks = []
    for start in range(0, len(ids), _BLOCK):
        path = folder / f"block-{start // _BLOCK:05d}.npy"
        if not path.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            with files.writing(str(path)) as stream:
                np.save(stream, encoder.vectors_of(ids[start : start + _BLOCK]))
            if len(ids) > _BLOCK:
                print(f"encoder: vectors of {min(start + _BLOCK, len(ids)):,} of {len(ids):,} documents", flush=True)
        blocks.append(np.load(path, allow_pickle=False))
    return np.concatenate(blocks)


def _head_of(head: dict[str, Array]) -> RegressionHead:
    return RegressionHead(np.asarray(head["weight_D"], np.float64), float(head["bias"]))
