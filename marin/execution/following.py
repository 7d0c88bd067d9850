"""Several processes of one program, of which the first is the executor and the others help with what it does.

A step whose config's class sets `marin_together = True` is run by all of them at once, as training on many machines is. All
other steps are run by the first process alone. All processes must see the same prefix.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar

from marin.errors import PreviousStepFailedError
from marin.execution import attempts
from marin.execution.graph import Graph, Node
from marin.execution.plan import Action, decide, plan, targets_of
from marin.execution.presence import Watch
from marin.execution.step import ExecutorStep
from marin.execution.task import StepTask, make_task
from marin.storage import lease

_POLL = 1.0
_PATIENCE = 10  # looks after which a step that was let go is not taken up again: process 0 itself looks twice a second
step_of_one: ContextVar[str | None] = ContextVar("step_of_one", default=None)
"""The name of the step that this thread runs and that no other process takes part in; None outside of such steps."""


def follow(
    steps: Sequence[ExecutorStep],
    prefix: str,
    index: int,
    leads: Callable[[], bool],
    *,
    watch: Watch | None = None,
    run_only: Sequence[str] | None = None,
    force_run_failed: bool = True,
) -> None:
    """Takes part, as process `index`, in those of `steps` and of what they depend on that all processes run.

    Args:
        leads: whether process 0 waits for the others. That a step is running says less: an earlier program may still be at it.
        watch: for process 0, which may end without a word in any step's ledger.
        run_only, force_run_failed: as process 0 has them: for a step that it leaves out the others would wait for ever.
    Raises:
        PreviousStepFailedError: process 0 has let go of a step before the others could take part in it.
        ExecutionError: process 0 is gone, or never came.
    """
    graph = Graph(steps, prefix)
    decisions = plan(graph, targets_of(graph, run_only), force_run_failed=force_run_failed)
    runs = [node for node, decision in decisions.items() if decision.action in (Action.RUN, Action.WAIT)]
    for node in runs:
        if runs_together(node.step.config) and _wait_for_start(node, index, leads, watch):
            task = make_task(node, graph)
            task.fn(task.config_for(node.output_path))


def follow_task(task: StepTask, index: int) -> None:
    """Takes part, as process `index`, in one step that process 0 is known to begin."""
    if _wait_for_start(task, index, lambda: True):
        task.fn(task.config_for(task.output_path))


def runs_together(config: object) -> bool:
    """Whether a step with this config is run by all processes at once."""
    return bool(getattr(type(config), "marin_together", False))


@contextlib.contextmanager
def known_as_alone(name: str, config: object) -> Iterator[None]:
    """For the time of a step's run: what would wait for the other processes in it can see whether they come."""
    token = step_of_one.set(None if runs_together(config) else name)
    try:
        yield
    finally:
        step_of_one.reset(token)


def _wait_for_start(step: Node | StepTask, index: int, leads: Callable[[], bool], watch: Watch | None = None) -> bool:
    """Whether process 0 is at the step; False where it is done already.

    Raises:
        PreviousStepFailedError: process 0 has come to the step, or found that it cannot, and has let it go.
        ExecutionError: process 0 is gone, or never came.
    """
    first, looks, announced = _number_let_go(step), 0, False
    while True:
        let_go = _number_let_go(step)  # before the decision: whoever has it by then is seen there
        action = decide(step, force_run_failed=True).action
        if action is Action.SKIP:
            return False
        if action is Action.WAIT and leads():
            return True
        looks = looks + 1 if action is Action.RUN and let_go not in (None, first) else 0
        if looks > _PATIENCE:
            raise PreviousStepFailedError(
                f"process 0 has ended step `{step.name}` before the others could take part in it: what it printed last says"
                " why. Mend the cause and start all processes again with the same command"
            )
        if watch is not None:
            watch.look(step.name)
        if not announced:
            announced = True
            print(f"process {index} waits for process 0 to begin {step.name}", file=sys.stderr)
        time.sleep(_POLL)


def _number_let_go(step: Node | StepTask) -> int | None:
    """The number of the record by which somebody has let go of the step, without an output; None where it is not let go."""
    state = lease.read_state(attempts.ledger_directory(step.output_path))
    return state.number if state is not None and state.kind == "release" else None
