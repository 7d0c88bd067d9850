"""How likely a model finds some tokens of given sequences: what multiple-choice and cloze evaluations ask, in batches.

    scorer = LikelihoodScorer(model, precision=Precision("f32"))
    for index, scored in scorer.score(groups): ...

A group is one or more sequences that belong together, such as the choices of a question. What its sequences have in common is
computed once and its keys and values are shared (`marin.models.decoding`), where that saves work and the model allows it.
Batches hold sequences of about one length, padded to one of few lengths, so that few programs are compiled. Logits are
computed at the positions that are scored, and nowhere else.
"""

import dataclasses
import functools
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int32

from marin.errors import ConfigError, DataError
from marin.evaluation.likelihood_batches import Batch, Limits, plan
from marin.models.at_positions import activations_at
from marin.models.decoding import can_decode, extend, init_cache, prefill, repeat_rows
from marin.nn.axes import BATCH_AXES, ambient_axes, replicate
from marin.nn.loss import softcapped
from marin.nn.precision import Precision
from marin.parallel import distributed

Tokens = Int32[np.ndarray, " t"]

# Logits that exist at once.
_LOGITS = 2**25
# A batch's tokens: on a CPU as many as keep a small model's activations near its caches.
_CPU_TOKENS, _ACCELERATOR_TOKENS = 4096, 2**16


@dataclasses.dataclass(frozen=True)
class Group:
    """Sequences of tokens, all of which begin with `prefix`.

    Args:
        rows: what follows the prefix in each, at least one token.
        starts: of each row the first of its tokens that is scored, at least 1; all after it are too. A row may end there: then it
            has nothing to score.
    """

    prefix: Tokens
    rows: tuple[Tokens, ...]
    starts: tuple[int, ...]

    @staticmethod
    def of(sequences: Sequence[Any], starts: Sequence[int]) -> "Group":
        """The group of these sequences, of which the tokens from `starts` on are scored.

        Raises:
            ConfigError: what is scored begins before the second token, or after the last.
        """
        for sequence, start in zip(sequences, starts, strict=True):
            if not 1 <= start <= len(sequence):
                raise ConfigError(
                    f"a sequence of {len(sequence)} tokens cannot be scored from token {start}: a token must stand before those that are"
                )
        arrays = [np.asarray(sequence, np.int32) for sequence in sequences]
        shared = num_shared(arrays, min(starts) - 1) if len(arrays) > 1 else 0
        return Group(
            arrays[0][:shared].copy(),
            tuple(array[shared:].copy() for array in arrays),
            tuple(start - shared for start in starts),
        )


@dataclasses.dataclass(frozen=True)
class Scored:
    """What a model says of a sequence.

    Args:
        nats: of each scored token, its loss.
        greedy: whether every scored token is the model's likeliest.
    """

    nats: Float[np.ndarray, " n"]
    greedy: bool

    @property
    def mean_nats(self) -> float:
        """NaN where nothing is scored."""
        if not len(self.nats):
            return math.nan
        return float(self.nats.mean(dtype=np.float64))

    @property
    def total_nats(self) -> float:
        return float(self.nats.sum(dtype=np.float64))


def default_batch_tokens() -> int:
    """As many tokens at once as suit the devices of the ambient mesh."""
    each = _CPU_TOKENS if jax.default_backend() == "cpu" else _ACCELERATOR_TOKENS
    sizes = ambient_axes()
    return each * math.prod(sizes.get(axis, 1) for axis in BATCH_AXES)


class LikelihoodScorer:
    """Scores groups with one model.

    Args:
        model: an `LmModel`; where `marin.models.decoding` does not know it, nothing is shared.
        batch_tokens: the most tokens that a batch computes at once; None for as many as suit the devices, over which a mesh (see
            `marin.parallel.mesh.ambient`) divides the rows of a batch.
        share: False computes each sequence by itself, all of it.
    """

    def __init__(
        self, model: Any, *, precision: Precision | None = None, batch_tokens: int | None = None, share: bool = True
    ):
        if batch_tokens is not None and batch_tokens < 1:
            raise ConfigError(f"`batch_tokens` is {batch_tokens}: use at least 1, or None")
        self.precision = precision or Precision("f32")
        model = self.precision.cast(model)
        self._arrays, self._static = eqx.partition(model, eqx.is_array)
        self._compiled: dict[Any, Any] = {}  # by shapes, where several processes compute together
        self._vocab_size = int(model.lm_head_DV.shape[1])
        longest = getattr(model, "max_positions", None)
        self._limits = Limits(
            batch_tokens or default_batch_tokens(), share=share and can_decode(model), longest=longest
        )

    @property
    def batch_tokens(self) -> int:
        return self._limits.tokens

    def score(self, groups: Sequence[Group]) -> Iterator[tuple[int, tuple[Scored, ...]]]:
        """Each group's number with what the model says of its sequences, in the order in which batches are computed.

        Raises:
            DataError: a token is outside of the model's vocabulary, a sequence is longer than the model knows positions, or a
                loss is not finite.
        """
        self._check_lengths(groups)
        waiting = {number: len(group.rows) for number, group in enumerate(groups)}
        done: dict[int, dict[int, Scored]] = {number: {} for number in waiting}
        for batch in plan(groups, self._limits):
            self._check(batch)
            for number, row, scored in self._results(batch):
                done[number][row] = scored
                if len(done[number]) == waiting[number]:
                    results = done.pop(number)
                    yield number, tuple(results[i] for i in range(waiting[number]))

    def _results(self, batch: Batch) -> Iterator[tuple[int, int, Scored]]:
        nats, hits = (
            np.asarray(part)
            for part in self._run(
                batch.prefix_GS,
                batch.prefix_lengths_G,
                batch.tokens_RT,
                batch.row_N,
                batch.position_N,
                batch.target_N,
            )
        )
        for number, row, first, stop in batch.members:
            losses = nats[first:stop]
            if not np.isfinite(losses).all():
                raise DataError("the model's loss is not finite: its weights are damaged or training diverged")
            yield number, row, Scored(losses, bool(hits[first:stop].all()))

    def _run(self, *parts: np.ndarray) -> Any:
        run = _program(self._static, block=max(1, _LOGITS // self._vocab_size))
        if jax.process_count() == 1:
            return run(self._arrays, *parts)
        shapes = tuple(part.shape for part in parts)
        if shapes not in self._compiled:
            self._compiled[shapes] = run.lower(self._arrays, *parts).compile()
            distributed.meet("after compiling")  # as they wait only seconds for each other inside of a program
        return self._compiled[shapes](self._arrays, *parts)

    def _check_lengths(self, groups: Sequence[Group]) -> None:
        limit = self._limits.longest
        longest = max((len(group.prefix) + len(row) for group in groups for row in group.rows), default=0)
        if limit is not None and longest > limit + 1:  # the last token is only predicted
            raise DataError(
                f"a sequence has {longest:,} tokens, and the model knows {limit:,} positions: cut what it is asked (`max_tokens`)"
            )

    def _check(self, batch: Batch) -> None:
        highest = max(int(batch.tokens_RT.max()), int(batch.prefix_GS.max(initial=0)))
        if highest >= self._vocab_size:
            raise DataError(
                f"the text has token {highest}, and the model a vocabulary of {self._vocab_size:,}: use the tokenizer that the model was"
                " trained with"
            )


@functools.lru_cache(maxsize=4)
def _program(static: Any, block: int) -> Any:
    """The loss in nats of N tokens and whether each is the likeliest: compiled once for each shape of a batch."""

    @jax.jit
    def run(
        arrays: Any,
        prefix_GS: Int[Array, "G S"],
        prefix_lengths_G: Int[Array, " G"],
        tokens_RT: Int[Array, "R T"],
        row_N: Int[Array, " N"],
        position_N: Int[Array, " N"],
        target_N: Int[Array, " N"],
    ) -> tuple[Float[Array, " N"], Bool[Array, " N"]]:
        model = eqx.combine(arrays, static)
        if prefix_GS.shape[1] == 0:
            x_ND = activations_at(model, tokens_RT, row_N, position_N)
        else:
            groups, length = prefix_GS.shape
            rows, num_tokens = tokens_RT.shape
            cache = init_cache(model, groups, length + num_tokens)
            _, cache = prefill(model, prefix_GS, cache, prefix_lengths_G)
            x_RTD, _ = extend(model, tokens_RT, repeat_rows(cache, rows // groups))
            x_ND = x_RTD[row_N, position_N]
        nats_N, hit_N = _losses(x_ND, model, target_N, block)
        return replicate(nats_N), replicate(hit_N)

    return run


def _losses(
    x_ND: Float[Array, "N D"], model: Any, target_N: Int[Array, " N"], block: int
) -> tuple[Float[Array, " N"], Bool[Array, " N"]]:
    """Cross-entropy in float32 and whether the target is the likeliest token, a block of positions at a time."""
    head_DV, softcap = model.lm_head_DV, model.logit_softcap

    def of_block(pair: tuple[Float[Array, "n D"], Int[Array, " n"]]) -> tuple[Float[Array, " n"], Bool[Array, " n"]]:
        x_nD, target_n = pair
        logits = softcapped(jnp.matmul(x_nD, head_DV, preferred_element_type=jnp.float32), softcap)
        picked = jnp.take_along_axis(logits, target_n[:, None], axis=1)[:, 0]
        return jax.nn.logsumexp(logits, axis=1) - picked, jnp.argmax(logits, axis=1) == target_n

    count = target_N.shape[0]
    if count <= block:
        return of_block((x_ND, target_N))
    parts = math.ceil(count / block)
    padding = parts * block - count
    x_nbD = jnp.pad(x_ND, ((0, padding), (0, 0))).reshape(parts, block, -1)
    target_nb = jnp.pad(target_N, (0, padding)).reshape(parts, block)
    nats, hits = jax.lax.map(of_block, (x_nbD, target_nb))
    return nats.reshape(-1)[:count], hits.reshape(-1)[:count]


def num_shared(arrays: Sequence[Tokens], most: int = sys.maxsize) -> int:
    """How many tokens all arrays begin with, at most `most`."""
    length = min(most, *map(len, arrays))
    same = np.all(np.stack([array[:length] for array in arrays]) == arrays[0][:length], axis=0)
    return length if same.all() else int(np.argmin(same))
