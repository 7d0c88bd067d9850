"""The server's clients that leave, wait too long, or do not read: what is said to them, and that their rows are free again."""

import asyncio
import json
import socket
import threading
import urllib.parse

import pytest
from chat_server import NAME, endless, serving

from marin.inference.server import Limits
from marin.inference.server.app import _Stream

openai = pytest.importorskip("openai", reason="the Python package openai is not installed")


def client_of(served):
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


def test_a_client_that_goes_away_frees_its_rows(chat_tokenizer, chat_model):
    # Its answer may not end by itself before it goes, however busy the machine.
    limits = Limits(seconds=600.0)
    with serving(chat_tokenizer, endless(chat_model), max_length=100_000, max_rows=2, limits=limits) as served:
        for stream in (True, False):
            asked = {"model": NAME, "prompt": "the", "max_tokens": 90_000, "n": 2, "temperature": 0, "stream": stream}
            body = json.dumps(asked).encode()
            address = urllib.parse.urlsplit(served.url)
            raw = socket.create_connection((address.hostname, address.port))
            head = f"POST /v1/completions HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            raw.sendall(head.encode() + body)
            before = served.worker.stats()["cancelled"]
            served.until(lambda s: s["running_samples"] == 2)
            raw.close()
            served.until(lambda s, before=before: s["running_samples"] == 0 and s["cancelled"] == before + 1)
        with client_of(served) as client:
            assert client.completions.create(model=NAME, prompt="a", max_tokens=2).usage.completion_tokens <= 2


def test_a_full_queue_is_said_so(chat_tokenizer, chat_model):
    limits = Limits(
        queue=1, seconds=600.0
    )  # no request may end by itself before the third is asked, however busy the machine
    seen, errors = threading.Event(), []
    with serving(chat_tokenizer, endless(chat_model), max_length=100_000, max_rows=1, limits=limits) as served:

        def ask():
            with client_of(served) as client:
                try:
                    with client.completions.create(
                        model=NAME, prompt="the", max_tokens=90_000, temperature=0, stream=True
                    ) as asked:
                        for _ in asked:
                            if seen.is_set():
                                return
                    errors.append("ended before it was left")
                except openai.APIError as error:
                    errors.append(str(error))

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for waiting, thread in enumerate(threads):
            thread.start()
            served.until(lambda s, waiting=waiting: (s["running_samples"], s["waiting_requests"]) == (1, waiting))
        with client_of(served) as client, pytest.raises(openai.RateLimitError, match="wait already"):
            client.completions.create(model=NAME, prompt="a", max_tokens=1)
        seen.set()
        for thread in threads:
            thread.join(60)
        assert not errors
        served.until(lambda s: s["running_samples"] == 0 and s["waiting_requests"] == 0)


def test_a_first_token_is_there_before_the_burst_that_follows_it(chat_tokenizer, chat_model, monkeypatch):
    """Which may compile, and take long: the request then waits no more, and the queue has room for another."""
    going_on = threading.Event()
    with serving(chat_tokenizer, endless(chat_model), max_rows=1, limits=Limits(queue=1)) as served:
        programs = served.engine.programs
        burst = programs.burst

        def late(*given):
            assert going_on.wait(60)
            return burst(*given)

        monkeypatch.setattr(programs, "burst", late)
        with client_of(served) as client:
            asked = client.completions.create(model=NAME, prompt="the", max_tokens=9, temperature=0, stream=True)
            try:
                stats = served.until(lambda s: s["generated_tokens"] == 1)
                assert (stats["running_samples"], stats["waiting_requests"]) == (1, 0)
            finally:
                going_on.set()
            assert [piece.choices[0].finish_reason for piece in asked][-1] == "length"


def test_a_slow_answer_is_said_so_whether_it_runs_or_waits(chat_tokenizer, chat_model):
    limits = Limits(queue=2, seconds=3.0)
    errors = []
    with serving(chat_tokenizer, endless(chat_model), max_length=100_000, max_rows=1, limits=limits) as served:

        def ask():
            with client_of(served) as client:
                try:
                    for _ in client.completions.create(
                        model=NAME, prompt="the", max_tokens=90_000, temperature=0, stream=True
                    ):
                        pass
                except openai.APIError as error:
                    errors.append(str(error))

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(errors) == 2 and all("longer than 3 s" in error for error in errors)
        served.until(lambda s: s["running_samples"] == 0 and s["waiting_requests"] == 0)


def test_a_client_that_does_not_read_is_broken_off():
    """Its time is over while a piece of the answer waits to be sent, where nothing else would look at the clock."""
    closed = []

    class Given:
        def close(self):
            closed.append(True)

    async def pieces():
        yield "data: 1\n\n"

    async def send(message):
        if message.get("body"):
            await asyncio.sleep(3600)

    async def receive():
        await asyncio.sleep(3600)

    async def drive():
        scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
        await asyncio.wait_for(_Stream(pieces(), Given(), 0.2)(scope, receive, send), 20)

    asyncio.run(drive())
    assert closed == [True]
