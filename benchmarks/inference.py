"""How fast the engine decodes the yardstick model, and how soon a long prompt has its first token.

    python -m benchmarks.inference
    python -m benchmarks.inference --peer PYTHON     # PYTHON: an interpreter that has torch 2.13

d6: 6 layers of width 384 with windows of 512 tokens and every idea of `models/gpt.py`, vocabulary 8,192, f32, no training:
the values of weights do not change what is computed. Prints one JSON line a figure: name, value, unit, n (repetitions),
context. Rates are medians over bursts, in tokens of all samples a second; the first token's time is the median over prompts.
Everything is compiled before the clock starts. `--peer` decodes the same shapes in plain PyTorch (`peer_decode.py`), by turns
with ours; `ratio` is the median over pairs of our rate by the peer's, once by wall time and once by processor time. Where others
use the machine only the latter means anything, and only with `--peer-threads 1`: threads that wait for each other spin.
The public implementation decodes 178 tokens/s for one sample and 1,300 for 16 on two cores of an AVX-512 EPYC, by the issue that
asked for this; it was not run here.
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
from pathlib import Path
from typing import Any

import equinox as eqx
import jax

from marin.flags import HelpFormatter
from marin.inference.engine import Engine
from marin.inference.measure import Speed, measure_speed, measured_bandwidth
from marin.models import GptConfig
from marin.nn.precision import Precision

PEER = Path(__file__).with_name("peer_decode.py")


class Peer:
    """The same model in PyTorch, in a process of its own."""

    def __init__(self, python: str, args: argparse.Namespace) -> None:
        shape = [
            f"--{name}={getattr(args, name.replace('-', '_'))}"
            for name in ("layers", "width", "head-dim", "vocabulary")
        ]
        command = [python, str(PEER), *shape, f"--threads={args.peer_threads}"]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
        except OSError as error:
            raise SystemExit(f"{command[0]} cannot be started ({error.strerror}): name a Python interpreter") from None

    def seconds(self, rows: int, prompt: int, new: int) -> tuple[float, float]:
        """Of one step of all rows: wall time, and time of all processors."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{rows} {prompt} {new}\n")
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit("the peer ended: has its interpreter torch 2.13?")
        told = json.loads(answer)
        return float(told["wall"]), float(told["processors"])

    def close(self) -> None:
        self._process.communicate()


class _Tokens:
    """What the engine asks of a tokenizer when no text is made."""

    bos_id = 0
    document_ends = frozenset((bos_id,))
    special_tokens: dict[str, int] = {}  # noqa: RUF012

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size


def engine_of(args: argparse.Namespace) -> Engine:
    config = GptConfig(
        seq_len=2048, hidden_dim=args.width, num_layers=args.layers, num_heads=args.width // args.head_dim
    )
    model = eqx.filter_jit(config.build)(args.vocabulary, key=jax.random.key(0))
    tokens: Any = _Tokens(args.vocabulary)
    return Engine(model, tokens, max_length=2048, max_rows=64, precision=Precision(args.dtype), tools=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument(
        "--peer", metavar="PYTHON", help="an interpreter that has PyTorch, to be measured by turns with ours"
    )
    parser.add_argument("--peer-threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    engine = engine_of(args)
    context = {
        "model": f"{args.layers} layers of width {args.width}, vocabulary {args.vocabulary}, {args.dtype}",
        "device": jax.local_devices()[0].device_kind,
        "load": os.getloadavg()[0],
        "bandwidth_gb_s": round(measured_bandwidth() / 1e9, 1),
    }

    def show(name: str, value: float, unit: str, speed: Speed, temperature: float) -> None:
        more = {"prompt": speed.prompt_tokens, "new": speed.new_tokens, "temperature": temperature}
        line = {"name": name, "value": round(value, 3), "unit": unit, "n": speed.repetitions, "context": context | more}
        print(json.dumps(line), flush=True)

    for rows in (1, 16):
        for temperature in (0.0, 0.8):
            speed = measure_speed(
                engine,
                rows=rows,
                prompt_tokens=64,
                new_tokens=128,
                temperature=temperature,
                repetitions=args.repetitions,
            )
            how = "greedy" if temperature == 0 else "sampled"
            show(f"decode_{rows}_{how}", speed.tokens_per_second, "tokens/s", speed, temperature)
    speed = measure_speed(engine, rows=1, prompt_tokens=1000, new_tokens=32, repetitions=args.repetitions)
    show("first_token_of_1000", speed.ttft, "s", speed, 0.0)
    show("decode_1_after_1000", speed.tokens_per_second, "tokens/s", speed, 0.0)
    if args.peer:
        peer = Peer(args.peer, args)
        for rows in (1, 16):
            peer.seconds(rows, 64, 8)
            pairs = []
            for _ in range(args.repetitions):
                speed = measure_speed(engine, rows=rows, prompt_tokens=64, new_tokens=128, repetitions=1)
                pairs.append(((speed.tpot, speed.processor_tpot), peer.seconds(rows, 64, 128)))
            context["load"] = os.getloadavg()[0]
            speed = dataclasses.replace(speed, repetitions=args.repetitions)
            for which, what in enumerate(("wall", "processors")):
                ours, theirs = (statistics.median(pair[side][which] for pair in pairs) for side in (0, 1))
                show(f"decode_{rows}_beside_peer_{what}", rows / ours, "tokens/s", speed, 0.0)
                show(f"decode_{rows}_peer_{what}", rows / theirs, "tokens/s", speed, 0.0)
                ratio = statistics.median(their[which] / our[which] for our, their in pairs)
                show(f"decode_{rows}_ratio_{what}", ratio, "x the peer's rate", speed, 0.0)
        peer.close()


if __name__ == "__main__":
    main()
