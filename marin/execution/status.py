"""What a step's output directory says about itself.

    .executor_status        one token: RUNNING, SUCCESS, FAILED or DEP_FAILED
    .executor_info          JSON: what the step is, written before it runs and completed when it has
    .executor_log.txt       what the step printed
    .executor_error.txt     the traceback of the last failure
    .executor_diff.patch    how the working tree differed from the commit that the step ran from
    .executor_commit        JSON, on stores that cannot rename: where the output lies (see `marin.execution.attempts`); there too

RUNNING without a live lease is what an interrupted run leaves: the next one continues. Only SUCCESS makes an output
readable to other steps. The reference's older status form, one JSON object a line of which the last counts, is read.
"""

import enum
import json
import os
from collections.abc import Mapping
from typing import Any

from marin.errors import ExecutionError
from marin.storage import files

STATUS_NAME = ".executor_status"
INFO_NAME = ".executor_info"
ERROR_NAME = ".executor_error.txt"
LOG_NAME = ".executor_log.txt"
DIFF_NAME = ".executor_diff.patch"
COMMIT_NAME = ".executor_commit"
OWN_PREFIX = ".executor_"
ATTEMPTS_NAME = ".attempts"  # beside outputs, see `marin.execution.attempts`
_SUCCESS = b"SUCCESS\n"


class Status(enum.Enum):
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    DEP_FAILED = "DEP_FAILED"


def read_status(output_path: str) -> Status | None:
    """The recorded status, or None when the step never ran here.

    Raises:
        ExecutionError: the file holds something else.
    """
    path = files.join(output_path, STATUS_NAME)
    content = _read_if_there(path)
    if content is None:
        return None
    if content == _SUCCESS:
        return Status.SUCCESS
    text = content.decode(errors="replace").strip()
    token = text.splitlines()[-1] if text else ""
    if token.startswith("{"):
        try:
            token = json.loads(token)["status"]
        except (ValueError, KeyError):
            token = text
    if token in ("", "WAITING"):  # the reference writes WAITING before a step has begun
        return None
    try:
        return Status(token)
    except ValueError:
        raise ExecutionError(
            f"{path} says {text[:80]!r}, which is no status: remove {output_path} to run the step again"
        ) from None


def write_status(output_path: str, status: Status, *, durable: bool = True, make_parents: bool = True) -> None:
    path = files.join(output_path, STATUS_NAME)
    files.write_bytes(path, f"{status.value}\n".encode(), durable=durable, make_parents=make_parents)


def read_info(output_path: str) -> Mapping[str, Any] | None:
    """What `.executor_info` records, or None when there is none."""
    path = files.join(output_path, INFO_NAME)
    content = _read_if_there(path)
    return None if content is None else _parse_info(content, path)


def finished_at(output_path: str, fingerprint: str) -> float | None:
    """When the step with this very fingerprint succeeded here, in seconds since 1970; None if that takes a closer look.

    Graphs have thousands of finished steps: two files are read, and the record is searched instead of parsed. We write
    it with one key a line, indented by two spaces, so that nothing but the step's own fingerprint can look like it.
    """
    if not files.is_local(output_path):
        return None
    path = output_path.removeprefix("file://")
    try:
        status, written = _read_whole(f"{path}/{STATUS_NAME}")
        if status != _SUCCESS:
            return None
        info, _ = _read_whole(f"{path}/{INFO_NAME}")
    except OSError:
        return None
    return written if f'\n  "fingerprint": "{fingerprint}"'.encode() in info else None


def _read_whole(path: str) -> tuple[bytes, float]:
    """Content and modification time; a tenth of the time that `pathlib` and `open` take."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        info = os.fstat(descriptor)
        content = os.read(descriptor, info.st_size + 1)
        while len(content) < info.st_size and (more := os.read(descriptor, info.st_size)):
            content += more
        return content, info.st_mtime
    finally:
        os.close(descriptor)


def write_info(output_path: str, info: Mapping[str, Any], *, durable: bool = True) -> None:
    text = json.dumps(info, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    files.write_bytes(files.join(output_path, INFO_NAME), text.encode(errors="backslashreplace"), durable=durable)


def _parse_info(content: bytes, path: str) -> Mapping[str, Any]:
    try:
        info = json.loads(content)
    except ValueError as error:
        raise ExecutionError(
            f"{path} is not valid JSON ({error}): remove its directory to run the step again"
        ) from None
    if not isinstance(info, dict):
        raise ExecutionError(f"{path} holds no JSON object: remove its directory to run the step again")
    return info


def _read_if_there(path: str) -> bytes | None:
    if files.is_local(path):  # without the second look that `files.exists` would cost each of thousands of steps
        try:
            with open(files.local_path(path), "rb") as stream:
                return stream.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            pass  # said properly below
    return files.read_bytes(path) if files.exists(path) else None


def own_leftovers(output_path: str) -> list[str]:
    """The names in the directory that are not the executor's own."""
    return [name for name in files.list_dir(output_path) if not name.startswith(OWN_PREFIX)]
