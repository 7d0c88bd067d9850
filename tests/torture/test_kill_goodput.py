"""A run that is really killed: the wall time of its log adds up to the time on the test's own clock."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from marin.tracking import RunRecord
from marin.tracking.goodput import wall_time

pytestmark = pytest.mark.torture

_TRAIN = """
import json, sys
from pathlib import Path
from marin.data.cache import TokenizeConfig, tokenize
from marin.data.documents import Document, write_documents
from marin.data.tokenizer import TrainTokenizerConfig, train_tokenizer
from marin.models import LlamaConfig
from marin.resources import CpuOnlyConfig
from marin.training import SimpleTrainConfig, TrainLmConfig, WatchConfig
from marin.training.loop import train_lm

folder = Path(sys.argv[1])
documents = str(folder / "docs.jsonl.zst")
if not Path(documents).exists():
    texts = [" ".join(f"word{(i * j) % 97}" for j in range(60)) for i in range(1, 60)]
    write_documents(documents, [Document(str(i), text, "test") for i, text in enumerate(texts)])
    train_tokenizer(TrainTokenizerConfig(documents=documents, vocab_size=300, output_path=str(folder)))
    tokenize(TokenizeConfig(documents=documents, tokenizer=str(folder), output_path=str(folder / "tokens")))
model = LlamaConfig(seq_len=64, hidden_dim=64, intermediate_dim=128, num_layers=2, num_heads=2, num_kv_heads=2)
train = SimpleTrainConfig(
    CpuOnlyConfig(), train_batch_size=8, num_train_steps=120, learning_rate=0.01, steps_per_export=25,
    watch=WatchConfig(watch_targets=[]),
)
train_lm(TrainLmConfig(model, train, str(folder / "tokens"), str(folder), 300, str(folder / "run")))
"""


def _start(folder: Path, environment: dict[str, str]) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", _TRAIN, str(folder)], env=environment, cwd=os.getcwd())


def _steps(log: Path) -> list[int]:
    lines = log.read_text().splitlines()[:-1] if log.exists() else []
    return [entry["step"] for entry in map(json.loads, lines) if entry["event"] == "step"]


def test_wall_time_of_a_killed_run_is_what_the_clock_said(tmp_path, plain_environment):
    log = tmp_path / "run" / "metrics.jsonl"
    with _start(tmp_path, plain_environment) as first:
        while max(_steps(log), default=0) < 40:
            assert first.poll() is None
            time.sleep(0.01)
        os.kill(first.pid, signal.SIGKILL)
    killed = time.time()
    time.sleep(3)
    with _start(tmp_path, plain_environment) as second:
        assert second.wait() == 0
    record = RunRecord.open(tmp_path / "run")
    spent = wall_time(record.events)
    lost = record.superseded()
    assert lost and lost[0]["step"] == 25
    assert (spent.num_processes, spent.num_lost_steps) == (2, len(lost))
    assert spent.parts["lost"] == pytest.approx(sum(step["step_time"] for step in lost))
    assert [step["step"] for step in record.steps()] == list(range(120))
    # Down: the 3 seconds, and the second process's imports, before it takes its own time.
    again = record.of("start")[1]
    begun = again["time"] - again["setup_time"] - again["compile_time"]
    assert spent.parts["down"] == pytest.approx(begun - killed, abs=1.0)
    assert spent.parts["down"] >= 3
    first_start = record.of("start")[0]
    whole = record.of("end")[0]["time"] - (
        first_start["time"] - first_start["setup_time"] - first_start["compile_time"]
    )
    assert spent.total == pytest.approx(whole, rel=0.01)
    assert spent.parts["other"] < 0.25 * spent.total
