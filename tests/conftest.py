"""What every test runs under: 8 virtual CPU devices, strict JAX promotion, and a prefix of its own."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Before JAX is imported anywhere in this process. The small programs of unit tests take longer to optimize than to run:
# without the compiler's optimizations tests/nn and tests/models take 128 s of processor time instead of 240 s. The
# subprocess tests run with a person's environment, so that the programs that people run are tested as they run them.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)
os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
os.environ.setdefault("WANDB_MODE", "disabled")
# Compiled programs are kept between tests, between workers and between runs, as they are for a person's runs. `make clean`
# removes them. With all there, tests/nn and tests/models take 43 s of processor time instead of 128 s.
os.environ["MARIN_COMPILE_CACHE"] = str(ROOT / ".pytest_cache" / "compiled")

import pytest  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def compile_cache() -> None:
    """Programs that tests compile in this process are kept."""
    from marin.training.compile_cache import use_compile_cache

    assert use_compile_cache() is not None


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
    foreign = ("XLA_", "JAX_", "MARIN_", "HF_", "WANDB_", "SR_", "PYTHON")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    return kept | {"MARIN_CPU_PEAK_FLOPS": "2e11", "HF_HUB_OFFLINE": "1", "COLUMNS": "140"}
