"""Whether what a model was scored by is a prediction: probes at the end of every training.

Models bring their own code, and a figure in bits per byte means something only if each token was predicted, from what
stands before it, by probabilities that sum to one. On batches of the evaluation set as they were scored, through the very
program that scored the run:

    normalization  at random positions, the probabilities of the whole vocabulary sum to 1
    causality      after a cut, tokens are replaced by other text (or one token, or where documents end): what was predicted
                   before the cut stays as it was scored
    one_pass       the same rows scored again, in another order and beside other rows, score the same; the model's program
                   was made once, calls nothing outside of itself, which could remember or look up, and holds next to nothing
                   but parameters; and each token of the set is scored once
    byte_count     the bytes divided by are those of the raw documents, and the tokens are such as training has: a tokenizer
                   may not have passages of the evaluation set for tokens
    held_out       passages of the set do not stand in the training data, of which at most 8 million tokens are read; only where
                   that is at hand

A batch that is looked at holds windows that follow each other, as when the run was scored: a model could tell others by
their documents, and see in the rows beside one what comes next only where they are there.

Where the batches, cuts and positions lie follows from `seed`, which stands in the outcome. It is taken from the measured
figure, so that it is fixed for a run and unknown to a model while it trains.

What the probes do not show: that a model looks ahead at a place that no cut met, that it knows the evaluation set by
heart from elsewhere, or that its code has replaced this one, where both run in one process (`marin.evaluation.exported`: where not).
"""

import dataclasses
import functools
import hashlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from marin.data.eval_set import EvalSet, EvalStream
from marin.data.tokenizer import Tokenizer
from marin.evaluation.bits_per_byte import BitsPerByte
from marin.evaluation.scoring import SCORING_BLOCK, Scorer
from marin.evaluation.training_tokens import TrainingSample
from marin.nn.axes import replicate
from marin.nn.loss import cross_entropy

# As many rows are cut, at least, where batches are full. Each shows a model that looks one token ahead at one position, so that one
# which does at 1 in 100 passes less than once in 2,000 times, at 1 in 300 once in 13 (see docs/explanations/bits-per-byte.md).
NUM_CUTS = 768
_NEAR = _FAR = 8  # columns of a row that is cut, whose predictions are looked at
NUM_POSITIONS = 64  # where probabilities are summed
NORMALIZATION_LIMIT = 1e-4
# Nats by which a prediction may move that must not. Honest models measure 0 in one program (see tests/evaluation); a model
# that gains less than this by looking ahead gains nothing that a board would show.
_CHANGE_LIMIT = {"float32": 1e-3, "bfloat16": 1e-2}

# Bytes of a program that are no parameters, as zlib writes them, and of the text's: masks are next to nothing, a table of angles
# for 256 positions 58 KB, the tokens of hello world's held-out set 170 KB. Models of this repository have none.
_CONSTANTS, _CONSTANTS_OF_TEXT = 2**16, 0.05
# Published tokenizers have 3 to 5 bytes a token, such whose tokens span words up to 7.
_MOST_BYTES_A_TOKEN = 10.0
# Of the bytes. Hello world: 0.003 % (2.3 million tokens of training data, a vocabulary of 8,192).
_MOST_UNSEEN = 0.1
# Of the passages of 64 tokens. Hello world: 1.6 %.
_MOST_COPIED = 0.25


@dataclasses.dataclass(frozen=True)
class Probe:
    """One probe: the worst that was measured, what is allowed, and what that means in words."""

    passed: bool
    measured: float
    limit: float
    message: str


@dataclasses.dataclass(frozen=True)
class Validity:
    """The outcome of all probes, and what it takes to run them again."""

    seed: int
    num_cuts: int
    num_positions: int
    seconds: float
    normalization: Probe
    causality: Probe
    one_pass: Probe
    byte_count: Probe
    held_out: Probe | None = None

    @property
    def probes(self) -> dict[str, Probe]:
        names = ("normalization", "causality", "one_pass", "byte_count", "held_out")
        return {name: probe for name in names if (probe := getattr(self, name)) is not None}

    @property
    def passed(self) -> bool:
        return all(probe.passed for probe in self.probes.values())

    def as_json(self) -> dict[str, Any]:
        return {"passed": self.passed, **dataclasses.asdict(self)}


def probe_validity(
    scorer: Scorer,
    eval_set: EvalSet,
    tokenizer: Tokenizer,
    context_length: int,
    measured: BitsPerByte,
    *,
    batch_size: int = 16,
    seed: int | None = None,
    training: TrainingSample | None = None,
) -> Validity:
    """Probes the scorer that gave `measured`; `batch_size` is that which it was scored with.

    Args:
        seed: of another outcome, to repeat it; None for the one that follows from `measured`.
        training: of the training data, where that is at hand.
    """
    begin = time.perf_counter()
    if seed is None:
        seed = int.from_bytes(hashlib.sha256(f"{measured.digest} {measured.nats!r}".encode()).digest()[:4], "big")
    stream = eval_set.stream(tokenizer, context_length)
    if len(measured.nats_of_targets) != stream.num_targets:
        raise ValueError(
            f"{len(measured.nats_of_targets):,} targets of `{eval_set.name}` were scored, it has {stream.num_targets:,}: score"
            " all of it before it is probed"
        )
    rows = _Rows(scorer, stream, measured, batch_size, np.random.default_rng(seed))
    causality, num_cuts = _causality(rows)
    nats_VP = _all_nats(rows, tokenizer.vocab_size)
    return Validity(
        seed=seed,
        num_cuts=num_cuts,
        num_positions=NUM_POSITIONS,
        normalization=_normalization(nats_VP),
        causality=causality,
        one_pass=_one_pass(rows, measured),
        byte_count=_byte_count(rows.stream, eval_set, measured, training),
        held_out=None if training is None else _held_out(rows.stream, training),
        seconds=round(time.perf_counter() - begin, 3),
    )


class _Rows:
    """Batches of the set, and what the scorer says of them."""

    def __init__(
        self, scorer: Scorer, stream: EvalStream, measured: BitsPerByte, batch_size: int, rng: np.random.Generator
    ) -> None:
        self.scorer, self.stream, self.batch_size, self.rng = scorer, stream, batch_size, rng
        self.change_limit = _CHANGE_LIMIT[str(scorer.precision.dtype)]
        self.num_traces = max(1, scorer.num_traces)
        self.num_batches = -(-stream.num_windows // batch_size)
        self._scored = measured.nats_of_targets

    def any_batch(self) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """`batch` of a number by chance, where each window counts alike."""
        window = int(self.rng.integers(self.stream.num_windows))
        return self.batch(window // self.batch_size)

    def batch(self, number: int) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """Tokens, targets, segment ids and which of them are real, of a batch that the run was scored on, and its scores."""
        first, stop = number * self.batch_size, min((number + 1) * self.batch_size, self.stream.num_windows)
        batch = self.stream.windows(range(first, stop), self.batch_size)
        scored_BT = np.zeros(batch[3].shape)
        begin = first * self.stream.context_length
        scored_BT[batch[3]] = self._scored[begin : begin + int(batch[3].sum())]
        return batch, scored_BT

    @functools.cached_property
    def nats_by_frequency(self) -> np.ndarray:
        """What each token would cost by its frequency in the set."""
        counts = np.bincount(self.stream.tokens, minlength=len(self.stream.token_bytes))
        return np.log(len(self.stream.tokens) / np.maximum(counts, 1))

    def others(self) -> tuple[np.ndarray, ...]:
        """The same of windows from anywhere, to put in the place of what was scored."""
        count = self.stream.num_windows
        numbers = self.rng.choice(count, self.batch_size, replace=count < self.batch_size)
        return self.stream.windows([int(number) for number in numbers], self.batch_size)


def _probe(measured: float, limit: float, good: str, bad: str) -> Probe:
    passed = measured <= limit  # a NaN fails
    return Probe(
        passed, measured if np.isfinite(measured) else float(np.finfo(np.float64).max), limit, good if passed else bad
    )


def _largest(differences: np.ndarray) -> float:
    return float(np.max(np.nan_to_num(np.abs(differences), nan=np.inf), initial=0.0))


# ---- normalization -----------------------------------------------------------------------------------------------------


def _normalization(nats_VP: np.ndarray) -> Probe:
    sums = np.exp(-nats_VP).sum(axis=0)
    worst = float(sums[np.argmax(np.abs(np.nan_to_num(sums, nan=np.inf) - 1.0))])
    return _probe(
        abs(worst - 1.0),
        NORMALIZATION_LIMIT,
        f"at {NUM_POSITIONS} positions the probabilities of {len(nats_VP):,} tokens sum to 1",
        f"the probabilities of {len(nats_VP):,} tokens sum to {worst:.6g}, not to 1: the score is no prediction",
    )


def _all_nats(rows: _Rows, vocab_size: int) -> np.ndarray:
    """What the loss says of every token of the vocabulary at some positions, [V, P]."""
    (tokens, _, segments, valid), _ = rows.any_batch()
    real = np.argwhere(valid)
    row_P, column_P = real[rows.rng.integers(len(real), size=NUM_POSITIONS)].T
    x_1PD = rows.scorer.activations(tokens, segments)[row_P, column_P][None]
    num_targets = max(vocab_size, rows.scorer.head_DV.shape[1])
    nats = _nats_of_all(x_1PD, rows.scorer.head_DV, num_targets, softcap=rows.scorer.softcap)
    return np.asarray(nats, np.float64)


@functools.partial(jax.jit, static_argnums=2, static_argnames="softcap")
def _nats_of_all(x_1PD: Any, head_DV: Any, num_targets: int, *, softcap: float | None) -> Any:
    def of_target(target: Any) -> Any:
        targets_1P = jnp.broadcast_to(target, x_1PD.shape[:2])
        return cross_entropy(x_1PD, head_DV, targets_1P, block=SCORING_BLOCK, softcap=softcap)[0]

    # Only what is picked depends on the target, so the logits are computed once.
    return replicate(jax.vmap(of_target)(jnp.arange(num_targets, dtype=jnp.int32)))


# ---- causality ---------------------------------------------------------------------------------------------------------


def _causality(rows: _Rows) -> tuple[Probe, int]:
    limit, worst, num_cuts, num_moved, num_looked_at = rows.change_limit, 0.0, 0, 0, 0
    for number in _in_turn(rows, max(3, -(-NUM_CUTS // rows.batch_size))):
        (tokens, targets, segments, valid), scored_BT = rows.batch(number)
        cuts_B = _cuts(rows, targets, valid, scored_BT)
        columns_BK = _columns_before(rows.rng, cuts_B)
        real_BK = np.broadcast_to((valid.sum(axis=1) > 0)[:, None], columns_BK.shape)
        changed_tokens, changed_segments = _changed(rows, tokens, segments, cuts_B)
        found_BK = rows.scorer.nats_at(columns_BK, changed_tokens, targets, changed_segments)
        moved = (found_BK - np.take_along_axis(scored_BT, columns_BK, axis=1))[real_BK]
        if _largest(moved) > limit / 100:  # more than rounding should do, or rounding: the scores' own program tells
            before = (np.arange(tokens.shape[1]) < cuts_B[:, None]) & valid
            moved = (rows.scorer.nats(changed_tokens, targets, changed_segments) - scored_BT)[before]
        worst = max(worst, _largest(moved))
        num_moved += int((~(np.abs(moved) <= limit)).sum())
        num_looked_at += moved.size
        num_cuts += int((valid.sum(axis=1) > 0).sum())
    return _probe(
        worst,
        limit,
        f"changing what follows {num_cuts} cuts leaves {num_looked_at:,} predictions before them as they were scored",
        f"changing later tokens moves {num_moved:,} of {num_looked_at:,} earlier predictions, by up to {worst:.3g} nats: the"
        " model sees what it is to predict",
    ), num_cuts


def _in_turn(rows: _Rows, count: int) -> list[int]:
    """So many numbers of batches, each once before any is there again: a model may look ahead in some documents alone."""
    rounds = [rows.rng.permutation(rows.num_batches) for _ in range(-(-count // rows.num_batches))]
    return [int(number) for number in np.concatenate(rounds)[:count]]


def _cuts(rows: _Rows, targets: np.ndarray, valid: np.ndarray, scored_BT: np.ndarray) -> np.ndarray:
    """A cut of each row, the column of the first token that is changed.

    Half of them fall anywhere. The other half fall where a score is far below what the token's frequency alone would give,
    in proportion to that: who looks ahead does it to gain, and is met there in proportion to what it gains.
    """
    gained_BT = np.maximum(rows.nats_by_frequency[targets] - scored_BT, 0.0)
    cuts_B = np.ones(len(targets), np.int64)
    for row, size in enumerate(valid.sum(axis=1)):
        if size < 2:
            continue
        weights = gained_BT[row, : size - 1] if rows.rng.integers(2) else np.zeros(size - 1)
        total = float(weights.sum())
        shares = weights / total if np.isfinite(total) and total > 0 else None
        cuts_B[row] = 1 + rows.rng.choice(size - 1, p=shares)
    return cuts_B


def _columns_before(rng: np.random.Generator, cuts_B: np.ndarray) -> np.ndarray:
    """Columns to look at: those next to the cut, from which few tokens ahead are seen, and some from anywhere before it."""
    near = cuts_B[:, None] - 1 - np.arange(_NEAR)
    far = rng.integers(0, cuts_B[:, None], (len(cuts_B), _FAR))
    return np.concatenate([np.maximum(near, 0), far], axis=1)


def _changed(
    rows: _Rows, tokens: np.ndarray, segments: np.ndarray, cuts_B: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and segment ids that differ from the cut on: by turns one token, other text, or that with documents that end elsewhere."""
    other_tokens, _, other_segments, _ = rows.others()
    num_rows, length = tokens.shape
    column_T, row_B = np.arange(length), np.arange(num_rows)
    kind_B1 = rows.rng.integers(0, 3, (num_rows, 1))
    after = column_T >= cuts_B[:, None]
    changed = np.where(after & ((kind_B1 > 0) | (column_T == cuts_B[:, None])), other_tokens, tokens)
    # Common tokens are often the same in other text, which would then test nothing.
    cut_B = np.minimum(cuts_B, length - 1)
    same_B = (changed[row_B, cut_B] == tokens[row_B, cut_B]) & (cuts_B < length)
    changed[row_B[same_B], cut_B[same_B]] = (tokens[row_B, cut_B][same_B] + 1) % len(rows.stream.token_bytes)
    # Segment ids go on rising, as they do in every row; in half of the rows a document ends at the cut.
    last = segments[row_B, cuts_B - 1][:, None] + rows.rng.integers(0, 2, (num_rows, 1))
    first = other_segments[row_B, cut_B][:, None]
    moved_on = np.where(after & (kind_B1 == 2), last + np.maximum(other_segments - first, 0), segments)
    return changed, moved_on.astype(np.int32)


# ---- one pass ----------------------------------------------------------------------------------------------------------


def _one_pass(rows: _Rows, measured: BitsPerByte) -> Probe:
    limit = rows.change_limit
    batch, scored_BT = rows.any_batch()
    tokens, targets, segments, valid = batch
    if outside := rows.scorer.calls_out(tokens, segments):
        called = ", ".join(sorted(outside))
        message = f"the model's program calls out of itself ({called}), so its score may depend on anything"
        return Probe(False, 1.0, 0.0, message)
    held, largest = rows.scorer.constant_bytes(tokens, segments)
    most = max(_CONSTANTS, _CONSTANTS_OF_TEXT * measured.num_bytes)
    if held > most:
        message = (
            f"the model's program holds {held:,} bytes that are no parameters, more than {most:,.0f}, as a copy of the text would"
            f" be; the largest array is {largest}. Compute it inside `activations` from jnp.arange (jnp.cos, jnp.tril, ...),"
            " not with NumPy nor while the model is built"
        )
        return Probe(False, float(held), float(most), message)
    if measured.num_tokens != rows.stream.num_targets:
        missing = abs(rows.stream.num_targets - measured.num_tokens)
        message = f"{measured.num_tokens:,} tokens were scored, the set has {rows.stream.num_targets:,}"
        return Probe(False, float(missing), 0.0, f"{message}: each is to be scored once")
    again = _largest((rows.scorer.nats(tokens, targets, segments) - scored_BT)[valid])
    worst = max(again, _beside_others(rows, batch, scored_BT))
    if rows.scorer.num_traces > rows.num_traces:
        message = "the model's program was made again after it had scored the run: what was probed may be another one"
        return Probe(False, float(rows.scorer.num_traces - rows.num_traces), 0.0, message)
    what = "the same rows scored again" if again > limit else "a row scored beside other rows, in another place"
    return _probe(
        worst,
        limit,
        f"rows score the same again, in another order and beside other rows; {measured.num_tokens:,} tokens are scored once each",
        f"{what} scores differently, by up to {worst:.3g} nats: the score depends on more than the text before a token",
    )


def _beside_others(rows: _Rows, batch: tuple[np.ndarray, ...], scored_BT: np.ndarray) -> float:
    """How far scores move where rows change places and every other one is replaced."""
    worst = 0.0
    for kept in (0, 1):
        order = rows.rng.permutation(rows.batch_size)
        others = rows.others()
        replaced = np.arange(rows.batch_size) % 2 != kept if rows.batch_size > 1 else np.zeros(1, bool)
        pairs = zip(batch[:3], others[:3], strict=True)
        tokens, targets, segments = (np.where(replaced[:, None], other, own)[order] for own, other in pairs)
        moved = np.empty_like(scored_BT)
        moved[order] = rows.scorer.nats(tokens, targets, segments) - scored_BT[order]
        worst = max(worst, _largest(moved[batch[3] & ~replaced[:, None]]))
    return worst


# ---- bytes -------------------------------------------------------------------------------------------------------------


def _byte_count(stream: EvalStream, eval_set: EvalSet, measured: BitsPerByte, training: TrainingSample | None) -> Probe:
    a_token = stream.num_bytes / stream.num_targets
    if a_token > _MOST_BYTES_A_TOKEN:
        message = f"a token stands for {a_token:.3g} bytes on average: the tokenizer has passages of the evaluation set for tokens"
        return Probe(False, a_token, _MOST_BYTES_A_TOKEN, message)
    unseen = 0.0 if training is None else training.unseen_share(stream)
    if unseen > _MOST_UNSEEN:
        message = f"{unseen:.0%} of the text stands in tokens that a sample of the training data has not once: they were made for this text"
        return Probe(False, unseen, _MOST_UNSEEN, message)
    raw = sum(len(document.text.encode()) for document in eval_set.documents)
    tokens = int(stream.token_bytes[stream.tokens].sum())
    wrong = max(abs(measured.num_bytes - raw), abs(tokens - raw))
    return _probe(
        float(wrong),
        0.0,
        f"{raw:,} bytes of raw text, as was divided by",
        f"the text has {raw:,} bytes, its tokens stand for {tokens:,}, and {measured.num_bytes:,} were divided by",
    )


def _held_out(stream: EvalStream, training: TrainingSample) -> Probe:
    copied, read = training.copied_share(stream), f"{training.num_tokens:,} tokens of the training data"
    return _probe(
        copied,
        _MOST_COPIED,
        f"{copied:.1%} of the passages of 64 tokens stand in {read} too",
        f"{copied:.0%} of the passages of 64 tokens stand in {read} too: the evaluation set was trained on",
    )
