"""Records of what ran: `.executor_info` in each output, and one file per run under `{prefix}/experiments`.

Values whose field name says that they are secret (`hf_token`, `password`, ...) are replaced by `<hidden>` in all of them, and
so is, in other values, what this process has in a variable such as `HF_TOKEN`, or what looks like a token.
The diff of the working tree covers tracked files only, so that an untracked `.env` never reaches a record.
"""

import base64
import dataclasses
import datetime
import enum
import functools
import getpass
import hashlib
import json
import math
import os
import pathlib
import shlex
import socket
import sys
import zlib
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from marin.execution.redaction import HIDDEN, SECRET_NAME, hidden_in, without_secrets
from marin.execution.status import DIFF_NAME
from marin.execution.task import StepTask
from marin.git import git, git_output
from marin.storage import files, lease
from marin.storage.trees import TreeDigest

_LONGEST_DIFF = 1_000_000
_SUBMITTED = "MARIN_SUBMITTED_CODE"
_LONGEST_SUBMITTED_DIFF = 2**15  # packed; Linux takes 128 KiB in a variable or an argument, and Ray puts it into both
_NO_DIFF = base64.b64encode(zlib.compress(b"")).decode()
GIT_DIFF = (
    *("-c", "diff.noprefix=false", "-c", "diff.mnemonicPrefix=false", "-c", "diff.relative=false"),
    *("-c", "diff.submodule=short", "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--no-color"),
)
"""Arguments of git for the changes to tracked files as `git apply` takes them, whatever a person's own settings are."""

script: ContextVar[str | None] = ContextVar("script", default=None)
"""The file that says what runs, where another was started, as by `marin datashop run CONFIG`; set before anything is run."""


@dataclasses.dataclass(frozen=True)
class RunContext:
    """What all steps of a run share: the code, as it stood when the run began, and who ran it. JSON-ready but for `diff`."""

    caller: str
    git_commit: str | None
    git_dirty: bool | None
    lock_digest: str | None
    host: str
    diff: bytes = dataclasses.field(default=b"", repr=False)

    def record(self) -> dict[str, Any]:
        return {
            "git_commit": self.git_commit,
            "git_dirty": self.git_dirty,
            "lock_digest": self.lock_digest,
            "host": self.host,
        }


@functools.cache
def run_context() -> RunContext:
    """The context of this process, looked up once."""
    directory = code_directory()
    state = code_state(directory)
    return RunContext(
        caller=_caller(),
        git_commit=state.commit,
        git_dirty=state.dirty,
        lock_digest=_lock_digest(directory),
        host=socket.gethostname(),
        diff=_shortened(state.diff),
    )


@dataclasses.dataclass(frozen=True)
class CodeState:
    """The commit of a checkout, whether files differ from it, and how tracked ones do, byte for byte as `git apply` takes it.

    None where there is no checkout, or git does not say.
    """

    commit: str | None = None
    dirty: bool | None = None
    diff: bytes = b""


def code_state(directory: pathlib.Path) -> CodeState:
    """That of the checkout that `directory` lies in. In the copy that a job gets, which is none, that of where it was submitted."""
    commit = git(directory, "rev-parse", "HEAD")
    if commit is None:
        return _submitted_state(directory)
    changes = git(directory, "status", "--porcelain")
    if changes is None:
        return CodeState(commit)
    return CodeState(commit, bool(changes), (git_output(directory, *GIT_DIFF) or b"") if changes else b"")


def submitted_variables(root: pathlib.Path) -> dict[str, str]:
    """What a job needs in its environment to know the state of the checkout `root`, of which it gets a copy without `.git`."""
    state = code_state(root)
    if state.commit is None:
        return {}
    # Ray puts variables in place of `$NAME` in what it is given, so no other base would do.
    packed = base64.b64encode(zlib.compress(state.diff, 9)).decode()
    told = {
        "commit": state.commit,
        "dirty": state.dirty,
        "diff": packed if len(packed) <= _LONGEST_SUBMITTED_DIFF else None,
    }
    return {_SUBMITTED: json.dumps(told)}


def _submitted_state(directory: pathlib.Path) -> CodeState:
    copy = pathlib.Path(__file__).resolve().parents[2]
    told = os.environ.get(_SUBMITTED)
    if told is None or not directory.resolve().is_relative_to(copy):
        _warn_of_unread_checkout(directory.resolve())
        return CodeState()
    state = json.loads(told)
    return CodeState(state["commit"], state["dirty"], zlib.decompress(base64.b64decode(state["diff"] or _NO_DIFF)))


@functools.cache
def _warn_of_unread_checkout(directory: pathlib.Path) -> None:
    """As git does not open one that belongs to another user, which is how a container often sees it."""
    root = next((one for one in (directory, *directory.parents) if (one / ".git").exists()), None)
    if root is not None:
        print(
            f"warning: git names no commit of {root}, so records will not say what code ran:"
            f" `git -C {shlex.quote(str(root))} log` shows why",
            file=sys.stderr,
        )


def step_info(step: StepTask) -> dict[str, Any]:
    """What identifies a step and how it was configured; JSON-ready, the same on every run under one prefix."""
    return {
        "name": step.name,
        "fn_name": _name_of(step.fn),
        "config": hidden_in(plain(step.config_for(step.output_path))),
        "description": step.description,
        "fingerprint": step.fingerprint,
        "version": {
            "name": step.name,
            "config": without_secrets(step.parts),
            "dependencies": [{"name": other.name, "fingerprint": other.fingerprint} for other in step.dependencies],
        },
        "dependencies": [other.output_path for other in step.dependencies],
        "output_path": step.output_path,
        "override_output_path": step.override_output_path,
    }


def attempt_info(step: StepTask, attempt: int, context: RunContext, log_path: str | None) -> dict[str, Any]:
    """The content of `.executor_info` when an attempt begins."""
    return {
        **step_info(step),
        "worker_id": lease.worker_id(),
        "created_date": _now(),
        **context.record(),
        "git_diff": DIFF_NAME if context.diff else None,
        "attempt": attempt,
        "start_date": _now(),
        "end_date": None,
        "seconds": None,
        "log_path": log_path,
        "output_digest": None,
        "output_bytes": None,
        "output_files": None,
    }


def completed_info(info: Mapping[str, Any], seconds: float, tree: TreeDigest) -> dict[str, Any]:
    """The content of `.executor_info` when the attempt has ended."""
    return {
        **info,
        "end_date": _now(),
        "seconds": round(seconds, 3),
        "output_digest": tree.sha256,
        "output_bytes": tree.bytes,
        "output_files": tree.files,
    }


def write_experiment_record(base_path: str, prefix: str, steps: Sequence[StepTask], description: str | None) -> str:
    """Writes `{base_path}/{script}-{6 hex}.json`, named by the script and the steps, and returns its path."""
    context = run_context()
    infos = [step_info(step) for step in steps]
    digest = hashlib.sha256(json.dumps(infos, sort_keys=True).encode()).hexdigest()
    path = files.join(base_path, f"{pathlib.Path(context.caller).stem or 'interactive'}-{digest[:6]}.json")
    record = {
        "worker_id": lease.worker_id(),
        **context.record(),
        "caller_path": context.caller,
        "created_date": _now(),
        "user": user(),
        "prefix": prefix,
        "description": description,
        "steps": infos,
    }
    files.write_json(path, record)
    return path


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
    return HIDDEN if value is not None and SECRET_NAME.search(name) else plain(value)


def _name_of(value: Any) -> str:
    qualname = getattr(value, "__qualname__", None)
    if isinstance(value, functools.partial):
        return _name_of(value.func)
    return f"{value.__module__}.{qualname}" if qualname else str(value)


def _caller() -> str:
    """The script that was started, or that the started one runs; "" in an interactive session."""
    main = sys.modules.get("__main__")
    file = script.get() or getattr(main, "__file__", None)
    return str(pathlib.Path(file).resolve()) if file else ""


def code_directory() -> pathlib.Path:
    """Where the program that runs lies: that is the code that counts, wherever it was started from."""
    caller = _caller()
    return pathlib.Path(caller).parent if caller else pathlib.Path.cwd()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def user() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return None


def _lock_digest(directory: pathlib.Path) -> str | None:
    """SHA-256 of the lock file of the checkout that `directory` lies in."""
    for parent in (directory, *directory.parents):
        for name in ("requirements.lock", "uv.lock"):
            if (parent / name).is_file():
                return hashlib.sha256((parent / name).read_bytes()).hexdigest()
        if (parent / ".git").exists():
            return None
    return None


def _shortened(patch: bytes) -> bytes:
    """The patch, without its end if it is huge."""
    if len(patch) > _LONGEST_DIFF:
        patch = patch[:_LONGEST_DIFF] + f"\n... {len(patch) - _LONGEST_DIFF:,} more bytes were left out\n".encode()
    return patch
