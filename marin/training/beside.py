"""Work in a thread beside the caller's: compiling leaves the interpreter idle, and small programs keep one core busy."""

import concurrent.futures
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def beside(name: str, function: Callable[..., T], *args: object) -> "concurrent.futures.Future[T]":
    """What `function` gives, or raises, once it has ended; a process that ends waits for it.

    Args:
        name: of the thread.
    """
    thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix=name)
    working = thread.submit(function, *args)
    thread.shutdown(wait=False)
    return working
