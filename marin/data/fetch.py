"""One file over HTTP: continued where it stopped, retried, and checked before it gets its name.

What has arrived lies beside the target in `.{name}.part`, with the server's mark of the version (ETag or time of change)
in `.{name}.part.json`. A later attempt, also one of another process after a kill, asks for the rest with `Range` and
`If-Range`, so bytes of two versions never meet; where the server gives no mark and no digest is known, it starts again.
When all has arrived, size and digest are compared, the file is flushed to the disk, and takes its name by a rename.

A fault that may pass (no connection, a connection that ends early, HTTP 408, 425, 429 and 5xx but 501 and 505) is retried after a wait
that doubles, with jitter, or after what `Retry-After` says. A server that denies the file, or one whose content has
another digest twice, is an error at once. Credentials are not sent on when the server refers to another host.
"""

import dataclasses
import hashlib
import http.client
import json
import os
import pathlib
import string
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from marin.data.retries import backoff, may_pass, retry_after
from marin.errors import ConfigError, DataError, StorageError
from marin.execution.attempts import usual_path
from marin.storage import files

_BLOCK = 1 << 18
_TIMEOUT = 60.0
_WITH_THE_FILE = frozenset({200, 203, 206})
_COMPRESSED = (".gz", ".tgz", ".zst", ".br", ".bz2", ".xz", ".zip")
_PROGRESS = 1 << 20  # bytes that an attempt must add to count as a step forward


@dataclasses.dataclass(frozen=True)
class RemoteFile:
    """A file to fetch, and what is known of its content.

    Args:
        url: http or https; anything else is a `ConfigError`.
        name: a relative path with `/`: where it goes below the target directory.
        size: in bytes.
        sha256: in hex.
        git_oid: in hex: SHA-1 of git's blob; needs `size`.
    """

    url: str
    name: str
    size: int | None = None
    sha256: str | None = None
    git_oid: str | None = None

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"{self.url!r} is no address to fetch from: use one that begins with https:// or http://")


@dataclasses.dataclass(frozen=True)
class Retries:
    """How often a transfer that makes no progress is tried, and the bounds of the wait before each new try."""

    attempts: int = 6
    first_wait: float = 1.0
    longest_wait: float = 60.0

    def wait(self, failures: int) -> float:
        """Seconds before the next try."""
        return backoff(failures, self.first_wait, self.longest_wait)


class Transfer:
    """One file's way from the server to `target`.

    Args:
        headers: sent to the host of the URL, and to no other.
        stopped: when set, the transfer ends with `Stopped` at the next block or wait.
        by_hand: what to do without network; None says to put the file at `target`.
        on_bytes: told the number of bytes of each block, negative when what had arrived is given up.
    """

    def __init__(
        self,
        remote: RemoteFile,
        target: pathlib.Path,
        *,
        headers: Mapping[str, str] | None = None,
        retries: Retries | None = None,
        stopped: threading.Event | None = None,
        by_hand: str | None = None,
        on_bytes: Callable[[int], None] = lambda count: None,
    ):
        self._remote, self._target = remote, target
        self._headers = dict(headers or {})
        self._retries = retries or Retries()
        self._stopped = stopped or threading.Event()
        self._by_hand = by_hand
        self._on_bytes = on_bytes
        self._part = target.with_name(f".{target.name}.part")
        self._mark_path = target.with_name(f".{target.name}.part.json")

    def run(self) -> str:
        """Fetches the file unless it is there; returns its SHA-256.

        Raises:
            DataError: it cannot be fetched, or is not what was expected; the message says what to fetch by hand.
        """
        if self._target.is_file():
            found = Content.of(self._target)
            if found.problem_with(self._remote) is None:
                self._on_bytes(found.size)
                self._remove_part()  # a kill may have come between the rename and this
                return found.sha256
            _say(f"{usual_path(str(self._target))} {found.problem_with(self._remote)}: fetching it again")
        self._target.parent.mkdir(parents=True, exist_ok=True)
        self._on_bytes(self._arrived())
        failures = wrong_contents = 0
        while True:
            before = self._arrived()
            problem, wait = self._continue()
            if problem is None:
                content = Content.of(self._part)
                problem = content.problem_with(self._remote)
                if problem is None:
                    self._finish()
                    return content.sha256
                self._give_up_part()
                wrong_contents += 1
                if wrong_contents == 2:
                    raise DataError(f"{self._remote.url} {problem}, twice: check the address and the digest")
            failures = 1 if self._arrived() >= before + _PROGRESS else failures + 1
            if failures >= self._retries.attempts:
                raise DataError(f"{self._remote.url} cannot be fetched ({problem}); {self._next_step()}")
            wait = min(wait, self._retries.longest_wait) if wait else self._retries.wait(failures)
            _say(f"{self._remote.name}: {problem}; trying again in {wait:.1f} s")
            if self._stopped.wait(wait):
                raise DataError(f"{self._remote.url}: stopped; run the same command again to go on")

    def _next_step(self) -> str:
        return f"run the same command again to go on where it stopped; without network, {self._by_hand_step()}"

    def _by_hand_step(self) -> str:
        digest = f" (its SHA-256 is {self._remote.sha256})" if self._remote.sha256 else ""
        return self._by_hand or (
            f"fetch {self._remote.url} on another machine{digest}, put it at {usual_path(str(self._target))}, and run the same command again"
        )

    def _continue(self) -> tuple[str | None, float | None]:
        """One request for what is missing. What went wrong for the moment (None: all is there), and how long to wait."""
        mark = self._read_mark()
        start = self._arrived() if mark.get("version") or self._knows_digest() else 0
        if start and start == mark.get("size"):
            return None, None
        headers = {"Accept-Encoding": "identity", "User-Agent": "marin", **self._headers}
        if start:
            headers["Range"] = f"bytes={start}-"
            if mark.get("version"):
                headers["If-Range"] = mark["version"]
        try:
            request = urllib.request.Request(_in_ascii(self._remote.url), headers=headers)
            with _opener().open(request, timeout=_TIMEOUT) as response:
                return self._receive(response, start, mark), None
        except urllib.error.HTTPError as error:
            with error:
                return self._refused(error)
        except (StorageError, DataError):
            raise
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            return f"{type(reason).__name__}: {reason}" if str(reason) else type(reason).__name__, None
        except ValueError as error:
            raise DataError(
                f"{self._remote.url} cannot be fetched, it is no address or leads to one that is none ({error}): check the address"
            ) from None

    def _receive(self, response: Any, start: int, mark: Mapping[str, Any]) -> str | None:
        version, total = _version(response.headers), _length(response.headers.get("Content-Length"))
        self._check_plain(response.headers.get("Content-Encoding"))
        if response.status not in _WITH_THE_FILE:  # 202: it is being made; 204: there is none
            return f"HTTP {response.status} {response.reason}".rstrip()
        if response.status == 206:
            span, _, whole = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
            if span.partition("-")[0] != str(start) or (mark.get("version") and version not in (None, mark["version"])):
                self._give_up_part()
                return "the server sent another part or another version than was asked for"
            total = _length(whole)
        elif self._arrived():
            why = "the server's file has changed or it sends no parts" if start else "what had arrived has no version"
            _say(f"{self._remote.name}: {why}, starting from its beginning")
            self._give_up_part()
        if total is not None and self._remote.size is not None and total != self._remote.size:
            self._give_up_part()
            return f"the server announces {total:,} bytes, expected {self._remote.size:,}"
        self._write_mark({"url": self._remote.url, "version": version, "size": total})
        with files.explained(str(self._part), "written"):
            part = self._part.open("ab", buffering=0)
        with part:
            while block := response.read1(_BLOCK):
                rest = memoryview(block)
                with files.explained(str(self._part), "written"):
                    while rest:
                        rest = rest[part.write(rest) :]
                self._on_bytes(len(block))
                if self._stopped.is_set():
                    raise DataError(f"{self._remote.url}: stopped; run the same command again to go on")
        arrived = self._arrived()
        if total is not None and arrived > total:
            self._give_up_part()
            return f"the server sent {arrived:,} bytes after it announced {total:,}"
        if total is not None and arrived < total:
            return f"the connection ended after {arrived:,} of {total:,} bytes"
        return None

    def _check_plain(self, encoding: str | None) -> None:
        """Refuses content that was compressed on its way, where no digest says that it is meant so.

        Many servers name what a `.gz` is as the encoding of its content.
        """
        is_plain = (encoding or "identity").strip().lower() == "identity"
        if not is_plain and not self._knows_digest() and not self._remote.name.lower().endswith(_COMPRESSED):
            raise DataError(
                f"{self._remote.url}: the server sends it compressed ({encoding}), though it is asked not to, so the file would not"
                f" be what its name says; {self._by_hand_step()}"
            )

    def _refused(self, error: urllib.error.HTTPError) -> tuple[str, float | None]:
        if error.code == 416:  # there is nothing behind what has arrived: it was of another version
            self._give_up_part()
            return "the server's file is shorter than what has arrived", None
        if may_pass(error.code):
            return f"HTTP {error.code} {error.reason}", retry_after(error.headers.get("Retry-After"))
        next_step = {
            401: "it asks for credentials: set them, for the Hugging Face hub in HF_TOKEN",
            403: "it denies access: ask its owner, and for the Hugging Face hub accept the terms and set HF_TOKEN",
            404: "there is no such file: check the address",
            410: "the file was removed: find another address",
        }.get(error.code, "check the address")
        raise DataError(
            f"{self._remote.url} cannot be fetched (HTTP {error.code} {error.reason}): {next_step}"
        ) from None

    def _finish(self) -> None:
        files.sync_path(self._part)
        os.replace(self._part, self._target)
        self._mark_path.unlink(missing_ok=True)
        files.sync_path(self._target.parent)

    def _give_up_part(self) -> None:
        self._on_bytes(-self._arrived())
        self._remove_part()

    def _remove_part(self) -> None:
        self._part.unlink(missing_ok=True)
        self._mark_path.unlink(missing_ok=True)

    def _arrived(self) -> int:
        return self._part.stat().st_size if self._part.exists() else 0

    def _knows_digest(self) -> bool:
        return self._remote.sha256 is not None or self._remote.git_oid is not None

    def _read_mark(self) -> dict[str, Any]:
        """What is noted of the part; nothing where the note is absent, torn, or of another address."""
        try:
            mark = json.loads(self._mark_path.read_bytes())
        except (OSError, ValueError):
            return {}
        return mark if isinstance(mark, dict) and mark.get("url") == self._remote.url else {}

    def _write_mark(self, mark: Mapping[str, Any]) -> None:
        with files.explained(str(self._mark_path), "written"):
            self._mark_path.write_text(json.dumps(mark))  # a torn one is seen as none, see `_read_mark`


@dataclasses.dataclass(frozen=True)
class Content:
    """What a file holds."""

    size: int
    sha256: str
    git_oid: str

    @staticmethod
    def of(path: pathlib.Path) -> "Content":
        size = path.stat().st_size
        sha256, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        with open(path, "rb") as stream:
            while block := stream.read(1 << 20):
                sha256.update(block)
                git.update(block)
        return Content(size, sha256.hexdigest(), git.hexdigest())

    def problem_with(self, expected: RemoteFile) -> str | None:
        """What is not as expected, as the end of a sentence about the file; None if nothing."""
        if expected.size is not None and self.size != expected.size:
            return f"has {self.size:,} bytes, expected {expected.size:,}"
        if expected.sha256 is not None and self.sha256 != expected.sha256.lower():
            return f"has SHA-256 {self.sha256}, expected {expected.sha256.lower()}"
        if expected.git_oid is not None and self.git_oid != expected.git_oid.lower():
            return f"has git blob id {self.git_oid}, expected {expected.git_oid.lower()}"
        return None


class _CarefulRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects that keep credentials to the host that they are for."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        again = super().redirect_request(req, fp, code, msg, headers, newurl)
        old, new = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        if again is not None and (old.scheme, old.netloc) != (new.scheme, new.netloc):
            again.remove_header("Authorization")
            again.remove_header("Cookie")
        return again


def _say(line: str) -> None:
    """Prints a line in one piece, since several transfers print at once."""
    print(f"{line}\n", end="", flush=True)


def _in_ascii(url: str) -> str:
    """The address as it is sent: what a person may paste, such as spaces and letters of all languages, behind per cents."""
    parts = urllib.parse.urlsplit(url)
    path, query = (urllib.parse.quote(part, safe=string.punctuation) for part in (parts.path, parts.query))
    return parts._replace(path=path, query=query).geturl()


def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(_CarefulRedirects)


def _version(headers: Any) -> str | None:
    """The mark of a version that `If-Range` may name: a strong ETag, or the time of the last change."""
    etag = headers.get("ETag")
    return etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")


def _length(value: str | None) -> int | None:
    return int(value) if value and value.isdecimal() else None
