"""Token caches in Levanter's layout: two zarr3 arrays through TensorStore, and a ledger that is written last."""

from marin.data.cache.ledger import LEDGER, SPLIT
from marin.data.cache.reading import TokenCache
from marin.data.cache.tokenizing import TokenizeConfig, tokenize, tokenize_step
from marin.data.cache.writing import TokenBlock, write_cache, write_token_blocks

__all__ = [
    "LEDGER",
    "SPLIT",
    "TokenBlock",
    "TokenCache",
    "TokenizeConfig",
    "tokenize",
    "tokenize_step",
    "write_cache",
    "write_token_blocks",
]
