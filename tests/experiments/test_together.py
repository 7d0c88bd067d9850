"""One experiment file on two processes with `python -m marin.run.together`, as srun or torchrun would start them."""

import json
import socket

import pytest

from .conftest import FinishedMiniature, Miniature, finish

pytestmark = pytest.mark.slow


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _together(miniature: Miniature, *flags: str):
    """What the two processes printed and how they ended, the first of them first."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port(), "WORLD_SIZE": "2"}
    shell = miniature.shell
    started = [
        shell.start("-m", "marin.run.together", "miniature", "--prefix", "store", *flags, **shared, RANK=str(rank))
        for rank in range(2)
    ]
    try:
        return [finish(process) for process in started]
    finally:
        for process in started:
            process.kill()


def test_experiment_on_two_processes_trains_as_on_one_and_is_done_afterwards(
    finished: FinishedMiniature, user_environment, tmp_path
):
    miniature = finished.miniature.copied(tmp_path / "two", trained=False)
    first, second = _together(miniature, "--force_run_failed", "true")
    assert (first.status, second.status) == (0, 0), (first, second)
    assert "bits per byte" in first.out and "bits per byte" not in second.out
    assert json.loads((miniature.run_directory / "run.json").read_text())["num_processes"] == 2
    alone, two = finished.miniature.results(), miniature.results()
    # Sums over two processes are added in another order.
    assert two["evaluation"]["bits_per_byte"] == pytest.approx(alone["evaluation"]["bits_per_byte"], abs=1e-3)
    assert [step["step"] for step in miniature.events("step")] == list(range(30))
    again = _together(miniature)
    assert [done.status for done in again] == [0, 0] and "nothing to do" in again[0].out, again
