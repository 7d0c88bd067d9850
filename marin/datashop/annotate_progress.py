"""How far an annotation is and what it has cost: lines for the console, `progress.json` for whoever watches."""

import json
import time
from typing import Any

from marin.datashop.annotate_config import AnnotateConfig
from marin.datashop.answer_cache import AnswerCache, Tokens
from marin.datashop.asking import Standing
from marin.datashop.question import Answer, Question, graded
from marin.storage import files
from marin.tracking.console import duration

PROGRESS = "progress.json"
_FIRST_INTERVAL, _LONGEST_INTERVAL = 2.0, 30.0
_RATE_OVER = 60.0  # seconds


class AnnotateProgress:
    """Args:
    num_documents: of the sample.
    """

    def __init__(self, config: AnnotateConfig, num_documents: int, cache: AnswerCache, standing: Standing):
        self._config, self._num_documents, self._cache, self._standing = config, num_documents, cache, standing
        self._num_unparsed = 0
        self._path = files.join(config.output_path, PROGRESS)
        self._started = self._last_line = time.monotonic()
        self._marks = [(self._started, 0)]  # when how many were answered, over the last minute

    def answered(self, question: Question, answer: Answer) -> None:
        """Looks at an answer that has come."""
        self._num_unparsed += graded(self._config, question, answer, self._standing.unanswered).label is None

    def every_second(self) -> None:
        """Writes the file, and now and then prints a line."""
        now = time.monotonic()
        self._marks.append((now, self._standing.answered))
        while len(self._marks) > 2 and self._marks[0][0] < now - _RATE_OVER:
            self._marks.pop(0)
        self.write("running")
        interval = min(max((now - self._started) / 50, _FIRST_INTERVAL), _LONGEST_INTERVAL)
        if now - self._last_line >= interval:
            self._last_line = now
            self.print_line()

    def print_line(self, before: str = "") -> None:
        why = self._why_silent
        print(f"annotate: {before}{self.line()}" + (f", no answers: {why}" if why else ""), flush=True)

    def write(self, state: str) -> None:
        """Writes the file; `state` is "running" or "stopped"."""
        content = json.dumps(self.to_json(state), indent=2, allow_nan=False) + "\n"
        files.write_bytes(self._path, content.encode(), durable=False)

    def to_json(self, state: str) -> dict[str, Any]:
        standing, cache = self._standing, self._cache
        return {
            "state": state,
            "num_documents": self._num_documents,
            "num_done": self._num_done,
            "num_known_before": standing.known,
            "num_answered": standing.answered,
            "num_unparsed": self._num_unparsed,
            "num_unanswered": len(standing.unanswered),
            "in_flight": standing.in_flight,
            "per_second": self._per_second,
            "seconds_left": self._seconds_left,
            "tries_again": standing.tries_again,
            "times_busy": standing.times_busy,
            "why_silent": self._why_silent,
            "tokens_paid": {"input": cache.paid.input, "output": cache.paid.output},
            "dollars_paid": self._config.dollars(cache.paid.input, cache.paid.output),
            "perhaps_paid": perhaps_paid(self._config, cache),
            "budget_tokens": self._config.budget_tokens,
            "budget_dollars": self._config.budget_dollars,
        }

    def line(self) -> str:
        """One line for a person."""
        standing = self._standing
        parts = [f"{self._num_done:,} of {self._num_documents:,} documents"]
        if standing.known:
            parts.append(f"{standing.known:,} of them known before")
        if self._per_second > 0:
            parts.append(f"{self._per_second:.1f}/s")
        if self._seconds_left:
            parts.append(f"{duration(self._seconds_left)} left")
        if self._num_unparsed:
            parts.append(f"{self._num_unparsed:,} unparsed")
        if standing.unanswered:
            parts.append(f"{len(standing.unanswered):,} without an answer")
        if standing.tries_again:
            parts.append(f"{standing.tries_again:,} tried again")
        if standing.times_busy:
            parts.append(f"{standing.times_busy:,} put off")
        return ", ".join([*parts, *self._spending()])

    def _spending(self) -> list[str]:
        paid, perhaps = self._cache.paid, self._cache.perhaps_paid
        dollars = self._config.dollars(paid.input, paid.output)
        of_tokens = f" of {self._config.budget_tokens:,}" if self._config.budget_tokens is not None else ""
        parts = [f"{_tokens_of(paid):,}{of_tokens} tokens"]
        if dollars is not None:
            of = f" of ${self._config.budget_dollars:,.2f}" if self._config.budget_dollars is not None else ""
            parts.append(f"${dollars:,.4f}{of}")
        num_lost = perhaps.requests - self._standing.in_flight
        if num_lost > 0:
            most = self._config.dollars(perhaps.input, perhaps.output)
            cost = f"{_tokens_of(perhaps):,} tokens" if most is None else f"${most:,.4f}"
            parts.append(
                f"{num_lost:,} requests without an answer may have been paid for (with what is under way, at most {cost})"
            )
        return parts

    @property
    def _num_done(self) -> int:
        return self._standing.known + self._standing.answered + len(self._standing.unanswered)

    @property
    def _per_second(self) -> float:
        (first, before), (last, after) = self._marks[0], self._marks[-1]
        return (after - before) / (last - first) if last > first else 0.0

    @property
    def _why_silent(self) -> str:
        """What goes wrong, while nothing is answered."""
        return self._standing.problem if self._per_second == 0 else ""

    @property
    def _seconds_left(self) -> float | None:
        left = self._num_documents - self._num_done
        return left / self._per_second if self._per_second > 0 else None


def perhaps_paid(config: AnnotateConfig, cache: AnswerCache) -> dict[str, Any]:
    """What was sent and came back without an answer, at its worst case, for a record."""
    tokens = cache.perhaps_paid
    return {
        "requests": tokens.requests,
        "most_tokens": _tokens_of(tokens),
        "most_dollars": config.dollars(tokens.input, tokens.output),
    }


def _tokens_of(tokens: Tokens) -> int:
    return tokens.input + tokens.output
