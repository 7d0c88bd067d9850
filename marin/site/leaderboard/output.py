"""The directory that a site is written into: only what changed is written, and what an earlier build left over is removed.

`.build.json` says for each file what it was made from. It is removed before the first file is written and comes back at the
end, so a build that was killed is followed by a whole one. Files that no build made are left alone.
"""

import hashlib
import json
import marshal
import os
import pathlib
import stat
from typing import Any

from marin.errors import StorageError
from marin.speedrun.board import row_store
from marin.storage import files

RECORD = ".build.json"
_FRONT = "index.html"
_MARSHAL = 2
_NAME = b"Marin Speedrun"  # on every page
_HERE = pathlib.Path(__file__).parent


class SiteWriter:
    """Writes files below `target`, a local directory or any address that `marin.storage` knows."""

    def __init__(self, target: str) -> None:
        if os.path.isfile(target):
            raise StorageError(f"{target}: a file stands where the site's directory should be: choose another --output")
        self.target = target
        self._record = files.join(target, RECORD)
        self._refuse_another_page()
        self._earlier = self._read_record()
        self._folder = os.path.join(files.local_path(target), "") if files.is_local(target) else None
        self._made: dict[str, list[Any]] = {}
        self._parents: set[str] = set()
        self._has_written = False
        self.num_written = 0

    def _refuse_another_page(self) -> None:
        """A build that was killed leaves no record, so that a front page without one is known by what it says."""
        front = files.join(self.target, _FRONT)
        if not files.exists(self._record) and files.exists(front) and _NAME not in files.read_bytes(front):
            raise StorageError(
                f"{front} is not a leaderboard's, and would be written over: choose another --output, or remove it"
            )

    def is_fresh(self, path: str, inputs: str) -> bool:
        """Whether the file is there as an earlier build made it from the same `inputs`; if so, it is kept.

        `inputs` is a digest of all that the file is a function of, except this program, which is always part of it.
        """
        known = self._earlier.get(path)
        if known is None or known[0] != inputs or self._size_of(path) != known[1]:
            return False
        self._made[path] = known
        return True

    def _size_of(self, path: str) -> int | None:
        """Bytes of a file of the site; None where there is none, or where asking would be a request each."""
        if self._folder is None:
            return None
        try:
            found = os.lstat(self._folder + path)
        except OSError:
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def write(self, path: str, content: str | bytes, inputs: str | None = None) -> None:
        """Writes a file, unless it is there with this content; `inputs` as `is_fresh` will be asked for it."""
        data = content.encode("utf-8", "replace") if isinstance(content, str) else content
        inputs = digest(data) if inputs is None else inputs
        if inputs != digest(data) or not self.is_fresh(path, inputs):
            self._put(path, data)
            self._made[path] = [inputs, len(data)]

    def _put(self, path: str, data: bytes) -> None:
        if not self._has_written:
            files.remove_file(self._record)
            self._has_written = True
        parent = path.rpartition("/")[0]
        files.write_bytes(files.join(self.target, path), data, durable=False, make_parents=parent not in self._parents)
        self._parents.add(parent)
        self.num_written += 1

    # --- parts that other processes write (see `marin.parts`) ---

    def begin_part(self) -> None:
        """From here on, `part` tells what this process made."""
        self._made, self.num_written = {}, 0

    def part(self) -> tuple[dict[str, list[Any]], int]:
        return self._made, self.num_written

    def adopt(self, part: tuple[dict[str, list[Any]], int]) -> None:
        """Takes what another process made as made."""
        made, num_written = part
        self._made |= made
        self.num_written += num_written
        self._has_written = self._has_written or num_written > 0

    def finish(self) -> None:
        """Removes what an earlier build made and this one did not, and writes the record."""
        stale = [path for path in self._earlier if path not in self._made]
        if stale and not self._has_written:
            files.remove_file(self._record)
            self._has_written = True
        for path in stale:
            files.remove_file(files.join(self.target, path))
        if self._has_written or not self._earlier:
            # Without an indent, which only the encoder in Python knows: there is a line for every file of the site.
            text = json.dumps({"program": program_digest(), "files": self._made}, sort_keys=True)
            files.write_bytes(self._record, f"{text}\n".encode(), durable=False)

    def _read_record(self) -> dict[str, list[Any]]:
        if not files.exists(self._record):
            return {}
        try:
            record = files.read_json(self._record)
            made = {path: list(known) for path, known in record["files"].items() if _is_ours(path)}
        except (StorageError, ValueError, KeyError, TypeError, AttributeError):
            return {}  # not a record of ours: everything is made again
        if record.get("program") != program_digest():
            return {path: ["made by another program", -1] for path in made}
        return made


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:24]


def digest_of(values: Any) -> str:
    """Of lists, tuples and dicts of texts, numbers and None: by `marshal`, whose later versions write which of them are one object."""
    return digest(marshal.dumps(values, _MARSHAL))


def program_digest() -> str:
    """Of everything in this program that a page is a function of."""
    root = _HERE.parent
    sources = [*root.glob("*.py"), *root.glob("static/*"), *root.glob("templates/*"), *_HERE.rglob("*")]
    kept = sorted(path for path in sources if path.is_file() and path.suffix in (".py", ".j2", ".css", ".js", ".svg"))
    whole = hashlib.sha256(row_store.program_digest().encode())  # pages say what rungs and tracks are, and CORE by task
    for path in kept:
        whole.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return whole.hexdigest()[:24]


def _is_ours(path: str) -> bool:
    """Whether a path of the record stays below the site, so that a tampered record removes nothing else."""
    return path not in ("", ".") and path[0] != "/" and "\\" not in path and ".." not in path.split("/")
