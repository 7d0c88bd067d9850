"""Connections to our servers, as they take a place whether or not anything is asked."""

import asyncio
import contextlib
import socket
import time

import pytest
from local_server import answering
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route


async def _slow(request: Request) -> PlainTextResponse:
    await asyncio.sleep(1.0)
    return PlainTextResponse("late")


def _asked(port: int) -> bytes:
    """The whole answer; nothing where the connection is closed before it."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as asking, contextlib.suppress(ConnectionError):
        asking.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        while part := asking.recv(4096):
            answer += part
    return answer


def test_connection_on_which_nothing_is_asked_is_closed_and_a_slow_answer_is_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("marin.web.listen._SECONDS_FOR_REQUEST", 0.3)
    app = Starlette(routes=[Route("/", _slow)])
    with answering(lambda port: app) as port:
        silent = socket.create_connection(("127.0.0.1", port), timeout=20)
        half = socket.create_connection(("127.0.0.1", port), timeout=20)
        half.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n")
        begun = time.monotonic()
        for connection in (silent, half):
            assert connection.recv(1) == b""
        assert time.monotonic() - begun < 15
        answer, tries = b"", 0
        while not answer and tries < 10:  # a busy machine may be late with the request itself
            answer, tries = _asked(port), tries + 1
        assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"late")
        for connection in (silent, half):
            connection.close()
