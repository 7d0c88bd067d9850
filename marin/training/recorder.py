"""Writes what each step measured, one step behind an accelerator, so that it never waits for the host."""

import math
from collections.abc import Callable, Sequence

import jax

from marin.data.loader import BatchRow
from marin.tracking import RunWriter
from marin.tracking.console import TrainingProgress
from marin.tracking.mirrors import Mirrors
from marin.tracking.run_record import METRICS_FILE
from marin.tracking.spikes import SpikeWatch
from marin.training.bad_step import describe_rows, non_finite, rows_as_json, spoiled_state
from marin.training.clock import TrainingClock
from marin.training.config import TrainLmConfig
from marin.training.state import SPOILED
from marin.training.watch import as_figure, is_recorded


class StepRecorder:
    """Takes the metrics of steps as they are started, and writes each when the next one is started, or on `flush`.

    Reading a metric waits for the step that makes it, so the wait is for a step that another one already follows.

    Args:
        rows_of: the rows of a step's batch.
        at_once: write each step where it is taken. On a CPU, where starting a step returns when it has ended, waiting for
            the next one would count that one's time as this one's.
    """

    def __init__(
        self,
        config: TrainLmConfig,
        writer: RunWriter,
        clock: TrainingClock,
        progress: TrainingProgress,
        mirrors: Mirrors,
        rows_of: Callable[[int], Sequence[BatchRow]],
        *,
        at_once: bool = False,
    ) -> None:
        self._config, self._rows_of = config, rows_of
        self.steps_behind = 0 if at_once else 1
        self._schedule = config.train.batch_schedule
        self._writer, self._clock, self._progress, self._mirrors = writer, clock, progress, mirrors
        self._spikes = SpikeWatch()
        self._skipped: int | None = None  # updates left out so far; unknown where this process goes on with a run
        self._skips = False  # whether the step before was left out
        self._pending: tuple[int, dict[str, jax.Array], float] | None = None

    def push(self, step: int, metrics: dict[str, jax.Array], data_wait: float) -> None:
        """Takes the metrics of `step`, which may still be running, and writes those that are `steps_behind` it."""
        self.flush()
        self._pending = (step, metrics, data_wait)
        if not self.steps_behind:
            self.flush()

    def flush(self) -> None:
        """Waits for the last step, checks it, and writes its line.

        Raises:
            NonFiniteLossError: if its loss or gradient norm is NaN or infinite and `skip_bad_steps` is off, or if the
                optimizer has spoiled the state.
        """
        if self._pending is None:
            return
        (step, metrics, data_wait), self._pending = self._pending, None
        loss, grad_norm = float(metrics["loss"]), float(metrics["grad_norm"])
        spoiled = bool(metrics.pop(SPOILED))
        step_time = self._clock.lap()
        train = self._config.train
        watched = is_recorded(train.watch, step)
        values = {name: as_figure(value) for name, value in metrics.items() if watched or "/" not in name}
        tokens = self._schedule.size_at(step) * self._config.seq_len
        mfu = self._progress.mfu(tokens / step_time)
        timing = {"step_time": round(step_time, 6), "data_wait": round(data_wait, 6), "mfu_model_flops": round(mfu, 5)}
        self._writer.append("step", step=step, tokens=tokens, **timing, **values)
        self._mirrors.log("train", step, values)
        self._mirrors.log("throughput", step, {"tokens_per_second": tokens / step_time, **timing})
        skipped = int(metrics.get("skipped_steps", 0))
        self._progress.update(step, loss, step_time, tokens, data_wait, skipped=skipped)
        finite = math.isfinite(loss + grad_norm)
        if spoiled or not (finite or train.skip_bad_steps):
            rows = self._rows_of(step)
            self._writer.append("bad_step", step=step, loss=loss, grad_norm=grad_norm, **rows_as_json(rows))
            if spoiled:
                raise spoiled_state(self._config, step, loss, grad_norm)
            raise non_finite(self._config, self._writer.directory / METRICS_FILE, step, rows, loss, grad_norm)
        if finite:
            self._note_spike(step, loss)
        self._note_skip(step, loss, grad_norm, skipped)

    def evaluation(self, done: int, figures: dict[str, float]) -> None:
        """Writes what an evaluation after `done` steps measured."""
        self._writer.append("evaluation", step=done, **figures)
        self._progress.note(f"step {done}: " + "  ".join(f"{name} {value:.4f}" for name, value in figures.items()))
        self._mirrors.log("eval", done - 1, figures)

    def _note_spike(self, step: int, loss: float) -> None:
        spike = self._spikes.begins(loss)
        if spike is None:
            return
        rows = self._rows_of(step)
        self._writer.append("spike", step=step, loss=loss, **spike, **rows_as_json(rows))
        self._progress.note(
            f"the loss jumps at step {step}: {loss:.3f}, usual is {spike['usual']:.3f}; its batch: {describe_rows(rows)}"
        )

    def _note_skip(self, step: int, loss: float, grad_norm: float, skipped: int) -> None:
        """Says the first of the steps in a row that are left out; how many there are stands in the line of progress."""
        before = 0 if step == 0 else self._skipped
        skips = before is not None and skipped > before
        if skips and not self._skips:
            self._progress.note(
                f"the update of step {step} is left out (`skip_bad_steps`): the loss is {loss:.4g} and the gradient norm {grad_norm:.4g};"
                f" its batch: {describe_rows(self._rows_of(step))}"
            )
        self._skipped, self._skips = skipped, skips
