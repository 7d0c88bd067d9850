"""One-dimensional zarr3 arrays as Levanter declares them, through TensorStore, with errors that name the file.

An array is declared 2^54 long and sharded: outer chunks are files, inner chunks are compressed one by one (blosc lz4).
Which part is in use is not recorded here; whoever keeps the array knows. The same values give the same bytes on disk.
Reading finds the chunk sizes in the array's declaration, here as in Levanter.
"""

import contextlib
import functools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marin.data.blosc_blocks import BlockReader, OtherBlocks
from marin.errors import CacheError, StorageError, first_line
from marin.storage import files

DECLARED_LENGTH = 1 << 54


@dataclass(frozen=True)
class Chunking:
    """Values per file, values per compressed chunk, and the block size that blosc is asked for (0: its own choice)."""

    outer: int
    inner: int
    block: int = 0


# Levanter opens arrays of these chunks only; the size of blosc's blocks is free.
LEVANTER = Chunking(outer=1 << 27, inner=1 << 18)
"""What Levanter writes, and so the published caches have."""
# blosc takes this times the width of a value, so blocks of 2^14 values where its own choice is 2^17; the tokens of real text
# need 1 % less space so (1 GB, n=1). `blosc_blocks` reads a sequence from one or two blocks.
OURS = Chunking(outer=1 << 27, inner=1 << 18, block=1 << 14)
_CACHE_BYTES = 64_000_000
_AT_ONCE = 16
_NEXT_STEP = "fetch it again, or remove the cache and run the step that writes it"


@dataclass(frozen=True)
class StoredArray:
    """A declared array on disk."""

    path: str
    store: Any
    chunking: Chunking

    @staticmethod
    def create(path: str, dtype: np.dtype[Any], chunking: Chunking = OURS) -> "StoredArray":
        """Declares an empty array."""
        import tensorstore as ts

        # A chunk of zeros is stored like any other, so that a missing file always means damage.
        spec = {
            "driver": "zarr3",
            "kvstore": _kvstore(path),
            "metadata": _metadata(dtype, chunking),
            "create": True,
            "delete_existing": True,
            "store_data_equal_to_fill_value": True,
        }
        try:
            return StoredArray(path, ts.open(spec, context=_context()).result(), chunking)
        except ValueError as error:
            raise StorageError(
                f"{path} cannot be created ({_said(error)}): check the path, its permissions and the free space"
            ) from None

    @staticmethod
    def open(path: str) -> "StoredArray":
        """Opens an existing array of one dimension and of an integer type.

        Raises:
            CacheError: there is none, or its declaration cannot be read.
        """
        import tensorstore as ts

        try:
            store = ts.open({"driver": "zarr3", "kvstore": _kvstore(path)}, context=_context()).result()
        except ValueError as error:
            raise CacheError(f"{path} is no zarr3 array ({_said(error)}): {_NEXT_STEP}") from None
        if store.rank != 1 or not np.issubdtype(store.dtype.numpy_dtype, np.integer):
            raise CacheError(
                f"{path} has {store.rank} dimensions of {store.dtype.name}: expected one dimension of integers"
            )
        layout: Any = store.chunk_layout
        chunking = Chunking(int(layout.write_chunk.shape[0]), int(layout.read_chunk.shape[0]))
        return StoredArray(path, store, chunking)

    def write(self, start: int, values: np.ndarray) -> None:
        """Writes the values, which must not be changed afterwards: what is cached for reading refers to them."""
        try:
            part = self.store[start : start + len(values)]
            # Without a copy, as half a gigabyte may be written at once.
            part.write(values, can_reference_source_data_indefinitely=True).result()
        except ValueError as error:
            raise StorageError(
                f"{self.path} cannot be written ({_said(error)}): free some space or choose another --prefix"
            ) from None

    def read(self, start: int, stop: int) -> np.ndarray:
        return self._read_whole_chunks([(start, stop)])[0]

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> np.ndarray:
        """The ranges, all of one length, one a row; short ones are read without whole chunks where possible."""
        if self._blocks is not None and ranges and ranges[0][1] - ranges[0][0] < self.chunking.inner:
            with contextlib.suppress(OtherBlocks):
                return self._blocks.read_many(ranges)
        return self._read_whole_chunks(ranges)

    def _read_whole_chunks(self, ranges: Sequence[tuple[int, int]]) -> np.ndarray:
        try:
            rows = []
            for first in range(0, len(ranges), _AT_ONCE):  # each holds whole chunks in memory
                futures = [self.store[start:stop].read() for start, stop in ranges[first : first + _AT_ONCE]]
                rows += [future.result() for future in futures]
            return np.stack(rows)
        except ValueError as error:
            raise CacheError(
                f"{self.path} cannot be read ({_said(error)}): it is damaged or cut short, {_NEXT_STEP}"
            ) from None

    @functools.cached_property
    def _blocks(self) -> BlockReader | None:
        return BlockReader.of(self.path, self.store.dtype.numpy_dtype, self.chunking.outer, self.chunking.inner)

    def require(self, length: int) -> None:
        """Checks that every chunk of the first `length` values has its file, since a missing one would read as zeros.

        Raises:
            CacheError: one is missing.
        """
        directory = files.join(self.path, "c")
        present = set(files.list_dir(directory))
        for name in map(str, range(-(-length // self.chunking.outer))):
            if name not in present:
                raise CacheError(
                    f"{files.join(directory, name)} is missing (the array has {length} values): {_NEXT_STEP}"
                )


@functools.cache
def _context() -> Any:
    import tensorstore as ts

    return ts.Context({"cache_pool": {"total_bytes_limit": _CACHE_BYTES}})


def _kvstore(path: str) -> Any:
    if files.is_local(path):
        # TensorStore refuses a path with `..`.
        return {"driver": "file", "path": os.path.realpath(files.local_path(path))}
    if path.startswith(("gs://", "s3://")):
        return path
    raise StorageError(f"{path}: token caches lie on local disks, gs:// or s3://: choose another --prefix")


def _metadata(dtype: np.dtype[Any], chunking: Chunking) -> dict[str, Any]:
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    blosc = {
        "name": "blosc",
        "configuration": {
            "cname": "lz4",
            "clevel": 5,
            "shuffle": "shuffle",
            "typesize": dtype.itemsize,
            "blocksize": chunking.block,
        },
    }
    sharding = {
        "chunk_shape": [chunking.inner],
        "codecs": [little, blosc],
        "index_codecs": [little, {"name": "crc32c"}],
    }
    return {
        "shape": [DECLARED_LENGTH],
        "data_type": dtype.name,
        "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunking.outer]}},
        "chunk_key_encoding": {"name": "default"},
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
    }


def _said(error: Exception) -> str:
    text = first_line(error).partition(" [tensorstore_spec=")[0]  # the whole request, of a thousand characters
    return json.dumps(text[:300])[1:-1]
