"""Conversations from several places to token caches with loss masks: what SFT trains on, and what its loss is measured on.

    train/ loss_mask/            all conversations to train on, one document each
    val/train/ val/loss_mask/    held out: the test splits of public sets, made conversations, every fiftieth of local files
    report.json                  for each place conversations, tokens, learned tokens, and how many were cut

Only what an assistant writes is learned, its calls of tools and the token that ends its turn among it.
"""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from marin.data.chat import MaskedDocument
from marin.data.conversation import Conversation, render_batch
from marin.data.masked_cache import write_masked_cache
from marin.data.pace import Pace
from marin.data.rows import ENDS_UNLEARNED
from marin.data.tokenizer import Tokenizer
from marin.errors import ConfigError, DataError
from marin.execution.step import placement, this_output_path
from marin.finetuning.made import training_conversations
from marin.finetuning.sources import LocalFile, local_conversations, public_conversations
from marin.flags import check_at_least
from marin.storage import files

VALIDATION = "val"
_AT_ONCE = 512
_HELD_OUT_IN = 50
_MADE_VALIDATION = 500
# Validation needs no more of the public test splits than this; questions of MMLU and GSM8K as many as the reference takes.
_VALIDATION_LIMITS = {"smoltalk": 24_000, "mmlu": 5_200, "gsm8k": 420}


@dataclasses.dataclass(frozen=True)
class ConversationsConfig:
    """What to train on.

    Args:
        tokenizer: the directory of a `tokenizer.json`; `tokenizer_digest` is its identity.
        max_tokens: of a conversation; what follows is cut off.
        made: how many conversations to make.
        public: take SmolTalk, MMLU and GSM8K from `task_data`.
        local: files or folders with conversations.
        mmlu_epochs, gsm8k_epochs: how often each question of these stands in the training data.
    """

    tokenizer_digest: str
    max_tokens: int
    made: int = 0
    made_seed: int = 0
    public: bool = False
    local: tuple[LocalFile, ...] = ()
    mmlu_epochs: int = 3
    gsm8k_epochs: int = 4
    tokenizer: str = placement(default="")
    task_data: str = placement(default="")
    output_path: str = this_output_path()

    def __post_init__(self) -> None:
        if self.max_tokens < 2:
            raise ConfigError(f"`max_tokens` is {self.max_tokens}: use at least 2")
        check_at_least(0, self, "made", "mmlu_epochs", "gsm8k_epochs")
        if not (self.made or self.public or self.local):
            raise ConfigError(
                "there are no conversations to train on: use `--made 20000`, `--public True` or `--dataset`"
            )


@dataclasses.dataclass
class _Count:
    """What came from one place."""

    conversations: int = 0
    tokens: int = 0
    learned: int = 0
    learned_bytes: int = 0
    cut: int = 0


def tokenize_conversations(config: ConversationsConfig) -> None:
    """Writes the caches.

    Raises:
        DataError: a place has no readable conversations, or there is nothing in the answers of a split.
        ConfigError: the tokenizer lacks a token of the template.
    """
    tokenizer = Tokenizer.load(config.tokenizer)
    places = {"train": _training(config), "validation": _validation(config)}
    report: dict[str, dict[str, dict[str, int]]] = {}
    for split, rows in places.items():
        counts: dict[str, _Count] = {}
        below = config.output_path if split == "train" else files.join(config.output_path, VALIDATION)
        documents = _rendered(_said(rows, f"{split} conversations"), tokenizer, config.max_tokens, counts)
        write_masked_cache(below, documents, tokenizer)
        if not any(count.learned_bytes for count in counts.values()):
            raise DataError(
                f"no {split} conversation of {', '.join(counts) or 'any place'} has an answer with text within {config.max_tokens:,}"
                " tokens, so there is nothing to learn or to measure: give others, or a larger --max-seq-len"
            )
        report[split] = {name: dataclasses.asdict(count) for name, count in counts.items()}
    files.write_json(files.join(config.output_path, "report.json"), report)
    for split, found in report.items():
        parts = [f"{name} {count['conversations']:,}" for name, count in found.items()]
        tokens, learned, cut = (sum(count[key] for count in found.values()) for key in ("tokens", "learned", "cut"))
        note = f"; {cut:,} were longer than {config.max_tokens} tokens and cut" if cut else ""
        print(f"{split}: {', '.join(parts)} conversations, {tokens:,} tokens, {learned:,} of them learned{note}")


def _training(config: ConversationsConfig) -> Iterator[tuple[str, Conversation]]:
    if config.made:
        yield from _named("made", training_conversations(config.made, seed=config.made_seed))
    if config.public:
        epochs = {"smoltalk": 1, "mmlu": config.mmlu_epochs, "gsm8k": config.gsm8k_epochs}
        for name, times in epochs.items():
            for _ in range(times):
                yield from _named(name, public_conversations(name, "train", config.task_data))
    yield from _local(config, held_out=False)


def _validation(config: ConversationsConfig) -> Iterator[tuple[str, Conversation]]:
    if config.made:
        held_out = training_conversations(_MADE_VALIDATION, seed=config.made_seed, split="test")
        yield from _named("made", held_out)
    if config.public:
        for name, most in _VALIDATION_LIMITS.items():
            yield from _named(name, itertools.islice(public_conversations(name, "test", config.task_data), most))
    yield from _local(config, held_out=True)


def _local(config: ConversationsConfig, *, held_out: bool) -> Iterator[tuple[str, Conversation]]:
    for place in config.local:
        number = -1
        for number, conversation in enumerate(local_conversations(place)):
            if (number % _HELD_OUT_IN == 0) == held_out:
                yield place.name, conversation
        if number < 1:
            raise DataError(f"{place.path} has one conversation, and the first is held out: give at least two")


def _named(name: str, conversations: Iterator[Conversation]) -> Iterator[tuple[str, Conversation]]:
    return ((name, conversation) for conversation in conversations)


def _rendered(
    rows: Iterator[tuple[str, Conversation]], tokenizer: Tokenizer, max_tokens: int, counts: dict[str, _Count]
) -> Iterator[MaskedDocument]:
    """Each conversation, cut where it is too long; `counts` says what there was of each place."""
    num_bytes = np.maximum(tokenizer.token_bytes, 0)
    while batch := list(itertools.islice(rows, _AT_ONCE)):
        try:
            documents = render_batch([conversation for _, conversation in batch], tokenizer, max_tokens + 1)
        except DataError as error:
            raise DataError(f"a conversation of {', '.join(sorted({name for name, _ in batch}))}: {error}") from None
        for (name, _), document in zip(batch, documents, strict=True):
            count = counts.setdefault(name, _Count())
            tokens, mask = document.tokens[:max_tokens], document.mask[:max_tokens]
            count.conversations += 1
            count.cut += len(document.tokens) > max_tokens
            count.tokens += len(tokens)
            count.learned += sum(mask)
            count.learned_bytes += int(num_bytes[np.array(tokens)[np.array(mask) > 0]].sum())
            # Nothing follows a conversation that the model should predict; what is cut off has no end to learn either.
            mask[-1] = ENDS_UNLEARNED if mask[-1] else 0
            yield MaskedDocument(tokens, mask)


def _said(rows: Iterator[tuple[str, Conversation]], label: str) -> Iterator[tuple[str, Conversation]]:
    """The rows; now and then a line says how many have passed."""
    pace = Pace(5.0)
    for number, row in enumerate(rows):
        if pace.is_due():
            print(f"{label}: {number:,} so far, {number / pace.elapsed:,.0f}/s", flush=True)
        yield row
