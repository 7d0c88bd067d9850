import os
import signal
import threading

import pytest

from marin.data.workers import run_in_processes
from marin.errors import DataError


def test_run_in_processes_gives_every_result_once():
    found = list(run_in_processes(lambda value: (value * value, os.getpid()), range(20), 2))
    assert sorted((index, result[0]) for index, result in found) == [(i, i * i) for i in range(20)]
    assert os.getpid() not in {result[1] for _, result in found}


def test_run_in_processes_with_one_worker_or_one_item_stays_in_this_process():
    assert list(run_in_processes(lambda _: os.getpid(), [1, 2], 1)) == [(0, os.getpid()), (1, os.getpid())]
    assert list(run_in_processes(lambda _: os.getpid(), [1], 4)) == [(0, os.getpid())]
    assert list(run_in_processes(lambda _: os.getpid(), [], 4)) == []


def test_run_in_processes_passes_on_an_error_with_its_traceback():
    def fail(value):
        if value == 3:
            raise DataError("number three")

    with pytest.raises(DataError, match="number three") as caught:
        list(run_in_processes(fail, range(6), 2))
    assert "in fail" in caught.value.__notes__[0]


class Stubborn(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} {two}")


def test_run_in_processes_passes_on_an_error_that_cannot_be_pickled():
    def fail(value):
        raise Stubborn("left", "right")

    with pytest.raises(RuntimeError, match="left right"):
        list(run_in_processes(fail, range(2), 2))


@pytest.mark.timeout(60)
def test_run_in_processes_says_that_an_item_cannot_be_pickled():
    with pytest.raises(TypeError, match="pickle"):
        list(run_in_processes(str, [threading.Lock(), threading.Lock()], 2))


def test_run_in_processes_says_that_a_worker_was_killed():
    with pytest.raises(DataError, match=r"killed by SIGKILL.*num_workers"):
        list(run_in_processes(lambda value: os.kill(os.getpid(), signal.SIGKILL), range(2), 2))


def test_run_in_processes_keeps_what_is_printed_out_of_its_answers():
    def chatty(value):
        print("words " * 1000, flush=True)
        os.write(1, b"more words\n")
        return value

    assert sorted(run_in_processes(chatty, range(3), 2)) == [(0, 0), (1, 1), (2, 2)]
