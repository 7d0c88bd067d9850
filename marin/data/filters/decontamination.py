"""Decontamination: which documents hold n-grams of evaluation sets, as a report and as a filter.

`contamination.json` says for each evaluation set how many of its items were found in the corpus and in how many
documents, with examples. The filter also drops the documents of which more than `max_overlap` of the words lie in such
n-grams (0: any); the reason names the set, the detail the item and the words. What counts as overlap is described in
`ngram_index`.
"""

import contextlib
import functools
import hashlib
import posixpath
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import numpy as np

from marin.data.batches import document_batches
from marin.data.documents import Document, Dropped
from marin.data.filters.ngram_index import NgramIndex, OverlapSettings
from marin.data.inputs import find_inputs, format_of
from marin.data.scratch import Arrays, Scratch, string_arrays
from marin.data.shards import DocumentSet, Shard, is_document_set, transform_shards
from marin.data.words import BLOCK_CHARS, words_between, words_of
from marin.errors import ConfigError, DataError
from marin.execution.step import ExecutorStep, Input, placement, this_output_path
from marin.storage import files

CONTAMINATION = "contamination.json"
_NUM_EXAMPLES = 10
_SHOWN_CHARS = 160

_OVERLAP = OverlapSettings()


@dataclass(frozen=True)
class ContaminationConfig:
    """Args:
    documents: a document set.
    evaluation: name and place of each evaluation set: a file is one set, and so is a document set, such as a step writes; any
        other folder is a set for each file below it, named "{name}/{file}", such as "core/arc_easy" for
        {"core": "core_eval_bundle/eval_data"}.
    overlap: which n-grams are looked for.
    num_workers: processes; 0 is one a processor.
    """

    marin_resumable: ClassVar[bool] = True

    documents: Input
    evaluation: Mapping[str, Input]
    overlap: OverlapSettings = _OVERLAP
    output_path: str = this_output_path()
    num_workers: int = placement(default=0)

    def check_before_run(self, *, on_this_machine: bool) -> None:
        """Looks for the evaluation sets that no step makes, as what comes before may take hours, or be paid for.

        Raises:
            ConfigError: one is not there, or two have one name.
        """
        places = {name: place for name, place in self.evaluation.items() if isinstance(place, str)}
        local = {name: place for name, place in places.items() if on_this_machine and files.is_local(place)}
        if not local:
            return
        try:
            _sets(local)
        except DataError as error:
            raise ConfigError(f"an evaluation set cannot be read: {error}") from error


@dataclass(frozen=True)
class DecontaminateConfig(ContaminationConfig):
    """Args:
    max_overlap: a document is dropped if a larger fraction of its words lies in n-grams of evaluation sets.
    """

    max_overlap: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        if not 0 <= self.max_overlap < 1:
            raise ConfigError(f"config field `max_overlap` is {self.max_overlap}: use a fraction from 0 to below 1")


def contamination_report_step(
    name: str, documents: Input, evaluation: Mapping[str, Input], *, overlap: OverlapSettings = _OVERLAP
) -> ExecutorStep:
    """The step `contamination/{name}`, which writes `contamination.json` and no documents."""
    return ExecutorStep(
        name=f"contamination/{name}",
        fn=report_contamination,
        config=ContaminationConfig(documents, evaluation, overlap),
        description="overlap of documents with evaluation sets",
    )


def decontaminate_step(
    name: str,
    documents: Input,
    evaluation: Mapping[str, Input],
    *,
    overlap: OverlapSettings = _OVERLAP,
    max_overlap: float = 0.0,
) -> ExecutorStep:
    """The step `decontaminated/{name}`: the documents that do not overlap with evaluation sets, and the report."""
    return ExecutorStep(
        name=f"decontaminated/{name}",
        fn=decontaminate,
        config=DecontaminateConfig(documents, evaluation, overlap, max_overlap=max_overlap),
        description="documents that do not overlap with evaluation sets",
    )


def report_contamination(config: ContaminationConfig) -> None:
    """Writes `contamination.json`.

    Raises:
        DataError: documents or evaluation sets cannot be read.
    """
    with _scanned(config):
        pass


def decontaminate(config: DecontaminateConfig) -> None:
    """Writes `contamination.json` and the documents that stay.

    Raises:
        DataError: documents or evaluation sets cannot be read.
    """
    with _scanned(config) as (scratch, settings):
        transform_shards(
            scratch.source,
            config.output_path,
            functools.partial(_without_overlap, scratch, config.max_overlap),
            stage="decontaminate",
            settings=settings | {"max_overlap": config.max_overlap},
            num_workers=config.num_workers,
        )


@contextlib.contextmanager
def _scanned(config: ContaminationConfig) -> Iterator[tuple[Scratch, dict[str, Any]]]:
    """Finds and reports the overlaps of every shard; gives them, and the settings that they depend on."""
    sets = _sets(config.evaluation)
    settings = {
        "overlap": asdict(config.overlap),
        "evaluation": {name: _digest(paths) for name, paths in sets.items()},
    }
    index = NgramIndex(sets, config.overlap)
    source = DocumentSet.open(str(config.documents))
    with Scratch(config.output_path, "overlaps", source, f"overlaps {settings}") as scratch:
        scratch.compute(lambda shard, _: _overlaps_of(shard, index), config.num_workers)
        report = _report(scratch, index)
        files.write_json(files.join(config.output_path, CONTAMINATION), settings | report)
        print(_summary(report), flush=True)
        yield scratch, settings


def _sets(evaluation: Mapping[str, Input]) -> dict[str, tuple[str, ...]]:
    """The files of each set by the set's name."""
    if not evaluation:
        raise ConfigError("config field `evaluation` is empty: name at least one evaluation set")
    sets: dict[str, tuple[str, ...]] = {}
    for name, place in evaluation.items():
        for full, paths in _sets_at(name, str(place)):
            if full in sets:
                raise ConfigError(
                    f"two evaluation sets are called {full!r}, {sets[full][0]} and {paths[0]}: rename one"
                )
            sets[full] = paths
    return sets


def _sets_at(name: str, path: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    if format_of(path)[0] is None and is_document_set(path):
        yield name, tuple(shard.path for shard in DocumentSet.open(path).shards)
        return
    inputs = find_inputs([path])
    for file in (*inputs.files, *inputs.again):  # a file that has two names is two sets
        stem = posixpath.basename(file.name).split(".")[0]
        is_whole = posixpath.basename(file.path) == posixpath.basename(path)  # a file was named, and no folder
        yield name if is_whole else f"{name}/{stem}", (file.path,)


def _digest(paths: Sequence[str]) -> str:
    """Of the files of a set, as `digest_of_shards` has it where there are several."""
    digests = [files.sha256_file(path) for path in paths]
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _overlaps_of(shard: Shard, index: NgramIndex) -> Arrays:
    """For each overlapping document: its row, how much of it overlaps, the first overlap; and all items, with the row."""
    rows: list[int] = []
    fractions: list[float] = []
    first_items: list[int] = []
    ids: list[str] = []
    examples: list[str] = []
    pairs: list[tuple[int, int]] = []
    before = 0
    for block in document_batches(shard.documents(), BLOCK_CHARS):
        words = words_of([document.text for document in block])
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for text, start, size in index.matches(words):
            found[text].append((start, size))
        for text, spans in sorted(found.items()):
            hashes = words.hashes[words.starts[text] : words.starts[text + 1]]
            is_covered = np.zeros(len(hashes), bool)
            items: set[int] = set()
            asked: set[bytes] = set()  # a text that says one thing again and again has few different n-grams
            for start, size in spans:
                is_covered[start : start + size] = True
                gram = hashes[start : start + size]
                if (key := gram.tobytes()) not in asked:
                    asked.add(key)
                    items.update(index.items_with(gram).tolist())
            start, size = min(spans)
            rows.append(before + text)
            fractions.append(float(is_covered.mean()))
            first_items.append(int(index.items_with(hashes[start : start + size])[0]))
            ids.append(block[text].id)
            examples.append(words_between(block[text].text, start, start + size)[:_SHOWN_CHARS])
            pairs += [(before + text, item) for item in sorted(items)]
        before += len(block)
    names = [index.sets[index.set_of(item)].name for item in first_items]
    places = [item - int(index.first_items[index.set_of(item)]) for item in first_items]
    return {
        "rows": np.array(rows, np.int64),
        "fractions": np.array(fractions, np.float64),
        "pairs": np.array(pairs, np.int64).reshape(-1, 2),
        **string_arrays("ids", ids),
        **string_arrays("sets", names),
        **string_arrays("details", [f"item {place}: {text!r}" for place, text in zip(places, examples, strict=True)]),
    }


def _report(scratch: Scratch, index: NgramIndex) -> dict[str, Any]:
    found_items: set[int] = set()
    num_documents = [0] * len(index.sets)
    num_any = 0
    examples: dict[str, list[dict[str, str]]] = defaultdict(list)
    for shard in range(len(scratch.source.shards)):
        pairs = scratch.read(shard, "pairs")
        found_items.update(np.unique(pairs[:, 1]).tolist())
        sets = np.searchsorted(index.first_items, pairs[:, 1], side="right") - 1
        for number in range(len(index.sets)):
            num_documents[number] += len(np.unique(pairs[sets == number, 0]))
        count = scratch.length(shard, "rows")
        num_any += count
        for row in range(count):
            of_set = examples[scratch.read_string(shard, "sets", row)]
            if len(of_set) < _NUM_EXAMPLES:
                of_set.append(
                    {
                        "document": scratch.read_string(shard, "ids", row),
                        "overlap": scratch.read_string(shard, "details", row),
                    }
                )
    items_of_set = np.bincount([index.set_of(item) for item in found_items], minlength=len(index.sets))
    return {
        "documents": {"in": scratch.source.num_documents, "overlapping": num_any},
        "sets": {
            indexed.name: {
                "items": indexed.num_items,
                "items_indexed": indexed.num_indexed,
                "items_found": int(items_of_set[number]),
                "documents_overlapping": num_documents[number],
                "ngrams_left_out_as_instructions": indexed.num_instructions,
                "examples": examples[indexed.name],
            }
            for number, indexed in enumerate(index.sets)
        },
    }


def _summary(report: dict[str, Any]) -> str:
    documents = report["documents"]
    lines = [
        f"contamination: {documents['overlapping']:,} of {documents['in']:,} documents overlap with evaluation sets"
    ]
    lines += [
        f"  {found['items_found']:>10,} of {found['items_indexed']:,} items of {name} in "
        f"{found['documents_overlapping']:,} documents"
        for name, found in report["sets"].items()
        if found["items_found"]
    ]
    empty = [name for name, found in report["sets"].items() if not found["items_indexed"]]
    if empty:
        lines.append(f"  not looked for, as their items have no long text of their own: {', '.join(empty)}")
    return "\n".join(lines)


def _without_overlap(
    scratch: Scratch, max_overlap: float, index: int, documents: Iterator[Document]
) -> Iterator[Document | Dropped]:
    number_of = {row: number for number, row in enumerate(scratch.read(index, "rows").tolist())}
    fractions = scratch.read(index, "fractions").tolist()
    for row, document in enumerate(documents):
        number = number_of.get(row)
        if number is None or fractions[number] <= max_overlap:
            yield document
            continue
        reason = f"overlap with {scratch.read_string(index, 'sets', number)}"
        detail = f"{fractions[number]:.2%} of the words; {scratch.read_string(index, 'details', number)}"
        yield Dropped(document.id, reason, detail)
