"""A profiler trace of a few steps, as TensorBoard and Perfetto read it."""

import sys
from pathlib import Path

import jax

from marin.training.clock import TrainingClock
from marin.training.config import SimpleTrainConfig


class Profiler:
    """Traces `profiler_num_steps` steps from the `profiler_start_step`-th of this process on, into `{run}/profile`.

    Starting and writing the trace are pauses of the clock.
    """

    def __init__(self, train: SimpleTrainConfig, directory: Path, first_step: int, clock: TrainingClock) -> None:
        self._begin = first_step + train.profiler_start_step if train.profiler else -1
        self._end = min(self._begin + train.profiler_num_steps, train.num_train_steps)
        self._directory, self._clock = directory, clock
        self._tracing = False
        if self._begin >= train.num_train_steps:
            print(
                f"warning: nothing is traced: the trace would begin with step {self._begin:,}, training ends after"
                f" {train.num_train_steps:,}; use a smaller `profiler_start_step`",
                file=sys.stderr,
            )

    def starts_at(self, step: int) -> bool:
        """Whether the trace begins with this step; steps before it must have ended."""
        return step == self._begin

    def ends_after(self, done: int, *, last: bool) -> bool:
        """Whether the trace ends when `done` steps are done, after which training ends if they are the `last`."""
        return self._tracing and (last or done == self._end)

    def start(self, step: int) -> None:
        self._tracing = True
        with self._clock.pause("profiler", step):
            jax.profiler.start_trace(str(self._directory / "profile"))

    def stop(self, step: int) -> None:
        self._tracing = False
        with self._clock.pause("profiler", step):
            try:
                jax.profiler.stop_trace()
            except RuntimeError as error:  # no trace was running
                print(f"warning: the profile could not be written ({error})", file=sys.stderr)
