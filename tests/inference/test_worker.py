"""The thread between the server and an engine, where the engine fails and where too much is asked at once."""

import asyncio
import threading
from typing import Any

import pytest

from marin.inference.options import SamplingOptions
from marin.inference.scheduler import Request
from marin.inference.server.limits import Limits
from marin.inference.server.problems import ProblemError
from marin.inference.server.worker import Worker


class _FailingEngine:
    """Engine and scheduler in one; its work waits for `go`, then fails."""

    max_rows, max_length, num_running = 1, 8, 0

    def __init__(self) -> None:
        self.is_idle = True
        self.at_work, self.go = threading.Event(), threading.Event()

    def scheduler(self) -> "_FailingEngine":
        self.is_idle = True
        return self

    def submit(self, request: Request) -> None:
        self.is_idle = False

    def take_prompt(self) -> list[Any]:
        self.at_work.set()
        assert self.go.wait(60)
        raise ZeroDivisionError

    continue_samples = take_prompt


def _request() -> Request:
    return Request((1, 2), SamplingOptions(max_tokens=2), 1)


def test_worker_that_is_closed_while_its_engine_fails_ends() -> None:
    async def drive() -> None:
        engine: Any = _FailingEngine()
        worker = Worker(engine, Limits())
        job = worker.submit([_request()])
        assert await asyncio.to_thread(engine.at_work.wait, 30)
        closing = asyncio.create_task(asyncio.to_thread(worker.close, 60.0))
        while worker._inbox.empty():
            await asyncio.sleep(0.01)
        engine.go.set()
        with pytest.raises(ProblemError, match="stopping"):
            await job.next_event()
        await closing
        assert not worker.is_alive
        with pytest.raises(ProblemError, match="stopping"):
            worker.submit([_request()])

    asyncio.run(drive())


def test_all_are_told_that_the_server_stops_while_the_engine_is_still_busy() -> None:
    """As a server gives them two seconds, and a burst that compiles takes more."""

    async def drive() -> None:
        engine: Any = _FailingEngine()
        worker = Worker(engine, Limits())
        running = worker.submit([_request()])
        assert await asyncio.to_thread(engine.at_work.wait, 30)
        arrived = worker.submit([_request()])
        worker.stop_soon()
        for job in (running, arrived):
            with pytest.raises(ProblemError, match="stopping"):
                await asyncio.wait_for(job.next_event(), 10)
        engine.go.set()
        await asyncio.to_thread(worker.close, 60.0)
        assert not worker.is_alive

    asyncio.run(drive())


def test_more_prompts_than_may_wait_are_no_reason_to_come_back() -> None:
    async def drive() -> None:
        engine: Any = _FailingEngine()
        worker = Worker(engine, Limits(queue=2))
        with pytest.raises(ProblemError, match="send fewer at once") as refused:
            worker.submit([_request() for _ in range(3)])
        assert (refused.value.status, refused.value.param) == (400, "prompt")
        assert worker.stats()["refused"] == 3 and worker.stats()["waiting_requests"] == 0
        worker.close()

    asyncio.run(drive())


def test_clients_that_go_away_leave_the_queue_while_the_engine_is_busy() -> None:
    """As it is for seconds when it compiles for a longer prompt."""

    async def drive() -> None:
        engine: Any = _FailingEngine()
        worker = Worker(engine, Limits(queue=2))
        running = worker.submit([_request()])
        assert await asyncio.to_thread(engine.at_work.wait, 30)
        gone = worker.submit([_request()])
        with pytest.raises(ProblemError, match="wait already"):
            worker.submit([_request()])
        worker.cancel(gone)
        assert worker.stats()["waiting_requests"] == 1
        left = worker.submit([_request()])
        engine.go.set()
        for job in (running, left):
            with pytest.raises(ProblemError, match="the engine failed"):
                await job.next_event()
        assert worker.stats()["waiting_requests"] == 0
        worker.close()

    asyncio.run(drive())
