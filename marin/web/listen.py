"""Listening: a socket that is bound before anything is announced, and a server on it until it is stopped.

Binding comes first because of its errors, and because the port, where any free one was asked for, is part of the names that
the guard accepts.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from marin.errors import ConfigError, Terminated
from marin.web.guard import loopback_hosts

HOST = "127.0.0.1"
_BACKLOG = 512
_SECONDS_FOR_REQUEST = 30.0  # from a connection to the end of its first request's headers


def bind(port: int, host: str = HOST) -> socket.socket:
    """A listening socket; port 0 is any free one.

    Raises:
        ConfigError: the port is no port, is in use, or may not be used.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port is {port}: use a number from 0 to 65535")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} on {host} is in use, perhaps by an earlier start of the same command: open "
                f"http://{host}:{port}, or choose another port with --port N (--port 0 takes any free one)"
            ) from None
        raise ConfigError(
            f"{host}:{port} cannot be used ({error.strerror}): choose a port above 1023 with --port N (--port 0 takes any "
            f"free one), on an address of this machine"
        ) from None
    return listener


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def address_of(listener: socket.socket) -> str:
    """What a person opens."""
    host, port = listener.getsockname()[:2]
    return f"http://{host}:{port}"


def hosts_of(listener: socket.socket) -> frozenset[str] | None:
    """The `Host` headers under which its server answers; None, which is any, where others can reach it as well.

    Any address that begins with 127 is this machine's own, and the one that was printed is among the names.
    """
    host, port = listener.getsockname()[:2]
    return loopback_hosts(port, host) if host.startswith("127.") else None


class _Server(uvicorn.Server):
    """Tells the app that it is asked to stop, while answers have the time of grace to end."""

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None] | None) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._on_stop is not None:
            self._on_stop()
        super().handle_exit(sig, frame)


class _Protocol(AutoHTTPProtocol):  # type: ignore[misc]
    """Closes a connection on which no request has come, so that those who say nothing take no place for good."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.loop.call_later(_SECONDS_FOR_REQUEST, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()


def make_server(app: ASGIApp, on_stop: Callable[[], None] | None = None) -> uvicorn.Server:
    """The server for an app; `run(sockets=[listener])` answers until Ctrl-C or SIGTERM.

    Args:
        on_stop: called by the signal's handler, so that what the app has under way can end within two seconds.
    """
    config = uvicorn.Config(
        app,
        http=_Protocol,
        loop="asyncio",  # uvloop, where it happens to be installed, forks this process to start another
        access_log=False,
        log_level=logging.WARNING,
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    return _Server(config, on_stop)


def answer_until_stopped(app: ASGIApp, listener: socket.socket, on_stop: Callable[[], None] | None = None) -> None:
    """Serves until Ctrl-C or SIGTERM, then closes the socket; `on_stop` as of `make_server`."""
    try:
        make_server(app, on_stop).run(sockets=[listener])
    except (KeyboardInterrupt, Terminated):
        pass
    finally:
        listener.close()
