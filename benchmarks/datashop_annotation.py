"""What the annotation client costs over the endpoint's own time, with 200 requests in flight.

    python -m benchmarks.datashop_annotation                    # a minute
    python -m benchmarks.datashop_annotation --seconds 8 --documents 1000

The endpoint is a process of its own that keeps each request for a time, as a large model does, and measures how long it
really took, from the request's last byte to the answer's first. Its own time is what these would take, in this order, in 200
places of which each takes the next one at once.
The client does all that an annotation does: it reads documents of 2 KB, notes each request, flushes each answer to the disk and
writes the labels. Prints one JSON line: name, value, unit, n (repetitions), context.
"""

import argparse
import asyncio
import contextlib
import heapq
import json
import os
import pathlib
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import ClassVar

from benchmarks.data import print_figure
from marin.data.documents import Document
from marin.data.shards import write_shards
from marin.datashop.annotate import AnnotateConfig, annotate
from marin.flags import HelpFormatter

IN_FLIGHT = 200
_SPREAD = 0.25  # answers differ in length
_PROMPT = "Grade this page from 0 to 5.\n\n{example}\n\nEnd with Final Score: and the number."


class _Slow(asyncio.Protocol):
    """Answers each request after a time. `took` holds how long each one really took."""

    took: ClassVar[list[float]] = []
    seconds: ClassVar[float] = 0.0
    answer: ClassVar[bytes] = b""
    chance: ClassVar[random.Random] = random.Random(7)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._data = bytearray()

    def data_received(self, data: bytes) -> None:
        self._data += data
        head = self._data.find(b"\r\n\r\n")
        if head < 0:
            return
        length = int(bytes(self._data[:head]).lower().split(b"content-length:")[1].split(b"\r\n")[0])
        if len(self._data) < head + 4 + length:
            return
        first, self._data = bytes(self._data[: self._data.find(b" ", 5)]), bytearray()
        if b"/took" in first:
            self._send(json.dumps(self.took).encode())
            self.took.clear()
            return
        number = len(self.took)
        self.took.append(0.0)
        seconds = self.seconds * self.chance.uniform(1 - _SPREAD, 1 + _SPREAD)
        asyncio.get_running_loop().call_later(seconds, self._reply, number, time.perf_counter())

    def _reply(self, number: int, arrived: float) -> None:
        self._send(self.answer)
        self.took[number] = time.perf_counter() - arrived

    def _send(self, body: bytes) -> None:
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        assert isinstance(self._transport, asyncio.WriteTransport)
        self._transport.write(head.encode() + body)


async def serve(seconds: float) -> None:
    """The endpoint; prints its port and runs until it is killed."""
    message = {"role": "assistant", "content": "It explains a thing. " * 40 + "Final Score: 3"}
    usage = {"prompt_tokens": 700, "completion_tokens": 200}
    completion = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}
    _Slow.seconds, _Slow.answer = seconds, json.dumps(completion).encode()
    server = await asyncio.get_running_loop().create_server(_Slow, "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def measure(port: int, sample: str, num_documents: int, folder: str) -> tuple[float, float, float]:
    """Seconds of an annotation, the endpoint's own seconds in it, and processor seconds of this process."""
    import urllib.request

    config = AnnotateConfig(
        sample=sample,
        prompt=_PROMPT,
        model="slow",
        endpoint=f"http://127.0.0.1:{port}/v1",
        concurrency=IN_FLIGHT,
        cache=folder + "/cache",
        output_path=folder + "/labels",
    )
    before = _processor_seconds()
    start = time.perf_counter()
    annotate(config)
    wall = time.perf_counter() - start
    spent = _processor_seconds() - before
    request = urllib.request.Request(f"http://127.0.0.1:{port}/took", data=b"{}")
    with urllib.request.urlopen(request) as response:
        took = json.load(response)
    assert len(took) == num_documents, len(took)
    return wall, _own_time(took), spent


def _own_time(took: list[float]) -> float:
    """When the last of the requests would end."""
    places = [0.0] * IN_FLIGHT
    for seconds in took:
        heapq.heapreplace(places, places[0] + seconds)
    return max(places)


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="what the endpoint takes for a request, on the average"
    )
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        asyncio.run(serve(args.seconds))
        return
    command = [sys.executable, "-m", "benchmarks.datashop_annotation", "--serve", "--seconds", str(args.seconds)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=pathlib.Path(__file__).parents[1])
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        found = []
        # What the annotation says of its progress stands beside the figures, not among them.
        with (
            tempfile.TemporaryDirectory(prefix="marin-benchmark-") as folder,
            contextlib.redirect_stdout(sys.stderr),
        ):
            documents = [
                Document(str(i), f"Page {i}. " + "Some words of text. " * 100, "made") for i in range(args.documents)
            ]
            write_shards(folder + "/sample", documents, stage="made", settings={})
            for repetition in range(args.repetitions):
                found.append(measure(port, folder + "/sample", args.documents, f"{folder}/{repetition}"))
    finally:
        server.kill()
        server.wait()
    overheads = [wall / own - 1 for wall, own, _ in found]
    per_document = statistics.median(spent for *_, spent in found) / args.documents
    print_figure(
        "annotation_overhead", 100 * statistics.median(overheads), "% over the endpoint's own time", args.repetitions,
        target="<= 5", in_flight=IN_FLIGHT, documents=args.documents, endpoint_seconds=args.seconds,
        all=[round(100 * value, 2) for value in overheads], processor_ms_per_document=round(1000 * per_document, 3),
        load=os.getloadavg()[0], machine=platform.processor() or platform.machine(),
    )  # fmt: skip


if __name__ == "__main__":
    main()
