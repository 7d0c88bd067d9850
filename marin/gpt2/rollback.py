"""Going back to an earlier checkpoint of an unfinished run, as `--resume-from-step` asks.

A run goes back to a step once: the same command continues it where it was stopped after that, by hand or by a launcher that starts
it again. `went_back.json` in the run notes the step.
"""

import shutil
from pathlib import Path

from marin.errors import ConfigError
from marin.execution.attempts import ledger_directory
from marin.storage import files
from marin.storage.lease import Lease
from marin.training.checkpoint import list_checkpoints

NOTE_FILE = "went_back.json"


def roll_back(run: Path, step: int) -> None:
    """Removes the checkpoints after `step`, so that the run continues from it; its log keeps what was done since.

    Nothing is removed where the run went back to that step before.

    Raises:
        ConfigError: there is no such checkpoint, or the run is finished.
        LeaseHeldError: another process is training the run.
    """
    found = list_checkpoints(run / "checkpoints")
    note = run / NOTE_FILE
    if note.is_file() and files.read_json(str(note)) == {"step": step}:
        if not run.is_symlink():  # and is finished since
            return
        print(f"the run went back to step {step:,} before and continues; to go back once more, remove {note}")
        return
    if step not in [checkpoint.step for checkpoint in found]:
        steps = ", ".join(str(checkpoint.step) for checkpoint in found) or "none"
        raise ConfigError(f"`--resume-from-step` is {step}, and {run} has checkpoints of these steps: {steps}")
    if not run.is_symlink():  # a run that is under way is a link to its attempt
        raise ConfigError(
            f"`--resume-from-step` is {step}, but the run in {run} is finished: train with another `--model-tag`, or remove it"
        )
    with Lease(ledger_directory(str(run))).acquire(wait=False):
        for checkpoint in found:
            if checkpoint.step > step:
                shutil.rmtree(checkpoint.path)
                print(f"the checkpoint of step {checkpoint.step:,} is removed, as asked: continuing from step {step:,}")
        files.write_json(str(note), {"step": step})
