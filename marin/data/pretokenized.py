"""Token caches that the community has prepared: fetched from the Hugging Face hub as they are, and read in place.

The repository holds a Levanter cache; it is downloaded unchanged into the step's output path. An interrupted download
goes on where it stopped, at the file. A finished cache that already lies at the output path, put there by hand on a
machine without network, is taken as it is. `HF_TOKEN` or a stored login is used when there is one. A token in a config
is refused, because configs are written to the records of a run.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from marin.data.cache import TokenCache
from marin.data.hub import download_repo_files, missing_files, repo_type_of
from marin.errors import CacheError, ConfigError
from marin.execution.step import ExecutorStep, this_output_path, versioned

# The published tokenizers' sizes, special tokens included: what a model's embedding must have rows for.
_VOCAB_SIZES = {
    "marin-community/marin-tokenizer": 128_256,
    "stanford-crfm/marin-tokenizer": 128_256,
    "meta-llama/Meta-Llama-3-8B": 128_256,
    "meta-llama/Meta-Llama-3-8B-Instruct": 128_256,
    "meta-llama/Meta-Llama-3.1-8B": 128_256,
    "meta-llama/Meta-Llama-3.1-8B-Instruct": 128_256,
    "meta-llama/Llama-3.1-8B": 128_256,
    "meta-llama/Llama-3.1-8B-Instruct": 128_256,
    "meta-llama/Llama-3.2-1B": 128_256,
    "meta-llama/Llama-3.2-3B": 128_256,
    "meta-llama/Llama-2-7b-hf": 32_000,
    "gpt2": 50_257,
    "openai-community/gpt2": 50_257,
}


@dataclass(frozen=True)
class TextLmDatasetFormat:
    """Plain text under one key of each row."""

    text_key: str = "text"


@dataclass(frozen=True)
class PretokenizedCacheDownloadConfig:
    """What to fetch from the hub.

    Args:
        cache_path: where the cache is put.
        tokenizer: the name of the tokenizer that made it; it says how large the vocabulary is.
        hf_revision: a commit, tag or branch; None is the newest.
        hf_repo_type_prefix: `datasets`, `models` or `spaces`.
        hf_token: must be None; set `HF_TOKEN` or log in instead.
        format: what the documents were; recorded, as tokens no longer show it.
        cache_options: must be None; a downloaded cache has been made.
    """

    marin_resumable: ClassVar[bool] = True

    cache_path: str
    tokenizer: str
    hf_repo_id: str
    hf_revision: str | None = None
    hf_repo_type_prefix: str = "datasets"
    hf_token: None = None
    format: TextLmDatasetFormat = TextLmDatasetFormat()
    cache_options: None = None
    tags: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.hf_token is not None:
            raise ConfigError(
                "config field `hf_token` must be None, as configs are written to the records of a run: set the "
                "environment variable HF_TOKEN, or run `hf auth login`"
            )
        if self.cache_options is not None:
            raise ConfigError("config field `cache_options` must be None: a downloaded cache is used as it was made")
        repo_type_of(self.hf_repo_type_prefix)


def download_pretokenized_cache(
    output_path_name: str,
    hf_repo_id: str,
    tokenizer: str,
    *,
    hf_revision: str | None = None,
    tags: list[str] | None = None,
) -> ExecutorStep:
    """The step `tokenized/subcache/{output_path_name}`, whose output path is a token cache from the hub.

    Args:
        hf_repo_id: a dataset repository whose `train` directory is a Levanter cache.
        tokenizer: the hub name of the tokenizer that the cache was made with.
        hf_revision: a commit makes the step reproducible; None takes the newest.
    """
    config = PretokenizedCacheDownloadConfig(
        cache_path=this_output_path(),
        tokenizer=versioned(tokenizer),
        hf_repo_id=versioned(hf_repo_id),
        hf_revision=versioned(hf_revision),
        tags=list(tags or []),
    )
    return ExecutorStep(
        name=f"tokenized/subcache/{output_path_name}", fn=_actually_download_pretokenized_cache, config=config
    )


def known_vocab_size(tokenizer_name: str) -> int:
    """The vocabulary of a published tokenizer, special tokens included, known without fetching it.

    Raises:
        ConfigError: the name is not in the table.
    """
    if tokenizer_name not in _VOCAB_SIZES:
        raise ConfigError(
            f"the vocabulary size of tokenizer `{tokenizer_name}` is not known: use one of "
            f"{', '.join(sorted(_VOCAB_SIZES))}, or a tokenizer trained by a step"
        )
    return _VOCAB_SIZES[tokenizer_name]


def _actually_download_pretokenized_cache(config: PretokenizedCacheDownloadConfig) -> None:
    """Fetches the repository into `cache_path` and opens the cache once, so that a damaged one fails here.

    Raises:
        DataError: the repository cannot be fetched; the message says what to fetch and where to put it.
        CacheError: what was fetched is not a finished cache.
    """
    # The training part of a repository can be whole while its validation part is still missing.
    if _has_cache(config.cache_path) and not missing_files(config.cache_path):
        return
    download_repo_files(
        config.hf_repo_id,
        config.cache_path,
        repo_type=repo_type_of(config.hf_repo_type_prefix),
        revision=config.hf_revision,
    )
    TokenCache.open(config.cache_path)


def _has_cache(path: str) -> bool:
    try:
        TokenCache.open(path)
    except CacheError:
        return False
    return True
