"""The copy for TensorBoard: written where it is asked for, read back event by event, never in the way of training."""

import resource
import signal
import struct
from pathlib import Path

import pytest

from marin.tracking import tensorboard_mirror as module
from marin.tracking.mirrors import open_mirrors
from marin.tracking.tensorboard_mirror import is_wanted, log_directory

pytest.importorskip("tensorboardX")


@pytest.fixture(autouse=True)
def _only_tensorboard(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setenv("MARIN_TENSORBOARD", "1")


def read_events(folder: Path) -> dict[tuple[str, int], object]:
    """(tag, step) -> number or histogram, from all event files in a folder, each record's checksum compared."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    found = {}
    for file in sorted(folder.glob("events.out.tfevents.*")):
        content = file.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            body = content[12 : 12 + length]
            assert struct.unpack("<I", content[12 + length : 16 + length]) == (masked_crc32c(body),)
            event = Event.FromString(body)
            for value in event.summary.value:
                is_number = value.WhichOneof("value") == "simple_value"
                found[value.tag, event.step] = value.simple_value if is_number else value.histo
            content = content[16 + length :]
    return found


def test_tensorboard_has_every_number_and_histogram_at_its_step(tmp_path):
    with open_mirrors(tmp_path / "run-0123abcd", {"config": {}}) as mirrors:
        mirrors.log("train", 0, {"loss": 2.5})
        mirrors.log("train", 1, {"loss": 1.25, "grads/histogram/w": {"min": -1.0, "max": 1.0, "counts": [1, 0, 3, 4]}})
        mirrors.log("eval", 1, {"bits_per_byte": 1.5})
        assert mirrors.url is None
    events = read_events(tmp_path / "run-0123abcd" / "tensorboard")
    histogram = events.pop(("train/grads/histogram/w", 1))
    assert events == {("train/loss", 0): 2.5, ("train/loss", 1): 1.25, ("eval/bits_per_byte", 1): 1.5}
    assert list(histogram.bucket) == [1, 0, 3, 4]
    assert list(histogram.bucket_limit) == [-0.5, 0.0, 0.5, 1.0]
    assert (histogram.min, histogram.max, histogram.num) == (-1.0, 1.0, 8)


def test_tensorboard_of_a_resumed_run_has_the_steps_of_both_processes(tmp_path):
    for step in range(2):
        with open_mirrors(tmp_path / "run-0123abcd", {"config": {}}) as mirrors:
            mirrors.log("train", step, {"loss": float(step)})
    events = read_events(tmp_path / "run-0123abcd" / "tensorboard")
    assert events == {("train/loss", 0): 0.0, ("train/loss", 1): 1.0}


def test_tensorboard_with_a_folder_named_gathers_runs_there(monkeypatch, tmp_path):
    monkeypatch.setenv("MARIN_TENSORBOARD", str(tmp_path / "all"))
    assert log_directory(Path("/somewhere/run-1234")) == tmp_path / "all" / "run-1234"


@pytest.mark.parametrize("value", ["", "0", "false"])
def test_tensorboard_is_off_unless_asked_for(monkeypatch, tmp_path, value):
    monkeypatch.setenv("MARIN_TENSORBOARD", value)
    assert not is_wanted()
    with open_mirrors(tmp_path / "run-0123abcd", {"config": {}}) as mirrors:
        mirrors.log("train", 0, {"loss": 1.0})
    assert not (tmp_path / "run-0123abcd").exists()


def test_tensorboard_asked_for_but_not_installed_says_so_and_goes_on(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with open_mirrors(tmp_path / "run-0123abcd", {"config": {}}) as mirrors:
        mirrors.log("train", 0, {"loss": 1.0})
    assert "not installed" in capsys.readouterr().out


def test_tensorboard_that_cannot_be_written_is_no_reason_to_stop(monkeypatch, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MARIN_TENSORBOARD", str(tmp_path / "file"))
    with open_mirrors(tmp_path / "run-0123abcd", {"config": {}}) as mirrors:
        mirrors.log("train", 0, {"loss": 1.0})
    assert "training goes on" in capsys.readouterr().out


def test_tensorboard_on_a_disk_that_fills_up_is_said_once_and_holds_nothing_up(monkeypatch, tmp_path, capsys):
    """As `MARIN_TENSORBOARD=DIR` can name another disk than the run's, or one with a quota."""
    monkeypatch.setattr(module, "_FLUSH_SECONDS", 0.0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        with open_mirrors(tmp_path / "run-0123abcd", {"config": {}}) as mirrors:
            for step in range(500):
                mirrors.log("train", step, {"loss": 1.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    said = capsys.readouterr()
    assert said.out.count("TensorBoard") == 1 and "training goes on" in said.out
    assert not said.err


def test_tensorboard_skips_a_histogram_that_is_not_finite_and_stays(tmp_path):
    with open_mirrors(tmp_path / "run-0123abcd", {"config": {}}) as mirrors:
        mirrors.log("train", 0, {"grads/histogram/w": {"min": float("nan"), "max": float("nan"), "counts": [4, 0]}})
        mirrors.log("train", 1, {"loss": 1.0})
    assert read_events(tmp_path / "run-0123abcd" / "tensorboard") == {("train/loss", 1): 1.0}
