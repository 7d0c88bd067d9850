"""What every test runs under: 8 virtual CPU devices, strict JAX promotion, and a prefix of its own."""

import gc
import importlib.metadata
import importlib.util
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Before JAX is imported anywhere in this process. The small programs of unit tests take longer to optimize than to run:
# without the compiler's optimizations tests/nn and tests/models take 128 s of processor time instead of 240 s. Without the
# emitters of fusions, through MLIR, the step of a one-layer model compiles in 0.9 s instead of 2.8 s (JAX 0.10). In one part
# each, and not in 32 for as many threads, programs of tests/training/test_optimizer_starts.py take a tenth less of it.
# The subprocess tests run with a person's environment, so that the programs that people run are tested as they run them.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)
# Later ones have no such flag, and end a process that is given one that they lack.
if importlib.metadata.version("jaxlib").startswith("0.10."):
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
os.environ.setdefault("WANDB_MODE", "disabled")
# Compiled programs are kept between tests, between workers and between runs, as they are for a person's runs. `make clean`
# removes them. With all there, tests/nn and tests/models take 43 s of processor time instead of 128 s.
os.environ["MARIN_COMPILE_CACHE"] = str(ROOT / ".pytest_cache" / "compiled")

# Tracing makes many objects and little garbage: looking for it after every 700 took 11.0 of 197 s of processor time in three
# files of tests/training and tests/nn, and takes 1.5 s so. `clear_caches` collects after each file.
gc.set_threshold(20_000, 20, 50)

# A shell that is no terminal starts what it puts into the background with Ctrl-C ignored, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import hypothesis  # noqa: E402
import pytest  # noqa: E402

# How long examples take is the machine's affair: a busy one failed a test that is right.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")


@pytest.fixture(scope="session", autouse=True)
def compile_cache() -> None:
    """Programs that tests compile in this process are kept."""
    from marin.training.compile_cache import use_compile_cache

    assert use_compile_cache() is not None


@pytest.fixture(scope="module", autouse=True)
def forget_programs() -> Iterator[None]:
    """What a file compiled leaves the memory with it: kept, a worker grew to over 5 GB. The cache on disk has it still."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


@pytest.fixture
def as_a_person_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a run that is to pass verification: tests run in a checkout with changes, and put functions of their own into Marin's modules."""
    from marin.tracking import environment
    from marin.training import loop

    monkeypatch.setattr(environment, "loaded_unlike", lambda directory, commit: [])
    monkeypatch.setattr(loop, "replaced_code", list)


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


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The URL of an S3 server with one bucket `bucket`; skips where moto or s3fs is not installed."""
    for module in ("moto.server", "s3fs"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"the S3 server for tests needs moto[server] and s3fs, and {module} is not installed")
    script = ROOT / "tests" / "s3_server.py"
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        address = server.stdout.readline().strip()
        assert address, "the S3 server for tests ended before it answered: it says why above"
        yield address
        server.stdin.close()
        server.wait(60)


@pytest.fixture
def s3_prefix(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh prefix in the bucket, reached through the environment as a person would point the project at MinIO."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    return f"s3://bucket/{secrets.token_hex(8)}"
