"""The text that a model is trained on: shards of ClimbMix, local files, or the embedded corpus.

    climbmix         what `python -m scripts.dataset -n N` has put into BASE/base_data_climbmix; its last shard is held out
    embedded         docstrings of pinned packages (`marin.data.corpora.python_docs`), 9 MB, no network needed
    PATH             files, a folder or a pattern in any format that `marin.data.sources` reads; the last file is held out

Several paths are separated by commas. Local files are known by name, size and a digest of their first and last megabyte: reading
all of some hundred gigabytes would make each command wait. The last bytes of Parquet and of compressed files tell of a change
anywhere in them; one in the middle of a large plain file that leaves its size alone is not noticed.
"""

import dataclasses
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from marin.data.cache.tokenizing import tokenize_shards
from marin.data.corpora.python_docs import EXPECTED_DIGEST, python_docs_step
from marin.data.documents import Document, text_bytes
from marin.data.eval_set import EvalSet
from marin.data.fetch import RemoteFile
from marin.data.inputs import find_inputs, say_left_out
from marin.data.shards import Shard
from marin.data.sources import ImportConfig, imported_documents
from marin.data.tokenizer import Tokenizer
from marin.errors import ConfigError, DataError, ExecutionError
from marin.execution.status import read_info
from marin.execution.step import ExecutorStep, placement, this_output_path
from marin.flags import in_flags
from marin.gpt2.places import Places
from marin.hardware import num_processors
from marin.storage import files

CLIMBMIX_URL = "https://huggingface.co/datasets/karpathy/climbmix-400b-shuffle/resolve/main"
CLIMBMIX_SHARDS = 6543
CLIMBMIX, EMBEDDED = "climbmix", "embedded"
# Validation documents must not depend on the tokenizer, so their number of tokens is only nearly what is asked for.
_BYTES_PER_TOKEN = 4
_END_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class DataFile:
    """One file of documents.

    Args:
        digest: of the content, or of its first and last megabyte; "" where the name and size stand for it.
        path: where it lies, or the step that makes it.
    """

    name: str
    num_bytes: int
    digest: str = ""
    path: Any = placement(default=None)


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Files to train on, and the one to validate on."""

    name: str
    train: tuple[DataFile, ...]
    validation: DataFile
    text_key: str = "text"


def shard_name(index: int) -> str:
    return f"shard_{index:05d}.parquet"


def climbmix_files(num_shards: int, url: str = CLIMBMIX_URL, total: int = CLIMBMIX_SHARDS) -> list[RemoteFile]:
    """The first shards, after the last one: a download that is interrupted must not leave one of the others to be held out.

    Args:
        num_shards: to train on; -1 for all.
    """
    count = total - 1 if num_shards < 0 else min(num_shards, total - 1)
    return [RemoteFile(f"{url}/{shard_name(i)}", shard_name(i)) for i in [total - 1, *range(count)]]


def open_dataset(places: Places, name: str, text_key: str = "text", max_files: int = -1) -> Dataset:
    """The files of a data set by its name or path.

    Args:
        max_files: files to train on, the first ones; -1 for all.
    Raises:
        DataError: they are not there; the message says what makes them.
        ConfigError: there are fewer than two files, so that nothing can be held out.
    """
    if name == EMBEDDED:
        corpus = python_docs_step()
        train, heldout = (
            DataFile(f"python_docs/{split}.jsonl.zst", 0, EXPECTED_DIGEST, corpus / f"{split}.jsonl.zst")
            for split in ("train", "heldout")
        )
        return Dataset("python_docs", (train,), heldout)
    if name == CLIMBMIX:
        paths = sorted(path for path in places.data.glob("shard_*.parquet") if re.fullmatch(r"shard_\d{5}", path.stem))
        if len(paths) < 2:
            raise DataError(
                f"{places.data} has {len(paths)} shards, at least 2 are needed: fetch them with `python -m scripts.dataset"
                " -n 8`, or use `--dataset embedded` or local files, `--dataset FOLDER`"
            )
        found = [(path.name, str(path)) for path in paths]
    else:
        inputs = find_inputs([part.strip() for part in name.split(",") if part.strip()])
        say_left_out(inputs, "dataset")
        found = [(file.name, file.path) for file in inputs.files]
        if len(found) < 2:
            raise ConfigError(
                f"`--dataset {name}` has {len(found)} file, at least 2 are needed, as the last one is held out for validation:"
                " split it in two"
            )
    if name == CLIMBMIX:  # what was published does not change
        label, made = CLIMBMIX, _named_file
    else:
        label, made = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(name.split(",")[0]).name) or "files", _read_file
    chosen = found[:-1] if max_files < 1 else found[:-1][:max_files]
    return Dataset(label, tuple(made(*each) for each in chosen), made(*found[-1]), text_key)


def _named_file(name: str, path: str) -> DataFile:
    return DataFile(name, files.local_path(path).stat().st_size if files.is_local(path) else 0, path=path)


def _read_file(name: str, path: str) -> DataFile:
    """With a digest of its ends, where it is local. Not the time of its last change: a copy has another."""
    file = _named_file(name, path)
    if not files.is_local(path):
        return file
    digest = hashlib.sha256()
    with files.explained(path, "read"), files.open_for_reading(path) as stream:
        digest.update(stream.read(_END_BYTES))
        stream.seek(max(file.num_bytes - _END_BYTES, _END_BYTES))
        digest.update(stream.read(_END_BYTES))
    return dataclasses.replace(file, digest=digest.hexdigest())


def read_file_documents(path: str, text_key: str) -> Iterator[Document]:
    """The documents of one file that have a text.

    Raises:
        DataError: it is damaged, or a row has no such key.
    """
    try:
        yield from imported_documents(ImportConfig([path], source_name=Path(path).stem, text_key=text_key))
    except DataError as error:
        raise DataError(in_flags(str(error), {"text_key": "--text-key"})) from None


# ---- tokens ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _FileShard(Shard):
    """A file of any format, taken for a shard: its number of documents is not known before they are read."""

    text_key: str = "text"

    def documents(self) -> Iterator[Document]:
        return read_file_documents(self.path, self.text_key)


@dataclasses.dataclass(frozen=True)
class TokenizeFilesConfig:
    """Args:
    tokenizer: a directory with a tokenizer.json, whose digest stands for it.
    """

    marin_resumable: ClassVar[bool] = True

    dataset_files: tuple[DataFile, ...]
    text_key: str
    tokenizer_digest: str
    tokenizer: str = placement(default="")
    output_path: str = this_output_path()


def tokenize_dataset_step(dataset: Dataset, places: Places) -> ExecutorStep:
    """The step that makes a token cache of the files to train on, with the tokenizer of these places.

    Raises:
        DataError: there is no tokenizer; the message names the command that trains one.
    """
    digest = open_tokenizer(places).digest
    return ExecutorStep(
        name=f"tokenized/{dataset.name}",
        fn=tokenize_files,
        config=TokenizeFilesConfig(dataset.train, dataset.text_key, digest, str(places.tokenizer)),
        description=f"{len(dataset.train)} files of {dataset.name} as a token cache",
    )


def open_tokenizer(places: Places) -> Tokenizer:
    """Raises:
    DataError: there is none; the message names the command that trains one.
    """
    if not (places.tokenizer / "tokenizer.json").is_file():
        raise DataError(f"{places.tokenizer} has no tokenizer.json: train one with `python -m scripts.tok_train`")
    return Tokenizer.load(str(places.tokenizer))


def warning_of_other_text(dataset: Dataset, places: Places) -> str | None:
    """What a person is told who trains on none of the files that the tokenizer was trained on; None where its record names none.

    One file in common is enough: `scripts.tok_train` is mostly run before all files are fetched.
    """
    known = {(file.name, file.num_bytes, file.digest) for file in dataset.train}
    try:
        info = read_info(str(places.tokenizer)) or {}
        learned = {(file["name"], file["num_bytes"], file["digest"]): file for file in info["config"]["dataset_files"]}
        if not learned or known & learned.keys():
            return None
        example = next(iter(learned.values()))["path"]
    except (ExecutionError, KeyError, TypeError):  # the tokenizer was made in another way
        return None
    return (
        f"warning: the tokenizer was trained on other text ({example}{', ...' if len(learned) > 1 else ''}) and may need more tokens for"
        " this one: `python -m scripts.tok_eval` with the same `--dataset` counts them, and another `--base-dir` has its own tokenizer"
    )


def tokenize_files(config: TokenizeFilesConfig) -> None:
    """Encodes all files in order into `{output_path}/train`; a killed run goes on with the file that it was at."""
    if Tokenizer.load(config.tokenizer).digest != config.tokenizer_digest:
        raise DataError(f"{config.tokenizer} was replaced since this command began: run it again")
    shards = [
        _FileShard(file.name, str(file.path), 0, 0, files.sha256_file(str(file.path)), config.text_key)
        for file in config.dataset_files
    ]
    tokenize_shards(shards, config.tokenizer, config.output_path, num_processors() if len(shards) > 1 else 0)


# ---- validation ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ValidationConfig:
    """The documents of a file, from its beginning, until they have about so many tokens (four bytes each); -1 for all."""

    file: DataFile
    text_key: str = "text"
    num_tokens: int = -1

    def read(self) -> EvalSet:
        """Raises:
        DataError: the file is damaged or has no text.
        """
        limit = self.num_tokens * _BYTES_PER_TOKEN if self.num_tokens > 0 else None
        documents, size = [], 0
        for document in read_file_documents(str(self.file.path), self.text_key):
            documents.append(document)
            size += text_bytes(document.text)
            if limit is not None and size >= limit:
                break
        if not documents:
            raise DataError(f"{self.file.path} has no documents to validate on: use another file")
        return EvalSet(self.file.name, tuple(documents))
