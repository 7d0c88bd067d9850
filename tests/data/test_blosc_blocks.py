"""Parts of chunks, read block by block, against the same read through TensorStore."""

import os
import pathlib
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.data.blosc_blocks import BlockReader
from marin.data.zarr_store import LEVANTER, OURS, Chunking, StoredArray
from marin.errors import CacheError

CHUNKING = Chunking(outer=1 << 17, inner=1 << 16, block=1 << 14)
LENGTH = 300_000
KINDS = {
    "tokens": (lambda g: np.minimum((g.pareto(0.6, LENGTH) * 30).astype(np.int64), 8191), np.int32),
    "noise": (lambda g: g.integers(-(2**31), 2**31, LENGTH), np.int32),
    "zeros": (lambda g: np.zeros(LENGTH, np.int64), np.int32),
    "ends": (lambda g: np.cumsum(g.integers(1, 5000, LENGTH)), np.int64),
    "small": (lambda g: g.integers(0, 60_000, LENGTH), np.uint16),
}


@pytest.fixture(scope="module", params=KINDS)
def array(request, tmp_path_factory):
    """A stored array and what is in it."""
    make, dtype = KINDS[request.param]
    values = make(np.random.default_rng(0)).astype(dtype)
    path = str(tmp_path_factory.mktemp("array") / "data")
    stored = StoredArray.create(path, values.dtype, CHUNKING)
    for start in range(0, LENGTH, CHUNKING.outer):
        stored.write(start, values[start : start + CHUNKING.outer])
    return StoredArray.open(path), values


@given(st.data())
@settings(max_examples=40)
def test_parts_are_those_that_were_written(array, data):
    stored, values = array
    assert stored._blocks is not None
    length = data.draw(st.integers(0, 40_000))
    starts = data.draw(st.lists(st.integers(0, LENGTH - length), max_size=4))
    found = stored._blocks.read_many([(start, start + length) for start in starts])
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(found, [values[s : s + length] for s in starts] if starts else np.empty((0, 0)))


def test_parts_at_the_ends_of_blocks_chunks_and_files_are_those_that_were_written(array):
    stored, values = array
    for edge in (16_384, 1 << 16, 1 << 17, LENGTH - 2):
        starts = range(edge - 3, edge + 2)
        np.testing.assert_array_equal(
            stored.read_many([(start, min(start + 1, LENGTH)) for start in starts]), values[edge - 3 : edge + 2, None]
        )
        np.testing.assert_array_equal(stored.read_many([(edge - 3, edge + 2)])[0], values[edge - 3 : edge + 2])


def test_reader_sent_to_another_process_reads_the_same(array):
    stored, values = array
    stored.read_many([(0, 5)])
    again = pickle.loads(pickle.dumps(stored._blocks))
    np.testing.assert_array_equal(again.read_many([(70_000, 70_005)])[0], values[70_000:70_005])


def test_arrays_that_are_declared_otherwise_are_left_to_tensorstore(tmp_path, monkeypatch):
    dtype = np.dtype(np.int32)
    for name, chunking, expected in (("theirs", LEVANTER, False), ("ours", OURS, True)):
        stored = StoredArray.create(str(tmp_path / name), dtype, chunking)
        stored.write(0, np.arange(1000, dtype=np.int32))
        assert (StoredArray.open(str(tmp_path / name))._blocks is not None) is expected
        np.testing.assert_array_equal(StoredArray.open(str(tmp_path / name)).read_many([(5, 9)]), [[5, 6, 7, 8]])
    assert BlockReader.of("gs://bucket/data", dtype, OURS.outer, OURS.inner) is None
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert BlockReader.of(str(tmp_path / "ours"), dtype, OURS.outer, OURS.inner) is None


@pytest.mark.parametrize("kept", [0, 20, 0.3, 0.9, 0.9999])
def test_file_cut_short_is_refused_with_its_name(tmp_path, kept):
    values = np.random.default_rng(0).integers(0, 8192, 1 << 17).astype(np.int32)
    StoredArray.create(str(tmp_path), values.dtype, CHUNKING).write(0, values)
    path = pathlib.Path(tmp_path, "c", "0")
    os.truncate(path, int(kept * path.stat().st_size) if isinstance(kept, float) else kept)
    with pytest.raises(CacheError, match=r"c/0 cannot be read .*run the step"):
        StoredArray.open(str(tmp_path)).read_many([(s, s + 100) for s in range(0, 1 << 17, 1 << 14)])


def test_file_with_flipped_bits_is_refused_or_gives_numbers_but_never_crashes(tmp_path):
    """blosc keeps no checksum, so a flip inside compressed bytes may go unseen here; `marin cache verify` finds it."""
    values = np.random.default_rng(0).integers(0, 8192, 1 << 17).astype(np.int32)
    StoredArray.create(str(tmp_path), values.dtype, CHUNKING).write(0, values)
    path = pathlib.Path(tmp_path, "c", "0")
    whole = path.read_bytes()
    refused = 0
    for position in [*range(40), *range(len(whole) - 40, len(whole) - 4), *range(100, len(whole), 20_011)]:
        damaged = bytearray(whole)
        damaged[position] ^= 0x41
        path.write_bytes(damaged)
        try:
            StoredArray.open(str(tmp_path)).read_many([(s, s + 50) for s in range(0, 1 << 17, 1 << 13)])
        except CacheError:
            refused += 1
    assert refused > 20
