"""What `test_chart_process.py` runs as a process of its own, since one that has JAX, as the tests' has, cannot be forked.

    python charts_in_child.py SCENARIO

asks for three drawings and prints, as JSON, what came of them and how many processes drew. As "slow" it says when the child is at work.
"""

import json
import os
import signal
import sys
import time

from marin.errors import StorageError, clean_exit
from marin.site.leaderboard import chart_process
from marin.site.leaderboard.chart_process import ChartProcess

LARGE = "x" * 1_000_000  # more than a pipe holds, in both ways


def draw(scenario: str, number: int, large: str) -> dict[str, str]:
    if scenario == "slow":
        time.sleep(600)
    if scenario == "wrong" and number == 1:
        raise ValueError("no such axis")
    if scenario == "not installed":
        fail_to_start()
    if scenario == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"number": str(number), "large": large, "process": str(os.getpid())}


def fail_to_start() -> None:
    raise ImportError("No module named 'altair'")


def main(scenario: str) -> None:
    chart_process.num_processors = lambda: 1 if scenario == "one processor" else 2
    if scenario == "not installed":
        chart_process.drawing.start = fail_to_start
    drawn: list[dict[str, str]] = []
    error = None
    try:
        with ChartProcess() as charts:
            for number in range(3):
                charts.ask(drawn.append, draw, scenario, number, LARGE)
                if scenario == "slow":
                    print("at work", flush=True)
            charts.close()
    except (StorageError, ValueError, ImportError) as raised:
        error = str(raised)
    assert all(one["large"] == LARGE for one in drawn)
    others = {one["process"] for one in drawn} - {str(os.getpid())}
    print(json.dumps({"error": error, "numbers": [one["number"] for one in drawn], "others": len(others)}))


if __name__ == "__main__":
    with clean_exit():
        main(*sys.argv[1:])
