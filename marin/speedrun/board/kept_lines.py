"""What one build found out, kept for the next: values under digests of all that they follow from, in a file of lines of our own.

Each line carries a digest of itself: one that was damaged is not there. The first line is a digest of the program that made the
values: a file of another program is empty. A build writes those that it used, so that nothing old stays.
"""

import hashlib
import json
import os
from typing import Any

from marin.storage import files

_BETWEEN = "\t"  # the parts of a line: JSON writes it otherwise


class KeptLines:
    """A file of kept values, each of them JSON."""

    def __init__(self, path: str | os.PathLike[str], program: str) -> None:
        self._path, self._program = os.fspath(path), program
        self._kept = self._read()
        self._used: dict[str, str] = {}

    def get(self, key: str) -> Any:
        """The value under a key; None where nothing is."""
        line = self._kept.get(key)
        if line is None or line != _line(key, text := line.rpartition(_BETWEEN)[0].partition(_BETWEEN)[2]):
            return None
        self._used[key] = line
        return json.loads(text)

    def put(self, key: str, value: Any) -> None:
        self._used[key] = _line(key, json.dumps(value))

    def save(self) -> None:
        """Writes what was used, whole or not at all; nothing where nothing changed."""
        if self._used != self._kept:
            lines = [json.dumps(self._program), *(self._used[key] for key in sorted(self._used))]
            with files.placed_by("--cache"):
                # Not flushed to the disk: what a power failure leaves of it, the lines' digests tell.
                files.write_bytes(self._path, ("\n".join(lines) + "\n").encode(), durable=False)

    def _read(self) -> dict[str, str]:
        """Lines by their keys."""
        if not files.exists(self._path):
            return {}
        first, *lines = files.read_bytes(self._path).decode("utf-8", "replace").splitlines() or [""]
        if first != json.dumps(self._program):
            return {}
        return {line.partition(_BETWEEN)[0]: line for line in lines}


def key_of(evidence: bytes) -> str:
    """The key of what follows from `evidence` alone."""
    return hashlib.sha256(evidence).hexdigest()


def _line(key: str, text: str) -> str:
    return f"{key}{_BETWEEN}{text}{_BETWEEN}{hashlib.sha256(f'{key}{text}'.encode()).hexdigest()}"
