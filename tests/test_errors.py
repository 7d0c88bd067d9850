"""How entry points end: one message and a status that says why."""

import asyncio
import os
import pickle
import signal

import pytest

from marin import errors
from marin.errors import ConfigError, Terminated, clean_exit


@pytest.fixture(autouse=True)
def _not_stopped(monkeypatch):
    """As the process of the tests goes on after a stop."""
    monkeypatch.setattr(errors, "_stopped_with", None)


def stopped_as(error: Exception) -> None:
    """A library's work in the middle of which SIGTERM comes, and which then fails in its own way."""
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    finally:
        raise error


def test_error_of_a_library_that_was_stopped_is_the_stop(capsys):
    with pytest.raises(SystemExit) as ended, clean_exit():
        stopped_as(ValueError("the event loop was left"))
    assert ended.value.code == 143
    assert capsys.readouterr().err == "\nterminated; run the same command again to continue\n"


def test_a_stop_within_the_event_loop_of_a_library_is_the_stop(capsys):
    async def work():
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.2)

    with pytest.raises(SystemExit) as ended, clean_exit():
        asyncio.run(work())
    assert ended.value.code == 143
    assert capsys.readouterr().err == "\nterminated; run the same command again to continue\n"


def test_a_stop_can_go_from_one_process_to_another():
    assert pickle.loads(pickle.dumps(Terminated())).code == 143


def test_error_of_ours_that_came_of_the_stop_is_the_stop():
    with pytest.raises(SystemExit) as ended, clean_exit():
        stopped_as(ConfigError("half-read"))
    assert ended.value.code == 143


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (ConfigError("`rate` is -1: use more"), 2, "error: `rate` is -1: use more\n"),
        (KeyboardInterrupt(), 130, "\ninterrupted; run the same command again to continue\n"),
    ],
)
def test_error_that_a_person_can_act_on_is_one_message(error, status, said, capsys):
    with pytest.raises(SystemExit) as ended, clean_exit():
        raise error
    assert (ended.value.code, capsys.readouterr().err) == (status, said)


@pytest.mark.parametrize(("error", "said"), [(KeyboardInterrupt(), "interrupted"), (Terminated(), "terminated")])
def test_a_command_that_begins_anew_does_not_promise_to_continue(error, said, capsys):
    with pytest.raises(SystemExit), clean_exit("run the same command again"):
        raise error
    assert capsys.readouterr().err == f"\n{said}; run the same command again\n"


def test_our_own_bug_keeps_its_traceback_and_the_handler_is_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError), clean_exit():
        print(1 / 0)
    assert signal.getsignal(signal.SIGTERM) is before
