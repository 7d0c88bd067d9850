"""How many bytes of text a token stands for, by the documents' source, beside GPT-2's and GPT-4's tokenizers.

More bytes a token means shorter sequences for the same text. GPT-2 and cl100k are compared where their files are in a
given folder; nothing is fetched. Looked for are `gpt2.json` and `cl100k_base.json`, `tokenizer.json` in folders of these
names, and OpenAI's own `r50k_base.tiktoken` and `cl100k_base.tiktoken`.
"""

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marin.data.batches import document_batches
from marin.data.documents import text_bytes
from marin.data.tokenizer.byte_bpe import GPT2_PATTERN
from marin.data.tokenizer.loaded import TOKENIZER_FILE, Tokenizer
from marin.data.tokenizer.training import sample
from marin.errors import DataError
from marin.execution.step import ExecutorStep, Input, added_later, this_output_path
from marin.storage import files

# As OpenAI published it for cl100k_base.
_GPT4_PATTERN = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
OTHERS = {"gpt2": ("r50k_base.tiktoken", GPT2_PATTERN), "cl100k_base": ("cl100k_base.tiktoken", _GPT4_PATTERN)}
_BATCH_CHARS = 1_000_000
_ALL = "all"

CountTokens = Callable[[Sequence[str]], int]


@dataclass(frozen=True)
class TokenizerReportConfig:
    """Args:
    tokenizer: a `tokenizer.json`, or a directory with one.
    documents: a document set, or a `.jsonl.zst` path; better not the one that the tokenizer was trained on.
    others: a folder with files of GPT-2 or cl100k, see the module's docstring; None compares with none.
    max_bytes: of text, spread evenly over a document set, or the beginning of a single file.
    other_digests: of the files in a folder that no step makes, as `digests_of_others` gives them.
    """

    tokenizer: Input
    documents: Input
    others: Input | None = None
    max_bytes: int = 100_000_000
    output_path: str = this_output_path()
    other_digests: Mapping[str, str] | None = added_later(default=None, kw_only=True)


def tokenizer_report_step(
    tokenizer: Input,
    documents: Input,
    others: Input | None = None,
    name: str = "tokenizers/report",
) -> ExecutorStep:
    """The step that writes `report.json` and `report.md`; another one when the files in a local folder `others` are others."""
    digests = digests_of_others(others) if isinstance(others, str) and files.is_local(others) else None
    return ExecutorStep(
        name=name,
        fn=report_tokenizer,
        config=TokenizerReportConfig(tokenizer, documents, others, other_digests=digests or None),
        description="bytes per token by source",
    )


def report_tokenizer(config: TokenizerReportConfig) -> None:
    """Counts the tokens of the documents and writes the table.

    Raises:
        DataError: the documents or a tokenizer cannot be read.
    """
    tokenizer = Tokenizer.load(str(config.tokenizer))
    counters: dict[str, CountTokens] = {"this": _counter(tokenizer)}
    absent = []
    for name in OTHERS:
        counter = None if config.others is None else find_counter(str(config.others), name)
        if counter is None:
            absent.append(name)
        else:
            counters[name] = counter
    totals = _count(str(config.documents), config.max_bytes, counters)
    report = {
        "tokenizer": {"digest": tokenizer.digest, "vocab_size": tokenizer.vocab_size},
        "encoder": "tiktoken" if tokenizer.encoder_reason is None else f"tokenizers: {tokenizer.encoder_reason}",
        "absent": absent,
        "sources": {
            source: {
                "documents": counts["documents"],
                "bytes": counts["bytes"],
                "bytes_per_token": {name: round(counts["bytes"] / max(counts[name], 1), 4) for name in counters},
            }
            for source, counts in totals.items()
        },
    }
    table = _table(report, list(counters))
    files.write_json(files.join(config.output_path, "report.json"), report)
    files.write_bytes(files.join(config.output_path, "report.md"), table.encode())
    print(table)


def _count(documents: str, max_bytes: int, counters: dict[str, CountTokens]) -> dict[str, dict[str, int]]:
    """For each source, and for all together last: documents, bytes, and the tokens of each tokenizer."""
    totals: dict[str, dict[str, int]] = {}
    for batch in document_batches(sample(documents, max_bytes), _BATCH_CHARS):
        texts_of: dict[str, list[str]] = {}
        for document in batch:
            texts_of.setdefault(document.source, []).append(document.text)
        for source, texts in texts_of.items():
            counts = totals.setdefault(source, dict.fromkeys(("documents", "bytes", *counters), 0))
            counts["documents"] += len(texts)
            counts["bytes"] += sum(map(text_bytes, texts))
            for name, counter in counters.items():
                counts[name] += counter(texts)
    by_size = dict(sorted(totals.items(), key=lambda item: (-item[1]["bytes"], item[0])))
    together = {key: sum(counts[key] for counts in totals.values()) for key in next(iter(totals.values()))}
    return {**by_size, _ALL: together}


def _counter(tokenizer: Tokenizer) -> CountTokens:
    return lambda texts: sum(map(len, tokenizer.encode_arrays(texts)))


def find_file(folder: str, name: str) -> str | None:
    """The file of `gpt2` or `cl100k_base` in the folder; None if there is none."""
    names = f"{name}.json", f"{name}/{TOKENIZER_FILE}", OTHERS[name][0]
    return next((path for path in (files.join(folder, each) for each in names) if files.exists(path)), None)


def digests_of_others(folder: str) -> dict[str, str]:
    """The SHA-256 of those files of `gpt2` and `cl100k_base` that are in the folder."""
    found = {name: find_file(folder, name) for name in OTHERS}
    return {name: files.sha256_file(path) for name, path in found.items() if path is not None}


def find_counter(folder: str, name: str) -> CountTokens | None:
    """What counts the tokens of `gpt2` or `cl100k_base`, from its file in the folder; None if there is none."""
    ranks_file, pattern = OTHERS[name]
    path = find_file(folder, name)
    if path is None:
        return None
    return _ranks_counter(path, pattern) if path.endswith(ranks_file) else _counter(Tokenizer.load(path))


def _ranks_counter(path: str, pattern: str) -> CountTokens:
    """Counts with OpenAI's file: one token a line, in base64, and its id."""
    import tiktoken

    try:
        lines = files.read_bytes(path).splitlines()
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in map(bytes.split, lines) if token}
        # tiktoken ends the program over either.
        if missing := 256 - sum(bytes([byte]) in ranks for byte in range(256)):
            raise ValueError(f"{missing} of the 256 bytes have no token")
        if len(set(ranks.values())) < len(ranks):
            raise ValueError("two tokens have one id")
        encoding = tiktoken.Encoding(path, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        encoding.encode_ordinary("a test of every byte's token: \u00e9\U0001f642")
    except (ValueError, KeyError, binascii.Error) as error:
        raise DataError(f"{path} is no file of tiktoken ranks ({error}): fetch it again, or remove it") from None
    return lambda texts: sum(map(len, encoding.encode_ordinary_batch(list(texts))))


def _table(report: dict[str, Any], names: list[str]) -> str:
    heads = ["source", "documents", "MB", *(f"bytes a token, {name}" for name in names)]
    lines = [f"| {' | '.join(heads)} |", f"|---{'|---:' * (len(heads) - 1)}|"]
    for source, counts in report["sources"].items():
        rates = [f"{counts['bytes_per_token'][name]:.2f}" for name in names]
        cells = [source.replace("|", "\\|"), f"{counts['documents']:,}", f"{counts['bytes'] / 1e6:,.1f}", *rates]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
