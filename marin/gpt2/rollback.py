"""Going back to an earlier checkpoint of an unfinished run, as `--resume-from-step` asks."""

import shutil
from pathlib import Path

from marin.errors import ConfigError
from marin.execution.attempts import ledger_directory
from marin.storage.lease import Lease
from marin.training.checkpoint import list_checkpoints


def roll_back(run: Path, step: int) -> None:
    """Removes the checkpoints after `step`, so that the run continues from it; its log keeps what was done since.

    Raises:
        ConfigError: there is no such checkpoint, or the run is finished.
        LeaseHeldError: another process is training the run.
    """
    found = list_checkpoints(run / "checkpoints")
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
