"""Benchmarks that nobody runs for weeks go on working: those that have a size of seconds, as a process, whose lines are read.

`device_step` and `hf_parity` are driven by tests of their own. The rest (`core`, `data`, `data_minhash`, `datashop`, `datashop_page`,
`executor`, `levanter_interop`, `optimizers`) is only checked for its types: they take minutes, or data that is not here.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TINY = "--width 64 --layers 1 --vocabulary 256 --batch 2"
COMMANDS = {
    f"checkpoint_cost {TINY} --context 32 --steps 3 --rounds 1": {"checkpoint_cost"},
    f"train_step {TINY} --heads 1 --tokens 64 --repetitions 1 --steps 1": {"train_step_rate", "train_step_first_cold", "train_step_first_warm"},
    "inference --layers 1 --width 64 --vocabulary 256 --repetitions 1": {"decode_1_greedy", "decode_16_sampled", "first_token_of_1000"},
    "leaderboard --entries 60 --only build": {"build_cold", "build_one_description_changed"},
    "loss_memory --tokens 64 --width 64 --vocabulary 512": set(),
    "datashop_annotation --documents 20 --repetitions 1": set(),
    "datashop_encoder --size small --length 32 --texts 4 --repetitions 1": set(),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_benchmark_prints_its_figures(command: str, tmp_path: Path) -> None:
    name, *flags = command.split()
    environment = os.environ | {"MARIN_COMPILE_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *flags],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines and COMMANDS[command] <= {line["name"] for line in lines}
    assert all(line["unit"] and line["n"] >= 1 and isinstance(line["value"], int | float) for line in lines)
