"""An owner of one step on a machine of a given name: `python race_owner.py MACHINE PREFIX`; see test_executor_races.py.

Two processes of one machine see each other live, however long one is stopped; of two machines they only see heartbeats.
The first owner goes on only when PREFIX/finish is there.
"""

import dataclasses
import pathlib
import sys
import time

from marin import errors
from marin.execution import Executor, ExecutorMainConfig, ExecutorStep, this_output_path
from marin.storage import lease


@dataclasses.dataclass(frozen=True)
class Config:
    output_path: str = this_output_path()


def work(config: Config) -> None:
    machine, prefix = sys.argv[1:]
    pathlib.Path(config.output_path, "machine").write_text(machine)
    if machine == "first":
        pathlib.Path(prefix, "works").touch()
        while not pathlib.Path(prefix, "finish").exists():
            time.sleep(0.02)
        pathlib.Path(config.output_path, "late").touch()


if __name__ == "__main__":
    lease.machine, lease.HEARTBEAT, lease.STALE_AFTER, lease.POLL = (lambda: sys.argv[1]), 0.05, 0.5, 0.05
    with errors.clean_exit():
        Executor(ExecutorMainConfig(prefix=sys.argv[2])).run([ExecutorStep("race/step", work, Config())])
