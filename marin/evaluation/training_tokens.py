"""Which tokens a run was trained on, to hold those of an evaluation set against.

A tokenizer is in no run's cost, and may have whole passages of the evaluation set for tokens: each then costs the logarithm of the
vocabulary, whatever stands in it, and a model that has learned nothing scores well. Such tokens stand in no training data.
"""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from marin.data.cache import TokenCache
from marin.data.eval_set import EvalStream
from marin.errors import DataError, StorageError
from marin.training.run_paths import recorded_path

_SAMPLED, _PARTS = 2**23, 64  # tokens in all, and places of a cache where they are read


def counts_of_run(run: str | Path, info: dict[str, Any], vocab_size: int) -> Int64[np.ndarray, " V"] | None:
    """How often each token stands in a sample of a run's training data; None where the data is not at hand.

    Args:
        run: the run's directory.
        info: its `run.json`.
    """
    data = info["config"].get("data")
    paths = [data] if isinstance(data, str) else list(((data or {}).get("components") or {}).values())
    try:
        caches = [TokenCache.open(recorded_path(str(path), run)) for path in paths]
        return sampled_counts(caches, vocab_size) if caches else None
    except (DataError, StorageError):
        return None


def sampled_counts(caches: list[TokenCache], vocab_size: int) -> Int64[np.ndarray, " V"]:
    """How often each token stands in these caches, or in places of them that lie evenly."""
    counts = np.zeros(vocab_size, np.int64)
    length = _SAMPLED // (_PARTS * len(caches))
    for cache in caches:
        total = len(cache.tokens)
        starts = np.linspace(0, max(0, total - length), _PARTS, dtype=np.int64) if total > _PARTS * length else [0]
        for start in starts:
            part = cache.tokens[int(start) : int(start) + (length if len(starts) > 1 else total)]
            counts += np.bincount(part, minlength=vocab_size)[:vocab_size]
    return counts


def unseen_share(stream: EvalStream, counts: Int64[np.ndarray, " V"]) -> float:
    """The part of a set's bytes that stand in tokens without a count."""
    sizes = stream.token_bytes[stream.tokens].astype(np.int64)
    unseen = counts[stream.tokens] == 0
    return float(sizes[unseen].sum() / max(1, sizes.sum()))
