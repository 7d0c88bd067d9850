"""What belongs to a tokenized dataset: its tokenizer, its vocabulary, and the documents that a model of it is scored on.

The step that made the token cache says it all:

- `train.jsonl.zst` of a corpus step, such as the embedded corpus: the tokenizer step in the config, and the
  `heldout.jsonl.zst` that stands beside the training documents;
- a pre-tokenized cache from the hub: the tokenizer by name, and the C4-EN validation documents of Paloma, as the
  public contest scores.
"""

import dataclasses
from typing import Any

from marin.data.cache import TokenizeConfig
from marin.data.hub_files import hub_tokenizer_step, paloma_step
from marin.data.pretokenized import PretokenizedCacheDownloadConfig, known_vocab_size
from marin.data.tokenizer import TrainTokenizerConfig
from marin.errors import ConfigError
from marin.execution.step import ExecutorStep, InputName, VersionedValue

C4_EN = "paloma/c4_en"
TRAIN_FILE, HELDOUT_FILE = "train.jsonl.zst", "heldout.jsonl.zst"


@dataclasses.dataclass(frozen=True)
class SpeedrunDataset:
    """References to the parts; the executor turns them into paths."""

    cache: ExecutorStep
    tokenizer: ExecutorStep
    tokenizer_name: str
    vocab_size: int
    evaluation_set: str
    evaluation_documents: InputName


def describe_dataset(step: ExecutorStep) -> SpeedrunDataset:
    """The parts of the dataset that `step` makes.

    Raises:
        ConfigError: if the step makes no token cache that a speedrun can use.
    """
    config = step.config
    if isinstance(config, PretokenizedCacheDownloadConfig):
        name = _plain(config.tokenizer)
        return SpeedrunDataset(
            cache=step,
            tokenizer=hub_tokenizer_step(name),
            tokenizer_name=name,
            vocab_size=known_vocab_size(name),
            evaluation_set=C4_EN,
            evaluation_documents=paloma_step("c4_en") / "documents.jsonl.zst",
        )
    if isinstance(config, TokenizeConfig) and isinstance(config.documents, InputName):
        corpus, tokenizer = config.documents.step, _step_of(config.tokenizer)
        if corpus is not None and config.documents.name == TRAIN_FILE and tokenizer is not None:
            return SpeedrunDataset(
                cache=step,
                tokenizer=tokenizer,
                tokenizer_name=tokenizer.name,
                vocab_size=_trained_vocab_size(tokenizer),
                evaluation_set=f"{corpus.name.removeprefix('corpora/')}/heldout",
                evaluation_documents=corpus / HELDOUT_FILE,
            )
    raise ConfigError(
        f"`tokenized_dataset` is the step `{step.name}`, for which no evaluation documents are known: use `fineweb_edu_subcache_10B`"
        " of experiments.exp72_baselines, or `python_docs_tokenized` of experiments.python_docs"
    )


def _trained_vocab_size(tokenizer: ExecutorStep) -> int:
    if not isinstance(tokenizer.config, TrainTokenizerConfig):
        raise ConfigError(
            f"the step `{tokenizer.name}` trains no tokenizer: use `train_tokenizer_step(documents, vocab_size)`"
        )
    return int(_plain(tokenizer.config.vocab_size))


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, VersionedValue) else value


def _step_of(reference: Any) -> ExecutorStep | None:
    if isinstance(reference, InputName):
        return reference.step
    return reference if isinstance(reference, ExecutorStep) else None
