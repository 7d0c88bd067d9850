"""The progress of training as a person watches it: one live line on a terminal, a line now and then in a log file."""

import contextlib
import math
import threading
import time
from collections.abc import Iterator

from rich.console import Console
from rich.live import Live
from rich.text import Text

# A log that nobody watches gets a line this often.
_LOG_INTERVAL = 15.0
# Parts of the time that go to waiting for batches: shown, and warned of after this many steps.
_SOME_WAITING, _MUCH_WAITING, _SETTLED = 0.02, 0.1, 20


def duration(seconds: float) -> str:
    """1:05 for 65 seconds, 2:03:04 above an hour."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


@contextlib.contextmanager
def said_if_long(message: str, after: float = 5.0) -> Iterator[None]:
    """Prints what goes on where it takes longer than so many seconds: silence looks like a program that hangs."""
    timer = threading.Timer(after, lambda: print(message, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class TrainingProgress:
    """Shows step, loss, rate, MFU and time left. A context manager; `update` once a step.

    MFU divides the FLOPs that the model's own formula says ("model FLOPs") by those that the hardware could have done.
    """

    def __init__(
        self, *, num_steps: int, first_step: int, tokens_left: int, flops_per_token: float, peak_flops: float
    ) -> None:
        self._num_steps = num_steps
        self._done = first_step
        self._skipped = 0
        self._tokens_left = tokens_left
        self._flops = flops_per_token
        self._peak = peak_flops
        self._console = Console(highlight=False)
        self._live = (
            Live(console=self._console, refresh_per_second=4, transient=True) if self._console.is_terminal else None
        )
        self._last_log, self._logged = time.monotonic(), -1
        # Averages over about the last 20 steps, so that the figures settle but follow.
        self._step_time = 0.0
        self._tokens = 0.0
        self._data_wait = 0.0
        self._loss = math.nan
        self._seen = 0
        self._finite = 0
        self._warned = False
        self._last_words: list[str] = []

    def __enter__(self) -> "TrainingProgress":
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self._live.__exit__(None, None, None)
        if self._seen and self._logged != self._done:
            self._console.print(self._line(), soft_wrap=True)
        for message in self._last_words:
            self._console.print(message, soft_wrap=True)

    def update(
        self, step: int, loss: float, step_time: float, tokens: int, data_wait: float, *, skipped: int = 0
    ) -> None:
        """After step `step` (0-based) took `step_time` seconds for `tokens` tokens, `data_wait` of them for its batch.

        Args:
            skipped: updates of the run so far that were left out.
        """
        self._seen += 1
        share = max(1.0 / self._seen, 0.05)
        self._step_time += share * (step_time - self._step_time)
        self._tokens += share * (tokens - self._tokens)
        self._data_wait += share * (data_wait - self._data_wait)
        self._tokens_left -= tokens
        if math.isfinite(loss):  # the update of another was skipped, or ends the run; an average would never forget it
            self._finite += 1
            usual = loss if self._finite == 1 else self._loss
            self._loss = usual + max(1.0 / self._finite, 0.05) * (loss - usual)
        self._done, self._skipped = step + 1, skipped
        if self._seen >= _SETTLED and self._waits > _MUCH_WAITING and not self._warned:
            self._warned = True
            self.note(
                f"warning: data is slower than the device: {self._waits:.0%} of the time waits for batches; use a faster disk,"
                " or a token cache that the tokenize step wrote (its chunks suit random reads)"
            )
        if self._live:
            self._live.update(Text(self._line(), no_wrap=True, overflow="ellipsis"))
        elif time.monotonic() - self._last_log > _LOG_INTERVAL:
            self._last_log, self._logged = time.monotonic(), self._done
            self._console.print(self._line(), soft_wrap=True)

    def note(self, message: str) -> None:
        """A line that stays above the live one."""
        (self._live.console if self._live else self._console).print(message, soft_wrap=True)

    def after(self, message: str) -> None:
        """A line that comes when all is done, below the last of the live ones."""
        self._last_words.append(message)

    def mfu(self, tokens_per_second: float) -> float:
        """Model FLOPs of this rate over the hardware's peak."""
        return 3 * self._flops * tokens_per_second / self._peak

    @property
    def _waits(self) -> float:
        """The part of the time in which the loop waited for batches."""
        return self._data_wait / self._step_time if self._step_time > 0 else 0.0

    def _line(self) -> str:
        rate = self._tokens / self._step_time if self._step_time else 0.0
        left = self._tokens_left / rate if rate else 0.0
        width = len(str(self._num_steps))
        return (
            f"step {self._done:>{width}}/{self._num_steps}  loss {self._loss:.3f}  "
            f"{rate:,.0f} tokens/s  MFU {self.mfu(rate):.1%} (model FLOPs)  left {duration(left)}"
            + (f"  {self._skipped:,} updates left out" if self._skipped else "")
            + (f"  waits for data {self._waits:.0%}" if self._waits > _SOME_WAITING else "")
        )
