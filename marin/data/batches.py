"""Items in lists of about one size: work on many at once is faster, and memory stays bounded."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from marin.data.documents import Document

_Item = TypeVar("_Item")


def in_batches(items: Iterable[_Item], size_of: Callable[[_Item], int], size: int) -> Iterator[list[_Item]]:
    """The items in order, in lists; a list ends with the item that brings the sum of its sizes to `size`."""
    batch: list[_Item] = []
    filled = 0
    for item in items:
        batch.append(item)
        filled += size_of(item)
        if filled >= size:
            yield batch
            batch, filled = [], 0
    if batch:
        yield batch


def document_batches(documents: Iterable[Document], chars: int) -> Iterator[list[Document]]:
    """The documents in lists of about `chars` characters."""
    return in_batches(documents, lambda document: len(document.text), chars)
