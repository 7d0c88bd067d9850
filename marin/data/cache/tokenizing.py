"""Documents to a token cache: each shard is encoded on its own (`pieces`), then the pieces are joined in order.

    pieces/       what is encoded so far; removed when the cache is finished
    train/        the cache

Shards are encoded in parallel processes, and a single one in parallel threads. A killed run loses the shards that it
was working on, and the next one goes on with the others. The cache does not depend on the number of processes or on
kills, and its content does not depend on how the documents are cut into shards.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from marin.data.cache.ledger import SPLIT, read_ledger, recorded
from marin.data.cache.pieces import PieceWriter, read_piece
from marin.data.cache.reading import TokenCache
from marin.data.cache.writing import write_token_blocks
from marin.data.documents import is_set_path
from marin.data.pace import Pace
from marin.data.shards import DocumentSet, Shard, digest_of_shards
from marin.data.tokenizer import Tokenizer
from marin.data.workers import run_in_processes
from marin.errors import CacheError, DataError, StorageError
from marin.execution.step import ExecutorStep, Input, placement, this_output_path
from marin.hardware import num_processors
from marin.storage import files

PIECES = "pieces"
# A worker takes half a second to start, in which one processor encodes about this much.
_BYTES_WORTH_A_WORKER = 8_000_000


@dataclass(frozen=True)
class TokenizeConfig:
    """Args:
    documents: a document set, or a `.jsonl.zst` path.
    tokenizer: a `tokenizer.json`, or a directory with one.
    num_workers: processes; 0 is one a processor, fewer for little text.
    """

    marin_resumable: ClassVar[bool] = True

    documents: Input
    tokenizer: Input
    output_path: str = this_output_path()
    num_workers: int = placement(default=0)


def tokenize_step(name: str, documents: Input, tokenizer: Input) -> ExecutorStep:
    """The step `tokenized/{name}`, whose cache lies in `train` below its output path."""
    return ExecutorStep(
        name=f"tokenized/{name}",
        fn=tokenize,
        config=TokenizeConfig(documents, tokenizer),
        description="documents as a token cache in Levanter's layout",
    )


def tokenize(config: TokenizeConfig) -> None:
    """Encodes the documents, each as BOS and its tokens, into `{output_path}/train`.

    Raises:
        DataError: the documents or the tokenizer cannot be read.
    """
    tokenize_shards(_shards(str(config.documents)), str(config.tokenizer), config.output_path, config.num_workers)


def tokenize_shards(shards: Sequence[Shard], tokenizer_path: str, output_path: str, num_workers: int = 0) -> None:
    """Encodes the documents of the shards in order into `{output_path}/train`.

    Args:
        num_workers: processes; 0 is one a processor, fewer for little text.
    Raises:
        DataError: a shard or the tokenizer cannot be read.
    """
    tokenizer = Tokenizer.load(tokenizer_path)
    documents_digest = digest_of_shards(shards)
    cache_path, pieces = files.join(output_path, SPLIT), files.join(output_path, PIECES)
    if not _is_finished(cache_path, tokenizer.digest, documents_digest):
        writer = PieceWriter(pieces, tokenizer_path, tokenizer.digest)
        _make_pieces(writer, shards, num_workers)
        write_token_blocks(
            cache_path,
            (block for index in range(len(shards)) for block in read_piece(pieces, index)),
            tokenizer_digest=tokenizer.digest,
            vocab_size=tokenizer.vocab_size,
            documents_digest=documents_digest,
        )
    files.remove_tree(pieces)


def _shards(documents: str) -> Sequence[Shard]:
    if is_set_path(documents):
        return DocumentSet.open(documents).shards
    try:
        digest = files.sha256_file(documents)
    except StorageError as error:
        raise DataError(f"no documents: {error}") from None
    # How much is in it is found out when it is encoded; to count first would read it twice.
    return [Shard("documents", documents, 0, 0, digest)]


def _is_finished(path: str, tokenizer_digest: str, documents_digest: str) -> bool:
    """Whether an attempt that was killed while it removed the pieces had written the cache."""
    try:
        ledger = read_ledger(path)
        TokenCache.open(path)
    except CacheError:
        return False
    made_from = recorded(ledger, "tokenizer_digest"), recorded(ledger, "documents_digest")
    return made_from == (tokenizer_digest, documents_digest)


def _make_pieces(writer: PieceWriter, shards: Sequence[Shard], num_workers: int) -> None:
    todo = [(index, shard) for index, shard in enumerate(shards) if writer.finished(index, shard) is None]
    progress = _Progress(len(shards), len(shards) - len(todo))
    cpus = num_workers or num_processors()
    worth = 1 + sum(shard.num_bytes for _, shard in todo) // _BYTES_WORTH_A_WORKER
    used = min(cpus, max(len(todo), 1), cpus if num_workers else worth)
    writer = replace(writer, num_threads=max(1, cpus // used), on_batch=progress.add if used == 1 else None)
    for position, record in run_in_processes(writer.write, todo, used):
        _, shard = todo[position]
        if shard.num_bytes and record["documents"] != shard.num_documents:
            raise DataError(f"{shard.path} has {record['documents']} documents, its set says {shard.num_documents}")
        if used > 1:
            progress.add(record["bytes"], record["tokens"])
        progress.shards_done += 1
    progress.finished()


class _Progress:
    """Prints how far encoding is: now and then, and one line at the end."""

    def __init__(self, num_shards: int, shards_done: int):
        self.shards_done = self._shards_before = shards_done
        self._num_shards = num_shards
        self._bytes = self._tokens = 0
        self._pace = Pace()

    def add(self, num_bytes: int, num_tokens: int) -> None:
        self._bytes += num_bytes
        self._tokens += num_tokens
        if self._pace.is_due():
            print(f"tokenize: {self.shards_done:,} of {self._num_shards:,} shards, {self._counts()}", flush=True)

    def finished(self) -> None:
        before = f"; {self._shards_before:,} shards were there" if self._shards_before else ""
        print(f"tokenize: {self._counts()}{before}", flush=True)

    def _counts(self) -> str:
        rate = self._bytes / 1e6 / self._pace.elapsed
        per_token = f", {self._bytes / self._tokens:.2f} bytes a token" if self._tokens else ""
        return f"{self._bytes / 1e6:,.1f} MB of text, {self._tokens:,} tokens{per_token}, {rate:.1f} MB/s"
