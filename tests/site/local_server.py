"""An app of ours on a free port of this machine, answered by a thread, for as long as a test needs it."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from starlette.types import ASGIApp

from marin.web.listen import bind, make_server, port_of


@contextlib.contextmanager
def answering(build: Callable[[int], ASGIApp]) -> Iterator[int]:
    """The port on which the app that `build` makes for it answers."""
    listener = bind(0)
    server = make_server(build(port_of(listener)))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server ended before it answered: its thread says why"
        time.sleep(0.01)
    try:
        yield port_of(listener)
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
