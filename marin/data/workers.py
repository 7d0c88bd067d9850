"""One function over many items in parallel processes of this machine, or of a cluster (`marin.data.ray_workers`).

A worker is a fresh interpreter that gets the function pickled by value, so functions of the script that was started
work, and that script is not imported again. It takes one item at a time and answers with the result or the exception.
Nothing is retried. A worker ends when its pipe closes, and on Linux the kernel kills it when its parent dies, so what
the function writes must survive being cut off at any instant. What the function prints goes to the standard error.
"""

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from marin.children import child_environment, end_with_parent
from marin.data import ray_workers
from marin.errors import DataError
from marin.hardware import num_processors

T = TypeVar("T")
R = TypeVar("R")

_WORKER = "from marin.data.workers import main; main()"


def run_in_processes(function: Callable[[T], R], items: Sequence[T], num_workers: int = 0) -> Iterator[tuple[int, R]]:
    """`(index, function(items[index]))` for every item, in the order in which they finish.

    Args:
        function: must be picklable by cloudpickle, as must the items and the results.
        num_workers: at most one worker an item is started; 0 is one a processor. With one, it all happens in this process.
    Raises:
        DataError: a worker was killed.
        Exception: what the function raised first; the other workers are killed, and their traceback is a note on it.
    """
    if ray_workers.is_on_cluster() and num_workers != 1 and len(items) > 1:
        yield from ray_workers.run_on_cluster(function, items, num_workers)
        return
    num_workers = min(num_workers or num_processors(), len(items))
    if num_workers <= 1:
        yield from ((index, function(item)) for index, item in enumerate(items))
        return
    import cloudpickle

    todo: queue.SimpleQueue[tuple[int, T]] = queue.SimpleQueue()
    for entry in enumerate(items):
        todo.put(entry)
    done: queue.SimpleQueue[tuple[int, R | BaseException]] = queue.SimpleQueue()
    program = pickle.dumps((sys.path, cloudpickle.dumps(function)))
    workers = [_Worker(program) for _ in range(num_workers)]
    threads = [threading.Thread(target=worker.serve, args=(todo, done), daemon=True) for worker in workers]
    try:
        for thread in threads:
            thread.start()
        for _ in items:
            index, result = done.get()
            if isinstance(result, BaseException):
                raise result
            yield index, result
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """The parent's side of one worker."""

    def __init__(self, program: bytes):
        self._program = program
        # The Rust libraries would start a thread a processor in each worker.
        environment = child_environment(RAYON_NUM_THREADS="1")
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def serve(self, todo: "queue.SimpleQueue[tuple[int, Any]]", done: "queue.SimpleQueue[tuple[int, Any]]") -> None:
        """Hands items to the process until there are none."""
        assert self._process.stdin is not None and self._process.stdout is not None
        # The connections close their descriptors themselves, so they get their own.
        tasks = Connection(os.dup(self._process.stdin.fileno()), readable=False)
        answers = Connection(os.dup(self._process.stdout.fileno()), writable=False)
        self._process.stdin.close()
        self._process.stdout.close()
        import cloudpickle

        index = -1
        with tasks, answers:
            try:
                tasks.send_bytes(self._program)
                while True:
                    index, item = todo.get_nowait()
                    tasks.send_bytes(cloudpickle.dumps(item))
                    done.put((index, pickle.loads(answers.recv_bytes())))
            except queue.Empty:
                return
            except (EOFError, OSError):
                done.put((index, DataError(_how_it_ended(self._process.wait()))))
            except Exception as error:  # an item or an answer that cannot be pickled: nobody may wait for it
                done.put((index, error))

    def stop(self) -> None:
        """Ends the process, whatever it does."""
        self._process.kill()
        self._process.wait()


def _how_it_ended(status: int) -> str:
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
    return (
        f"a worker process {how}: if the machine ran out of memory, use fewer workers (`num_workers`); "
        f"run the same command again to go on"
    )


def main() -> None:
    """What a worker does; see the module's docstring."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends its workers
    end_with_parent(signal.SIGKILL)
    tasks, answers = Connection(os.dup(0), writable=False), Connection(os.dup(1), readable=False)
    os.dup2(2, 1)
    try:
        search_path, program = pickle.loads(tasks.recv_bytes())
        sys.path[:] = search_path
        function: Any = None
        while True:
            item = tasks.recv_bytes()
            try:
                if function is None:
                    function = pickle.loads(program)
                answer = pickle.dumps(function(pickle.loads(item)))
            except BaseException as error:
                answer = pickled_error(error)
            answers.send_bytes(answer)
    except (EOFError, OSError):
        return


def pickled_error(error: BaseException) -> bytes:
    """An exception with its traceback as a note, as it can cross to another process."""
    error.add_note("in a worker process:\n" + "".join(traceback.format_exception(error)))
    try:
        answer = pickle.dumps(error)
        pickle.loads(answer)
        return answer
    except Exception:  # an exception class whose constructor and arguments disagree
        return pickle.dumps(RuntimeError("".join(traceback.format_exception(error))))
