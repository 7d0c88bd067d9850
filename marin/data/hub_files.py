"""Files of the hub that runs on real data need: a published tokenizer, and the validation documents of Paloma and C4.

All are steps; they load when a run asks for them, and without a network say what to fetch and where to put it.
"""

import dataclasses
from typing import ClassVar

from marin.data.documents import write_documents
from marin.data.hub import download_hf_step, download_repo_files
from marin.data.sources import ImportConfig, import_step, imported_documents
from marin.execution.step import ExecutorStep, this_output_path
from marin.storage import files

PALOMA_REPO = "allenai/paloma"
PALOMA_REVISION = "65cd6fc"
C4_REPO = "allenai/c4"
C4_REVISION = "1588ec454efa1a09f29cd18ddd04fe05fc8653a2"


@dataclasses.dataclass(frozen=True)
class HubTokenizerConfig:
    """The `tokenizer.json` of a model repository."""

    marin_resumable: ClassVar[bool] = True

    repo_id: str
    revision: str | None = None
    output_path: str = this_output_path()


@dataclasses.dataclass(frozen=True)
class PalomaConfig:
    """The validation documents of one Paloma subset, such as "c4_en"; the dataset is gated and needs `HF_TOKEN`."""

    marin_resumable: ClassVar[bool] = True

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


def c4_en_validation_step() -> ExecutorStep:
    """The step whose output is the document set of C4-EN's validation split: 8 files, 364,608 documents."""
    raw = download_hf_step("c4-en-validation", C4_REPO, C4_REVISION, hf_urls_glob=["en/c4-validation.*.json.gz"])
    return import_step("c4-en-validation", raw, source_name="c4-en")


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
    lines = ImportConfig([raw], source_name="", output_path=config.output_path)
    write_documents(files.join(config.output_path, "documents.jsonl.zst"), imported_documents(lines))
