"""Writes what each step measured, one step behind the device, so that the device never waits for the host."""

import math
from pathlib import Path
from typing import Any

import jax

from marin.errors import NonFiniteLossError
from marin.execution.attempts import usual_path
from marin.tracking import RunWriter
from marin.tracking.console import TrainingProgress
from marin.tracking.run_record import METRICS_FILE
from marin.tracking.wandb_mirror import WandbMirror
from marin.training.clock import TrainingClock
from marin.training.config import TrainLmConfig
from marin.training.watch import is_recorded


class StepRecorder:
    """Takes the metrics of steps as they are started, and writes each when the next one is started, or on `flush`.

    Reading a metric waits for the step that makes it, so the wait is for a step that another one already follows.
    """

    def __init__(
        self,
        config: TrainLmConfig,
        writer: RunWriter,
        clock: TrainingClock,
        progress: TrainingProgress,
        mirror: WandbMirror | None,
    ) -> None:
        self._watch, self._schedule = config.train.watch, config.train.batch_schedule
        self._skips_bad_steps = config.train.skip_bad_steps
        self._seq_len = config.model.max_seq_len
        self._log = Path(config.output_path) / METRICS_FILE
        self._writer, self._clock, self._progress, self._mirror = writer, clock, progress, mirror
        self._pending: tuple[int, dict[str, jax.Array], float] | None = None

    def push(self, step: int, metrics: dict[str, jax.Array], data_wait: float) -> None:
        """Takes the metrics of `step`, which may still be running, and writes those of the step before."""
        self.flush()
        self._pending = (step, metrics, data_wait)

    def flush(self) -> None:
        """Waits for the last step, checks it, and writes its line.

        Raises:
            NonFiniteLossError: if its loss or gradient norm is NaN or infinite and `skip_bad_steps` is off.
        """
        if self._pending is None:
            return
        (step, metrics, data_wait), self._pending = self._pending, None
        loss = float(metrics["loss"])
        step_time = self._clock.lap()
        values = {name: float(value) for name, value in metrics.items()}
        if not is_recorded(self._watch, step):
            values = {name: value for name, value in values.items() if "/" not in name}
        tokens = self._schedule.size_at(step) * self._seq_len
        timing = {"step_time": round(step_time, 6), "data_wait": round(data_wait, 6)}
        self._writer.append("step", step=step, tokens=tokens, **timing, **values)
        self.mirror("train", step, values)
        self._progress.update(step, loss, step_time, tokens, data_wait)
        if not self._skips_bad_steps and not math.isfinite(loss + values["grad_norm"]):
            raise NonFiniteLossError(
                f"at step {step} the loss is {loss} and the gradient norm {values['grad_norm']}: lower the learning rate, or set"
                f" `skip_bad_steps=True`; the log is {usual_path(str(self._log))}"
            )

    def evaluation(self, done: int, figures: dict[str, float]) -> None:
        """Writes what an evaluation after `done` steps measured."""
        self._writer.append("evaluation", step=done, **figures)
        self._progress.note(f"step {done}: " + "  ".join(f"{name} {value:.4f}" for name, value in figures.items()))
        self.mirror("eval", done - 1, figures)

    def mirror(self, group: str, step: int, values: dict[str, Any]) -> None:
        if self._mirror is not None:
            self._mirror.log(step, {f"{group}/{name}": value for name, value in values.items()})
