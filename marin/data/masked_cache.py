"""Documents of which only a part is learned: a token cache with its loss mask beside it, where `marin.data.loader` looks for it.

    loss_mask/     a cache of a number for each token (`marin.data.rows` says what they mean); written first, as a cache without
                   its mask would look finished
    train/         the tokens, as of plain text

The documents pass once; their tokens wait in a temporary file until the mask is written. Memory is bounded by one chunk of tokens
and by the documents' lengths.
"""

import itertools
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

import numpy as np

from marin.data.cache import SPLIT, TokenBlock, write_token_blocks
from marin.data.chat import MaskedDocument
from marin.data.loader import LOSS_MASK
from marin.data.rows import ENDS_UNLEARNED
from marin.data.tokenizer import Tokenizer
from marin.storage import files

_AT_ONCE = 512
_SPOOL_TOKENS = 1 << 20


def write_masked_cache(path: str, documents: Iterable[MaskedDocument], tokenizer: Tokenizer) -> None:
    """Writes both caches into the directory `path`, in place of what is there.

    Raises:
        DataError: there are no documents.
    """
    lengths: list[int] = []
    with tempfile.TemporaryFile() as spool:
        for name, blocks, num_values in (
            (LOSS_MASK, _mask_blocks(iter(documents), spool, lengths), ENDS_UNLEARNED + 1),
            (SPLIT, _spooled(spool, lengths), tokenizer.vocab_size),
        ):
            write_token_blocks(files.join(path, name), blocks, tokenizer_digest=tokenizer.digest, vocab_size=num_values)


def _mask_blocks(documents: Iterator[MaskedDocument], spool: IO[bytes], lengths: list[int]) -> Iterator[TokenBlock]:
    """The masks; the tokens go to `spool` meanwhile, and their lengths to `lengths`."""
    while batch := list(itertools.islice(documents, _AT_ONCE)):
        spool.write(np.concatenate([np.array(document.tokens, "<i4") for document in batch]).tobytes())
        sizes = [len(document.tokens) for document in batch]
        lengths += sizes
        yield TokenBlock(
            np.concatenate([np.array(document.mask, np.int32) for document in batch]), np.array(sizes, np.int64)
        )


def _spooled(spool: IO[bytes], lengths: Sequence[int]) -> Iterator[TokenBlock]:
    spool.seek(0)
    yield TokenBlock(np.empty(0, np.int32), np.array(lengths, np.int64))
    while data := spool.read(4 * _SPOOL_TOKENS):
        yield TokenBlock(np.frombuffer(data, "<i4").astype(np.int32), np.empty(0, np.int64))
