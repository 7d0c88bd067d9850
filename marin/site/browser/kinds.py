"""What a file is, by its name: which viewer shows it and what people call it."""

import dataclasses
import posixpath

from marin.data import compression

_IMAGES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp"}
_TEXT = (
    ".txt", ".md", ".rst", ".csv", ".tsv", ".py", ".toml", ".yaml", ".yml", ".cfg", ".ini", ".sh", ".js", ".css", ".html",
    ".xml", ".patch", ".diff", ".executor_status", ".gitignore",
)  # fmt: skip
_LOGS = (".log", ".out", ".err", ".executor_log.txt", ".executor_error.txt")
_ZSTD_TOO = ".zstd"
_PACKED = (*compression.NAMES, _ZSTD_TOO)


@dataclasses.dataclass(frozen=True)
class Kind:
    """`viewer` is json, rows, table, text, image or none; `words` is what people call it."""

    viewer: str
    words: str
    media_type: str = "application/octet-stream"


TEXT = Kind("text", "text")
BINARY = Kind("none", "binary")


def kind_of(name: str) -> Kind:
    """The kind that a file's name says; `BINARY` where it says nothing, and then the content decides."""
    lower = name.lower()
    if lower.endswith((".json", ".executor_info", ".ipynb", ".executor_commit", ".executor_status.lock")):
        return Kind("json", "JSON")
    packing = packing_of(lower)
    bare = posixpath.splitext(lower)[0] if packing else lower
    if bare.endswith((".jsonl", ".ndjson", ".json")):  # what is packed as .json, such as C4, has an object on each line
        return Kind("rows", f"JSON lines, {compression.NAMES[packing]}" if packing else "JSON lines")
    if lower.endswith((".parquet", ".pq")):
        return Kind("table", "Parquet")
    if lower.endswith(_LOGS):
        return Kind("text", "log")
    if lower.endswith(_TEXT):
        return TEXT
    for ending, media_type in _IMAGES.items():
        if lower.endswith(ending):
            return Kind("image", "image", media_type)
    if lower.endswith(".svg"):
        return Kind("none", "SVG image")  # it may hold scripts: only ever given as a download
    if lower.endswith((*_PACKED, ".zip", ".tar")):
        return Kind("none", "archive")
    return BINARY


def packing_of(name: str) -> str:
    """How the rows of a file are packed: a key of `marin.data.compression.NAMES`, or ""."""
    ending = posixpath.splitext(name.lower())[1]
    return ".zst" if ending == _ZSTD_TOO else ending if ending in compression.NAMES else ""


def looks_like_text(start: bytes) -> bool:
    """Whether the first bytes of a file are UTF-8 without NUL; a character cut at the end is no objection."""
    if b"\0" in start:
        return False
    try:
        start.decode()
    except UnicodeDecodeError as error:
        return error.start >= len(start) - 3 and error.reason == "unexpected end of data"
    return True
