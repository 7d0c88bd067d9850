"""What data costs: training a tokenizer, documents to a token cache, and reading sequences from one.

    python -m benchmarks.data                      # all figures; about five minutes and 3 GB of temporary files
    python -m benchmarks.data --only tokenize_cache loader_ours

Prints one JSON line a figure: name, value, unit, n (repetitions), context. The text is the real one in `../shared/data/corpora`
(`MARIN_SHARED_DATA` names another folder). Where a public tool is named, both run in turns in the same run and the figure
is the median of the ratios; `loop_seconds` in the context is what ten million additions in a Python loop take on this
machine (0.5 s on a usual one of 2025), as absolute rates mean little without it.
"""

import argparse
import dataclasses
import gzip
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from marin.data.cache import TokenBlock, TokenCache, TokenizeConfig, tokenize, write_token_blocks
from marin.data.documents import Document, read_documents
from marin.data.shards import write_shards
from marin.data.tokenizer import SPLIT_PATTERN, Tokenizer, TrainTokenizerConfig, train_tokenizer
from marin.data.zarr_store import LEVANTER, OURS, Chunking
from marin.flags import HelpFormatter
from marin.hardware import num_processors

SHARED_DATA = pathlib.Path(os.environ.get("MARIN_SHARED_DATA", pathlib.Path(__file__).parents[2] / "shared" / "data"))
VOCAB_SIZE = 8192
_REPETITIONS = 5
_COPIES = 4  # of the corpora that are tokenized, so that starting processes counts as it does for a real corpus
_CACHE_BYTES = 1_000_000_000
_SEQUENCE = 4096
_BATCH = 64
_BATCHES = 24


# --- the text -----------------------------------------------------------------------------------------------------


def corpora() -> Iterator[Document]:
    """The documents of the corpora; plain text in pieces of 20,000 characters."""
    for path in sorted((SHARED_DATA / "corpora").iterdir()):
        if path.name.endswith(".jsonl.gz"):
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                for line in lines:
                    row = json.loads(line)
                    yield Document(f"{row['source']}/{row['id']}", row["text"], row["source"])
        elif path.suffix == ".txt":
            text = path.read_text(encoding="utf-8")
            for start in range(0, len(text), 20_000):
                yield Document(f"{path.stem}/{start}", text[start : start + 20_000], path.stem)


def prepare(folder: str) -> None:
    """The corpora as a document set, several copies of them as another, and a tokenizer."""
    documents = list(corpora())
    copies = (Document(f"{i}/{d.id}", d.text, d.source) for i in range(_COPIES) for d in documents)
    write_shards(f"{folder}/corpora", documents, stage="corpora", settings={})
    write_shards(f"{folder}/copies", copies, stage="copies of the corpora", settings={}, shard_bytes=16_000_000)
    train_tokenizer(TrainTokenizerConfig(f"{folder}/corpora", VOCAB_SIZE, f"{folder}/tokenizer"))


# --- the figures --------------------------------------------------------------------------------------------------


def bpe_training(folder: str) -> None:
    """Training from a document set to a written file, against rustbpe with the texts in memory."""
    import rustbpe

    texts = [document.text for document in read_documents(f"{folder}/corpora")]

    def ours() -> None:
        train_tokenizer(TrainTokenizerConfig(f"{folder}/corpora", VOCAB_SIZE, f"{folder}/again"))

    def theirs() -> None:
        rustbpe.Tokenizer().train_from_iterator(iter(texts), VOCAB_SIZE - 1, pattern=SPLIT_PATTERN)

    seconds = in_turns(ours, theirs)
    size = sum(len(text.encode()) for text in texts)
    print_ratio("bpe_training", seconds, "x rustbpe's time", size, target="<= 2.2", vocab_size=VOCAB_SIZE)


def tokenize_cache(folder: str) -> None:
    """Documents on the disk to a finished token cache, against tiktoken's two threads on texts in memory."""
    import tiktoken

    texts = [document.text for document in read_documents(f"{folder}/copies")]
    tokenizer = Tokenizer.load(f"{folder}/tokenizer")
    assert not isinstance(tokenizer._encoder, str), tokenizer.encoder_reason
    ranks = tokenizer._encoder.encoding._mergeable_ranks
    encoding = tiktoken.Encoding("benchmark", pat_str=SPLIT_PATTERN, mergeable_ranks=ranks, special_tokens={})

    def ours() -> None:
        with tempfile.TemporaryDirectory(dir=folder) as output:
            tokenize(TokenizeConfig(f"{folder}/copies", f"{folder}/tokenizer", output))

    def theirs() -> None:
        encoding.encode_ordinary_batch(texts, num_threads=2)

    seconds = in_turns(theirs, ours, repetitions=3)  # so that the ratio is of rates
    size = sum(len(text.encode()) for text in texts)
    print_ratio("tokenize_cache", seconds, "x tiktoken's rate", size, target=">= 0.58 (15 MB/s where tiktoken has 26)")


def loader_published(folder: str) -> None:
    """Random sequences from a cache of the published chunking."""
    _loader("loader_published", folder, LEVANTER, 2e6)


def loader_ours(folder: str) -> None:
    """Random sequences from a cache as this project writes it."""
    _loader("loader_ours", folder, OURS, 10e6)


# Figures of other parts of data preparation are added here: a function of the folder with the document sets.

FIGURES: dict[str, Callable[[str], None]] = {
    "bpe_training": bpe_training,
    "tokenize_cache": tokenize_cache,
    "loader_published": loader_published,
    "loader_ours": loader_ours,
}


# --- inside -------------------------------------------------------------------------------------------------------


def _loader(name: str, folder: str, chunking: Chunking, target: float) -> None:
    path = f"{folder}/{name}"
    sizes = map(str, dataclasses.astuple(chunking))
    _in_a_new_process("write", path, f"{folder}/corpora", f"{folder}/tokenizer", *sizes)
    found = _in_a_new_process("read", path)
    rates = [rate / 1e6 for rate in found["tokens_per_second"]]
    print_figure(
        name, statistics.median(rates), "million tokens/s", len(rates), target=target / 1e6, lowest=round(min(rates), 2),
        sequence=_SEQUENCE, batch=_BATCH, peak_memory_mb=round(found["peak_memory"] / 1e6), memory_target_mb=300,
        inner_chunk=chunking.inner, outer_chunk=chunking.outer, block=chunking.block,
    )  # fmt: skip


def _write(path: str, documents: str, tokenizer_path: str, *sizes: str) -> dict[str, Any]:
    """A cache of a gigabyte of tokens: those of the documents over and over."""
    tokenizer = Tokenizer.load(tokenizer_path)
    ids = tokenizer.encode_arrays([document.text for document in read_documents(documents)])
    tokens, lengths = np.concatenate(ids), np.array([len(row) for row in ids], np.int64)
    copies = _CACHE_BYTES // (4 * len(tokens)) + 1
    write_token_blocks(
        path,
        (TokenBlock(tokens, lengths) for _ in range(copies)),
        tokenizer_digest=tokenizer.digest,
        vocab_size=tokenizer.vocab_size,
        chunking=Chunking(*map(int, sizes)),
    )
    return {}


def _read(path: str) -> dict[str, Any]:
    cache = TokenCache.open(path)
    generator = np.random.default_rng(0)
    rates = []
    for _ in range(_REPETITIONS + 1):
        start = time.perf_counter()
        for _ in range(_BATCHES):
            cache.windows(generator.integers(0, len(cache) - _SEQUENCE, _BATCH), _SEQUENCE)
        rates.append(_BATCHES * _BATCH * _SEQUENCE / (time.perf_counter() - start))
    return {"tokens_per_second": rates[1:], "peak_memory": _peak_memory()}


def in_turns(
    first: Callable[[], None], second: Callable[[], None], repetitions: int = _REPETITIONS
) -> list[tuple[float, float]]:
    """Seconds of both, in turns, which of them is first changing every time."""
    pairs = []
    for repetition in range(repetitions):
        seconds = {}
        for function in (first, second) if repetition % 2 == 0 else (second, first):
            start = time.perf_counter()
            function()
            seconds[function] = time.perf_counter() - start
        pairs.append((seconds[first], seconds[second]))
    return pairs


def print_ratio(name: str, seconds: list[tuple[float, float]], unit: str, num_bytes: int, **context: Any) -> None:
    """The median of first / second, with both in the context."""
    ratios = [first / second for first, second in seconds]
    medians = [statistics.median(side) for side in zip(*seconds, strict=True)]
    print_figure(
        name, statistics.median(ratios), unit, len(ratios), lowest=round(min(ratios), 3), highest=round(max(ratios), 3),
        seconds=[round(value, 2) for value in medians], mb_per_s=[round(num_bytes / 1e6 / value, 1) for value in medians],
        text_mb=round(num_bytes / 1e6, 1), **context,
    )  # fmt: skip


def print_figure(name: str, value: float, unit: str, n: int, **context: Any) -> None:
    context |= {
        "loop_seconds": round(_loop_seconds(), 2),
        "python": platform.python_version(),
        "cpus": num_processors(),
    }
    print(
        json.dumps({"name": name, "value": float(f"{value:.4g}"), "unit": unit, "n": n, "context": context}), flush=True
    )


def _peak_memory() -> int:
    """Of this program, in bytes. What `getrusage` says counts that of the parent at the fork too."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _loop_seconds() -> float:
    start = time.perf_counter()
    total = 0
    for index in range(10_000_000):
        total += index
    return time.perf_counter() - start


def _in_a_new_process(*measure: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.data", "--measure", *measure]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--only", nargs="+", choices=FIGURES, metavar="NAME", help=f"some of {', '.join(FIGURES)}")
    parser.add_argument("--store", help="a directory to make the temporary one in (default: the system's)")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        name, *arguments = args.measure
        measures: dict[str, Callable[..., dict[str, Any]]] = {"write": _write, "read": _read}
        if name not in measures:
            parser.error(f"argument --measure: {name!r} is none of {', '.join(measures)}")
        print(json.dumps(measures[name](*arguments)))
        return
    if not (SHARED_DATA / "corpora").is_dir():
        sys.exit(
            f"error: {SHARED_DATA / 'corpora'} is not there: set MARIN_SHARED_DATA to the folder that holds `corpora`"
        )
    if args.store and not pathlib.Path(args.store).is_dir():
        parser.error(f"--store {args.store}: there is no such directory")
    with tempfile.TemporaryDirectory(dir=args.store) as folder:
        prepare(folder)
        for name in args.only or FIGURES:
            FIGURES[name](folder)


if __name__ == "__main__":
    main()
