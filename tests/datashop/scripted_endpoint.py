"""A real HTTP server that grades documents by a script, with the faults that endpoints have, and a book of what it charges.

What a request costs is booked when the model has run, whether or not the answer arrives. `charged` counts that for each
idempotency key; an endpoint that honours the key charges for `len(charged)` answers, one that does not for their sum.
"""

import asyncio
import collections
import contextlib
import dataclasses
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any


@dataclasses.dataclass(frozen=True)
class Received:
    """A request. `number` counts all of them, `try_number` those with the same body; both begin at 0."""

    number: int
    try_number: int
    key: str
    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def message(self) -> str:
        return str(self.body["messages"][0]["content"])


@dataclasses.dataclass(frozen=True)
class Reply:
    """Args:
    text: the model's answer; None sends `raw` as it is.
    wait: seconds before the first byte.
    held: whether the first byte waits on, looked at every 10 ms after that.
    fault: "reset" closes hard instead of answering, "cut" ends in the middle, "drip" sends a byte every 50 ms,
        "hang" says nothing until the client goes.
    """

    text: str | None = None
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    raw: bytes = b"{}"
    wait: float = 0.0
    held: Callable[[], bool] = lambda: False
    fault: str | None = None
    has_usage: bool = True
    finish_reason: str = "stop"


Script = Callable[[Received], Reply]


def error(status: int, message: str = "no", code: str | None = None, **headers: str) -> Reply:
    raw = json.dumps({"error": {"message": message, "code": code}}).encode()
    return Reply(
        status=status, raw=raw, headers=tuple((name.replace("_", "-"), value) for name, value in headers.items())
    )


def grader(received: Received) -> Reply:
    """The number in `quality=3` of the message as the score."""
    found = re.search(r"quality=(\d)", received.message)
    return Reply(f"It is a text.\nFinal Score: {found[1] if found else 0}")


class ScriptedEndpoint:
    def __init__(self, script: Script):
        self.script = script
        self.received: list[Received] = []
        self.charged: collections.Counter[str] = collections.Counter()
        self.delivered: collections.Counter[str] = collections.Counter()
        self.most_in_flight = 0
        self._in_flight = 0
        self._tries: collections.Counter[str] = collections.Counter()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._one(reader, writer):
                    pass
        finally:
            writer.close() if writer.transport.get_write_buffer_size() == 0 else writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        key = headers.get("idempotency-key", "")
        received = Received(len(self.received), self._tries[str(body)], key, body, headers)
        self.received.append(received)
        self._tries[str(body)] += 1
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            reply = self.script(received)
            await asyncio.sleep(reply.wait)
            while reply.held():
                await asyncio.sleep(0.01)
            return await self._answer(received, reply, reader, writer)
        finally:
            self._in_flight -= 1

    async def _answer(
        self, received: Received, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        if reply.fault == "hang":
            await reader.read(1)
            return False
        if reply.text is not None or reply.status == 200:
            self.charged[received.key] += 1
        if reply.fault == "reset":
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.close()
            return False
        content = reply.raw if reply.text is None else self._completion(received, reply)
        lines = [f"HTTP/1.1 {reply.status} X", f"content-length: {len(content)}", "content-type: application/json"]
        lines += [f"{name}: {value}" for name, value in reply.headers]
        data = "\r\n".join([*lines, "", ""]).encode() + content
        if reply.fault == "cut":
            writer.write(data[: -len(content) // 2])
            await writer.drain()
            return False
        if reply.fault == "drip":
            for byte in data:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.05)
        else:
            writer.write(data)
            await writer.drain()
        self.delivered[received.key[:64]] += reply.text is not None
        return True

    def _completion(self, received: Received, reply: Reply) -> bytes:
        message = {"role": "assistant", "content": reply.text}
        completion = {"choices": [{"index": 0, "message": message, "finish_reason": reply.finish_reason}]}
        if reply.has_usage:
            completion["usage"] = {"prompt_tokens": len(received.message.split()), "completion_tokens": 8}  # type: ignore[assignment]
        return json.dumps(completion).encode()


@contextlib.contextmanager
def serving(script: Script = grader) -> Iterator[ScriptedEndpoint]:
    endpoint = ScriptedEndpoint(script)
    started = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def main() -> None:
        server = await asyncio.start_server(endpoint._serve, "127.0.0.1", 0, backlog=1000)
        endpoint.port = server.sockets[0].getsockname()[1]
        started.set()
        await stop.wait()
        server.close()
        connections = asyncio.all_tasks() - {asyncio.current_task()}
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        for _ in range(5):
            await asyncio.sleep(0)  # transports close in the loop's next turns

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),), daemon=True)
    thread.start()
    assert started.wait(20)
    try:
        yield endpoint
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.01)
