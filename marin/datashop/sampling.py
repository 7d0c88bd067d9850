"""The documents that are labelled: drawn from the pool by a hash of their ids, or examples that a person gave.

By prompt: the `size` documents with the smallest hashes of (seed, id), so a larger sample holds the smaller one, and labels
that were paid for stay. Which ones they are depends on no shard and no process.

By example, in this order, the role standing before each id:

    positive/...   documents that are wanted
    negative/...   documents that are not, if a person gave any
    pool/...       else documents of the pool, drawn as above, that stand in for what is not wanted

A document whose text stands in the sample before is left out, so that no text is both learned from and measured on, and no
positive example comes back as a negative one; others of the pool take its place, and it is said if the pool has too few. Some of the pool's documents may be wanted; labels from examples are as good
as the wanted ones are rare.
"""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt64

from marin.data.documents import Document, text_digest
from marin.data.formats import OnBadRow
from marin.data.shards import DocumentSet, Shard, is_document_set, transform_shards, write_shards
from marin.data.sources import ImportConfig, documents_of, import_documents
from marin.data.workers import run_in_processes
from marin.datashop.labels import EXAMPLES_SCALE, LABELS, SUMMARY, counts_of, label_line
from marin.errors import ConfigError, DataError
from marin.execution.step import ExecutorStep, Input, placement, this_output_path
from marin.storage import files

POSITIVE, NEGATIVE, POOL = "positive", "negative", "pool"
_ANNOTATOR = "examples"
_EXTRA = 64  # more are drawn at first than asked for, to take the place of those whose text is there already


@dataclass(frozen=True)
class PoolConfig(ImportConfig):
    """What `import_step` reads, or one finished document set, which is copied.

    Args:
        num_workers: processes that copy a document set; 0 is one a processor.
    """

    num_workers: int = placement(default=0)


@dataclass(frozen=True)
class DrawConfig:
    """Args:
    documents: a document set.
    size: documents to draw, of different texts; all, if there are fewer.
    sources: draw only documents of these sources; empty for all.
    num_workers: processes; 0 is one a processor.
    """

    documents: Input
    size: int
    seed: int = 0
    sources: tuple[str, ...] = ()
    output_path: str = this_output_path()
    num_workers: int = placement(default=0)

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"config field `size` is {self.size}: draw at least 1 document")
        if isinstance(self.sources, str):  # of which Python makes a tuple of letters
            raise ConfigError(f"config field `sources` is {self.sources!r}: give a list, [{self.sources!r}]")


@dataclass(frozen=True)
class ExamplesConfig:
    """Args:
    pool: a document set.
    positives, negatives: files, folders, patterns or document sets.
    negatives_per_positive: documents of the pool for each positive, where there are no negatives.
    text_key, id_key, on_bad_row: how files of examples are read; see `marin.data.sources`.
    num_workers: processes; 0 is one a processor.
    """

    pool: Input
    positives: Sequence[Input]
    negatives: Sequence[Input] = ()
    negatives_per_positive: float = 5.0
    seed: int = 0
    text_key: str = "text"
    id_key: str | None = None
    on_bad_row: OnBadRow = "refuse"
    output_path: str = this_output_path()
    num_workers: int = placement(default=0)


@dataclass(frozen=True)
class ExampleLabelsConfig:
    """The sample that `draw_examples` made."""

    sample: Input
    output_path: str = this_output_path()


def draw_documents_step(
    name: str, documents: Input, size: int, *, seed: int = 0, sources: Sequence[str] = ()
) -> ExecutorStep:
    """The step `{name}`: `size` documents, drawn by a hash of their ids."""
    return ExecutorStep(
        name=name,
        fn=draw_documents,
        config=DrawConfig(documents, size, seed, sources if isinstance(sources, str) else tuple(sources)),  # type: ignore[arg-type]
        description=f"{size:,} documents" + (f" of {', '.join(sources)}" if sources else ""),
    )


def make_pool(config: PoolConfig) -> None:
    """Writes the pool as a document set.

    Raises:
        DataError: see `import_documents`.
    """
    if len(config.paths) == 1 and is_document_set(str(config.paths[0])):
        transform_shards(
            str(config.paths[0]), config.output_path, lambda index, documents: documents, stage="pool", settings={},
            num_workers=config.num_workers,
        )  # fmt: skip
    else:
        import_documents(config)


def draw_documents(config: DrawConfig) -> None:
    """Writes the drawn documents, by their hashes, the smallest first.

    Raises:
        DataError: the documents cannot be read, or none is of the sources.
    """
    source = DocumentSet.open(str(config.documents))
    kept = _drawn_distinct(source, config.size, set(), config.seed, config.sources, config.num_workers)
    settings = {"size": config.size, "seed": config.seed, "sources": list(config.sources), "of": source.digest}
    write_shards(config.output_path, kept, stage="draw", settings=settings)


def draw_examples(config: ExamplesConfig) -> None:
    """Writes positives, negatives and what the pool gives as one document set.

    Raises:
        DataError: examples or pool cannot be read, or one of the sides has no document.
    """
    settings = {
        "negatives_per_positive": config.negatives_per_positive,
        "seed": config.seed,
        "text_key": config.text_key,
        "id_key": config.id_key,
        "on_bad_row": config.on_bad_row,
    }
    write_shards(config.output_path, _examples(config), stage="examples", settings=settings)


def label_examples(config: ExampleLabelsConfig) -> None:
    """Writes the labels of examples: 1 for positives, 0 for all others.

    Raises:
        DataError: the sample holds something else than examples.
    """
    labels: list[float] = []
    by_role = dict.fromkeys((POSITIVE, NEGATIVE, POOL), 0)
    with files.writing(files.join(config.output_path, LABELS)) as stream:
        for document in DocumentSet.open(str(config.sample)).documents():
            role = document.id.partition("/")[0]
            if role not in by_role:
                raise DataError(f"{config.sample}: document {document.id!r} has no role: draw the examples again")
            by_role[role] += 1
            labels.append(float(role == POSITIVE))
            stream.write(label_line(document.id, labels[-1], _ANNOTATOR))
    summary = {
        **counts_of(labels, EXAMPLES_SCALE),
        "annotator": _ANNOTATOR,
        "by_role": by_role,
        "tokens": {},
        "cost_dollars": None,
    }
    files.write_json(files.join(config.output_path, SUMMARY), summary)
    print(f"labels: {', '.join(f'{count:,} {role}' for role, count in by_role.items() if count)}", flush=True)


def _examples(config: ExamplesConfig) -> Iterator[Document]:
    seen: set[bytes] = set()
    num_positives = num_others = 0
    for document in _distinct(_read(config.positives, POSITIVE, config), seen):
        num_positives += 1
        yield document
    if not num_positives:
        raise DataError("the positive examples hold no documents: give files with at least 20 documents")
    if config.negatives:
        others = _distinct(_read(config.negatives, NEGATIVE, config), seen)
    else:
        size = max(round(config.negatives_per_positive * num_positives), 1)
        pool = DocumentSet.open(str(config.pool))
        drawn = _drawn_distinct(pool, size, seen, config.seed, (), config.num_workers)
        others = (dataclasses.replace(document, id=f"{POOL}/{document.id}") for document in drawn)
    for document in others:
        num_others += 1
        yield document
    if not num_others:
        raise DataError("no document stands for what is not wanted: give `negatives`, or a pool of other documents")


def _read(paths: Sequence[Input], role: str, config: ExamplesConfig) -> Iterator[Document]:
    for number, path in enumerate(map(str, paths)):
        documents = documents_of(ImportConfig([path], role, config.text_key, config.id_key, config.on_bad_row))
        prefix = role if len(paths) == 1 else f"{role}/{number}"
        for document in documents:
            yield dataclasses.replace(document, id=f"{prefix}/{document.id}")


def _distinct(documents: Iterator[Document], seen: set[bytes]) -> Iterator[Document]:
    """The documents whose text is not in `seen`, to which it is added."""
    for document in documents:
        digest = text_digest(document.text)
        if digest not in seen:
            seen.add(digest)
            yield document


# --- drawing ----------------------------------------------------------------------------------------------------------


def _drawn_distinct(
    source: DocumentSet, size: int, seen: set[bytes], seed: int, sources: Sequence[str], num_workers: int
) -> list[Document]:
    """The `size` documents with the smallest hashes among those whose texts differ and are not in `seen`.

    Says so if there are fewer.
    """
    asked = size + len(seen) + _EXTRA
    while True:
        drawn = _drawn(source, asked, seed, sources, num_workers)
        kept = list(itertools.islice(_distinct(iter(drawn), set(seen)), size))
        if len(kept) == size:
            return kept
        if len(drawn) < asked:
            other = " other than the examples" if seen else ""
            print(
                f"warning: {source.path} has {len(kept):,} texts{other}, {size:,} were to be drawn: all are", flush=True
            )
            return kept
        # As many as the same share of repeated texts needs, and a quarter more: each draw reads the pool twice.
        asked = max(2 * asked, 5 * asked * size // (4 * max(len(kept), 1)))


def _drawn(source: DocumentSet, size: int, seed: int, sources: Sequence[str], num_workers: int) -> list[Document]:
    """The `size` documents with the smallest hashes, the smallest first."""
    smallest = functools.partial(_smallest, size, seed, frozenset(sources))
    found = dict(run_in_processes(smallest, source.shards, num_workers))
    hashes = np.concatenate([found[index] for index in range(len(source.shards))])
    if not len(hashes):
        raise DataError(f"{source.path} has no documents{f' of {list(sources)}' if sources else ''} to draw from")
    limit = np.sort(hashes)[min(size, len(hashes)) - 1]
    chosen: list[tuple[int, int, Document]] = []
    for index, shard in enumerate(source.shards):
        if not (found[index] <= limit).any():
            continue
        for row, document in enumerate(shard.documents()):
            if (not sources or document.source in sources) and (value := _hash(seed, document.id)) <= limit:
                chosen.append((value, (index << 40) + row, document))
    return [document for _, _, document in sorted(chosen, key=lambda entry: entry[:2])]


def _smallest(size: int, seed: int, sources: frozenset[str], shard: Shard) -> UInt64[np.ndarray, " n"]:
    """The smallest hashes of a shard's documents, at most `size`."""
    values = [_hash(seed, document.id) for document in shard.documents() if not sources or document.source in sources]
    return np.sort(np.array(values, np.uint64))[:size]


def _hash(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"draw {seed} {name}".encode(), digest_size=8).digest(), "big")
