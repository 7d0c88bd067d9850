"""What general-purpose compressors need for the same bytes: the yardstick that everyone has."""

import gzip
import lzma


def compressor_bits_per_byte(data: bytes) -> dict[str, float]:
    """Bits per byte of `gzip -9`, `xz -9` and `zstd -19` on `data` as one file.

    Raises:
        ValueError: if there is nothing to compress.
    """
    if not data:
        raise ValueError("there are no bytes to compress")
    import zstandard

    sizes = {
        "gzip_9": len(gzip.compress(data, 9, mtime=0)),
        "xz_9": len(lzma.compress(data, format=lzma.FORMAT_XZ, preset=9)),
        "zstd_19": len(zstandard.ZstdCompressor(level=19).compress(data)),
    }
    return {name: 8 * size / len(data) for name, size in sizes.items()}
