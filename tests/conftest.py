"""What every test runs under: 8 virtual CPU devices, strict JAX promotion, and a prefix of its own."""

import os
from pathlib import Path

# Before JAX is imported anywhere in this process.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
os.environ.setdefault("WANDB_MODE", "disabled")

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def repository() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture(scope="session")
def seeds() -> Path:
    """The folder of the seed documents; the test is skipped where it is absent."""
    folder = ROOT.parent / "shared" / "seeds"
    if not folder.is_dir():
        pytest.skip("the seed documents (../shared/seeds) are not here")
    return folder


@pytest.fixture(scope="session")
def plain_environment() -> dict[str, str]:
    """The environment of a person's shell for subprocesses: no test flags, no prefix, a known CPU peak."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("XLA_", "JAX_", "MARIN_", "HF_", "WANDB_", "SR_"))}
    return kept | {"MARIN_CPU_PEAK_FLOPS": "2e11", "HF_HUB_OFFLINE": "1", "COLUMNS": "140"}
