"""Parts of a local zarr3 array without decompressing whole chunks.

Levanter reads only arrays of its own chunking, whose inner chunks hold 2^18 values; TensorStore decompresses all of one for a
sequence of a few thousand. But blosc cuts a chunk into blocks, each compressed on its own, and lists where they begin. So
this reads the list and decompresses the blocks that are asked for. It is for arrays that this project wrote, which ask
blosc for small blocks, a sixteenth of a chunk; left to itself blosc makes two of a chunk, and TensorStore is faster.

Formats: the zarr3 sharding codec (an index of 64-bit offset and length of each inner chunk, then its CRC-32C, at the
end of the file) and the chunk format of c-blosc 1 (README_CHUNK_FORMAT), with lz4 and byte shuffle. Arrays that are
declared otherwise, that are not on this machine, or that come to a machine without pyarrow are left to TensorStore.
"""

import dataclasses
import functools
import json
import os
import struct
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from marin.errors import CacheError, StorageError
from marin.storage import files

_HEADER = struct.Struct(
    "<BBBBIII"
)  # version, version of the codec, flags, type size, bytes, block size, compressed bytes
_LENGTH = struct.Struct("<i")
_SHUFFLED, _COPIED, _BIT_SHUFFLED, _NOT_SPLIT = 0x01, 0x02, 0x04, 0x10
_LZ4 = 1  # in the three highest bits of the flags
_ABSENT = 2**64 - 1
_CRC_BYTES = 4
_NEXT_STEP = "fetch it again, or remove the cache and run the step that writes it"


@dataclasses.dataclass(frozen=True)
class _Chunk:
    """Where the blocks of one inner chunk are in the file."""

    flags: int
    block_bytes: int
    starts: tuple[int, ...]
    ends: tuple[int, ...]


class OtherBlocks(Exception):
    """A chunk is compressed in a way that blosc knows and this file does not."""


class BlockReader:
    """Reads parts of one array.

    Args:
        outer, inner: values per file, and per chunk.
    """

    def __init__(self, path: str, dtype: np.dtype[Any], outer: int, inner: int):
        import pyarrow

        self._path, self._dtype, self._outer, self._inner = path, dtype, outer, inner
        self._codec = pyarrow.Codec("lz4_raw")
        self._files: dict[int, tuple[int, Any]] = {}
        self._chunks: dict[tuple[int, int], _Chunk] = {}
        self._opening = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockReader, (self._path, self._dtype, self._outer, self._inner)

    @staticmethod
    def of(path: str, dtype: np.dtype[Any], outer: int, inner: int) -> "BlockReader | None":
        """A reader of the array at `path`; None if it must be read by other means."""
        if not files.is_local(path) or not _is_known(path, dtype):
            return None
        try:
            return BlockReader(path, dtype, outer, inner)
        except ImportError:
            return None

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> np.ndarray:
        """The ranges, all of one length, one a row.

        Raises:
            CacheError: a file is missing, cut short or damaged.
            OtherBlocks: TensorStore must read them.
        """
        rows = np.empty((len(ranges), ranges[0][1] - ranges[0][0] if ranges else 0), self._dtype)
        for row, (start, _) in zip(rows, ranges, strict=True):
            filled = 0
            while filled < len(row):
                filled += self._fill(row[filled:], start + filled)
        return rows

    def _fill(self, row: np.ndarray, position: int) -> int:
        """Writes the values from `position` on into `row`, to the end of their block; returns how many."""
        file_number, in_file = divmod(position, self._outer)
        chunk_number, in_chunk = divmod(in_file, self._inner)
        try:
            chunk = self._chunks.get((file_number, chunk_number)) or self._read_chunk(file_number, chunk_number)
            block, first = divmod(in_chunk, chunk.block_bytes // self._dtype.itemsize)
            taken = min(len(row), chunk.block_bytes // self._dtype.itemsize - first)
            self._decompress(self._files[file_number][0], chunk, block, first, row[:taken])
        except (OSError, ValueError, struct.error) as error:
            where = self._file_path(file_number)
            raise CacheError(f"{where} cannot be read ({error}): it is damaged or cut short, {_NEXT_STEP}") from None
        return taken

    def _decompress(self, descriptor: int, chunk: _Chunk, block: int, first: int, row: np.ndarray) -> None:
        """Writes the values from number `first` of the block on into `row`."""
        start, width = chunk.starts[block], self._dtype.itemsize
        data = _read(descriptor, chunk.ends[block] - start, start)
        if chunk.flags & _COPIED:
            row[:] = np.frombuffer(data, self._dtype)[first : first + len(row)]
            return
        num_streams = 1 if chunk.flags & _NOT_SPLIT else width
        size = chunk.block_bytes // num_streams
        streams, at = [], 0
        for _ in range(num_streams):
            (length,) = _LENGTH.unpack_from(data, at)
            if not 0 < length <= size or at + 4 + length > len(data):
                raise ValueError("the length of a block does not fit")
            part = memoryview(data)[at + 4 : at + 4 + length]
            plain = part if length == size else self._codec.decompress(part, decompressed_size=size)
            streams.append(np.frombuffer(plain, np.uint8))
            at += 4 + length
        whole = streams[0] if num_streams == 1 else None
        if not chunk.flags & _SHUFFLED:
            values = np.concatenate(streams) if whole is None else whole
            row[:] = values.view(self._dtype)[first : first + len(row)]
            return
        planes = streams if whole is None else whole.reshape(width, -1)
        bytes_of_row = row.view(np.uint8).reshape(len(row), width)
        for byte in range(width):
            bytes_of_row[:, byte] = planes[byte][first : first + len(row)]

    def _read_chunk(self, file_number: int, chunk_number: int) -> _Chunk:
        descriptor, index = self._open(file_number)
        offset, length = (int(value) for value in index[chunk_number])
        if offset == _ABSENT:
            raise ValueError(f"chunk {chunk_number} is absent")
        _, _, flags, width, size, block_bytes, compressed = _HEADER.unpack(_read(descriptor, _HEADER.size, offset))
        if compressed != length or width != self._dtype.itemsize or size != self._inner * width or block_bytes < width:
            raise ValueError(f"chunk {chunk_number} has a header that does not fit")
        if flags & _COPIED:
            chunk = _Chunk(flags, size, (offset + _HEADER.size,), (offset + length,))
        else:
            num_blocks = size // block_bytes
            if size % block_bytes or flags & _BIT_SHUFFLED or flags >> 5 != _LZ4:
                raise OtherBlocks
            starts = struct.unpack(f"<{num_blocks}i", _read(descriptor, 4 * num_blocks, offset + _HEADER.size))
            if not all(0 < start < length for start in starts):
                raise ValueError(f"chunk {chunk_number} lists blocks outside itself")
            following = dict(zip(sorted(starts), [*sorted(starts)[1:], length], strict=True))
            chunk = _Chunk(
                flags,
                block_bytes,
                tuple(offset + start for start in starts),
                tuple(offset + following[start] for start in starts),
            )
        self._chunks[file_number, chunk_number] = chunk
        return chunk

    def _open(self, file_number: int) -> tuple[int, Any]:
        """The descriptor of a file, and its index."""
        with self._opening:
            if file_number not in self._files:
                descriptor = os.open(files.local_path(self._file_path(file_number)), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    index_bytes = 16 * (self._outer // self._inner)
                    index = _read(descriptor, index_bytes, os.fstat(descriptor).st_size - index_bytes - _CRC_BYTES)
                except BaseException:
                    os.close(descriptor)
                    raise
                self._files[file_number] = descriptor, np.frombuffer(index, "<u8").reshape(-1, 2)
            return self._files[file_number]

    def _file_path(self, file_number: int) -> str:
        return files.join(self._path, "c", str(file_number))

    def __del__(self) -> None:
        for descriptor, _ in self.__dict__.get("_files", {}).values():
            os.close(descriptor)


def _read(descriptor: int, size: int, offset: int) -> bytes:
    data = os.pread(descriptor, size, offset) if 0 <= offset < 2**62 else b""
    if len(data) != size:
        raise ValueError(f"{size} bytes at {offset} are not there")
    return data


@functools.lru_cache(maxsize=64)
def _is_known(path: str, dtype: np.dtype[Any]) -> bool:
    """Whether the array is declared as this file reads it."""
    try:
        declared = files.read_json(files.join(path, "zarr.json"))
        (sharding,) = declared["codecs"]
        settings = sharding["configuration"]
        order, blosc = settings["codecs"]
        known = (
            sharding["name"] == "sharding_indexed",
            settings.get("index_location", "end") == "end",
            [codec["name"] for codec in settings["index_codecs"]] == ["bytes", "crc32c"],
            settings["index_codecs"][0]["configuration"]["endian"] == "little",
            order["name"] == "bytes" and order["configuration"]["endian"] == "little",
            blosc["name"] == "blosc" and blosc["configuration"]["cname"] == "lz4",
            blosc["configuration"]["blocksize"] > 0,
            blosc["configuration"]["shuffle"] in ("shuffle", "noshuffle"),
            blosc["configuration"]["typesize"] == dtype.itemsize,
            declared["data_type"] == dtype.name and dtype.byteorder in "=|<",
            declared["chunk_key_encoding"].get("configuration", {}).get("separator", "/") == "/",
        )
    except (StorageError, KeyError, TypeError, ValueError, json.JSONDecodeError):
        return False
    return all(known)
