"""How fast the yardstick model "d6" trains, beside the same program in PyTorch under torch.compile.

    python -m benchmarks.train_step --peer PYTHON         # PYTHON: an interpreter that has torch 2.13
    python -m benchmarks.train_step                       # without a peer

d6: 6 layers of width 384, 6 heads of 64, relu^2 MLP of 4x, QK norm, value embeddings on alternating layers, scalars per
layer, untied head, soft-cap 15, vocabulary 8,192, T = 512, batch 8; Muon for matrices, AdamW for the rest.

Prints one JSON line a figure: name, value, unit, n (repetitions), context. Each program is a process of its own that takes
a few steps in turn, so that both see the same machine; a rate is the median of the repetitions, the ratio is that of the
medians. `--documents` gives our step segments to mask, as training does and the peer does not. `cold` and `warm` are the
time from JAX being imported to the end of the first step, with an empty compile cache and with what that left.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PEER = Path(__file__).with_name("peer_gpt.py")
SHAPE = ("layers", "width", "heads", "vocabulary", "tokens", "batch")
DEFAULTS = (6, 384, 6, 8192, 512, 8)


class Program:
    """A process that takes steps when it is told to."""

    def __init__(self, command: list[str], environment: dict[str, str]):
        try:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        except OSError as error:
            raise SystemExit(f"{command[0]} cannot be started ({error.strerror}): name a Python interpreter") from None
        self.ready = self._answer()

    def steps(self, count: int) -> dict[str, float]:
        return self.say(str(count))

    def say(self, line: str) -> dict[str, float]:
        """What it answers to a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a program of the benchmark ended; its message is above")
        return json.loads(line)


def serve(args: argparse.Namespace) -> None:
    """Our side: the engine's own step, compiled as training compiles it."""
    import numpy as np

    begin = time.perf_counter()
    from marin.data.rows import Batch
    from marin.models import GptConfig
    from marin.nn import Precision
    from marin.optim import MuonConfig
    from marin.parallel.mesh import make_mesh
    from marin.training.compile_cache import use_compile_cache
    from marin.training.compiled_steps import in_the_making
    from marin.training.host_memory import keep_freed_memory
    from marin.training.placement import parameter_shapes, trace_initial_state
    from marin.training.programs import compile_traced, cpu_candidates, fastest, seconds_of, trace_program
    from marin.training.state import StepConfig, make_train_step

    keep_freed_memory()
    use_compile_cache()
    model_config = GptConfig(
        seq_len=args.tokens,
        hidden_dim=args.width,
        num_layers=args.layers,
        num_heads=args.heads,
        window_pattern="L",
        value_gates=False,
        smear=False,
        backout=False,
    )
    optimizer_config = MuonConfig(learning_rate=0.02, adam_lr=1e-3, weight_decay=0.0, warmup=0, max_grad_norm=None)
    optimizer = optimizer_config.build(parameter_shapes(model_config, args.vocabulary), 1000)
    initial, mesh = trace_initial_state(model_config, args.vocabulary, optimizer), make_mesh({})
    draw = np.random.default_rng(0)
    rows = draw.integers(0, args.vocabulary, (64, args.batch, args.tokens + 1)).astype(np.int32)
    ends = draw.random((64, args.batch, args.tokens)) < 1 / 128
    segments: Any = np.cumsum(ends, axis=2).astype(np.int32) if args.documents else [None] * 64
    weight = np.ones((args.batch, args.tokens), np.float32)

    def batch(step: int) -> Batch:
        row = rows[step % 64]
        return Batch(row[:, :-1], row[:, 1:], weight, segments[step % 64])

    way = fastest(cpu_candidates(Precision(args.precision)), lambda way: seconds_of(way, args.width))
    making = in_the_making(lambda: initial.run(mesh), in_thread=True)
    train_step = make_train_step(optimizer, optimizer_config.schedule(1000), StepConfig(way.precision))
    step = compile_traced(trace_program(train_step, initial.layout(mesh), batch(0)), way)
    state = making.result()
    compile_time = time.perf_counter() - begin
    state, metrics = step(state, batch(0))
    float(metrics["loss"])
    ready = {"first_step": time.perf_counter() - begin, "compile": compile_time, "way": str(way)}
    print(json.dumps(ready | {"product": product_rate(2048)}), flush=True)
    count = 1
    for line in sys.stdin:
        start = time.perf_counter()
        for _ in range(int(line)):
            state, metrics = step(state, batch(count))
            count += 1
        loss = float(metrics["loss"])
        print(json.dumps({"seconds": time.perf_counter() - start, "loss": loss}), flush=True)


def product_rate(size: int) -> float:
    """FLOP/s of a float32 product of two square matrices, the best of 5."""
    import jax

    one = jax.random.normal(jax.random.key(0), (size, size))
    multiply = jax.jit(lambda a, b: a @ b)
    seconds = []
    for _ in range(6):
        start = time.perf_counter()
        multiply(one, one).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds[1:])


def flops_per_token(args: argparse.Namespace) -> float:
    """Training FLOPs of one token, attention in full."""
    matrices = args.layers * 12 * args.width**2 + args.width * args.vocabulary
    return 6 * matrices + 12 * args.layers * args.width * args.tokens


def report(name: str, value: float, unit: str, n: int, context: dict[str, Any]) -> None:
    print(json.dumps({"name": name, "value": round(value, 4), "unit": unit, "n": n, **context}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of the training step on the yardstick model d6.")
    for name, default in zip(SHAPE, DEFAULTS, strict=True):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--documents", action="store_true", help="mask attention between documents of a row")
    parser.add_argument("--peer", help="an interpreter that has PyTorch")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3, help="steps of a repetition")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args)
        return
    shape = [part for name in SHAPE for part in (f"--{name}", str(getattr(args, name)))]
    shape += ["--precision", args.precision]
    command = [sys.executable, "-m", "benchmarks.train_step", "--serve", *shape]
    command += ["--documents"] if args.documents else []
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"MARIN_COMPILE_CACHE": cache}
        first = Program(command, environment)
        first.close()
        ours = Program(command, environment)
        programs = {"ours": ours}
        if args.peer:
            programs["peer"] = Program([args.peer, str(PEER), *shape], dict(os.environ))
        rates: dict[str, list[float]] = {name: [] for name in programs}
        for repetition in range(args.repetitions + 1):
            for name, program in programs.items():
                answer = program.steps(args.steps)
                if repetition:  # the first warms up
                    rates[name].append(args.steps * args.batch * args.tokens / answer["seconds"])
        for program in programs.values():
            program.close()
    context = {"precision": args.precision, "documents": args.documents, "machine": _machine()}
    median = {name: statistics.median(values) for name, values in rates.items()}
    n = args.repetitions
    report("train_step_first_cold", first.ready["first_step"], "s", 1, context)
    report("train_step_first_warm", ours.ready["first_step"], "s", 1, context)
    spread = {name: [round(min(values)), round(max(values))] for name, values in rates.items()}
    report("train_step_rate", median["ours"], "tokens/s", n, context | {"range": spread["ours"], **_told(ours.ready)})
    share = median["ours"] * flops_per_token(args) / ours.ready["product"]
    gigaflops = round(ours.ready["product"] / 1e9, 1)
    report(
        "train_step_share_of_product",
        share,
        "of the f32 rate of a 2048-cubed product",
        n,
        context | {"GFLOP/s": gigaflops},
    )
    if args.peer:
        told = {"range": spread["peer"], "torch": programs["peer"].ready["version"]}
        report("train_step_peer_rate", median["peer"], "tokens/s", n, context | told)
        report("train_step_peer_first", programs["peer"].ready["first_step"], "s", 1, context)
        report("train_step_ratio", median["ours"] / median["peer"], "x the peer's rate", n, context)


def _told(ready: dict[str, Any]) -> dict[str, Any]:
    return {"compiled": ready["way"]}


def _machine() -> str:
    from marin.hardware import host_info

    return str(host_info()["cpu_model"])


if __name__ == "__main__":
    main()
