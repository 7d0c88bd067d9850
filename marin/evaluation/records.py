"""What was found of each item, kept beside the result: a file of JSON lines for each task, and what it was made from.

    {folder}/arc_easy.jsonl     a line an item, in the order of evaluation
    {folder}/arc_easy.json      what the lines were made from and their digest; written last

An evaluation that is interrupted goes on with the first task that has no such pair, or one of another model, tokenizer or data.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marin.errors import StorageError
from marin.storage import files

Record = dict[str, Any]


def lines_of(records: Sequence[Record]) -> bytes:
    """The content of a task's file."""
    return "".join(json.dumps(record, allow_nan=False, ensure_ascii=False) + "\n" for record in records).encode()


@dataclasses.dataclass(frozen=True)
class RecordFolder:
    """Where records are kept.

    Args:
        identity: what names the model, such as the digest of its checkpoint; only records of the same one are taken up again.
    """

    path: Path
    identity: Mapping[str, Any]

    def file(self, label: str) -> Path:
        return self.path / f"{label}.jsonl"

    def read(self, label: str, made_from: Mapping[str, Any]) -> tuple[list[Record], float] | None:
        """The records of a task and the seconds that it took, if they are there, whole, and were made from the same."""
        try:
            about = files.read_json(str(self._about(label)))
            content = files.read_bytes(str(self.file(label)))
        except StorageError:
            return None
        expected = self._made_from(made_from)
        if not isinstance(about, dict) or about.get("made_from") != expected:
            return None
        if about.get("sha256") != hashlib.sha256(content).hexdigest():
            return None
        return [json.loads(line) for line in content.decode().split("\n")[:-1]], float(about["seconds"])

    def write(self, label: str, records: Sequence[Record], made_from: Mapping[str, Any], seconds: float) -> None:
        content = lines_of(records)
        files.write_bytes(str(self.file(label)), content)
        about = {
            "made_from": self._made_from(made_from),
            "sha256": hashlib.sha256(content).hexdigest(),
            "seconds": seconds,
        }
        files.write_json(str(self._about(label)), about)

    def _about(self, label: str) -> Path:
        return self.path / f"{label}.json"

    def _made_from(self, made_from: Mapping[str, Any]) -> Any:
        return json.loads(json.dumps({**made_from, "model": dict(self.identity)}))
