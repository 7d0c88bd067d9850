"""A small training loop for what is no language model: step, measure, checkpoint, stop and go on, on one device.

    state = fit(Fit("masked prediction", 1000, directory), state, step, batch_of)

A batch is a pure function of the step, and all else that matters is in the state, so a loop that was killed goes on from its
last checkpoint through the same states. Language models are trained by `marin.training`.
"""

import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
import optax

from marin.data.pace import Pace
from marin.data.prefetch import Prefetcher
from marin.errors import NonFiniteLossError
from marin.tracking.console import duration
from marin.training import checkpoint as checkpoints
from marin.training.checkpoint_writer import CheckpointWriter, remove_half_written
from marin.training.stopping import StopRequest

State = TypeVar("State")
# Losses stay on the device until so many have come, so that it never waits for the host.
_PENDING = 16


@dataclasses.dataclass(frozen=True)
class Fit:
    """A run of the loop.

    Args:
        name: what messages call it.
        directory: checkpoints lie in `checkpoints` below it.
        checkpoint_interval: seconds between checkpoints.
        measure_every: steps between measurements, of which one more follows the last step.
    """

    name: str
    num_steps: int
    directory: Path
    checkpoint_interval: float = 120.0
    measure_every: int = 0


def fit(
    run: Fit,
    state: State,
    step: Callable[[State, Any], tuple[State, Any]],
    batch_of: Callable[[int], Any],
    measure: Callable[[State, int], State] | None = None,
) -> State:
    """The state after all steps, from the last checkpoint where there is one.

    Args:
        state: a tree of arrays, which `step` may donate.
        step: (state, batch) -> (state, loss).
        measure: (state, steps done) -> state, in which it may note what it found.
    Raises:
        NonFiniteLossError: the loss is NaN or infinite.
        CheckpointError: checkpoints are there and none is whole, or one cannot be written.
    """
    directory = run.directory / "checkpoints"
    found, problems = checkpoints.latest_valid(directory)
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    first = 0
    if found is not None:
        state, first = checkpoints.restore(found, state), found.step
        print(f"{run.name}: continuing from step {first:,} of {run.num_steps:,}")
    if first >= run.num_steps:
        remove_half_written(directory)
        return state
    log, last_save = _Log(run, first), time.monotonic()
    with (
        StopRequest() as stop,
        CheckpointWriter(directory, keep_every=run.num_steps, keep_latest=1, restored=found) as saver,
        Prefetcher(batch_of, range(first, run.num_steps)) as batches,
    ):
        for index in range(first, run.num_steps):
            saver.check()
            state, loss = step(state, batches.take().item)
            done = index + 1
            last = done == run.num_steps
            log.add(done, loss)
            if measure is not None and (last or (run.measure_every and done % run.measure_every == 0)):
                state = measure(state, done)
            if last or stop.requested or time.monotonic() - last_save > run.checkpoint_interval:
                log.check()
                saver.save(state, done)
                last_save = time.monotonic()
            if stop.requested and not last:
                saver.wait()
                print(
                    f"{run.name}: stopping; the checkpoint of step {done:,} is saved, the same command goes on from it"
                )
                break
    log.finish()
    return state


def descent(
    optimizer: optax.GradientTransformation, loss_of: Callable[..., jax.Array]
) -> Callable[[dict[str, Any], Any], tuple[dict[str, Any], jax.Array]]:
    """The compiled step that takes `state["weights"]` down the gradient of `loss_of(weights, *batch)`.

    `state["moments"]` is the optimizer's; whatever else is in the state stays as it is. The state is donated.
    """

    def step(state: dict[str, Any], batch: Any) -> tuple[dict[str, Any], jax.Array]:
        loss, gradients = jax.value_and_grad(lambda weights: loss_of(weights, *batch))(state["weights"])
        with jax.numpy_dtype_promotion("standard"):  # Optax raises float decay rates to integer counts
            updates, moments = optimizer.update(gradients, state["moments"], state["weights"])
            weights = optax.apply_updates(state["weights"], updates)
        return {**state, "weights": weights, "moments": moments}, loss

    return jax.jit(step, donate_argnums=0)


class _Log:
    """Prints how far the loop is, and looks at every loss."""

    def __init__(self, run: Fit, first: int) -> None:
        self._run, self._first = run, first
        self._pending: list[tuple[int, Any]] = []
        self._pace = Pace(5.0)
        self._is_compiled = False
        self._recent = float("nan")

    def add(self, done: int, loss: jax.Array) -> None:
        self._pending.append((done, loss))
        if len(self._pending) >= _PENDING:
            self.check()
        if not self._is_compiled:  # the first step waits for the compiler, which says nothing of the others
            self._is_compiled = True
            self._first, self._pace = done, Pace(5.0)
        elif self._pace.is_due():
            self.check()
            rate = (done - self._first) / self._pace.elapsed
            left = duration((self._run.num_steps - done) / rate)
            print(
                f"{self._run.name}: step {done:,} of {self._run.num_steps:,}, loss {self._recent:.4f},"
                f" {rate:.1f} steps/s, {left} left",
                flush=True,
            )

    def check(self) -> None:
        values = [float(loss) for _, loss in self._pending]
        for (done, _), value in zip(self._pending, values, strict=True):
            if not np.isfinite(value):
                raise NonFiniteLossError(
                    f"{self._run.name}: the loss of step {done:,} is {value}: use a lower `learning_rate`; checkpoints up to"
                    " the step before stand"
                )
        if values:
            self._recent = float(np.mean(values))
        self._pending = []

    def finish(self) -> None:
        self.check()
        print(f"{self._run.name}: loss {self._recent:.4f}, {duration(self._pace.elapsed)} in this process", flush=True)
