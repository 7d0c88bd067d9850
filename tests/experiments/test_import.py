"""Importing an experiment makes configs and steps, and starts nothing."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("module", ["experiments.speedrun.hello_world.main", "experiments.prepare_corpora"])
def test_import_of_an_experiment_starts_no_jax_backend(
    module: str, repository: Path, plain_environment: dict[str, str]
) -> None:
    """A backend that was made at import would ignore what a run sets before its first step, such as how memory is kept."""
    code = f"""
import sys, {module}
bridge = sys.modules.get("jax._src.xla_bridge")
print(bridge is not None and bridge.backends_are_initialized())
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=repository, env=plain_environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
