"""Files as blocks of decompressed bytes, where an end that comes too early is an error.

`.gz`, `.zst`, `.bz2` and `.xz` files of any number of members, frames or streams, and plain files. The libraries take a
file that is cut short for a whole one unless they are asked, at each member, whether its end was reached; that is asked
here, and checksums are checked, which a `.zst` or `.xz` has if its writer wanted one, and the others always. Memory is
bounded by what one block of `.gz` or `.zst` expands to, and for `.zst` and `.xz` by the window that their writer chose.
"""

import importlib
import io
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import zstandard

from marin.errors import DataError

NAMES = {".gz": "gzip", ".zst": "zstd", ".bz2": "bzip2", ".xz": "xz"}
"""The endings that are unpacked, and what people call them."""

_BLOCK = 1 << 17
_GZIP = 31  # zlib's window bits for a gzip member, whose checksum and length are then compared with its content
_PADDED = (".gz", ".xz")  # with zeros up to the end of a tape's block, after any member
# zstd's largest window: archives made by `zstd --long=31` need it, and a frame takes what its own window is.
_WINDOW = 1 << 31
_BESIDE_WINDOW = 1 << 20  # what xz needs beside


class Damaged(ValueError):
    """The packed bytes are not what their packer wrote."""


class Readable(Protocol):
    """What gives bytes: a file, or something around one."""

    def read(self, size: int, /) -> bytes: ...


def decompressed(
    stream: Readable, compression: str, where: Callable[[], str], next_step: str = "fetch it again"
) -> Iterator[bytes]:
    """The content of `stream` in blocks.

    Args:
        compression: "" or a key of `NAMES`.
        where: gives the file and the place reached in it, for messages.
        next_step: what to do about a bad file.
    Raises:
        DataError: the stream is cut short or damaged.
    """
    if not compression:
        while block := stream.read(_BLOCK):
            yield block
        return
    name = NAMES[compression]
    try:
        yield from unpacked(stream, compression)
    except Damaged as error:
        raise DataError(f"{where()}: the {name} data is damaged here or just behind ({error}): {next_step}") from None
    except EOFError:
        raise DataError(
            f"{where()}: the file is cut short, its {name} data has no end: {next_step} (what was read before the cut is not"
            " used)"
        ) from None


def unpacked(stream: Readable, compression: str, *, piece: int = _BLOCK, max_window: int = _WINDOW) -> Iterator[bytes]:
    """The members or frames of `stream`, one after the other; `decompressed` says what is wrong with a file in words.

    Args:
        piece: bytes that are read and unpacked at a time: less than that is lost before a damage.
        max_window: the largest that a `.zst` or `.xz` may ask for.
    Raises:
        Damaged: it is that here or just behind.
        EOFError: the last frame has no end.
    """
    decompressor = _decompressor(compression, max_window)
    frames, is_inside = 0, False
    while data := stream.read(piece):
        while data:
            if not is_inside and compression in _PADDED and not (data := data.lstrip(b"\0")) and frames:
                break
            yield from _blocks(decompressor, data)
            is_inside, data = True, b""
            if decompressor.eof:
                frames, is_inside, data = frames + 1, False, decompressor.unused_data
                decompressor = _decompressor(compression, max_window)
    if is_inside:
        raise EOFError(f"its last {NAMES[compression]} frame has no end")


class BlockStream(io.RawIOBase):
    """Blocks as a file that is read once from start to end, for libraries that want one."""

    def __init__(self, blocks: Iterator[bytes]):
        self._blocks = blocks
        self._rest = memoryview(b"")
        self._position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = memoryview(block)
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        self._position += count
        return count

    def tell(self) -> int:
        return self._position


def _decompressor(compression: str, max_window: int) -> Any:
    if compression == ".gz":
        return zlib.decompressobj(_GZIP)
    if compression == ".zst":
        return zstandard.ZstdDecompressor(max_window_size=max_window).decompressobj()
    try:
        module = importlib.import_module("bz2" if compression == ".bz2" else "lzma")
    except ImportError:  # where Python was compiled on a machine without the library's headers
        raise DataError(
            f"this Python was built without {NAMES[compression]}: unpack the {compression} files, or use another Python"
        ) from None
    if compression == ".bz2":
        return module.BZ2Decompressor()
    return module.LZMADecompressor(module.FORMAT_XZ, memlimit=max_window + _BESIDE_WINDOW)


def _blocks(decompressor: Any, data: bytes) -> Iterator[bytes]:
    """What `data` expands to; of bzip2 and xz, which pack zeros a million times smaller, in blocks."""
    limit = (_BLOCK,) if hasattr(decompressor, "needs_input") else ()
    while True:
        try:
            block = decompressor.decompress(data, *limit)
        except (MemoryError, EOFError):
            raise
        except Exception as error:  # each library has its own; bzip2's is that of a disk that fails
            raise Damaged(str(error)) from None
        yield block
        if not limit or decompressor.eof or decompressor.needs_input:
            return
        data = b""
