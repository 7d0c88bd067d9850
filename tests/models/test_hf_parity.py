"""transformers and this project compute the same from the same safetensors, where a peer with transformers is named."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def peer(plain_environment: dict[str, str]) -> str:
    """The Python with torch and transformers that `MARIN_PEER_PYTHON` names."""
    python = os.environ.get("MARIN_PEER_PYTHON")
    if not python:
        pytest.skip("MARIN_PEER_PYTHON names no Python with torch and transformers (benchmarks/hf_parity.py tells how)")
    found = subprocess.run([python, "-c", "import torch, transformers"], env=plain_environment, capture_output=True)
    if found.returncode:
        pytest.skip(f"{python} (MARIN_PEER_PYTHON) cannot import torch and transformers")
    return python


@pytest.mark.timeout(1500)  # importing torch three times takes minutes where other work has the processor
def test_logits_and_bits_are_those_of_transformers(
    peer: str, repository: Path, plain_environment: dict[str, str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.hf_parity", "--peer", peer],
        cwd=repository, env=plain_environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    figures = json.loads(done.stdout)
    assert figures["problems"] == []
    assert figures["round_trip_bit_equal"]
    assert figures["largest_difference"] <= 1e-4 < figures["largest_logit"]
    assert done.returncode == 0
