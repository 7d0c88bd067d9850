"""The documents of some sources: what makes the components of a mixture out of one deduplicated set."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import ClassVar

from marin.data.documents import Document, Dropped
from marin.data.shards import DocumentSet, transform_shards
from marin.errors import ConfigError, DataError
from marin.execution.step import ExecutorStep, Input, placement, this_output_path


@dataclasses.dataclass(frozen=True)
class KeepSourcesConfig:
    """Args:
    documents: a document set.
    sources: the values of the documents' `source` to keep.
    num_workers: processes; 0 is one a processor.
    """

    marin_resumable: ClassVar[bool] = True

    documents: Input
    sources: tuple[str, ...]
    output_path: str = this_output_path()
    num_workers: int = placement(default=0)

    def __post_init__(self) -> None:
        is_one = isinstance(self.sources, str)  # of which Python makes a tuple of letters
        if is_one or not self.sources or not all(isinstance(source, str) for source in self.sources):
            raise ConfigError(
                f"config field `sources` is {self.sources!r}: give a list of at least one name, such as ['web']"
            )


def keep_sources_step(name: str, documents: Input, sources: Sequence[str]) -> ExecutorStep:
    """The step `documents/{name}` with the documents of these sources; all others count as dropped."""
    return ExecutorStep(
        name=f"documents/{name}",
        fn=keep_sources,
        config=KeepSourcesConfig(documents, sources if isinstance(sources, str) else tuple(sources)),  # type: ignore[arg-type]
        description=f"the documents from {', '.join(sources)}",
    )


def keep_sources(config: KeepSourcesConfig) -> DocumentSet:
    """Raises:
    DataError: the documents cannot be read, or one of the sources has none.
    """
    kept = transform_shards(
        str(config.documents),
        config.output_path,
        functools.partial(_of_sources, frozenset(config.sources)),
        stage="keep sources",
        settings={"sources": sorted(config.sources)},
        num_workers=config.num_workers,
    )
    there = {document.source for shard in kept.shards for document in shard.documents()}
    missing = sorted(set(config.sources) - there)
    if missing:
        raise DataError(
            f"{config.documents} has no documents of the source {missing[0]!r}: check the name, and what earlier stages "
            f"dropped (their report.json)"
        )
    return kept


def _of_sources(sources: frozenset[str], index: int, documents: Iterator[Document]) -> Iterator[Document | Dropped]:
    for document in documents:
        if document.source in sources:
            yield document
        else:
            yield Dropped(document.id, "of another source", document.source)
