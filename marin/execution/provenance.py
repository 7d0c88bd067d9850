"""Records of what ran: `.executor_info` in each output, and one file per run under `{prefix}/experiments`."""

import dataclasses
import datetime
import enum
import functools
import getpass
import hashlib
import json
import math
import pathlib
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from marin.execution.graph import Graph, Node
from marin.execution.status import INFO_NAME
from marin.storage import files, lease

_SECRET_NAME = re.compile(
    r"(?i)(?:^|_)(?:(?:hf|api|auth|access|bearer|wandb|secret)_(?:token|key)|password|secret|credentials)$"
)


def step_info(node: Node, graph: Graph) -> dict[str, Any]:
    """What identifies a step and how it was configured; JSON-ready, the same on every run under one prefix."""
    return {
        "name": node.name,
        "fn_name": _name_of(node.step.fn),
        "config": plain(graph.resolved_config(node)),
        "description": node.step.description,
        "fingerprint": node.fingerprint,
        "version": {
            "name": node.name,
            "config": _without_secrets(node.identity.parts),
            "dependencies": [{"name": other.name, "fingerprint": other.fingerprint} for other in node.dependencies],
        },
        "dependencies": [other.output_path for other in node.dependencies],
        "output_path": node.output_path,
        "override_output_path": node.step.override_output_path,
    }


def write_step_info(node: Node, graph: Graph) -> None:
    info = {**step_info(node, graph), "worker_id": lease.worker_id(), "created_date": _now(), **git_state(_caller())}
    files.write_json(files.join(node.output_path, INFO_NAME), info)


def write_experiment_record(base_path: str, graph: Graph, nodes: Sequence[Node], description: str | None) -> str:
    """Writes `{base_path}/{script}-{6 hex}.json`, named by the script and the steps, and returns its path."""
    steps = [step_info(node, graph) for node in nodes]
    digest = hashlib.sha256(json.dumps(steps, sort_keys=True).encode()).hexdigest()
    path = files.join(base_path, f"{pathlib.Path(_caller()).stem or 'interactive'}-{digest[:6]}.json")
    record = {
        "worker_id": lease.worker_id(),
        **git_state(_caller()),
        "caller_path": _caller(),
        "created_date": _now(),
        "user": _user(),
        "prefix": graph.prefix,
        "description": description,
        "steps": steps,
    }
    files.write_json(path, record)
    return path


@functools.cache
def git_state(path: str) -> dict[str, str | bool | None]:
    """The commit that the file at `path` is checked out from, and whether the tree differs from it; None if unknown."""
    directory = pathlib.Path(path).parent if path else pathlib.Path.cwd()
    commit = _git(directory, "rev-parse", "HEAD")
    changes = _git(directory, "status", "--porcelain") if commit else None
    return {"git_commit": commit, "git_dirty": None if changes is None else bool(changes)}


def plain(value: Any) -> Any:
    """`value` as JSON types, for people and the data browser; not meant to be read back into objects."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value)]
        return {name: _hidden_or_plain(name, getattr(value, name)) for name in fields}
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Mapping):
        return {str(key): _hidden_or_plain(str(key), item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(item) for item in value), key=repr)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(float(value))
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, pathlib.PurePath):
        return str(value)
    if isinstance(value, functools.partial):
        return {"partial": plain(value.func), "args": plain(value.args), "keywords": plain(value.keywords)}
    return _name_of(value)


def _hidden_or_plain(name: str, value: Any) -> Any:
    return "<hidden>" if value is not None and _SECRET_NAME.search(name) else plain(value)


def _without_secrets(parts: Mapping[str, str]) -> dict[str, str]:
    def is_secret(place: str) -> bool:
        return any(_SECRET_NAME.search(word) for word in re.findall(r"\w+", place))

    return {place: "<hidden>" if shown != "None" and is_secret(place) else shown for place, shown in parts.items()}


def _name_of(value: Any) -> str:
    qualname = getattr(value, "__qualname__", None)
    if isinstance(value, functools.partial):
        return _name_of(value.func)
    return f"{value.__module__}.{qualname}" if qualname else str(value)


def _caller() -> str:
    """The script that was started, or "" in an interactive session."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    return str(pathlib.Path(file).resolve()) if file else ""


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return None


def _git(directory: pathlib.Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(directory), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
