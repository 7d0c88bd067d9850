"""Chats and prompts with responses to a token cache with a loss mask.

    loss_mask/, train/    the caches (`marin.data.masked_cache`)
    report.json           rows, documents, tokens, learned tokens, and for each reason how many rows were dropped, and ten of them

Train on it like on any cache; with packing "best_fit_truncate" each row begins with the beginning of a conversation.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from marin.data.chat import ChatFormat, MaskedDocument, PromptFormat, Turn, TurnEncoder, turns_of
from marin.data.columns import column_rows
from marin.data.formats import BadRow, OnBadRow, Row, check_on_bad_row, json_line_rows, json_rows
from marin.data.inputs import InputFile, find_inputs, opened_unchanged, say_left_out
from marin.data.masked_cache import write_masked_cache
from marin.data.tokenizer import Tokenizer
from marin.errors import ConfigError, DataError
from marin.execution.step import ExecutorStep, Input, this_output_path
from marin.storage import files

_ROWS_AT_ONCE = 512
_NUM_EXAMPLES = 10


@dataclass(frozen=True)
class TokenizeChatConfig:
    """Args:
    paths: `.jsonl`, `.json`, `.parquet` and `.arrow` files, folders or patterns; see `marin.data.inputs`.
    tokenizer: a `tokenizer.json`, or a directory with one.
    on_bad_row: "refuse" ends at the first row that is no chat, "skip" drops and counts it.
    """

    paths: Sequence[Input]
    tokenizer: Input
    format: ChatFormat | PromptFormat
    on_bad_row: OnBadRow = "refuse"
    output_path: str = this_output_path()

    def __post_init__(self) -> None:
        check_on_bad_row(self.on_bad_row)
        if not isinstance(self.format, ChatFormat | PromptFormat):
            raise ConfigError(f"config field `format` is {self.format!r}: use ChatFormat(...) or PromptFormat(...)")


def tokenize_chat_step(
    name: str,
    paths: Sequence[Input],
    tokenizer: Input,
    format: ChatFormat | PromptFormat,
    on_bad_row: OnBadRow = "refuse",
) -> ExecutorStep:
    """The step `tokenized/{name}`, whose cache lies in `train` and its loss mask in `loss_mask`."""
    return ExecutorStep(
        name=f"tokenized/{name}",
        fn=tokenize_chat,
        config=TokenizeChatConfig(paths, tokenizer, format, on_bad_row),
        description="conversations as a token cache with a loss mask",
    )


def tokenize_chat(config: TokenizeChatConfig) -> None:
    """Encodes every row of the files, in order. Memory is bounded by one chunk of tokens, not by the number of rows.

    Raises:
        DataError: a file cannot be read, a row is refused, or no conversation remains.
        ConfigError: the tokenizer lacks a token of the template.
    """
    tokenizer = Tokenizer.load(str(config.tokenizer))
    report = _Report()
    write_masked_cache(config.output_path, _documents(config, tokenizer, report), tokenizer)
    assert report.rows == report.documents + sum(report.dropped.values())
    files.write_json(files.join(config.output_path, "report.json"), report.as_json())
    print(
        f"tokenized {report.documents:,} of {report.rows:,} conversations: {report.tokens:,} tokens, of which the model "
        f"learns {report.learned / report.tokens:.0%}"
        + "".join(f"; dropped {count:,}: {reason}" for reason, count in sorted(report.dropped.items()))
    )


@dataclass
class _Report:
    """What became of the rows."""

    rows: int = 0
    documents: int = 0
    tokens: int = 0
    learned: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def keep(self, document: MaskedDocument) -> None:
        self.documents += 1
        self.tokens += len(document.tokens)
        self.learned += sum(document.mask)

    def drop(self, reason: str, example: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < _NUM_EXAMPLES:
            examples.append(example)

    def as_json(self) -> dict[str, Any]:
        return {
            "stage": "tokenize_chat",
            "rows": self.rows,
            "documents": self.documents,
            "tokens": self.tokens,
            "learned_tokens": self.learned,
            "dropped": {
                reason: {"documents": count, "examples": self.examples[reason]}
                for reason, count in sorted(self.dropped.items())
            },
        }


def _documents(config: TokenizeChatConfig, tokenizer: Tokenizer, report: _Report) -> Iterator[MaskedDocument]:
    encoder = TurnEncoder(tokenizer)
    conversations = _conversations(config, report)
    while batch := list(itertools.islice(conversations, _ROWS_AT_ONCE)):
        for document in encoder.encode(batch):
            report.keep(document)
            yield document


def _conversations(config: TokenizeChatConfig, report: _Report) -> Iterator[list[Turn]]:
    paths = [config.paths] if isinstance(config.paths, str) else config.paths
    inputs = find_inputs([str(path) for path in paths])
    say_left_out(inputs, "tokenize_chat")
    for file in inputs.files:
        with opened_unchanged(file.path) as stream:
            for row in _rows(file, stream, config.format):
                report.rows += 1
                turns = row if isinstance(row, BadRow) else turns_of(row, config.format)
                if isinstance(turns, BadRow):
                    if config.on_bad_row == "refuse":
                        raise turns.refused(file.path)
                    report.drop(turns.reason, f"{file.name}:{turns.number}")
                else:
                    yield turns


def _rows(file: InputFile, stream: Any, format: ChatFormat | PromptFormat) -> Iterator[Row | BadRow]:
    if file.format == "jsonl":
        return json_line_rows(file, stream)
    if file.format == "json":
        return json_rows(file, stream)
    if file.format in ("parquet", "arrow"):
        return column_rows(file, stream, nested=format.fields)
    raise DataError(
        f"{file.path} is of the format {file.format}, which has no conversations: give .jsonl, .json, .parquet or .arrow files"
    )
