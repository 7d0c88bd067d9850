"""What belongs to a tokenized dataset: its tokenizer, its vocabulary, and the documents that a model of it is scored on.

The step that made the token cache says it all:

- `train.jsonl.zst` of a corpus step, such as the embedded corpus: the tokenizer step in the config, and the
  `heldout.jsonl.zst` that stands beside the training documents;
- a pre-tokenized cache from the hub: the tokenizer by name, and the C4-EN validation documents of Paloma, as the
  public contest scores;
- a mixture: what the first of its components that says all of it says; all must be of one tokenizer.
"""

import dataclasses
from typing import Any

from marin.data.cache import TokenizeConfig
from marin.data.hub_files import hub_tokenizer_step, paloma_step
from marin.data.mixture import Mixture
from marin.data.pretokenized import PretokenizedCacheDownloadConfig, known_vocab_size
from marin.data.tokenizer import TrainTokenizerConfig
from marin.errors import ConfigError
from marin.execution.step import ExecutorStep, InputName, VersionedValue
from marin.speedrun.tracks import C4_EN

TRAIN_FILE, HELDOUT_FILE = "train.jsonl.zst", "heldout.jsonl.zst"


@dataclasses.dataclass(frozen=True)
class SpeedrunDataset:
    """References to the parts; the executor turns them into paths."""

    cache: ExecutorStep | Mixture
    tokenizer: ExecutorStep
    tokenizer_name: str
    vocab_size: int
    evaluation_set: str
    evaluation_documents: InputName


def describe_dataset(dataset: ExecutorStep | Mixture) -> SpeedrunDataset:
    """The parts of the dataset that a step makes, or that a mixture of steps is.

    Raises:
        ConfigError: if a step makes no token cache that a speedrun can use, or a mixture has several tokenizers.
    """
    return _describe_mixture(dataset) if isinstance(dataset, Mixture) else _describe_step(dataset)


def describe_cache(cache: str | Mixture, prefix: str) -> str:
    """What a results file says of the data: a path relative to the prefix, or those of a mixture with their weights."""

    def relative(path: object) -> str:
        # A submission says which data, not how somebody's machine is laid out.
        return str(path).removeprefix(prefix.rstrip("/") + "/")

    if not isinstance(cache, Mixture):
        return relative(cache)
    parts = []
    for name, path in cache.components.items():
        weights = [f"{weights.get(name, 0):g}" for _, weights in cache.staged_weights]
        parts.append(f"{' then '.join(weights)} x {relative(path)}")
    return " + ".join(parts)


def _describe_mixture(mixture: Mixture) -> SpeedrunDataset:
    described, problem = None, None
    tokenizers: dict[str, str] = {}
    for name, component in mixture.components.items():
        step = _step_of(component)
        if step is None:
            raise ConfigError(
                f"component `{name}` of the mixture is the path {component!r}: use the step that makes it, so that its tokenizer"
                " is known"
            )
        if isinstance(step.config, TokenizeConfig) and (tokenizer := _step_of(step.config.tokenizer)) is not None:
            tokenizers[name] = tokenizer.name
        try:
            parts = _describe_step(step)
        except ConfigError as error:
            problem = error
            continue
        tokenizers[name] = parts.tokenizer_name
        described = described or parts
    if described is None:
        raise ConfigError(f"no component of the mixture has evaluation documents: {problem}")
    other = next((name for name in tokenizers if tokenizers[name] != described.tokenizer_name), None)
    if other is not None:
        raise ConfigError(
            f"component `{other}` of the mixture is tokenized with {tokenizers[other]!r}, others with"
            f" {described.tokenizer_name!r}: tokenize all with one tokenizer"
        )
    for name, component in mixture.components.items():
        step = _step_of(component)
        if step is not None and getattr(step.config, "documents", None) == described.evaluation_documents:
            raise ConfigError(
                f"component `{name}` of the mixture is made from {HELDOUT_FILE}, the documents that the run is scored on: leave"
                " it out"
            )
    return dataclasses.replace(described, cache=mixture)


def _describe_step(step: ExecutorStep) -> SpeedrunDataset:
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
