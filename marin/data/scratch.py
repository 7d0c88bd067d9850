"""Arrays that a stage keeps on disk between its passes over the shards of a document set.

    {output_path}/.work/{pass}/shard-00000/{array}.npy, identity

A pass computes some arrays from each shard, in parallel processes. What it leaves for a shard appears by one rename
with an `identity` that names what it was made from and how, so after a kill or a failure the shards that are done are
taken as they are. They go when the stage is finished: nothing under `.work` is part of its output. Where the output lies
on another store, the arrays lie in a temporary directory of this machine, which goes with a failure too: such a pass
starts over. Nodes of a cluster would not find them there, so then the stage's work stays on this machine.
"""

import functools
import hashlib
import math
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from marin.data import ray_workers
from marin.data.shard_writer import shard_name
from marin.data.shards import DocumentSet, Shard
from marin.data.workers import run_in_processes
from marin.storage import files

Arrays = Mapping[str, np.ndarray]


class Scratch:
    """One pass's arrays: `with Scratch(...) as scratch:` around all that a stage does with them.

    Args:
        output_path: of the stage.
        name: of the pass.
        identity: names the way the arrays are computed and, if they depend on more than their shard, the whole source.
    """

    def __init__(self, output_path: str, name: str, source: DocumentSet, identity: str):
        self.source = source
        self._identity = identity
        if files.is_local(output_path):
            self._root = files.local_path(output_path) / ".work"
        else:
            self._root = pathlib.Path(tempfile.mkdtemp(prefix="marin-stage-"))
        self._can_go_on = files.is_local(output_path)
        self._path = self._root / name
        self._layouts: dict[tuple[int, str], _Layout] = {}

    def __enter__(self) -> "Scratch":
        if not self._can_go_on:
            ray_workers.keep_here(+1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._can_go_on:
            ray_workers.keep_here(-1)
        if kind is None or not self._can_go_on:
            shutil.rmtree(self._root, ignore_errors=True)

    def compute(self, function: Callable[[Shard, int], Arrays], num_workers: int) -> None:
        """Keeps `function(shard, index)` for every shard that has none yet."""
        todo = [index for index in range(len(self.source.shards)) if not self._is_done(index)]
        for _ in run_in_processes(functools.partial(_compute, self, function), todo, num_workers):
            pass

    def put(self, index: int, arrays: Arrays) -> None:
        """Keeps the arrays of one shard, all of them or none."""
        directory = self._directory(index)
        temporary = directory.with_name(files.temporary_name(directory.name))
        temporary.mkdir(parents=True)
        for name, values in arrays.items():
            np.save(temporary / f"{name}.npy", np.ascontiguousarray(values))
        (temporary / "identity").write_text(self._identity_of(index))
        files.sync_tree(str(temporary))
        if directory.exists():
            shutil.rmtree(directory)
        os.rename(temporary, directory)

    def length(self, index: int, name: str) -> int:
        """The number of rows of an array."""
        return self._layout(index, name).num_rows

    def read(self, index: int, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """`array[start:stop]` of one shard, read from the file: mapped pages would count as this process's memory."""
        layout = self._layout(index, name)
        stop = layout.num_rows if stop is None else min(stop, layout.num_rows)
        data = bytearray(max(stop - start, 0) * layout.row_bytes)
        with open(layout.path, "rb", buffering=0) as stream:
            stream.seek(layout.offset + start * layout.row_bytes)
            size = stream.readinto(data)
        assert size == len(data), (layout, start, stop, size)
        return np.frombuffer(data, layout.dtype).reshape(-1, *layout.row_shape)

    def read_string(self, index: int, name: str, row: int) -> str:
        """One of the strings that `string_arrays(name, ...)` packed."""
        start, stop = self.read(index, f"{name}-ends", row, row + 2).tolist()
        return self.read(index, name, start, stop).tobytes().decode()

    def file(self, name: str) -> pathlib.Path:
        """A path for one more file of this stage, beside its passes."""
        self._root.mkdir(parents=True, exist_ok=True)
        return self._root / name

    def _layout(self, index: int, name: str) -> "_Layout":
        if (index, name) not in self._layouts:
            self._layouts[index, name] = _layout_of(self._directory(index) / f"{name}.npy")
        return self._layouts[index, name]

    def _directory(self, index: int) -> pathlib.Path:
        return self._path / shard_name(index)

    def _identity_of(self, index: int) -> str:
        return hashlib.sha256(f"{self._identity} {self.source.shards[index].digest}".encode()).hexdigest()

    def _is_done(self, index: int) -> bool:
        try:
            return (self._directory(index) / "identity").read_text() == self._identity_of(index)
        except FileNotFoundError:
            return False


@dataclass(frozen=True)
class _Layout:
    """An array's file, and where in it the values begin."""

    path: str
    dtype: np.dtype[Any]
    num_rows: int
    row_shape: tuple[int, ...]
    row_bytes: int
    offset: int


def _layout_of(path: pathlib.Path) -> _Layout:
    with open(path, "rb") as stream:
        assert np.lib.format.read_magic(stream) == (1, 0), path
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        assert not is_fortran, path
        row_bytes = dtype.itemsize * math.prod(shape[1:])
        return _Layout(str(path), dtype, shape[0], shape[1:], row_bytes, stream.tell())


def string_arrays(name: str, strings: Sequence[str]) -> dict[str, np.ndarray]:
    """Two arrays that hold the strings, for `Scratch.read_string`."""
    encoded = [string.encode() for string in strings]
    ends = np.cumsum([0, *map(len, encoded)])
    return {name: np.frombuffer(b"".join(encoded), np.uint8), f"{name}-ends": ends.astype(np.int64)}


def _compute(scratch: Scratch, function: Callable[[Shard, int], Arrays], index: int) -> None:
    scratch.put(index, function(scratch.source.shards[index], index))
