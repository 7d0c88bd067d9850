import os
import signal
import threading
import time

import pytest

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
    assert threading.active_count() == 1 or "prefetch" not in {thread.name for thread in threading.enumerate()}


def test_prefetcher_measures_the_waiting_for_a_slow_maker_and_none_for_a_fast_one():
    with Prefetcher(lambda key: time.sleep(0.05), range(6)) as items:
        slow = sum(items.take().waited for _ in range(6))
    assert 0.2 < slow < 3
    with Prefetcher(lambda key: key, range(6)) as items:
        time.sleep(0.2)
        assert items.take().waited < 0.05


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
    deadline = time.monotonic() + 5
    while "prefetch" in {thread.name for thread in threading.enumerate()}:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_prefetcher_waiting_for_an_item_that_never_comes_is_interrupted_by_ctrl_c():
    release = threading.Event()
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        with Prefetcher(lambda key: release.wait(30), range(5)) as items:
            items.take()
    assert time.monotonic() - begin < 10
    release.set()
