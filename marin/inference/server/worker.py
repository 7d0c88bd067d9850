"""The thread that owns the scheduler, and the bridge to the tasks of the server's event loop.

A task submits a job and reads its events from an asyncio queue; cancelling frees its rows before the next burst. Nothing
but this thread touches the model.
"""

import asyncio
import logging
import queue
import threading
import time
from typing import Any

from marin.inference.engine import Engine
from marin.inference.scheduler import Event, Request
from marin.inference.server.limits import Limits
from marin.inference.server.problems import ProblemError

logger = logging.getLogger(__name__)
_STOP = object()


def _stopping() -> ProblemError:
    return ProblemError(503, "the server is stopping", code="stopping")


class Job:
    """The requests of one HTTP request, and the queue of their events."""

    def __init__(self, requests: list[Request]) -> None:
        self.requests = requests
        self.waiting = {request.id for request in requests}  # those without a token so far; under the worker's lock
        self._places = {request.id: index for index, request in enumerate(requests)}
        self._events: asyncio.Queue[Event | ProblemError] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def put(self, event: Event | ProblemError) -> None:
        """From any thread."""
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
        except RuntimeError:  # the loop has ended, and the client with it
            pass

    async def next_event(self) -> tuple[int, Event]:
        """(index of the request, event), when there is one.

        Raises:
            ProblemError: the engine failed, or the server stops.
        """
        event = await self._events.get()
        if isinstance(event, ProblemError):
            raise event
        return self._places[event.request.id], event


class Worker:
    """Runs jobs on an engine until it is closed."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self.engine, self.limits = engine, limits
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._scheduler = engine.scheduler()
        self._arrived: set[Job] = set()  # in the inbox, which cannot be looked through
        self._jobs: dict[int, Job] = {}
        self._unfinished: dict[int, int] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._begun = time.monotonic()
        self._counts = {
            "requests": 0,
            "refused": 0,
            "cancelled": 0,
            "failed": 0,
            "generated_tokens": 0,
            "prompt_tokens": 0,
        }
        self._waiting = 0
        self._busy_seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, requests: list[Request]) -> Job:
        """Begins the requests.

        Raises:
            ProblemError: too many wait already, more come at once than may ever wait, or the server stops.
        """
        with self._lock:
            if self._closing.is_set() or not self.is_alive:
                raise _stopping()
            if len(requests) > self.limits.queue:
                self._counts["refused"] += len(requests)
                raise ProblemError(
                    400,
                    f"{len(requests)} prompts in one request, but this server lets {self.limits.queue} wait: send fewer at once",
                    param="prompt",
                )
            if self._waiting + len(requests) > self.limits.queue:
                self._counts["refused"] += len(requests)
                raise ProblemError(
                    429, f"{self._waiting} requests wait already: try again in a moment", code="queue_full"
                )
            self._waiting += len(requests)
            self._counts["requests"] += len(requests)
            job = Job(requests)
            self._arrived.add(job)
            self._inbox.put(("submit", job))  # within the lock, so that a failure finds all that it stops counting
        return job

    def cancel(self, job: Job, sample: tuple[int, int] | None = None) -> None:
        """Ends a job, or one (request index, sample) of it that has all it wants; one that has ended is no error.

        What of it waits takes no place any more, even while the engine compiles or takes a long prompt.
        """
        if sample is None:
            self._leave_queue(job)
        self._inbox.put(("cancel", job) if sample is None else ("sample", job, sample))

    def _leave_queue(self, job: Job) -> None:
        with self._lock:
            self._waiting -= len(job.waiting)
            job.waiting.clear()

    def refused(self) -> None:
        """Counts a request that never came so far."""
        with self._lock:
            self._counts["refused"] += 1

    def stop_soon(self) -> None:
        """Ends the thread after its burst; all jobs are told so. It does not wait, and may be called by a signal's handler."""
        self._closing.set()  # a failure of the engine empties the inbox, so the message alone could be lost
        self._inbox.put(_STOP)
        # At once, as a burst that compiles takes longer than a server's time of grace.
        for job in self._arrived | set(self._jobs.values()):
            job.put(_stopping())

    def close(self, seconds: float = 5.0) -> None:
        """The same, and waits for it."""
        self.stop_soon()
        self._thread.join(seconds)

    def stats(self) -> dict[str, Any]:
        with self._lock:
            counts, waiting, busy = dict(self._counts), self._waiting, self._busy_seconds
        rate = counts["generated_tokens"] / busy if busy else 0.0
        return {
            "uptime_seconds": round(time.monotonic() - self._begun, 1),
            "running_samples": self._scheduler.num_running,
            "waiting_requests": waiting,
            "max_rows": self.engine.max_rows,
            "max_length": self.engine.max_length,
            **counts,
            "busy_seconds": round(busy, 3),
            "tokens_per_busy_second": round(rate, 1),
        }

    # ---- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                if not self._take_messages():
                    break
                if self._scheduler.is_idle:
                    continue
                # A first token does not wait for the burst that follows it, nor does its request count as waiting then.
                for work in (self._scheduler.take_prompt, self._scheduler.continue_samples):
                    start = time.monotonic()
                    events = work()
                    with self._lock:
                        self._busy_seconds += time.monotonic() - start
                    for event in events:
                        self._deliver(event)
            except Exception:
                logger.exception("the engine failed; running requests are given up")
                self._fail(ProblemError(500, "the engine failed; the server's log says how", code="engine_failed"))
        self._fail(_stopping())

    def _take_messages(self) -> bool:
        """All that were sent, waiting for one if there is nothing else to do; False when it is time to end."""
        block = self._scheduler.is_idle
        while True:
            try:
                message = self._inbox.get(block=block)
            except queue.Empty:
                return True
            block = False
            if message is _STOP:
                return False
            kind, job = message[:2]
            if kind == "submit":
                for request in job.requests:
                    self._scheduler.submit(request)
                    self._jobs[request.id], self._unfinished[request.id] = job, request.num_samples
                self._arrived.discard(job)
            elif kind == "cancel":
                self._cancel(job)
            else:
                index, sample = message[2]
                self._end_sample(job.requests[index], sample)

    def _cancel(self, job: Job) -> None:
        known = [request for request in job.requests if request.id in self._jobs]
        for request in known:
            self._scheduler.cancel(request)
            self._forget(request)
        with self._lock:
            self._counts["cancelled"] += bool(known)

    def _end_sample(self, request: Request, sample: int) -> None:
        if request.id in self._jobs and self._scheduler.cancel_sample(request, sample):
            self._sample_ended(request)

    def _deliver(self, event: Event) -> None:
        job = self._jobs.get(event.request.id)
        if job is None:
            return
        with self._lock:
            self._counts["generated_tokens"] += len(event.tokens)
            if event.request.id in job.waiting:
                job.waiting.discard(event.request.id)
                self._waiting -= 1
                self._counts["prompt_tokens"] += len(event.request.prompt)
        job.put(event)
        if event.finish_reason is not None:
            self._sample_ended(event.request)

    def _sample_ended(self, request: Request) -> None:
        self._unfinished[request.id] -= 1
        if not self._unfinished[request.id]:
            self._forget(request)

    def _forget(self, request: Request) -> None:
        self._jobs.pop(request.id, None)
        self._unfinished.pop(request.id, None)

    def _fail(self, problem: ProblemError) -> None:
        jobs = set(self._jobs.values())
        with self._lock:
            while not self._inbox.empty():
                message = self._inbox.get()
                if message is not _STOP and message[0] == "submit":
                    jobs.add(message[1])
            self._waiting = 0
            self._arrived.clear()
            for job in jobs:
                job.waiting.clear()
            self._counts["failed"] += len(jobs)
        for job in jobs:
            job.put(problem)
        self._jobs.clear()
        self._unfinished.clear()
        self._scheduler = self.engine.scheduler()
