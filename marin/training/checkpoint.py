"""Checkpoints that are complete or absent, and that prove what they hold.

A checkpoint is written by Orbax into a directory beside its place, a manifest with the SHA-256 of every file is added,
all of it is flushed to disk, and one rename puts it in place. Reading checks every digest first: a damaged checkpoint is
passed over for the one before it, with a message, and never loaded.

    {run}/checkpoints/step-00000400/state/...   Orbax, one entry per parameter path
                                    manifest.json
"""

import dataclasses
import hashlib
import json
import os
import re
import shutil
import sys
import uuid
from pathlib import Path
from typing import Any

import jax
import numpy as np

from marin.errors import CheckpointError
from marin.execution.attempts import usual_path

_STEP = re.compile(r"step-(\d{8})")
MANIFEST = "manifest.json"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint on disk."""

    path: Path
    step: int


def flatten(tree: Any) -> dict[str, jax.Array]:
    """Arrays by path, such as "model.blocks.0.mlp.up.weight_IO"."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def save(directory: Path, tree: Any, step: int, *, keep_every: int, keep_latest: int = 2) -> Checkpoint:
    """Writes a checkpoint after `step` steps and removes older ones that nothing needs.

    The newest `keep_latest` stay, and those at multiples of `keep_every`.

    Raises:
        CheckpointError: if it cannot be written; the earlier ones are untouched.
    """
    final = directory / f"step-{step:08d}"
    if final.exists():
        try:
            verify(Checkpoint(final, step))
            return Checkpoint(final, step)
        except CheckpointError:
            shutil.rmtree(final)
    directory.mkdir(parents=True, exist_ok=True)
    for leftover in directory.glob(".saving-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    beside = directory / f".saving-{uuid.uuid4().hex[:12]}"
    try:
        _orbax().save((beside / "state").absolute(), flatten(tree))
        digests = {str(file.relative_to(beside)): _digest(file) for file in _files(beside)}
        (beside / MANIFEST).write_text(json.dumps({"step": step, "files": digests}, indent=2, sort_keys=True))
        _flush(beside)
        beside.rename(final)
        _flush_directory(directory)
    except (OSError, ValueError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise CheckpointError(
            f"the checkpoint of step {step} could not be written to {usual_path(str(directory))} ({error}): free some space there, then run"
            " the same command again; it continues from the checkpoint before"
        ) from error
    for old in list_checkpoints(directory)[:-keep_latest]:
        if old.step % keep_every:
            shutil.rmtree(old.path, ignore_errors=True)
    return Checkpoint(final, step)


def list_checkpoints(directory: Path) -> list[Checkpoint]:
    """Complete checkpoints, oldest first."""
    found = []
    for path in directory.glob("step-*") if directory.is_dir() else []:
        match = _STEP.fullmatch(path.name)
        if match:
            found.append(Checkpoint(path, int(match.group(1))))
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def verify(checkpoint: Checkpoint) -> None:
    """Raises:
    CheckpointError: naming the first file that is missing or differs from the manifest.
    """
    manifest = checkpoint.path / MANIFEST
    try:
        digests = json.loads(manifest.read_text())["files"]
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{manifest} cannot be read ({error})") from None
    for name, digest in digests.items():
        file = checkpoint.path / name
        if not file.is_file():
            raise CheckpointError(f"{file} is missing")
        if _digest(file) != digest:
            raise CheckpointError(f"{file} was changed or damaged: its SHA-256 is not the manifest's")


def latest_valid(directory: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint whose digests hold, and a message for each newer one that was passed over.

    Raises:
        CheckpointError: if there are checkpoints and none is whole.
    """
    problems: list[str] = []
    for checkpoint in reversed(list_checkpoints(directory)):
        try:
            verify(checkpoint)
        except CheckpointError as error:
            problems.append(usual_path(f"checkpoint of step {checkpoint.step} is not used: {error}"))
            continue
        return checkpoint, problems
    if problems:
        raise CheckpointError(
            "no checkpoint is whole:\n  "
            + "\n  ".join(problems)
            + f"\nremove {usual_path(str(directory))} to start from the first step"
        )
    return None, []


def restore(checkpoint: Checkpoint, like: Any, *, partial: bool = False, prefix: str = "") -> Any:
    """The saved tree in the structure, shapes, formats and shardings of `like` (arrays).

    Args:
        partial: leaves of `like` that the checkpoint lacks keep their value.
        prefix: read only entries below this path, such as "model.".
    Raises:
        CheckpointError: naming the first parameter that is missing or has another shape.
    """
    wanted = {prefix + name: leaf for name, leaf in flatten(like).items()}
    stored = _stored_shapes(checkpoint)
    for name, leaf in wanted.items():
        if name not in stored and not partial:
            raise CheckpointError(f"{checkpoint.path} has no parameter `{name}`: it is of another model or optimizer")
        if name in stored and stored[name] != leaf.shape:
            raise CheckpointError(
                f"{checkpoint.path} holds `{name}` with shape {stored[name]}, the config makes {leaf.shape}: it is of another model"
            )
    values = _read(checkpoint)
    leaves = []
    for name, leaf in wanted.items():
        if name in values:
            leaves.append(jax.device_put(np.asarray(values[name]).astype(leaf.dtype), leaf.sharding))
        else:
            leaves.append(leaf)
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def read_arrays(checkpoint: Checkpoint, prefix: str) -> dict[str, np.ndarray]:
    """The arrays below a path such as "model.", by the rest of their names; none if the checkpoint has none there."""
    return {name.removeprefix(prefix): value for name, value in _read(checkpoint).items() if name.startswith(prefix)}


def at_step(run_directory: Path, step: int) -> Checkpoint:
    """The checkpoint of a run after exactly `step` steps.

    Raises:
        CheckpointError: if it is not there or damaged; no other step is taken in its place.
    """
    checkpoint = Checkpoint(run_directory / "checkpoints" / f"step-{step:08d}", step)
    try:
        verify(checkpoint)
    except CheckpointError as error:
        raise CheckpointError(
            f"the checkpoint of step {step} cannot be used: {error}\nmove {run_directory} away and run the same"
            " command again to train once more; `initialize_from_checkpoint_path` can start from an earlier checkpoint there"
        ) from None
    return checkpoint


def find(path: str) -> Checkpoint:
    """The checkpoint that a path means: a checkpoint, a `checkpoints` folder, or a run's output directory.

    Of several the newest that is whole; a newer one that is damaged is named on standard error.

    Raises:
        CheckpointError: if there is none, or the one that is named is damaged.
    """
    root = Path(path)
    match = _STEP.fullmatch(root.name)
    if match:
        verify(Checkpoint(root, int(match.group(1))))
        return Checkpoint(root, int(match.group(1)))
    for directory in (root, root / "checkpoints"):
        found, problems = latest_valid(directory)
        for problem in problems:
            print(f"warning: {problem}", file=sys.stderr)
        if found:
            return found
    raise CheckpointError(
        f"{path} holds no checkpoint: give a run's output directory, or one of its checkpoints/step-*"
    )


def _orbax() -> Any:
    import orbax.checkpoint as ocp  # two seconds to import: only where a checkpoint is touched

    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler())


def _stored_shapes(checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    metadata = _orbax().metadata((checkpoint.path / "state").absolute())
    tree = metadata.item_metadata.tree
    return {name: tuple(entry.shape) for name, entry in tree.items()}


def _read(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    import orbax.checkpoint as ocp

    path = (checkpoint.path / "state").absolute()
    as_numpy = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in _stored_shapes(checkpoint)}
    return _orbax().restore(path, args=ocp.args.PyTreeRestore(restore_args=as_numpy))


def _files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(root: Path) -> None:
    for path in _files(root):
        with path.open("rb") as file:
            os.fsync(file.fileno())
    for path in [root, *(p for p in root.rglob("*") if p.is_dir())]:
        _flush_directory(path)


def _flush_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
