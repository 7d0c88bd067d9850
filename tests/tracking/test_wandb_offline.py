"""The real W&B, offline: what it wrote is read back from its own file."""

import importlib.util
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="the extra `wandb` is not installed"),
]

_WRITE = """
import sys
from pathlib import Path
from marin.tracking.mirrors import open_mirrors
with open_mirrors(Path(sys.argv[1]) / "run-0123abcd", {"config": {"lr": 0.1}}, ("speedrun",)) as mirrors:
    for step in range(3):
        mirrors.log("train", step, {"loss": 3.0 - step})
    mirrors.log("train", 2, {"grads/histogram/w": {"min": 0.0, "max": 2.0, "counts": [1, 3]}})
"""


def _records(content: bytes) -> Iterator[bytes]:
    """Records of a log in LevelDB's format (blocks of 32 KiB, records in parts) after W&B's header of 7 bytes."""
    place, whole = 7, b""
    while place < len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


def test_wandb_offline_writes_every_metric_without_network_or_login(tmp_path, plain_environment):
    from wandb.proto import wandb_internal_pb2

    (tmp_path / "run-0123abcd").mkdir()
    environment = plain_environment | {"WANDB_MODE": "offline", "HOME": str(tmp_path)}
    environment |= {"PYTHONPATH": os.getcwd(), "WANDB_ERROR_REPORTING": "false"}
    done = subprocess.run(
        [sys.executable, "-c", _WRITE, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert "stopped taking" not in done.stdout and "did not start" not in done.stdout
    (file,) = tmp_path.glob("run-0123abcd/wandb/offline-run-*/run-*.wandb")
    assert file.name == "run-run-0123abcd.wandb"
    assert f"`wandb sync wandb/{file.parent.name}`" in done.stdout
    assert (
        "wandb sync /" not in done.stdout + done.stderr
    )  # no path of an attempt, which is moved when the step is done
    rows: dict[int, dict[str, object]] = {}
    for data in _records(file.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            row = {(item.key or ".".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item}
            rows.setdefault(int(row["_step"]), {}).update(row)
    assert [rows[step]["train/loss"] for step in range(3)] == [3.0, 2.0, 1.0]
    assert rows[2]["train/grads/histogram/w.values"] == [1, 3]
    assert rows[2]["train/grads/histogram/w.bins"] == [0, 1, 2]


def test_the_installed_wandb_can_be_told_not_to_wait_for_hours_at_its_end(monkeypatch):
    import wandb

    from marin.tracking.wandb_mirror import _settings

    monkeypatch.delenv("WANDB_MODE", raising=False)
    settings = wandb.Settings(**_settings(wandb))
    assert settings.finish_timeout > 0 and settings.finish_timeout_raises
