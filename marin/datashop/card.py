"""The finished dataset as a folder to publish: Parquet files, a card in the Hugging Face format, and where it came from.

    README.md                          the dataset card: metadata as YAML, then what is in it and how it was made
    card.json                          the same as JSON, with digests of everything that it was made from
    data/train-00000-of-00003.parquet  columns `id`, `text`, `source`, `score`; one file a shard

`datasets.load_dataset` reads the folder as it is. Names and texts of strangers stand in the card as data: nothing in them can
end the metadata or become a heading.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import marin
from marin.data.filters.decontamination import CONTAMINATION
from marin.data.shards import DocumentSet, Shard
from marin.datashop.classifier import QUALITY, read_record
from marin.datashop.counts import StageCounts, check_cache, check_labels, check_scores, count_stages
from marin.datashop.scoring import folder_digest, read_scores
from marin.errors import DataError
from marin.execution.step import Input, this_output_path
from marin.storage import files
from marin.web.markdown import markdown_cell

README, CARD, DATA = "README.md", "card.json", "data"
_ROWS_AT_ONCE = 1024
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"), (10_000_000, "1M<n<10M"),
          (100_000_000, "10M<n<100M"), (1_000_000_000, "100M<n<1B"))  # fmt: skip


@dataclass(frozen=True)
class CardConfig:
    """Args:
    name: of the dataset.
    wish: what was wanted, for people: the prompt, or where the examples came from.
    stages: the document sets in order, by name; the first is the pool, the last the finished dataset.
    cache: the token cache of the last one; None if there is none.
    contamination: a folder with `contamination.json`; None if no evaluation set was looked for.
    """

    name: str
    wish: Mapping[str, Any]
    stages: Mapping[str, Input]
    sample: Input
    labels: Input
    classifier: Input
    scores: Input
    cache: Input | None = None
    contamination: Input | None = None
    output_path: str = this_output_path()


def write_card(config: CardConfig) -> None:
    """Writes the data, `card.json`, and last `README.md`.

    Raises:
        DataError: a stage is missing or damaged, or the counts do not add up.
    """
    named = [(name, str(path)) for name, path in config.stages.items()]
    stages = count_stages(named)
    card: dict[str, Any] = {
        "name": config.name,
        "made_with": f"marin {marin.__version__}",
        "wish": dict(config.wish),
        "stages": [asdict(stage) | {"dropped": dict(stage.dropped)} for stage in stages],
        "num_scores": check_scores(str(config.scores), stages[0]),
        "labels": check_labels(str(config.labels), str(config.sample)),
        "classifier": read_record(str(config.classifier)),
        "quality": files.read_json(files.join(str(config.classifier), QUALITY)),
        "cache": check_cache(str(config.cache), stages[-1]) if config.cache is not None else None,
        "contamination": _contamination(config),
    }
    card["provenance"] = _provenance(config, stages)
    card["files"] = _write_data(config, named[0][1], named[-1][1])
    files.write_json(files.join(config.output_path, CARD), card)
    files.write_bytes(files.join(config.output_path, README), card_text(card).encode())
    kept = stages[-1]
    print(f"card: {kept.documents_kept:,} documents, {kept.bytes_kept / 1e6:,.1f} MB of text", flush=True)


def card_text(card: Mapping[str, Any]) -> str:
    """The dataset card as Markdown with YAML metadata."""
    pool, last, quality = card["stages"][0], card["stages"][-1], card["quality"]
    metadata = {
        "pretty_name": card["name"],
        "tags": ["datashop", "filtered"],
        "task_categories": ["text-generation"],
        "size_categories": [next((name for most, name in _SIZES if last["documents_kept"] < most), "n>1B")],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": f"{DATA}/*.parquet"}]}],
    }
    lines = ["---", *_yaml(metadata), "---", "", f"# {_line(card['name'])}", ""]
    lines += [
        f"{last['documents_kept']:,} documents, {last['bytes_kept'] / 1e6:,.1f} MB of text, chosen from "
        f"{pool['documents_kept']:,} documents by a classifier. Made with the datashop of {card['made_with']}.",
        "",
        "## What was wanted",
        "",
        *_wish_lines(card["wish"]),
        "",
        "## How it was made",
        "",
        "| stage | documents in | kept | dropped | why |",
        "|---|---:|---:|---:|---|",
    ]
    for stage in card["stages"]:
        reasons = ", ".join(
            f"{markdown_cell(reason)} {count:,}" for reason, count in list(stage["dropped"].items())[:3]
        )
        dropped = stage["documents_in"] - stage["documents_kept"]
        counts = " | ".join(f"{count:,}" for count in (stage["documents_in"], stage["documents_kept"], dropped))
        lines.append(f"| {markdown_cell(stage['name'])} | {counts} | {reasons or '-'} |")
    labels, classifier = card["labels"], card["classifier"]
    lines += [
        "",
        f"{labels['num_labelled']:,} documents were labelled by {markdown_cell(str(labels.get('annotator', 'a model')))}, "
        f"{labels['num_unparsed']:,} more gave no label. A classifier of kind `{classifier['kind']}` learned "
        f"{classifier['num_learned']:,} of them and was measured on the other {quality['num_documents']:,}:",
        "",
        "| figure | value | 95 % interval |",
        "|---|---:|---|",
    ]
    names = {"auc": "AUC", "average_precision": "average precision", "f1": "F1", "spearman": "Spearman"}
    for key, name in names.items():
        lines.append(f"| {name} | {_figure(quality[key]['value'])} | {_interval(quality[key])} |")
    lines.append(f"| wanted among the labelled | {_figure(quality['prior'])} | |")
    if quality["lopsided"]:
        lines += ["", f"Warning: {_line(quality['lopsided'])}."]
    if classifier.get("note"):
        lines += ["", f"{_line(str(classifier['note']))}."]
    lines += _contamination_lines(card["contamination"])
    lines += [
        "",
        "## Columns",
        "",
        "`id` and `source` as the pool has them, `text`, and `score`, the classifier's.",
        "",
        "## Provenance",
        "",
        "SHA-256 of what each part was made from; `card.json` has all figures.",
        "",
        *(f"- {_line(name)}: `{digest}`" for name, digest in card["provenance"].items()),
        "",
    ]
    return "\n".join(lines)


# --- what the card says -------------------------------------------------------------------------------------------------


def _provenance(config: CardConfig, stages: Sequence[StageCounts]) -> dict[str, str]:
    digests = {stage.name: stage.digest for stage in stages}
    digests["sample"] = DocumentSet.open(str(config.sample)).digest
    for name in ("labels", "classifier", "scores"):
        digests[name] = folder_digest(str(getattr(config, name)))
    return digests


def _contamination(config: CardConfig) -> dict[str, Any] | None:
    if config.contamination is None:
        return None
    report = files.read_json(files.join(str(config.contamination), CONTAMINATION))
    sets = {
        name: {key: found[key] for key in ("items", "items_found", "documents_overlapping")}
        for name, found in report["sets"].items()
    }
    return {"documents": report["documents"], "sets": sets}


def _contamination_lines(contamination: Mapping[str, Any] | None) -> list[str]:
    if contamination is None:
        return ["", "No evaluation set was looked for in these documents."]
    lines = ["", "## Evaluation sets", "", "| set | items | found | documents dropped |", "|---|---:|---:|---:|"]
    for name, found in contamination["sets"].items():
        counts = (found["items"], found["items_found"], found["documents_overlapping"])
        lines.append(f"| {markdown_cell(name)} | {' | '.join(f'{count:,}' for count in counts)} |")
    return lines


def _wish_lines(wish: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, value in wish.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines += [f"{_line(name)}:", "", *(f"    {line}" for line in text.splitlines() or [""]), ""]
    return lines[:-1]


def _yaml(value: Mapping[str, Any]) -> Iterator[str]:
    """YAML whose values are JSON, which is YAML too: no text can end a string early."""
    return (f"{name}: {json.dumps(item, ensure_ascii=True)}" for name, item in value.items())


def _line(text: str) -> str:
    return " ".join(text.replace("<", "&lt;").split())


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _interval(estimate: Mapping[str, float | None]) -> str:
    return "-" if estimate["low"] is None else f"{_figure(estimate['low'])} to {_figure(estimate['high'])}"


# --- the data -------------------------------------------------------------------------------------------------------------


def _write_data(config: CardConfig, pool: str, last: str) -> list[dict[str, Any]]:
    """A Parquet file for each shard; returns name, documents and digest of each."""
    pool_set, last_set = DocumentSet.open(pool), DocumentSet.open(last)
    written = []
    for number, (pool_shard, shard) in enumerate(zip(pool_set.shards, last_set.shards, strict=True)):
        name = f"{DATA}/train-{number:05d}-of-{len(last_set.shards):05d}.parquet"
        path = files.join(config.output_path, name)
        num = _write_parquet(path, shard, pool_shard, str(config.scores))
        written.append({"name": name, "documents": num, "digest": files.sha256_file(path)})
    return written


def _write_parquet(path: str, shard: Shard, pool_shard: Shard, scores: str) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("id", pa.string()), ("text", pa.string()), ("source", pa.string()), ("score", pa.float64())])
    num = 0
    with files.writing(path) as stream, pq.ParquetWriter(stream, schema, compression="zstd") as writer:
        rows: list[dict[str, Any]] = []
        for row in _rows(shard, pool_shard, scores):
            rows.append(row)
            if len(rows) == _ROWS_AT_ONCE:
                writer.write_table(pa.Table.from_pylist(rows, schema))
                num, rows = num + len(rows), []
        if rows or not num:
            writer.write_table(pa.Table.from_pylist(rows, schema))
    return num + len(rows)


def _rows(shard: Shard, pool_shard: Shard, scores: str) -> Iterator[dict[str, Any]]:
    """The documents of a shard with their scores, which are found along the pool's shard that it was made from."""
    scored = zip(pool_shard.documents(), read_scores(scores, pool_shard), strict=True)
    for document in shard.documents():
        score = next((score for before, score in scored if before == document), None)  # ids may not be unique
        if score is None:
            raise DataError(f"{shard.path}: document {document.id!r} is not in {pool_shard.path}: run the filter again")
        yield {"id": document.id, "text": document.text, "source": document.source, "score": score}
