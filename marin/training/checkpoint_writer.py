"""Writes checkpoints beside training: training waits until the state is copied, and the rest happens in the background.

    in the loop        wait for the save before -> copy the state off the buffers that the next step overwrites
    in the background  Orbax writes the arrays, each process its parts -> manifest -> flush all to the disk
                       -> flush metrics.jsonl -> one rename puts it in place -> remove older ones

So a directory named `step-*` is complete, and the record is never behind a checkpoint. One save is under way at a time. A
save that fails stops the run at the next step and leaves the checkpoints before it alone. What a killed process left
half-written has a hidden name that nothing reads, and is removed when the run goes on; the executor sees to it that
only one process, or one set of processes of `jax.distributed`, writes to a run.
"""

import errno
import functools
import logging
import os
import re
import shutil
import sys
import threading
import time
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from marin.errors import CheckpointError
from marin.execution.attempts import usual_path
from marin.nn.trees import named_leaves
from marin.storage import files
from marin.tracking import RunWriter
from marin.training.checkpoint import STATE, Checkpoint, list_checkpoints, verify
from marin.training.checkpoint_manifest import Layout, Manifest

_HIDDEN = ".saving-"
_OS_ERROR = re.compile(r"os_error_code='(\d+)'")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def remove_half_written(directory: Path) -> None:
    """Removes what a killed process left of saves and of removals. The run's first process does it."""
    if jax.process_index() == 0:
        for leftover in directory.glob(f"{_HIDDEN}*"):
            shutil.rmtree(leftover, ignore_errors=True)


class CheckpointWriter:
    """Saves the states of one run. On leaving it as a context, a save that is under way is waited for.

    The newest `keep_latest` checkpoints that this process has read or written stay, and those at multiples of
    `keep_every`. One that was passed over as damaged does not count, so it never pushes out the last whole one.

    Args:
        record: the run's record; it is flushed before a checkpoint takes its place, and told of each that has.
        restored: the checkpoint that the run goes on from.
    """

    def __init__(
        self,
        directory: Path,
        *,
        keep_every: int,
        keep_latest: int = 2,
        record: RunWriter | None = None,
        restored: Checkpoint | None = None,
    ) -> None:
        self._directory, self._record = directory, record
        self._keep_every, self._keep_latest = keep_every, keep_latest
        self._whole = [restored.step] if restored is not None else []
        self._name = _agreed_name()
        self._orbax: Any = None
        self._thread: threading.Thread | None = None
        self._failed: CheckpointError | None = None
        self._done: dict[str, Any] | None = None
        remove_half_written(directory)

    def save(self, state: Any, step: int) -> None:
        """Begins to write the state after `step` steps; when this returns, the state may be overwritten.

        Raises:
            CheckpointError: if the save before it has failed, or this one cannot be begun.
        """
        self.wait()
        arrays = named_leaves(state)
        beside = self._directory / f"{_HIDDEN}{step:08d}-{self._name}"
        try:
            if jax.process_index() == 0:
                beside.mkdir(parents=True)
            self._begin(beside / STATE, arrays)
        except (OSError, ValueError) as error:
            shutil.rmtree(beside, ignore_errors=True)
            raise self._explained(step, error) from error
        # A second Ctrl-C must not wait for a thread, and Python waits for those that are no daemons.
        self._thread = threading.Thread(
            target=self._finish, args=(beside, step, Layout.of(arrays)), name="checkpoint", daemon=True
        )
        self._thread.start()

    def check(self) -> None:
        """Notes a save that has ended since.

        Raises:
            CheckpointError: if it failed.
        """
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def wait(self) -> None:
        """Waits for the save that is under way, if one is.

        Raises:
            CheckpointError: if it failed.
        """
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
        done, self._done = self._done, None
        if done is not None and self._record is not None:
            self._record.append("checkpoint", **done)

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.wait()
        elif isinstance(error, Exception):
            try:
                self.wait()
            except CheckpointError as failed:
                print(f"warning: {failed}", file=sys.stderr)
        # A second Ctrl-C ends at once: what is half-written has a hidden name.

    def _begin(self, path: Path, arrays: dict[str, jax.Array]) -> None:
        """Lets Orbax copy what this process writes to the host's memory, and start to write it."""
        import orbax.checkpoint as ocp  # two seconds to import: only where a checkpoint is touched

        if self._orbax is None:
            # Weights and moments hardly get smaller: zstd takes 7 % off them and four times as long as writing them.
            _silence_what_is_raised_too()
            self._orbax = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(use_compression=False))
        if jax.default_backend() == "cpu":
            # There the device's memory is the host's, and Orbax would keep a view of buffers that the step overwrites.
            arrays = jax.block_until_ready({name: jnp.copy(array) for name, array in arrays.items()})
        self._orbax.save(path.absolute(), args=ocp.args.PyTreeSave(arrays))

    def _finish(self, beside: Path, step: int, layout: Layout) -> None:
        """What the background does. Whatever goes wrong is raised in the loop."""
        begin = time.perf_counter()
        try:
            self._orbax.wait_until_finished()
            if jax.process_index() == 0:
                Manifest.write(beside, step, layout)
                size = sum((beside / name).stat().st_size for name in files.files_below(str(beside)))
                files.sync_tree(str(beside))
                if self._record is not None:
                    self._record.sync()
                self._put_in_place(beside, step)
                self._remove_old(step)
                self._done = {"step": step, "seconds": round(time.perf_counter() - begin, 6), "bytes": size}
        except Exception as error:
            shutil.rmtree(beside, ignore_errors=True)
            self._failed = self._explained(step, error)
            self._failed.__cause__ = error

    def _put_in_place(self, beside: Path, step: int) -> None:
        final = Checkpoint.of_step(self._directory, step)
        if final.path.exists():
            try:
                verify(final)
            except CheckpointError:
                self._discard(final.path)
            else:  # the same step of the same run
                shutil.rmtree(beside, ignore_errors=True)
                return
        beside.rename(final.path)
        files.sync_path(self._directory)

    def _remove_old(self, step: int) -> None:
        self._whole = [*(whole for whole in self._whole if whole != step), step]
        kept = self._whole[-self._keep_latest :]
        for checkpoint in list_checkpoints(self._directory):
            if checkpoint.step not in kept and checkpoint.step % self._keep_every:
                self._discard(checkpoint.path)

    def _discard(self, path: Path) -> None:
        """Removes a checkpoint: it has lost its name before it loses its first file."""
        hidden = path.with_name(f"{_HIDDEN}{path.name}-removed-{self._name}")
        path.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)

    def _explained(self, step: int, error: Exception) -> CheckpointError:
        reason, code = _reason(error)
        cause = "free some space there" if code in _NO_SPACE else "mend the cause"
        goes_on = "continues from the checkpoint before" if list_checkpoints(self._directory) else "begins anew"
        return CheckpointError(
            f"the checkpoint of step {step} could not be written to {usual_path(str(self._directory))} ({reason}): {cause},"
            f" then run the same command again; it {goes_on}"
        )


def _reason(error: Exception) -> tuple[str, int | None]:
    """What the operating system said, and its number. TensorStore wraps it into the paths of its temporary files."""
    found = _OS_ERROR.search(str(error))
    code = int(found[1]) if found else error.errno if isinstance(error, OSError) else None
    return os.strerror(code) if code else str(error), code


@functools.cache
def _silence_what_is_raised_too() -> None:
    """Of a save that fails one error is raised, which we explain; what its other writes print to standard error is kept away.

    Orbax logs the tracebacks of background errors. Its event loop ends with the first write that fails: of the others that fail
    asyncio says that nobody asked, TensorStore cannot tell the loop, and those that had not begun were never awaited.
    """
    logging.getLogger("absl").addFilter(lambda record: not (record.exc_info and "orbax" in record.pathname))
    logging.getLogger("asyncio").addFilter(lambda record: "never retrieved" not in record.getMessage())
    warnings.filterwarnings("ignore", r"coroutine '.*\.write_fragment' was never awaited", RuntimeWarning)
    usual = sys.unraisablehook

    def unless_loop_is_closed(unraisable: Any) -> None:
        if not (isinstance(unraisable.exc_value, RuntimeError) and "loop is closed" in str(unraisable.exc_value)):
            usual(unraisable)

    sys.unraisablehook = unless_loop_is_closed


def _agreed_name() -> str:
    """A name that no other writer has had, the same in every process of this one."""
    drawn = np.frombuffer(os.urandom(4), np.uint32)
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        drawn = np.asarray(multihost_utils.broadcast_one_to_all(drawn))
    return f"{int(drawn[0]):08x}"
