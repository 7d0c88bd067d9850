"""What a step's output directory says about itself.

    .executor_status        one token: RUNNING, SUCCESS, FAILED or DEP_FAILED
    .executor_info          JSON: what the step is, written before it runs
    .executor_status.lock   the lease (see `marin.storage.lease`)
    .executor_error.txt     the traceback of the last failure

RUNNING without a live lease is what an interrupted run leaves: the next one continues. Only SUCCESS makes an output
readable to other steps. The reference's older status form, one JSON object a line of which the last counts, is read.
"""

import datetime
import enum
import json
from collections.abc import Mapping
from typing import Any

from marin.errors import ExecutionError
from marin.storage import files

STATUS_NAME = ".executor_status"
INFO_NAME = ".executor_info"
ERROR_NAME = ".executor_error.txt"
_OWN_PREFIX = ".executor_"


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
    if not files.exists(path):
        return None
    text = files.read_bytes(path).decode(errors="replace").strip()
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
            f"{path} says {text[:80]!r}, which is no status: remove the file to run the step again"
        ) from None


def write_status(output_path: str, status: Status) -> None:
    files.write_bytes(files.join(output_path, STATUS_NAME), f"{status.value}\n".encode())


def status_time(output_path: str) -> datetime.datetime | None:
    """When the status was last written."""
    return files.modified_time(files.join(output_path, STATUS_NAME))


def read_info(output_path: str) -> Mapping[str, Any] | None:
    """What `.executor_info` records, or None when there is none."""
    path = files.join(output_path, INFO_NAME)
    if not files.exists(path):
        return None
    info = files.read_json(path)
    if not isinstance(info, dict):
        raise ExecutionError(f"{path} holds no JSON object: remove {output_path} to run the step again")
    return info


def own_leftovers(output_path: str) -> list[str]:
    """The names in the directory that are not the executor's own."""
    return [name for name in files.list_dir(output_path) if not name.startswith(_OWN_PREFIX)]
