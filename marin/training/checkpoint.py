"""What a checkpoint is, and reading one: complete or absent, and proven to be what was written.

    {run}/checkpoints/step-00000400/state/...          Orbax, one entry per parameter path
                                    manifest.json      see `checkpoint_manifest`
                                    manifest.sha256

`checkpoint_writer` writes them. Reading checks every digest first: a damaged checkpoint is passed over for the one before
it, with a message, and never loaded. A checkpoint is read into whatever sharding the arrays at hand have, each process
reading only the parts that its devices hold, so that a run can go on with another number of devices.
"""

import dataclasses
import os
import re
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from marin.errors import CheckpointError
from marin.execution.attempts import usual_path
from marin.nn.trees import named_leaves
from marin.parallel import distributed
from marin.training.checkpoint_manifest import Layout, Manifest, read_manifest, verify_files

_STEP = re.compile(r"step-(\d{8,})")
STATE = "state"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint on disk."""

    path: Path
    step: int

    @staticmethod
    def of_step(directory: Path, step: int) -> "Checkpoint":
        return Checkpoint(directory / f"step-{step:08d}", step)


def list_checkpoints(directory: Path) -> list[Checkpoint]:
    """Complete checkpoints, oldest first."""
    found = []
    for path in directory.glob("step-*") if directory.is_dir() else []:
        match = _STEP.fullmatch(path.name)
        if match:
            found.append(Checkpoint(path, int(match.group(1))))
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def verify(checkpoint: Checkpoint) -> Manifest:
    """Reads the whole checkpoint, and returns its manifest.

    Raises:
        CheckpointError: naming the first file that is missing, unexpected, or not what was written.
    """
    return verify_files(checkpoint.path, checkpoint.step)


def latest_valid(directory: Path, advice: str | None = None) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint whose digests hold, and a message for each newer one that was passed over.

    Args:
        advice: what to do where none is whole; None for what whoever trains the run can do.
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
        advice = advice or f"remove {usual_path(str(directory))} to start from the first step"
        raise CheckpointError("\n  ".join(["no checkpoint is whole:", *problems]) + f"\n{advice}")
    return None, []


def restore(checkpoint: Checkpoint, like: Any, *, partial: bool = False, prefix: str = "") -> Any:
    """The saved tree in the structure, shapes, formats and shardings of `like` (arrays, or shapes that say a sharding).

    Args:
        partial: leaves of `like` that the checkpoint lacks keep their value.
        prefix: read only entries below this path, such as "model.".
    Raises:
        CheckpointError: naming the first parameter that is missing or has another shape.
    """
    wanted = {prefix + name: leaf for name, leaf in named_leaves(like).items()}
    stored = stored_shapes(checkpoint)
    for name, leaf in wanted.items():
        if name not in stored and not partial:
            raise CheckpointError(f"{checkpoint.path} has no parameter `{name}`: it is of another model or optimizer")
        if name in stored and stored[name] != leaf.shape:
            raise CheckpointError(
                f"{checkpoint.path} holds `{name}` with shape {stored[name]}, the config makes {leaf.shape}: it is of another model"
            )
    values = _read(checkpoint, {name: leaf for name, leaf in wanted.items() if name in stored})
    leaves = [values.get(name, leaf) for name, leaf in wanted.items()]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def read_arrays(checkpoint: Checkpoint, prefix: str) -> dict[str, np.ndarray]:
    """The arrays below a path such as "model.", by the rest of their names, whole in this process's memory."""
    import orbax.checkpoint as ocp

    names = [name for name in stored_shapes(checkpoint) if name.startswith(prefix)]
    if not names:
        return {}
    read = ocp.args.PyTreeRestore(
        item=dict.fromkeys(names, 0),
        restore_args={name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names},
        partial_restore=True,
    )
    values = _orbax().restore((checkpoint.path / STATE).absolute(), args=read)
    return {name.removeprefix(prefix): values[name] for name in names}


def moved(checkpoint: Checkpoint, like: Any) -> str | None:
    """What to tell of a verified checkpoint where the arrays of `like` lie on other devices or are split otherwise."""
    manifest, here = read_manifest(checkpoint.path), Layout.of(named_leaves(like))
    if here == manifest.saved_on:
        return None
    there = str(manifest.saved_on)
    return (
        f"note: the checkpoint of step {manifest.step:,} was saved on {there}, this process goes on with"
        f" {here if str(here) != there else 'another split of the arrays'}: sums are taken in another order, so bits may"
        " differ from those of a run that was not moved"
    )


def at_step(run_directory: Path, step: int) -> Checkpoint:
    """The checkpoint of a run after exactly `step` steps.

    Raises:
        CheckpointError: if it is not there or damaged; no other step is taken in its place.
    """
    checkpoint = Checkpoint.of_step(run_directory / "checkpoints", step)
    _check_is_there(checkpoint)
    try:
        verify(checkpoint)
    except CheckpointError as error:
        raise CheckpointError(
            f"the checkpoint of step {step} cannot be used: {error}\nmove {run_directory} away and run the same"
            " command again to train once more; `initialize_from_checkpoint_path` can start from an earlier checkpoint there"
        ) from None
    return checkpoint


def _check_is_there(checkpoint: Checkpoint) -> None:
    if not checkpoint.path.exists():
        directory = checkpoint.path.parent
        there = ", ".join(f"{other.step:,}" for other in list_checkpoints(directory)) or "none"
        raise CheckpointError(f"{directory} has no checkpoint of step {checkpoint.step:,}; those that it has: {there}")


def find(path: str, step: int | None = None) -> Checkpoint:
    """The checkpoint that a path means: a checkpoint, a `checkpoints` folder, or a run's output directory.

    Of several the newest that is whole, or that of `step`; a newer one that is damaged is named on standard error.

    Raises:
        CheckpointError: if there is none, or the one that is named is damaged.
    """
    # Absolute: what stands beside a checkpoint, its run's record, is looked for in the folders above it.
    root = Path(os.path.expanduser(path)).absolute()
    match = _STEP.fullmatch(root.name)
    if match:
        checkpoint = Checkpoint(root, int(match.group(1)))
        _check_is_there(checkpoint)
        verify(checkpoint)
        return checkpoint
    for directory in (root, root / "checkpoints"):
        found, problems = latest_valid(directory, "copy the run again from where it was trained, or train it again")
        for problem in problems:
            print(f"warning: {problem}", file=sys.stderr)
        if found and step not in (None, found.step):
            found = Checkpoint.of_step(found.path.parent, step)
            verify(found)
        if found:
            return found
    raise CheckpointError(
        f"{path} holds no checkpoint: give a run's output directory, or one of its checkpoints/step-*"
    )


def _orbax(*, alone: bool = True) -> Any:
    """A reader that waits for the other processes of a multi-host run, unless this one reads `alone`."""
    import orbax.checkpoint as ocp  # two seconds to import: only where a checkpoint is touched

    if not alone:
        return ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    here = jax.process_index()
    only = ocp.options.MultiprocessingOptions(
        primary_host=here, active_processes={here}, barrier_sync_key_prefix=f"process_{here}"
    )
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler(multiprocessing_options=only), multiprocessing_options=only)


def stored_shapes(checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    """The shape of every array in a checkpoint, by its path, such as "model.blocks.0.mlp.up.weight_IO"."""
    metadata = _orbax().metadata((checkpoint.path / STATE).absolute())
    tree = metadata.item_metadata.tree
    return {name: tuple(entry.shape) for name, entry in tree.items()}


def _read(checkpoint: Checkpoint, like: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The stored arrays of these names. Each process reads the parts that its devices hold.

    Where the arrays lie on this process's devices alone, as for evaluation, no other process needs to take part.
    """
    import orbax.checkpoint as ocp

    arguments = {name: ocp.ArrayRestoreArgs(sharding=leaf.sharding, dtype=leaf.dtype) for name, leaf in like.items()}
    read = ocp.args.PyTreeRestore(item=like, restore_args=arguments, partial_restore=True)
    alone = all(leaf.sharding.is_fully_addressable for leaf in like.values())
    if not alone:
        distributed.meet("before a checkpoint is read")  # as reading waits only seconds for the others
    return _orbax(alone=alone).restore((checkpoint.path / STATE).absolute(), args=read)
