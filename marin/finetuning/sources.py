"""Where conversations to train on come from: the public sets in `task_data`, and local files.

A local file has a conversation a row, in JSON lines or Parquet: `messages` as `marin.data.conversation` takes them, or `prompt`
and `response`.
"""

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from marin.data.conversation import Conversation
from marin.errors import ConfigError, DataError
from marin.evaluation.chat import datasets
from marin.evaluation.chat.datasets import PlacedRow, Source, data_files, read_rows, read_source
from marin.evaluation.chat.tasks import chat_conversation, checked, gsm8k_conversation, mmlu_conversations
from marin.execution.step import placement

# name: (split to train on, split to validate on)
PUBLIC: dict[str, dict[str, Source]] = {
    "smoltalk": {"train": datasets.SMOLTALK_TRAIN, "test": datasets.SMOLTALK_TEST},
    "mmlu": {"train": datasets.MMLU_TRAIN, "test": datasets.MMLU_TEST},
    "gsm8k": {"train": datasets.GSM8K_TRAIN, "test": datasets.GSM8K_TEST},
}
_EXPECTED = "give rows with `messages`, or with the texts `prompt` and `response`"


@dataclasses.dataclass(frozen=True)
class LocalFile:
    """A file or folder of conversations. Its content's digest is its identity, not where it lies."""

    name: str
    digest: str
    path: str = placement(default="")

    @staticmethod
    def of(path: str) -> "LocalFile":
        """Reads all of it once, for the digest.

        Raises:
            ConfigError: it is blank or not there, or there are no data files.
        """
        if not path.strip():  # which would be the working directory
            raise ConfigError("`--dataset` is blank: give a .jsonl or .parquet file, or a folder with some")
        root = Path(path)
        if not root.exists():
            raise ConfigError(f"`--dataset` {path} is not there: give a .jsonl or .parquet file, or a folder with some")
        found = data_files(root)
        if not found:
            raise ConfigError(
                f"`--dataset` {path} holds no .jsonl or .parquet file: give a file, or a folder with some"
            )
        digest = hashlib.sha256()
        for each in found:
            with each.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return LocalFile(root.name, digest.hexdigest(), str(root.absolute()))


def local_conversations(place: LocalFile) -> Iterator[Conversation]:
    """The conversations of local files, in order.

    Raises:
        DataError: a row is no conversation; the message says which.
    """
    for row in read_rows(Path(place.path), _EXPECTED, advice="mend the row"):
        if "messages" in row.fields:
            yield chat_conversation(row)
        elif isinstance(row.fields.get("prompt"), str) and isinstance(row.fields.get("response"), str):
            yield _pair(row)
        else:
            fields = ", ".join(row.fields) or "none"
            raise DataError(f"{row.where} is no conversation (its fields: {fields}): {_EXPECTED}")


def public_conversations(name: str, split: str, task_data: str) -> Iterator[Conversation]:
    """One of `PUBLIC` as conversations.

    Raises:
        DataError: it is not in `task_data`, or not what it should be.
    """
    rows = read_source(PUBLIC[name][split], Path(task_data))
    if name == "mmlu":
        return mmlu_conversations(rows)
    read = chat_conversation if name == "smoltalk" else gsm8k_conversation
    return (read(row) for row in rows)


def _pair(row: PlacedRow) -> dict[str, Any]:
    messages = [("user", row.text("prompt")), ("assistant", row.text("response"))]
    return checked({"messages": [{"role": role, "content": text} for role, text in messages]}, row)
