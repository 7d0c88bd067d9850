"""A sample whose labels are all about as frequent, as a classifier learns little of what is one in a hundred.

Of each label the documents with the smallest hashes of (seed, id) are kept, as many as there are of the rarest label, or
`at_least` if that is more. Documents without a label are left out. What is written can be learned from in place of the whole
sample; it must not be measured on, as its label frequencies are made up.

    sample/         the documents
    labels.jsonl    their rows, as they were
    labels.json     the summary, with the new counts and what they were before
"""

import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from marin.data.documents import Document
from marin.data.formats import Row, json_line, rows_of_json_lines
from marin.data.shards import DocumentSet, write_shards
from marin.datashop.agreement import read_labels
from marin.datashop.labels import LABELS, SUMMARY, counts_of, read_scale, read_summary
from marin.errors import ConfigError, DataError
from marin.execution.step import ExecutorStep, Input, InputName, this_output_path
from marin.storage import files

SAMPLE = "sample"


@dataclass(frozen=True)
class BalanceConfig:
    """Args:
    sample: the document set that was labelled.
    labels: the folder with its labels.
    at_least: so many documents of each label are kept, where there are as many, however rare the rarest is.
    """

    sample: Input
    labels: Input
    at_least: int = 20
    seed: int = 0
    output_path: str = this_output_path()

    def __post_init__(self) -> None:
        if self.at_least < 1:
            raise ConfigError(f"config field `at_least` is {self.at_least}: keep at least 1 document of each label")


def balance_step(
    name: str, sample: ExecutorStep | InputName, labels: ExecutorStep | InputName, *, at_least: int = 20, seed: int = 0
) -> ExecutorStep:
    """The step `balanced/{name}`."""
    config = BalanceConfig(sample, labels, at_least, seed)
    return ExecutorStep(name=f"balanced/{name}", fn=balance_labels, config=config, description="as many of each label")


def balance_labels(config: BalanceConfig) -> None:
    """Writes the balanced sample.

    Raises:
        DataError: sample and labels do not belong together, or nothing is labelled.
    """
    folder = str(config.labels)
    labels = read_labels(folder)
    kept = _chosen(labels, config)
    if not kept:
        raise DataError(f"{folder} has no labels to balance: see `unparsed` in {files.join(folder, SUMMARY)}")

    def documents() -> Iterator[Document]:
        for document in DocumentSet.open(str(config.sample)).documents():
            if document.id not in labels:
                raise DataError(f"{folder} has no row for document {document.id!r} of {config.sample}: label it again")
            if document.id in kept:
                yield document

    settings = {"at_least": config.at_least, "seed": config.seed}
    write_shards(files.join(config.output_path, SAMPLE), documents(), stage="balance_labels", settings=settings)
    with files.writing(files.join(config.output_path, LABELS)) as target:
        for row in rows_of_json_lines(files.join(folder, LABELS)):
            if isinstance(row, Row) and row.fields["id"] in kept:
                target.write(json_line(row.fields))
    before = read_summary(folder)
    counts = counts_of(
        [label for name, label in labels.items() if name in kept and label is not None], read_scale(folder)
    )
    balance = {"histogram_before": before.get("histogram"), **settings}
    files.write_json(files.join(config.output_path, SUMMARY), {**before, **counts, "balanced": balance})


def _chosen(labels: dict[str, float | None], config: BalanceConfig) -> set[str]:
    by_label: dict[float, list[str]] = {}
    for name, label in labels.items():
        if label is not None:
            by_label.setdefault(label, []).append(name)
    if not by_label:
        return set()
    order = functools.partial(_hash, config.seed)
    most = max(min(len(names) for names in by_label.values()), config.at_least)
    return {name for names in by_label.values() for name in sorted(names, key=order)[:most]}


def _hash(seed: int, name: str) -> bytes:
    return hashlib.blake2b(f"{seed} {name}".encode(), digest_size=16).digest()
