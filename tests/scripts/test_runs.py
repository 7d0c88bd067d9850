"""The pipelines of `runs/` for nodes, whole and small: two processes on a processor, and a server in place of the public data."""

import contextlib
import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_commands import served, write_core_bundle

from marin.tracking import RunRecord

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]

NUM_SHARDS = 11
SMALL = (
    "--aspect-ratio=24 --head-dim=8 --max-seq-len=32 --total-batch-size=256 --device-batch-size=4 --eval-tokens=400"
    " --eval-every=1000 --device-type=cpu"
)
_WORDS = "graph node edge path tree matrix vector sum limit proof returns value of the a and is"


@pytest.fixture(scope="module")
def public(tmp_path_factory) -> Path:
    """What the public servers have: shards of ClimbMix, of which the last is held out, and CORE's archive."""
    folder = tmp_path_factory.mktemp("public")
    choose = random.Random(0)
    for number in range(NUM_SHARDS):
        texts = [" ".join(choose.choices(_WORDS.split(), k=40)) for _ in range(60)]
        pq.write_table(pa.table({"text": texts}), folder / f"shard_{number:05d}.parquet")
    write_core_bundle(folder / "eval_bundle")
    shutil.make_archive(str(folder / "eval_bundle"), "zip", folder, "eval_bundle")
    return folder


class Pipeline:
    """One of the scripts in `runs/`, as a person starts it, with variables that make it small."""

    def __init__(self, name: str, base: Path, address: str, plain: dict[str, str], **variables: str):
        self.name, self.base = name, base
        small = {
            "MARIN_BASE_DIR": str(base),
            "PYTHON": sys.executable,
            "WANDB_MODE": "disabled",
            "SHARDS": str(NUM_SHARDS - 1),
            "DATASET_FLAGS": f"--url={address} --total={NUM_SHARDS}",
            "BUNDLE_FLAGS": f"--url={address}/eval_bundle.zip",
            "TOKENIZER_FLAGS": "--vocab-size=300",
            "TRAIN_FLAGS": SMALL,
        }
        self.environment = plain | {"MARIN_COMPILE_CACHE": os.environ["MARIN_COMPILE_CACHE"]} | small | variables

    def start(self) -> "subprocess.Popen[str]":
        script = Path(__file__).parents[2] / "runs" / f"{self.name}.sh"
        # From elsewhere, as the scripts find the repository themselves; in a group of its own, to be killed whole.
        return subprocess.Popen(
            ["bash", str(script)],
            cwd=self.base.parent,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self) -> str:
        """What it printed; it must end well."""
        with self.start() as started:
            out, _ = started.communicate()
        assert started.returncode == 0, out[-4000:]
        return out

    def logs(self) -> dict[str, bytes]:
        """The record of every run, by its tag."""
        return {path.parent.name: path.read_bytes() for path in self.base.glob("*_checkpoints/*/metrics.jsonl")}

    def rows(self, name: str) -> list[dict[str, str]]:
        with (self.base / f"{name}.csv").open() as table:
            return list(csv.DictReader(table))


def test_miniseries_of_two_processes_measures_core_of_each_depth_and_does_nothing_twice(
    public, tmp_path, plain_environment
):
    with served(public) as (address, asked):
        series = Pipeline(
            "miniseries", tmp_path / "base", address, plain_environment,
            NPROC_PER_NODE="2", SERIES_NAME="jan", DEPTHS="1 2", RATIO="0.2",
        )  # fmt: skip
        out = series.run()
        rows = series.rows("jan")
        assert [(row["tag"], row["depth"]) for row in rows] == [("jan_d1", "1"), ("jan_d2", "2")]
        assert int(rows[0]["tokens"]) < int(rows[1]["tokens"])
        assert all(0 < float(row["val_bpb"]) < 8 and -2 < float(row["partial_core_metric"]) < 1 for row in rows)
        assert all(json.loads(path.read_text())["processes"] == 2 for path in series.base.rglob("base_train.json"))
        assert all(f"{row['tag']} " in out and f"{float(row['val_bpb']):.5f} bits per byte" in out for row in rows)
        before, fetched = series.logs(), len(asked)
        again = series.run()
    assert len(asked) == fetched and series.logs() == before and series.rows("jan") == rows
    assert again.count("nothing to do") >= 3  # the tokenizer, and two models


def test_scaling_laws_says_which_depth_each_budget_is_best_spent_on(public, tmp_path, plain_environment):
    with served(public) as (address, _):
        laws = Pipeline(
            "scaling_laws", tmp_path / "base", address, plain_environment,
            NPROC_PER_NODE="1", BUDGETS="2e9 6e9", DEPTHS="1 2", FETCH_CORE="0",
        )  # fmt: skip
        out = laws.run()
        rows = laws.rows("scaling")
        assert [row["tag"] for row in rows] == [
            f"scaling_{budget}_d{depth}" for budget in ("2e9", "6e9") for depth in (1, 2)
        ]
        for row in rows:
            budget = float(row["tag"].split("_")[1])
            assert float(row["total_flops"]) == pytest.approx(budget, rel=0.05)
        told = [line.split()[0] for line in out.splitlines() if line.endswith("bits per byte")]
        best = [min(group, key=lambda row: float(row["val_bpb"]))["tag"] for group in (rows[:2], rows[2:])]
        assert told == best
        before = laws.logs()
        laws.run()
    assert laws.logs() == before and laws.rows("scaling") == rows


def test_speedrun_killed_in_training_goes_on_to_its_report_and_does_nothing_twice(public, tmp_path, plain_environment):
    with served(public) as (address, asked):
        speedrun = Pipeline(
            "speedrun", tmp_path / "base", address, plain_environment,
            NPROC_PER_NODE="2", DEPTH="2", PRICE_PER_HOUR="24",
            TRAIN_FLAGS=f"{SMALL} --num-iterations=40 --checkpoint-interval=0.2",
            EVAL_FLAGS="--split-tokens=300 --max-per-task=5 --device-type=cpu",
            SFT_FLAGS="--made=60 --num-iterations=4 --eval-tokens=300 --chatcore-every=-1 --device-type=cpu",
            REPORT_FLAGS=f"--copy-to={tmp_path}",
            CHAT_FLAGS="-a Spelling|Arithmetic -m 6 -b 4 -x 6 --device-type=cpu",
        )  # fmt: skip
        log = speedrun.base / "base_checkpoints" / "d2" / "metrics.jsonl"
        with speedrun.start() as started:
            while not (log.exists() and log.read_text().count('"step_time"') > 10):
                assert started.poll() is None, started.communicate()[0][-4000:]
                time.sleep(0.02)
            _kill_all(started.pid)
        out = speedrun.run()
        assert len(RunRecord.open(log.parent).steps()) == 40
        assert json.loads((log.parent / "base_train.json").read_text())["processes"] == 2
        assert len(list(speedrun.base.glob("base_data_climbmix/shard_*.parquet"))) == NUM_SHARDS
        assert "partial CORE (2 of 22 tasks)" in out
        text = (tmp_path / "report.md").read_text()
        for heading in ("Base model training", "Base model evaluation", "Chat SFT", "Chat evaluation sft"):
            assert heading in text
        kept = {path: path.read_bytes() for path in speedrun.base.rglob("*.jsonl")}
        fetched = len(asked)
        again = speedrun.run()
    assert len(asked) == fetched and {path: path.read_bytes() for path in speedrun.base.rglob("*.jsonl")} == kept
    assert again.count("nothing to do") >= 3


def _kill_all(script: int) -> None:
    """Kills a script and all that it started, the processes of the launcher too, which have sessions of their own."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found = [script]
    for pid in found:
        found += children.get(pid, [])
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
