"""A datashop over a folder of the test's own, with a server, a client that has the key, and a runner that does as it is told."""

import contextlib
import http.client
import json
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

from local_server import answering

from marin.site.datashop.app import build_app
from marin.site.datashop.shop import Shop, open_shop

RUNNER = pathlib.Path(__file__).with_name("datashop_runner.py")
Answer = tuple[int, dict[str, str], bytes]


class Client:
    """Asks as a browser would, but for what a test changes."""

    def __init__(self, shop: Shop, port: int, store: pathlib.Path) -> None:
        self.shop, self.port, self.store = shop, port, store
        self.url = f"http://127.0.0.1:{port}"
        self.cookie = f"marin_datashop_{port}={shop.access.key}"

    @property
    def entry(self) -> str:
        return f"{self.url}/?key={self.shop.access.key}"

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        own = {"Cookie": self.cookie, "Host": f"127.0.0.1:{self.port}"} | headers
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body, {name: value for name, value in own.items() if value})
        with contextlib.closing(connection):
            response = connection.getresponse()
            return response.status, {key.lower(): value for key, value in response.getheaders()}, response.read()

    def get(self, path: str) -> str:
        status, _, body = self.ask("GET", path)
        assert status == 200, (path, status, body[:300])
        return body.decode()

    def post(self, path: str, **fields: Any) -> Answer:
        form = {"token": self.shop.access.token} | fields
        return self.ask(
            "POST", path, urlencode(form, doseq=True).encode(), **{"Content-Type": "application/x-www-form-urlencoded"}
        )

    def upload(self, name: str, content: bytes) -> dict[str, Any]:
        status, _, body = self.ask(
            "POST", f"/uploads?{urlencode({'name': name})}", content, **{"X-Token": self.shop.access.token}
        )
        found: dict[str, Any] = json.loads(body)
        assert (status == 200) == ("id" in found), (status, body)
        return found

    def go(self, *stages: str) -> None:
        """Lets these stages of the runner end."""
        for stage in stages:
            (self.store / f"go-{stage}").touch()

    def until(self, condition: Callable[[], Any], seconds: float = 60) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := condition():
                return found
            time.sleep(0.05)
        raise AssertionError(f"not within {seconds} s")


@contextlib.contextmanager
def shop_served(
    folder: pathlib.Path, data: tuple[str, ...] = (), command: tuple[str, ...] | None = None
) -> Iterator[Client]:
    """A server over the folder; runs that it started are killed at the end.

    Args:
        command: see `Runs`; None is the runner of the tests.
    """
    command = (sys.executable, str(RUNNER)) if command is None else command
    store = folder / "store"
    store.parent.mkdir(exist_ok=True)
    shops: list[Shop] = []

    def build(port: int) -> Any:
        shops.append(open_shop(str(store), data, port, command))
        return build_app(shops[0], port)

    with answering(build) as port:
        try:
            yield Client(shops[0], port, shops[0].runs.folder.parents[1])
        finally:
            for run in shops[0].runs.all():
                shops[0].runs.stop(run, at_once=True)
                while (found := shops[0].runs.get(run.id)) is not None and found.is_alive:
                    time.sleep(0.01)


def rows(count: int, text: str = "a document about matrices") -> bytes:
    return b"".join(json.dumps({"text": f"{text} {number}"}).encode() + b"\n" for number in range(count))
