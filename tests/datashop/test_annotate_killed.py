"""Annotations that are killed, stopped, or run twice at one time: what is paid for once is not paid for again."""

import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
import scripted_endpoint
from scripted_endpoint import Received, Reply, ScriptedEndpoint, grader, serving

from marin.datashop.annotate import AnnotateConfig, annotate

from .annotated import PROMPT, check_one_right_label_each, config_for, summary_of

CHILD = """
import sys
from marin.datashop.annotate import AnnotateConfig, annotate
from marin.errors import clean_exit
sample, url, cache, output = sys.argv[1:]
with clean_exit():
    annotate(AnnotateConfig(sample=sample, prompt={prompt!r}, model="grader", endpoint=url, cache=cache, output_path=output, concurrency=8))
"""


def start_child(config: AnnotateConfig) -> "subprocess.Popen[bytes]":
    arguments = [str(config.sample), str(config.endpoint), str(config.cache), config.output_path]
    command = [sys.executable, "-c", CHILD.format(prompt=PROMPT), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_kill_and_second_run_pay_for_nothing_twice_but_what_was_under_way(sample: str, tmp_path: pathlib.Path) -> None:
    killed = threading.Event()

    def slow(received: Received) -> Reply:
        # The rest is answered after the kill, so that the child cannot end before it.
        return Reply(grader(received).text, wait=0.1, held=lambda: received.number >= 24 and not killed.is_set())

    with serving(slow) as endpoint:
        config = config_for(endpoint, sample, tmp_path)
        child = start_child(config)
        scripted_endpoint.until(lambda: len(endpoint.delivered) >= 20)
        child.kill()
        child.communicate()
        killed.set()
        assert child.returncode == -signal.SIGKILL
        annotate(config)
    check_one_right_label_each(config)
    perhaps = summary_of(config)["perhaps_paid"]["requests"]
    twice = [key for key, count in endpoint.charged.items() if count > 1]
    assert len(twice) <= perhaps <= 8  # the bound that is stated is true, and no more than were in flight
    assert len(endpoint.charged) == 60  # what an endpoint charges that honours the idempotency key
    assert sum(endpoint.charged.values()) == 60 + len(twice)


def run_and_kill(config: AnnotateConfig, endpoint: ScriptedEndpoint, chance: random.Random) -> None:
    child = start_child(config)
    limit = len(endpoint.received) + chance.randrange(1, 12)
    scripted_endpoint.until(lambda: len(endpoint.received) >= limit or child.poll() is not None)
    time.sleep(chance.uniform(0, 0.1))
    child.kill()
    child.communicate()


@pytest.mark.slow
def test_many_kills_at_random_points_pay_for_nothing_twice_but_what_was_under_way(
    sample: str, tmp_path: pathlib.Path
) -> None:
    chance = random.Random(0)
    with serving(lambda received: Reply(grader(received).text, wait=chance.uniform(0, 0.2))) as endpoint:
        config = config_for(endpoint, sample, tmp_path)
        for _ in range(8):
            run_and_kill(config, endpoint, chance)
        annotate(config)
    check_one_right_label_each(config)
    extra = sum(endpoint.charged.values()) - len(endpoint.charged)
    assert len(endpoint.charged) == 60 and extra <= summary_of(config)["perhaps_paid"]["requests"] <= 8 * 8


def test_second_run_at_the_same_time_waits_and_pays_nothing(sample: str, tmp_path: pathlib.Path) -> None:
    with serving(lambda received: Reply(grader(received).text, wait=0.05)) as endpoint:
        config = config_for(endpoint, sample, tmp_path)
        child = start_child(config)
        scripted_endpoint.until(lambda: len(endpoint.received) >= 5)
        other = config_for(endpoint, sample, tmp_path, output_path=str(tmp_path / "other"))
        annotate(other)
        assert child.communicate(timeout=60)[0] is not None and child.returncode == 0
    check_one_right_label_each(config)
    check_one_right_label_each(other)
    assert len(endpoint.received) == 60


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stop_by_signal_keeps_what_is_under_way(
    number: signal.Signals, status: int, sample: str, tmp_path: pathlib.Path
) -> None:
    signalled = threading.Event()

    def slow(received: Received) -> Reply:
        return Reply(grader(received).text, wait=0.3, held=lambda: received.number >= 16 and not signalled.is_set())

    with serving(slow) as endpoint:
        config = config_for(endpoint, sample, tmp_path)
        child = start_child(config)
        scripted_endpoint.until(lambda: len(endpoint.delivered) >= 10)
        child.send_signal(number)
        signalled.set()
        said = child.communicate(timeout=60)[0].decode()
        assert child.returncode == status, said
        assert "waiting up to 10 s" in said and "run the same command again" in said and "Traceback" not in said
        before = len(endpoint.received)
        assert before < 60
        annotate(config)
    check_one_right_label_each(config)
    assert len(endpoint.received) == 60 and set(endpoint.charged.values()) == {1}
