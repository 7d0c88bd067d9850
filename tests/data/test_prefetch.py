import os
import signal
import threading
import time
import types

import pytest

from marin.data import prefetch
from marin.data.prefetch import Prefetcher


def test_prefetcher_gives_items_in_order_and_stays_within_its_depth():
    made: list[int] = []

    def make(key):
        made.append(key)
        return key * 10

    with Prefetcher(make, range(100), depth=3) as items:
        for key in range(50):
            assert items.take().item == key * 10
            assert len(made) <= key + 1 + 3 + 1  # taken, in the queue, in the making
    assert "prefetch" not in {thread.name for thread in threading.enumerate()}


def test_prefetcher_measures_the_waiting_for_a_slow_maker_and_none_for_a_fast_one(monkeypatch):
    clock, given = [0.0], threading.Event()
    monkeypatch.setattr(prefetch, "time", types.SimpleNamespace(perf_counter=lambda: clock[0]))  # no machine's pauses

    def make_slowly(key):
        given.wait(60)  # until it is waited for
        given.clear()
        clock[0] += 0.05

    with Prefetcher(make_slowly, range(6)) as items:
        get = items._queue.get

        def asked():
            given.set()
            return get()

        monkeypatch.setattr(items._queue, "get", asked)
        assert [items.take().waited for _ in range(6)] == pytest.approx([0.05] * 6)
    made = threading.Event()

    def make_ahead(key):
        clock[0] += 1.0
        if key == 2:
            made.set()

    with Prefetcher(make_ahead, range(3)) as items:
        assert made.wait(60)
        assert [items.take().waited for _ in range(2)] == [0, 0]


def test_prefetcher_raises_the_error_of_an_item_when_that_item_is_taken():
    def make(key):
        if key == 2:
            raise ValueError("item 2 is damaged")
        return key

    with Prefetcher(make, range(5)) as items:
        assert [items.take().item, items.take().item] == [0, 1]
        with pytest.raises(ValueError, match="item 2 is damaged"):
            items.take()


def test_prefetcher_left_early_stops_its_thread():
    with pytest.raises(RuntimeError, match="the loop failed"):
        with Prefetcher(lambda key: key, range(10**9)) as items:
            items.take()
            raise RuntimeError("the loop failed")
    deadline = time.monotonic() + 60
    while "prefetch" in {thread.name for thread in threading.enumerate()}:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_prefetcher_waiting_for_an_item_that_never_comes_is_interrupted_by_ctrl_c():
    release, taking = threading.Event(), threading.Event()

    def interrupt(key):
        taking.wait()
        time.sleep(0.2)  # it waits by then
        os.kill(os.getpid(), signal.SIGINT)
        release.wait(250)

    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        with Prefetcher(interrupt, range(5)) as items:
            taking.set()
            items.take()
    release.set()
    assert time.monotonic() - begin < 60
