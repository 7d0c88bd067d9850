"""What a token cache says about itself.

    train/shard_ledger.json        row count, `is_finished`, metadata; there is no cache without a finished one
    train/input_ids/data/          the token ids of all documents, one after the other
    train/input_ids/offsets/       [0] is the number of documents, [i] is where document i - 1 ends

Caches written here also record the digest of their content, those of their files, and what they were made from, under
`marin` in the ledger's metadata, where Levanter ignores it. Caches from elsewhere are read as they are.
"""

import hashlib
import posixpath
from typing import Any

import numpy as np
from jaxtyping import Int64

from marin.errors import CacheError, StorageError
from marin.number_checks import is_whole
from marin.storage import files

LEDGER = "shard_ledger.json"
SPLIT = "train"
NEXT_STEP = "remove the directory and run the step that writes it again"


def find_cache(path: str) -> str:
    """`path`, or `path/train` if that is where the ledger is.

    Raises:
        CacheError: `path` is on this machine and no directory.
    """
    if files.is_local(path) and not files.local_path(path).is_dir():
        found = "is a file" if files.exists(path) else "does not exist"
        raise CacheError(
            f"{path or 'the empty path'} {found}: give the directory of a token cache, or the one above it"
        )
    if not files.exists(files.join(path, LEDGER)) and files.exists(files.join(path, SPLIT, LEDGER)):
        return files.join(path, SPLIT)
    return path


def read_ledger(path: str) -> dict[str, Any]:
    """The ledger of the finished cache at `path`.

    Raises:
        CacheError: there is none, it cannot be read, or it says that the cache is not finished.
    """
    where = files.join(path, LEDGER)
    if not files.exists(where):
        raise CacheError(
            f"{path} is no finished token cache ({LEDGER} is missing): run the step that writes it, or give the "
            f"directory that holds {posixpath.join(SPLIT, LEDGER)}"
        )
    try:
        ledger = files.read_json(where)
    except StorageError as error:
        raise CacheError(str(error)) from None
    rows = ledger.get("total_num_rows") if isinstance(ledger, dict) else None
    if not is_whole(rows, 0):
        raise CacheError(f"{where}: `total_num_rows` is {rows!r}, expected a count: {NEXT_STEP}")
    if ledger.get("is_finished") is not True:
        raise CacheError(
            f"{where}: `is_finished` is {ledger.get('is_finished')!r}, so the cache was never completed: {NEXT_STEP}"
        )
    return dict(ledger)


def write_ledger(
    path: str,
    num_rows: int,
    *,
    tokenizer_digest: str,
    vocab_size: int,
    content_digest: str,
    documents_digest: str | None,
) -> None:
    """Makes the cache at `path` a finished one."""
    ours: dict[str, Any] = {"digest": content_digest, "tokenizer_digest": tokenizer_digest}
    if documents_digest is not None:
        ours["documents_digest"] = documents_digest
    ours["files"] = {name: files.sha256_file(files.join(path, name)) for name in _names_of_files(path)}
    files.write_json(
        files.join(path, LEDGER),
        {
            "total_num_rows": num_rows,
            "shard_rows": {"": num_rows},
            "is_finished": True,
            "finished_shards": [""],
            "field_counts": {},
            "metadata": {
                "preprocessor_metadata": {
                    "tokenizer": f"sha256:{tokenizer_digest}",
                    "vocab_size": vocab_size,
                    "return_attention_mask": False,
                    "padding": False,
                    "max_length": None,
                    "append_bos": True,
                    "append_eos": False,
                },
                "marin": ours,
            },
        },
    )


def metadata(ledger: dict[str, Any], key: str) -> dict[str, Any]:
    """One part of the metadata; empty if the ledger has none."""
    value = (ledger.get("metadata") or {}).get(key)
    return value if isinstance(value, dict) else {}


def recorded(ledger: dict[str, Any], key: str) -> str | None:
    """What a cache written here says: `digest`, `tokenizer_digest` or `documents_digest`; None for one from elsewhere."""
    value = metadata(ledger, "marin").get(key)
    return value if isinstance(value, str) else None


def recorded_files(ledger: dict[str, Any]) -> dict[str, str]:
    """The SHA-256 of each file of a cache written here, by its path below the cache; none for one from elsewhere."""
    value = metadata(ledger, "marin").get("files")
    return {str(name): str(digest) for name, digest in value.items()} if isinstance(value, dict) else {}


def content_digest(tokens: "hashlib._Hash", offsets: Int64[np.ndarray, " N+1"]) -> str:
    """The SHA-256 that names a cache's content, from that of its tokens as little-endian int32 and the documents' ends."""
    ends = hashlib.sha256(np.ascontiguousarray(offsets[1:], "<i8").data).hexdigest()
    return hashlib.sha256(f"tokens {tokens.hexdigest()} ends {ends}".encode()).hexdigest()


def _names_of_files(path: str) -> list[str]:
    names = []
    for array in ("input_ids/data", "input_ids/offsets"):
        chunks = sorted(files.list_dir(files.join(path, array, "c")), key=lambda name: (len(name), name))
        names += [f"{array}/zarr.json", *(f"{array}/c/{name}" for name in chunks)]
    return names
