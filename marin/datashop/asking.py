"""Asks an endpoint many questions at once and keeps every answer, until all are answered, the budget ends, or somebody stops it.

Before a question goes out its worst case must fit into the budget beside everything that was paid and everything that is under
way, so the budget cannot be passed, whatever comes back. Where it does not fit, the question waits until what is under way
has come back for less than its worst case; when nothing is under way and it still does not fit, asking stops.

An answer counts when it is on the disk: answers that come in together are flushed together, in a thread of their own.
Ctrl-C, SIGTERM, an endpoint that will answer nothing more (no credit left) and whatever else ends asking, such as questions
that cannot be read, send nothing more and give what is under way some seconds to come back.
"""

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from marin.datashop.answer_cache import AnswerCache
from marin.datashop.ask_config import AskConfig
from marin.datashop.question import Answer, Busy, Failed, Outcome, Question, Refused
from marin.datashop.throttle import Throttle, backoff
from marin.errors import BudgetError, EndpointError, Terminated

_GRACE = 10.0  # seconds for what is under way when the run stops
_UNSEEN = 0.1  # of the patience, without a first connection: then the address is taken to be wrong
_LOOK = 0.2  # seconds between looks at whether to stop
_ALL_FAIL = 25  # so many questions without an answer, and none with one: the fault is not theirs


@dataclass
class Standing:
    """How far asking is, for whoever watches.

    Args:
        known: questions that needed no asking: the cache had the answer, or they had come up before.
        answered: questions that were answered in this run.
        tries_again: requests that were repeated because of a fault; `times_busy`: because the endpoint was busy.
        unanswered: what became of each question without an answer, by its digest.
        problem: what last went wrong since the last answer; empty if nothing did.
    """

    known: int = 0
    answered: int = 0
    tries_again: int = 0
    times_busy: int = 0
    in_flight: int = 0
    unanswered: dict[str, str] = field(default_factory=dict)
    problem: str = ""


Watcher = Callable[[Question, Answer], None]


def ask(
    config: AskConfig,
    questions: Iterable[Question],
    cache: AnswerCache,
    standing: Standing,
    on_answer: Watcher = lambda question, answer: None,
    every_second: Callable[[], None] = lambda: None,
) -> None:
    """Asks what is not in the cache, each question once, and puts the answers there.

    Args:
        standing: kept up to date, and afterwards holds the questions without an answer.
        on_answer: called with each answer when it is kept.
        every_second: called about once a second.
    Raises:
        BudgetError: the budget does not reach for the next question.
        EndpointError: the endpoint gives no answers to anything.
        KeyboardInterrupt, Terminated: somebody stopped it; all answers that came are kept.
    """
    asking = _Asking(config, iter(questions), cache, standing, on_answer, every_second)
    with asyncio.Runner() as runner:
        runner.run(asking.run())


class _Asking:
    def __init__(
        self,
        config: AskConfig,
        questions: Iterator[Question],
        cache: AnswerCache,
        standing: Standing,
        on_answer: Watcher,
        every_second: Callable[[], None],
    ):
        self._config, self._questions, self._cache, self._standing = config, questions, cache, standing
        self._on_answer, self._every_second = on_answer, every_second
        self._seen: set[str] = set()
        self._throttle = Throttle(config.concurrency)
        self._returned = asyncio.Event()  # set, and made anew, whenever a request is over
        self._to_keep: asyncio.Queue[tuple[Question, Answer, asyncio.Future[None]]] = asyncio.Queue()
        self._last_answer = time.monotonic()
        self._is_there = False  # whether the endpoint was ever reached
        self._under_way = 0
        self._stop: BaseException | None = None
        self._stop_at = 0.0

    async def run(self) -> None:
        from marin.datashop.endpoint import Endpoint  # half a second of imports that runs without a model do not need

        with self._stopped_by_signals():
            async with Endpoint(self._config) as endpoint:
                self._endpoint = endpoint
                keeper = asyncio.create_task(self._keep_answers())
                watcher = asyncio.create_task(self._watch())
                tasks = [asyncio.create_task(self._work()) for _ in range(self._config.concurrency)]
                workers = asyncio.gather(*tasks)
                try:
                    await self._until_done(workers, watcher)
                finally:
                    for task in [*tasks, watcher]:
                        task.cancel()
                    await asyncio.gather(workers, *tasks, watcher, return_exceptions=True)
                    await self._to_keep.join()  # what came before the end is kept
                    keeper.cancel()
                    await asyncio.gather(keeper, return_exceptions=True)
        if self._stop is not None:
            raise self._stop

    async def _until_done(self, workers: "asyncio.Future[list[None]]", watcher: "asyncio.Task[None]") -> None:
        """Returns when the workers have ended, or the time after a stop is up."""
        while not workers.done():
            waited_for: list[asyncio.Future[Any]] = [workers] if watcher.done() else [workers, watcher]
            await asyncio.wait(waited_for, timeout=_LOOK, return_when=asyncio.FIRST_COMPLETED)
            if watcher.done() and (error := watcher.exception()) is not None:
                self._stop_for(error)
            if self._stop is not None and (time.monotonic() >= self._stop_at or not self._under_way):
                return
        workers.result()

    async def _work(self) -> None:
        try:
            for question in self._questions:
                if self._stop is not None:
                    return
                if question.digest in self._seen or question.digest in self._cache:
                    self._standing.known += 1
                    self._last_answer = time.monotonic()  # who is not asked is not silent
                    await asyncio.sleep(0)  # a long row of known questions lets signals and the watcher in
                    continue
                self._seen.add(question.digest)
                await self._answer(question)
                self._check_that_any_is_answered()
        except Exception as error:  # raised at the end of `run`
            self._stop_for(error)

    def _stop_for(self, error: BaseException) -> None:
        """Sends nothing more, for the first error; what is under way may have been paid for, and may still come."""
        if self._stop is None:
            self._stop, self._stop_at = error, time.monotonic() + _GRACE
            self._returned.set()

    async def _answer(self, question: Question) -> None:
        """Asks until there is an answer, or it is clear that there will be none."""
        failures = num_useless = 0
        while self._stop is None:
            await self._throttle.enter()
            try:
                if not await self._fits(question):
                    return
                outcome = await self._send(question, num_useless)
            finally:
                self._throttle.leave()
            match outcome:
                case Answer():
                    return
                case Busy(problem, wait, is_there):
                    self._problem(problem, is_there)
                    self._standing.times_busy += 1
                    self._throttle.busy(wait)
                case Refused(problem):
                    self._problem(problem)
                    self._standing.unanswered[question.digest] = problem
                    return
                case Failed(problem, _, is_whole, wait):
                    self._problem(problem)
                    failures += 1
                    num_useless += is_whole
                    if failures >= self._config.max_tries:
                        self._standing.unanswered[question.digest] = f"{problem} ({failures} tries)"
                        return
                    self._standing.tries_again += 1
                    await asyncio.sleep(min(wait, self._config.patience) if wait else backoff(failures))

    async def _send(self, question: Question, number: int) -> Outcome:
        """Sends a question once, and notes what became of it."""
        self._cache.sending(question)
        self._count_under_way(+1)
        try:
            outcome = await self._endpoint.send(question, number)
            if isinstance(outcome, Answer):
                kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._to_keep.put_nowait((question, outcome, kept))
                await kept
                self._throttle.answered()
                self._last_answer, self._is_there = time.monotonic(), True
                self._standing.problem = ""
                self._standing.answered += 1
                self._on_answer(question, outcome)
            elif not (isinstance(outcome, Failed) and outcome.may_be_paid):
                self._cache.turned_away(question)
            return outcome
        except EndpointError:
            self._cache.turned_away(question)
            raise
        finally:
            self._count_under_way(-1)

    async def _fits(self, question: Question) -> bool:
        """Waits until the question's worst case fits into the budget; False if it never will."""
        while self._stop is None:
            problem = self._over_budget(question)
            if problem is None:
                return True
            if not self._under_way:
                self._stop, self._stop_at = BudgetError(problem), time.monotonic()
                return False
            await self._returned.wait()
        return False

    def _over_budget(self, question: Question) -> str | None:
        """Which budget the question could go beyond."""
        paid, perhaps = self._cache.paid, self._cache.perhaps_paid
        read = paid.input + perhaps.input + question.most_input_tokens
        written = paid.output + perhaps.output + question.most_output_tokens
        tokens, most_tokens = read + written, self._config.budget_tokens
        if most_tokens is not None and tokens > most_tokens:
            return f"the next question could bring the tokens to {tokens:,} of `budget_tokens` {most_tokens:,}"
        dollars, most_dollars = self._config.dollars(read, written), self._config.budget_dollars
        if dollars is not None and most_dollars is not None and dollars > most_dollars:
            return f"the next question could bring the costs to ${dollars:,.4f} of `budget_dollars` {most_dollars:g}"
        return None

    def _count_under_way(self, change: int) -> None:
        self._under_way += change
        self._standing.in_flight = self._under_way
        if change < 0:
            self._returned.set()
            self._returned = asyncio.Event()

    async def _keep_answers(self) -> None:
        """Writes answers to the cache and flushes all that have come in together."""
        while True:
            batch = [await self._to_keep.get()]
            while not self._to_keep.empty():
                batch.append(self._to_keep.get_nowait())
            problem: Exception | None = None
            try:
                for question, answer, _ in batch:
                    self._cache.keep(question, answer)
                await asyncio.to_thread(self._cache.flush)
            except Exception as error:  # told to those who wait for it
                problem = error
            for _, _, kept in batch:
                self._to_keep.task_done()
                if not kept.done():
                    kept.set_result(None) if problem is None else kept.set_exception(problem)

    async def _watch(self) -> None:
        """Reports each second, and gives up when there were problems and no answers for too long."""
        while True:
            self._every_second()
            await asyncio.sleep(1.0)
            silence = time.monotonic() - self._last_answer
            patience = self._config.patience * (1 if self._is_there else _UNSEEN)
            if self._standing.problem and silence > patience:
                raise EndpointError(
                    f"{self._endpoint.base} gave no answer for {silence:.0f} s (last: {self._standing.problem}): look after it, "
                    f"and start this again: it goes on where it was"
                )

    def _problem(self, problem: str, is_there: bool = True) -> None:
        self._standing.problem = problem
        self._is_there |= is_there

    def _check_that_any_is_answered(self) -> None:
        enough = max(_ALL_FAIL, 4 * self._config.concurrency)
        if len(self._standing.unanswered) >= enough and not self._cache.paid.requests:
            raise EndpointError(
                f"{self._endpoint.base} answered none of {len(self._standing.unanswered)} questions: {self._standing.problem}"
            )

    @contextlib.contextmanager
    def _stopped_by_signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM let what is under way come back; the second one does not."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(reason: BaseException) -> None:
            now = time.monotonic()
            self._stop_at = now if self._stop is not None else now + _GRACE
            self._stop = reason
            self._returned.set()
            if self._under_way and self._stop_at > now:
                print(f"stopping: waiting up to {_GRACE:.0f} s for {self._under_way} requests under way", flush=True)

        loop = asyncio.get_running_loop()
        reasons: dict[signal.Signals, BaseException] = {
            signal.SIGINT: KeyboardInterrupt(),
            signal.SIGTERM: Terminated(),
        }
        previous = {number: signal.getsignal(number) for number in reasons}
        for number, reason in reasons.items():
            loop.add_signal_handler(number, stop, reason)
        try:
            yield
        finally:
            for number, handler in previous.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)
