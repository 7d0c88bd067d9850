"""What `test_leaderboard_parts.py` runs as a process of its own, since one that has JAX, as the tests' has, cannot be forked.

    python parts_in_children.py SITE SCENARIO [FEWEST]

writes forty pages with two children's help and prints, as JSON, what came of it, and how many processes wrote. As "slow" it says
when the children are at work.
"""

import json
import os
import pathlib
import signal
import sys
import time

from marin import parts
from marin.errors import StorageError, clean_exit
from marin.site.leaderboard.output import SiteWriter

KEYS = [f"key-{number}" for number in range(40)]


def main(site: str, scenario: str, fewest: str = "1") -> None:
    parts.FEWEST, parts.num_processors = int(fewest), lambda: 3
    writer, this_process = SiteWriter(site), os.getpid()
    wrote = pathlib.Path(f"{site}-{time.monotonic_ns()}")
    wrote.mkdir()

    def write(key: str) -> None:
        (wrote / str(os.getpid())).touch()
        if scenario == "whole" and parts.FEWEST == 1:
            wait_for_processes(3)  # or one of them is done with all keys before the next one begins
        if scenario == "slow":
            time.sleep(600)
        if scenario == "full" and key == "key-7":
            raise StorageError("the disk is full")
        if scenario == "killed" and os.getpid() != this_process:
            os.kill(os.getpid(), signal.SIGKILL)
        inputs = f"inputs of {key}, {scenario == 'full'}"
        if not writer.is_fresh(f"{key}.html", inputs):
            writer.write(f"{key}.html", f"<p>{key}</p>", inputs)

    def wait_for_processes(count: int) -> None:
        deadline = time.monotonic() + 40
        while len(list(wrote.iterdir())) < count:
            assert time.monotonic() < deadline, "a child did not begin"
            time.sleep(0.005)

    def rest() -> None:
        if scenario == "full of the rest":
            raise StorageError("the disk is full")
        writer.write("rest.txt", "what belongs to no key")

    error = None
    try:
        with parts.WorkInParts(writer, KEYS[1:] if scenario == "fewer" else KEYS, write, rest):
            writer.write("beside.txt", "made meanwhile")
            if scenario == "slow":
                print("at work", flush=True)
            if scenario == "killed":
                wait_for_processes(1)  # a child has taken a key
        writer.finish()
    except StorageError as raised:
        error = str(raised)
    files = {path.name: path.read_text() for path in pathlib.Path(site).iterdir()}
    print(
        json.dumps(
            {"error": error, "files": files, "written": writer.num_written, "processes": len(list(wrote.iterdir()))}
        )
    )


if __name__ == "__main__":
    with clean_exit():
        main(*sys.argv[1:])
