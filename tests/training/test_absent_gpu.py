"""What XLA's own compiler makes of the training step for an H200: needs a Python with JAX for CUDA, and no GPU."""

import json
import os
import subprocess
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_PYTHON = os.environ.get("MARIN_CUDA_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not _PYTHON,
        reason="MARIN_CUDA_PYTHON names no Python with the packages of the extra `cuda12` (5 GB; no GPU is needed)",
    ),
]
_SMALL = ["--sizes", "130m", "--batch", "4", "--rows", "2", "--vocabulary", "4096", "--kernels", "500"]


def _compile(*options: str) -> tuple[dict, list[str]]:
    # The flags of this process are for its own JAX, which the other's compiler may not know.
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [str(_PYTHON), "-m", "benchmarks.absent_gpu", *_SMALL, *options],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "PYTHONPATH": str(_ROOT)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    first, *kernels = done.stdout.splitlines()
    return json.loads(first), kernels


def test_attention_is_cudnn_s_and_products_are_in_bfloat16():
    found, kernels = _compile()
    layers, parts = 6, 2
    assert found["products"]["attention"] == 2 * layers * parts  # forward and backward
    assert set(found["products"]) == {"attention", "bf16"}
    assert 0 < found["memory_gib"] < found["of_gib"]
    assert 0 < found["most_mfu"] < 1
    attention = [line for line in kernels if "__cudnn$fmha" in line]
    assert attention
    # The first of the ways to hide documents, which rows of one document take.
    assert all("cond/branch_0_fun/" in line for line in attention), attention


@pytest.mark.parametrize(("recompute", "times"), [("products", 2), ("blocks", 3)])
def test_attention_is_computed_again_only_where_blocks_are(recompute, times):
    found, _ = _compile("--recompute", recompute)
    assert found["products"]["attention"] == times * 6 * 2


def test_fp8_products_are_cublas_s_and_leave_their_result_in_bfloat16():
    found, kernels = _compile("--fp8")
    in_fp8 = [line for line in kernels if "__cublas$lt$matmul$f8" in line]
    # Queries, keys and values are multiplied at once, gate and up too: four products a layer, in two parts of the batch, and
    # backward as many of each kind or more.
    assert found["products"]["f8"] >= 3 * 6 * 4 * 2
    assert in_fp8
    assert all("(bf16[" in line for line in in_fp8), in_fp8
    # In bfloat16 remain Muon's, under `vmap`, and the head's, whose letters are b, t, d and v.
    others = [line for line in kernels if "__cublas" in line and line not in in_fp8]
    assert all("vmap" in line or "btv" in line for line in others), others


def test_loss_goes_through_a_block_s_logits_twice_in_bfloat16():
    _, kernels = _compile("--vocabulary", "128256")
    logits = 4096 * 128256 * 2 // 2**20  # MiB of a block
    # Once for their sum, once for their gradient, which is written.
    passes = [line for line in kernels if "0.000 TFLOP" in line and "jvp()/while/body" in line]
    sizes = sorted(size for line in passes if (size := float(line.split(" MiB")[0].split()[-1])) >= logits)
    assert sizes == pytest.approx([logits, 2 * logits], rel=0.01), passes
