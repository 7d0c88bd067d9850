"""Batches as a pure function of (seed, step): nothing is remembered between calls, so resuming needs no loader state.

A sample is one row of a mixture's component; `marin.data.mixture_order` says which, `marin.data.rows` and
`marin.data.packing` what a row is. Batch `step` of `batch_size` rows is samples `step * batch_size` and on; where sizes
change, `batch_from` takes the first sample instead. Each epoch of a component visits every row once, in an order of its own;
a batch that crosses the end of an epoch takes its last rows from the next one.

With several hosts each asks for its own rows of the batch, and reads nothing else.
"""

import functools
import hashlib
import json
import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from marin.data.cache import LEDGER, TokenCache
from marin.data.mixture import Mixture
from marin.data.mixture_order import MixtureOrder, Stage
from marin.data.packing import pack
from marin.data.rows import Batch, ConcatenatedRows, RowCounts, Rows
from marin.errors import ConfigError
from marin.storage import files

LOSS_MASK = "loss_mask"
"""The directory beside a cache's `train` that holds its loss mask, as a cache of 0 and 1."""


@dataclass(frozen=True)
class Component:
    """An opened cache, its loss mask if it has one, and its rows; `limited` where its epochs are."""

    name: str
    cache: TokenCache
    rows: Rows
    limited: bool = False
    mask: TokenCache | None = None

    @property
    def digest(self) -> str:
        """Names the tokens, and which of them are learned."""
        if self.mask is None:
            return self.cache.digest
        return hashlib.sha256(f"tokens {self.cache.digest} mask {self.mask.digest}".encode()).hexdigest()


class ComponentUse(NamedTuple):
    """How much a component has, and how often a run goes through it."""

    name: str
    num_rows: int
    epochs: float
    limited: bool
    counts: RowCounts

    def as_json(self) -> dict[str, object]:
        """For the record of a run: rows, what became of the tokens, and the epochs."""
        return {"name": self.name, "num_rows": self.num_rows, "epochs": round(self.epochs, 6), **self.counts._asdict()}


class BatchRow(NamedTuple):
    """Where a row of a batch comes from: its number in a component, and the documents (from 0) that it has tokens of."""

    component: str
    row: int
    first_document: int
    last_document: int


class BatchSource:
    """The batches of some components in an order.

    Args:
        digest: names what the batches are made of.
    """

    def __init__(self, components: Sequence[Component], order: MixtureOrder, digest: str | None = None):
        self.components = tuple(components)
        self.order = order
        self._digest = digest

    @staticmethod
    def of_cache(
        cache: TokenCache, context_length: int, bos_id: int | None, mask: TokenCache | None = None
    ) -> "BatchSource":
        """The batches of one cache, cut as one stream.

        Args:
            context_length: T, tokens per row.
            bos_id: the token that begins a document; None gives each row a single segment.
        Raises:
            ConfigError: the cache is shorter than one row.
        """
        rows = ConcatenatedRows(cache, context_length, bos_id, mask)
        component = Component("train", cache, rows, mask=mask)
        return BatchSource([component], MixtureOrder([rows.num_rows], [Stage(0, (1.0,))]))

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the cache's content and its loss mask; of a mixture, over its settings and those of all caches."""
        return self._digest or self.components[0].digest

    def batch_at(self, seed: int, step: int, batch_size: int, host: tuple[int, int] = (0, 1)) -> Batch:
        """Batch number `step` of the order that `seed` names, where all batches have one size.

        Args:
            host: (i, n) gives the i-th of n equal parts of the batch's rows.
        Raises:
            ConfigError: there is no such batch, or n hosts cannot share it.
        """
        if step < 0 or batch_size < 1:
            raise ConfigError(
                f"batch of {batch_size} rows at step {step}: the step must be 0 or more, the batch size at least 1"
            )
        return self.batch_from(seed, step * batch_size, batch_size, host)

    def batch_from(self, seed: int, first_sample: int, batch_size: int, host: tuple[int, int] = (0, 1)) -> Batch:
        """`batch_size` samples from `first_sample` on."""
        index, num_hosts = host
        if not 0 <= index < num_hosts or batch_size % num_hosts:
            raise ConfigError(
                f"host {index} of {num_hosts} for a batch of {batch_size} rows: number hosts from 0, and use a batch size that "
                f"is a multiple of {num_hosts}"
            )
        size = batch_size // num_hosts
        begin = first_sample + index * size
        component_B, row_B = self.order.locate(seed, np.arange(begin, begin + size, dtype=np.int64))
        return self._read(component_B, row_B)

    def rows_from(self, seed: int, first_sample: int, batch_size: int) -> list[BatchRow]:
        """Which rows of which component the batch of `batch_from` has, in its order."""
        samples = np.arange(first_sample, first_sample + batch_size, dtype=np.int64)
        found = []
        for number, row in zip(*self.order.locate(seed, samples), strict=True):
            component = self.components[number]
            found.append(BatchRow(component.name, int(row), *component.rows.documents(int(row))))
        return found

    def _read(self, component_B: Int64[np.ndarray, " B"], row_B: Int64[np.ndarray, " B"]) -> Batch:
        present = np.unique(component_B)
        if len(present) == 1:
            return self.components[present[0]].rows.read(row_B)
        parts = [self.components[number].rows.read(row_B[component_B == number]) for number in present]
        place_B = np.argsort(np.argsort(component_B, kind="stable"), kind="stable")
        return Batch(*(np.concatenate(arrays)[place_B] for arrays in zip(*parts, strict=True)))

    def use(self, end: int, begin: int = 0) -> list[ComponentUse]:
        """How often each component is gone through by the samples from `begin` to before `end`."""
        before, after = self.order.drawn(begin), self.order.drawn(end)
        return [
            ComponentUse(component.name, rows, (last - first) / rows, component.limited, component.rows.counts)
            for component, rows, first, last in zip(self.components, self.order.num_rows, before, after, strict=True)
        ]

    def check_enough(self, num_samples: int) -> None:
        """Raises:
        ConfigError: the components' epoch limits end the data before so many samples.
        """
        there = self.order.num_samples
        if there is not None and there < num_samples:
            raise ConfigError(
                f"training takes {num_samples:,} rows, the mixture has {there:,} under its `max_epochs`: raise them, or train "
                "fewer steps"
            )


def open_batches(
    data: str | Mixture,
    context_length: int,
    bos_id: int | None,
    sample_at: Callable[[int], int] = lambda step: step,
) -> BatchSource:
    """The batches of a token cache (the path of its step's output) or of a mixture of such.

    Args:
        sample_at: the sample with which a training step begins; stages of weights are given in steps.
    Raises:
        CacheError: a cache is absent, unfinished or damaged.
        ConfigError: a cache is too short for one row.
    """
    if isinstance(data, str):
        cache, mask = _open_cache(data)
        return BatchSource.of_cache(cache, context_length, bos_id, mask)
    components = []
    for name, path in data.components.items():
        cache, mask = _open_cache(str(path))
        rows = pack(cache, context_length, bos_id, data.packing, mask)
        components.append(Component(name, cache, rows, name in data.max_epochs, mask))
    order = MixtureOrder(
        [component.rows.num_rows for component in components],
        data.stages(sample_at),
        [data.max_epochs.get(component.name) for component in components],
    )
    described = data.as_json() | {"digests": [component.digest for component in components]}
    return BatchSource(components, order, hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest())


def _open_cache(path: str) -> tuple[TokenCache, TokenCache | None]:
    """The cache, and its loss mask where there is one."""
    cache = TokenCache.open(path)
    mask_path = files.join(posixpath.dirname(cache.path.rstrip("/")), LOSS_MASK)
    return cache, TokenCache.open(mask_path) if files.exists(files.join(mask_path, LEDGER)) else None
