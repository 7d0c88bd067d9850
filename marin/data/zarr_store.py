"""One-dimensional zarr3 arrays as Levanter declares them, through TensorStore, with errors that name the file.

An array is declared 2^54 long and sharded: outer chunks of 2^27 values are files, inner chunks of 2^18 values are
compressed one by one (blosc lz4). Which part is in use is not recorded here; whoever keeps the array knows. The same
values give the same bytes on disk.
"""

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marin.errors import CacheError, StorageError
from marin.storage import files

DECLARED_LENGTH = 1 << 54
OUTER_CHUNK = 1 << 27
INNER_CHUNK = 1 << 18
_CACHE_BYTES = 64_000_000
_NEXT_STEP = "fetch it again, or remove the cache and run the step that writes it"


@dataclass(frozen=True)
class StoredArray:
    """A declared array on disk."""

    path: str
    store: Any
    chunk: int
    """Values per file."""

    @staticmethod
    def create(path: str, dtype: np.dtype[Any]) -> "StoredArray":
        """Declares an empty array."""
        import tensorstore as ts

        # A chunk of zeros is stored like any other, so that a missing file always means damage.
        spec = {
            "driver": "zarr3",
            "kvstore": _kvstore(path),
            "metadata": _metadata(dtype),
            "create": True,
            "delete_existing": True,
            "store_data_equal_to_fill_value": True,
        }
        try:
            return StoredArray(path, ts.open(spec, context=_context()).result(), OUTER_CHUNK)
        except ValueError as error:
            raise StorageError(
                f"{path} cannot be created ({_first_line(error)}): check the path, its permissions and the free space"
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
            raise CacheError(f"{path} is no zarr3 array ({_first_line(error)}): {_NEXT_STEP}") from None
        if store.rank != 1 or not np.issubdtype(store.dtype.numpy_dtype, np.integer):
            raise CacheError(
                f"{path} has {store.rank} dimensions of {store.dtype.name}: expected one dimension of integers"
            )
        shape: Any = store.chunk_layout.write_chunk.shape
        return StoredArray(path, store, int(shape[0]))

    def write(self, start: int, values: np.ndarray) -> None:
        try:
            self.store[start : start + len(values)].write(values).result()
        except ValueError as error:
            raise StorageError(
                f"{self.path} cannot be written ({_first_line(error)}): free some space or choose another --prefix"
            ) from None

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.read_many([(start, stop)])[0]

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> np.ndarray:
        """The ranges, all of one length, one a row; read at the same time."""
        try:
            futures = [self.store[start:stop].read() for start, stop in ranges]
            return np.stack([future.result() for future in futures])
        except ValueError as error:
            raise CacheError(
                f"{self.path} cannot be read ({_first_line(error)}): it is damaged or cut short, {_NEXT_STEP}"
            ) from None

    def require(self, length: int) -> None:
        """Checks that every chunk of the first `length` values has its file, since a missing one would read as zeros.

        Raises:
            CacheError: one is missing.
        """
        directory = files.join(self.path, "c")
        present = set(files.list_dir(directory))
        for index in range(-(-length // self.chunk)):
            if str(index) not in present:
                raise CacheError(
                    f"{files.join(directory, str(index))} is missing (the array has {length} values): {_NEXT_STEP}"
                )


@functools.cache
def _context() -> Any:
    import tensorstore as ts

    return ts.Context({"cache_pool": {"total_bytes_limit": _CACHE_BYTES}})


def _kvstore(path: str) -> Any:
    if files.is_local(path):
        return {"driver": "file", "path": str(files.local_path(path).absolute())}
    if path.startswith(("gs://", "s3://")):
        return path
    raise StorageError(f"{path}: token caches lie on local disks, gs:// or s3://: choose another --prefix")


def _metadata(dtype: np.dtype[Any]) -> dict[str, Any]:
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    blosc = {
        "name": "blosc",
        "configuration": {
            "cname": "lz4",
            "clevel": 5,
            "shuffle": "shuffle",
            "typesize": dtype.itemsize,
            "blocksize": 0,
        },
    }
    sharding = {"chunk_shape": [INNER_CHUNK], "codecs": [little, blosc], "index_codecs": [little, {"name": "crc32c"}]}
    return {
        "shape": [DECLARED_LENGTH],
        "data_type": dtype.name,
        "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [OUTER_CHUNK]}},
        "chunk_key_encoding": {"name": "default"},
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
    }


def _first_line(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return json.dumps(text[:300])[1:-1]
