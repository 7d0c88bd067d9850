"""Kills a run with `--max_concurrent 2`, or one of the processes that its steps run in, at a random moment.

    python tests/torture/crash_children.py DIRECTORY --points 60 --seed 7

A point starts the graph of crash_matrix.py, waits a random while, and kills either the run, one of its children, or all of
them at once; half of the points do so twice. The next run then must find what crash_matrix.py asks for; and a child whose
run was killed must be gone by then or leave the step to the next run.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Iterator

import psutil
from crash_matrix import Fault, Place, Run, main


class ChildrenPlace(Place):
    """Runs with children; `fault.at` is the moment of the kill in hundredths of a second."""

    max_concurrent = 2
    kills = ("run", "child", "all")
    seconds = 0.0

    @staticmethod
    def faults(operations: list[str]) -> Iterator[Fault]:
        """Moments of a run that is left alone, whose length was measured when its operations were counted."""
        chance = random.Random(len(operations))
        last = round(ChildrenPlace.seconds * 100)
        yield from (Fault(chance.choice(ChildrenPlace.kills), chance.randint(1, last)) for _ in range(500))

    def run(self, fault: Fault | None = None, *, counts: bool = False) -> Run:
        printed, start = self.directory / "printed", time.monotonic()
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            self._child(printed, None, counts)
        if fault is not None:
            self._kill(pid, fault)
        _, status = os.waitpid(pid, 0)
        if counts:
            ChildrenPlace.seconds = time.monotonic() - start
        return Run(os.waitstatus_to_exitcode(status), printed.read_text())

    def _kill(self, pid: int, fault: Fault) -> None:
        time.sleep(fault.at / 100)
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:  # it was done before
            return
        children = process.children(recursive=True)
        chosen = {"run": [process], "child": children[:1], "all": [process, *children]}[fault.kind]
        for victim in chosen:
            try:
                victim.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                pass


if __name__ == "__main__":
    sys.exit(main(ChildrenPlace))
