"""What a run was trained on, to hold an evaluation set against: the same tokens, and not the same text.

A tokenizer is in no run's cost, and may have whole passages of the evaluation set for tokens: each then costs the logarithm of the
vocabulary, whatever stands in it, and a model that has learned nothing scores well. Such tokens stand in no training data, or the
set itself is trained on, which is found by its text.

At most `_SAMPLED` tokens are read, from places that lie evenly; what stands elsewhere in larger data is not seen.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32, UInt64

from marin.data.cache import TokenCache
from marin.data.eval_set import EvalStream
from marin.errors import DataError, StorageError
from marin.training.run_paths import recorded_path

_SAMPLED, _PARTS = 2**23, 64  # tokens in all, and places of a cache where they are read
# Tokens of a passage, 2 to this power. Of hello world's held-out set 1.6 % of those of 64 stand in the training data, 5 % of 32.
_PASSAGE_LOG2 = 6
_FACTOR = 6364136223846793005  # of Knuth's MMIX generator


@dataclasses.dataclass(frozen=True)
class TrainingSample:
    """Stretches of a run's training data."""

    parts: tuple[Int32[np.ndarray, " n"], ...]

    @staticmethod
    def of_run(run: str | Path, info: dict[str, Any]) -> "TrainingSample | None":
        """None where the data is not at hand.

        Args:
            run: the run's directory.
            info: its `run.json`.
        """
        data = info["config"].get("data")
        paths = [data] if isinstance(data, str) else list(((data or {}).get("components") or {}).values())
        try:
            caches = [TokenCache.open(recorded_path(str(path), run)) for path in paths]
            return TrainingSample.of_caches(caches) if caches else None
        except (DataError, StorageError):
            return None

    @staticmethod
    def of_caches(caches: Sequence[TokenCache]) -> "TrainingSample":
        parts = []
        length = _SAMPLED // (_PARTS * len(caches))
        for cache in caches:
            total = len(cache.tokens)
            if total <= _PARTS * length:
                parts.append(cache.tokens[:])
                continue
            starts = np.linspace(0, total - length, _PARTS, dtype=np.int64)
            parts += [cache.tokens[int(start) : int(start) + length] for start in starts]
        return TrainingSample(tuple(parts))

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.parts))

    def unseen_share(self, stream: EvalStream) -> float:
        """The part of a set's bytes that stand in tokens which the sample has not."""
        vocab_size = len(stream.token_bytes)
        seen = np.zeros(vocab_size, bool)
        for part in self.parts:
            seen[part[part < vocab_size]] = True
        sizes = stream.token_bytes[stream.tokens].astype(np.int64)
        return float(sizes[~seen[stream.tokens]].sum() / max(1, sizes.sum()))

    def copied_share(self, stream: EvalStream) -> float:
        """The part of a set's passages, one from each token on, that stand in the sample word for word."""
        wanted = np.unique(_passages(stream.tokens))
        found = np.zeros(len(wanted), bool)
        for part in self.parts if len(wanted) else ():
            passages = _passages(part)
            places = np.minimum(np.searchsorted(wanted, passages), len(wanted) - 1)
            found[places[wanted[places] == passages]] = True
        return float(found.mean()) if len(wanted) else 0.0


def _passages(tokens: Int32[np.ndarray, " n"]) -> UInt64[np.ndarray, " m"]:
    """A hash of the passage that begins at each token; twice as long with each turn."""
    hashes, factor = tokens.astype(np.uint64) + np.uint64(1), _FACTOR
    for turn in range(_PASSAGE_LOG2):
        hashes = hashes[: -(2**turn)] + np.uint64(factor) * hashes[2**turn :]
        factor = factor * factor % 2**64
    return hashes
