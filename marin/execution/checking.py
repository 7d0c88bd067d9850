"""Would a finished step make the same bytes again? Runs it once more beside its output and compares."""

import dataclasses
import os
import time
import traceback
from collections.abc import Callable

from marin.errors import ConfigError, MarinError, StepFailedError
from marin.execution import attempts
from marin.execution.following import known_as_alone
from marin.execution.plan import Action, decide
from marin.execution.status import OWN_PREFIX
from marin.execution.task import StepTask
from marin.storage import files, trees


@dataclasses.dataclass(frozen=True)
class Checked:
    """What a second run of a step showed; `difference` is None when it made the same bytes."""

    name: str
    difference: trees.TreeDifference | None
    scratch: str
    seconds: float

    def sentence(self) -> str:
        """The outcome for people, with the bytes where the two differ."""
        found = self.difference
        if found is None:
            return f"same {self.name}: a second run made the same bytes ({self.seconds:.1f} s)"
        if found.offset is None:
            where = f"only the {'first' if found.right is None else 'second'} run made {found.file}"
        else:
            where = f"{found.file} differs from byte {found.offset:,} on: {_shown(found.left)} first, {_shown(found.right)} now"
        return f"DIFFERS {self.name}: {where}; the second output is kept in {self.scratch}"


def check_again(task: StepTask, announce: Callable[[str], None]) -> Checked:
    """Runs a finished step into a scratch directory and compares every file but the executor's own.

    An equal scratch directory is removed, a differing one is kept. The committed output is only read.

    Raises:
        ConfigError: the step is not done.
        ExecutionError: its path holds the output of another config.
        StepFailedError: the step failed this time.
    """
    if decide(task, force_run_failed=True).action is not Action.SKIP:
        raise ConfigError(f"step `{task.name}` is not done, so there is nothing to check: run it first")
    scratch = attempts.check_directory(task.output_path)
    files.remove_tree(scratch)
    if files.is_local(scratch):
        files.local_path(scratch).mkdir(parents=True)
    announce(f"CHECK {task.name} -> {scratch}")
    start = time.monotonic()
    try:
        with known_as_alone(task.name, task.config):
            task.fn(task.config_for(scratch))
    except MarinError:
        raise
    except Exception as error:  # whatever a user's function raises
        summary = traceback.format_exception_only(error)[-1].strip()
        raise StepFailedError(
            f"step `{task.name}` failed when it ran again ({summary}): its committed output is untouched, what the second "
            f"run made is kept in {scratch}"
        ) from error
    seconds = time.monotonic() - start
    difference = trees.first_difference(attempts.location(task.output_path), scratch, leave_out=OWN_PREFIX)
    if difference is None:
        files.remove_tree(os.path.dirname(scratch))
    checked = Checked(task.name, difference, scratch, seconds)
    announce(checked.sentence())
    return checked


def _shown(content: bytes | None) -> str:
    return content.hex(" ") if content else "(the end of the file)"
