"""Files as blocks of decompressed bytes, where an end that comes too early is an error.

`.gz` and `.zst` files of any number of members or frames, and plain files. Both libraries take a file that is cut short
for a whole one unless they are asked, at each member, whether its end was reached; that is asked here, and checksums are
checked, which every `.gz` has and a `.zst` if its writer wanted one. Memory is bounded by what one block expands to, and for
`.zst` by the window that its writer chose.
"""

import io
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import zstandard

from marin.errors import DataError

SUFFIXES = (".gz", ".zst")
_BLOCK = 1 << 17
_GZIP = 31  # zlib's window bits for a gzip member, whose checksum and length are then compared with its content
_NAMES = {".gz": "gzip", ".zst": "zstd"}
# The format's largest window: archives made by `zstd --long=31` need it, and a frame takes what its own window is.
_ZSTD_WINDOW = 1 << 31


class Readable(Protocol):
    """What gives bytes: a file, or something around one."""

    def read(self, size: int, /) -> bytes: ...


def decompressed(
    stream: Readable, compression: str, where: Callable[[], str], next_step: str = "fetch it again"
) -> Iterator[bytes]:
    """The content of `stream` in blocks.

    Args:
        compression: "", ".gz" or ".zst".
        where: gives the file and the place reached in it, for messages.
        next_step: what to do about a bad file.
    Raises:
        DataError: the stream is cut short or damaged.
    """
    if not compression:
        while block := stream.read(_BLOCK):
            yield block
        return
    name = _NAMES[compression]
    try:
        yield from unpacked(stream, compression)
    except (zlib.error, zstandard.ZstdError) as error:
        raise DataError(f"{where()}: the {name} data is damaged here or just behind ({error}): {next_step}") from None
    except EOFError:
        raise DataError(
            f"{where()}: the file is cut short, its {name} data has no end: {next_step} (what was read before the cut is not"
            " used)"
        ) from None


def unpacked(
    stream: Readable, compression: str, *, piece: int = _BLOCK, max_window: int = _ZSTD_WINDOW
) -> Iterator[bytes]:
    """The members or frames of `stream`, one after the other; `decompressed` says what is wrong with a file in words.

    Args:
        piece: bytes that are read and unpacked at a time: less than that is lost before a damage.
        max_window: the largest that a `.zst` may ask for.
    Raises:
        zlib.error, ZstdError: it is damaged here or just behind.
        EOFError: the last frame has no end.
    """
    decompressor = _decompressor(compression, max_window)
    frames, is_inside = 0, False
    while data := stream.read(piece):
        while data:
            if not is_inside and compression == ".gz" and not (data := data.lstrip(b"\0")) and frames:
                break  # tape blocks: gzip files may be padded with zeros
            block = decompressor.decompress(data)
            is_inside, data = True, b""
            if decompressor.eof:
                frames, is_inside, data = frames + 1, False, decompressor.unused_data
                decompressor = _decompressor(compression, max_window)
            yield block
    if is_inside:
        raise EOFError(f"its last {_NAMES[compression]} frame has no end")


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
    return zstandard.ZstdDecompressor(max_window_size=max_window).decompressobj()
