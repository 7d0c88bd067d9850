"""Files of the hub that runs on real data need: a published tokenizer, and Paloma's validation documents.

Both are steps; they load when a run asks for them, and without a network say what to fetch and where to put it.
"""

import dataclasses
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

from marin.data.documents import Document, write_documents
from marin.data.hub import download_repo_files
from marin.errors import DataError
from marin.execution.step import ExecutorStep, this_output_path
from marin.storage import files

PALOMA_REPO = "allenai/paloma"
PALOMA_REVISION = "65cd6fc"


@dataclasses.dataclass(frozen=True)
class HubTokenizerConfig:
    """The `tokenizer.json` of a model repository."""

    repo_id: str
    revision: str | None = None
    output_path: str = this_output_path()


@dataclasses.dataclass(frozen=True)
class PalomaConfig:
    """The validation documents of one Paloma subset, such as "c4_en"; the dataset is gated and needs `HF_TOKEN`."""

    subset: str
    revision: str = PALOMA_REVISION
    output_path: str = this_output_path()


def hub_tokenizer_step(repo_id: str) -> ExecutorStep:
    """The step whose output holds `tokenizer.json` of a hub repository."""
    return ExecutorStep(
        name=f"tokenizers/{repo_id.replace('/', '--')}",
        fn=download_hub_tokenizer,
        config=HubTokenizerConfig(repo_id),
        description=f"tokenizer.json of {repo_id}",
    )


def paloma_step(subset: str) -> ExecutorStep:
    """The step whose output holds `documents.jsonl.zst` of a Paloma subset."""
    return ExecutorStep(
        name=f"raw/paloma/{subset}",
        fn=download_paloma,
        config=PalomaConfig(subset),
        description=f"validation documents of Paloma's {subset}",
    )


def download_hub_tokenizer(config: HubTokenizerConfig) -> None:
    """Raises:
    DataError: without network, saying which file to fetch and where to put it.
    """
    download_repo_files(
        config.repo_id, config.output_path, revision=config.revision, patterns=["tokenizer.json"], repo_type="model"
    )


def download_paloma(config: PalomaConfig) -> None:
    """Fetches the subset's gzipped JSON lines and writes them as documents.

    Raises:
        DataError: without network or access, or if a line is not what the dataset publishes.
    """
    raw = files.join(config.output_path, "raw")
    download_repo_files(
        PALOMA_REPO, raw, revision=config.revision, patterns=[f"{config.subset}/val/*.jsonl.gz"], repo_type="dataset"
    )
    sources = sorted(files.local_path(raw).rglob("*.jsonl.gz"))
    if not sources:
        raise DataError(
            f"{PALOMA_REPO} has no {config.subset}/val/*.jsonl.gz at revision {config.revision}: name another subset"
        )
    write_documents(files.join(config.output_path, "documents.jsonl.zst"), _paloma_documents(sources))


def _paloma_documents(sources: list[Path]) -> Iterator[Document]:
    for source in sources:
        with gzip.open(source, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    entry = json.loads(line)
                    yield Document(
                        str(entry.get("id", f"{source.name}:{number}")), entry["text"], str(entry.get("source", ""))
                    )
                except (ValueError, KeyError, TypeError) as error:
                    raise DataError(
                        f"{source}:{number} is no JSON object with a text ({error}): remove it to fetch it again"
                    ) from None
