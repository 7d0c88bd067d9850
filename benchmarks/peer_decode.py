"""Greedy decoding of the yardstick model "d6" in plain PyTorch, with a cache of keys and values: the peer of `benchmarks.inference`.

Run by that benchmark in an interpreter that has PyTorch; this project does not depend on it. Serves on standard input and
output: a line "rows prompt new" is answered with one line of JSON, the seconds of wall time and of all processors that one
step of `new` took in the mean, the first `prompt` positions being in the cache.
"""

import argparse
import json
import sys
import time

import torch
import torch.nn.functional as F

MAX_LENGTH, GATED, SMEARED = 2048, 12, 24


def norm(x: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.size(-1),))


class Decoder:
    """Weights at random: their values do not change what is computed."""

    def __init__(self, args: argparse.Namespace):
        self.heads, self.head_dim = args.width // args.head_dim, args.head_dim
        width, wide = args.width, 4 * args.width

        def matrix(*shape: int) -> torch.Tensor:
            return 0.05 * torch.randn(*shape)

        self.embedding, self.head, self.smear = (
            matrix(args.vocabulary, width),
            matrix(args.vocabulary, width),
            matrix(1, SMEARED),
        )
        self.layers = [
            {
                "qkv": [matrix(width, width) for _ in range(3)],
                "output": matrix(width, width),
                "up": matrix(wide, width),
                "down": matrix(width, wide),
                "values": matrix(args.vocabulary, width) if i % 2 == (args.layers - 1) % 2 else None,
                "gate": matrix(self.heads, GATED),
            }
            for i in range(args.layers)
        ]
        half = args.head_dim // 2
        angle = torch.outer(torch.arange(float(MAX_LENGTH)), 100_000 ** (-torch.arange(half) / half))
        self.cos, self.sin = angle.cos(), angle.sin()

    def start(self, rows: int) -> None:
        shape = (rows, self.heads, MAX_LENGTH, self.head_dim)
        self.caches = [(torch.zeros(shape), torch.zeros(shape)) for _ in self.layers]
        self.tokens, self.previous = torch.arange(1, rows + 1), torch.zeros(rows, self.embedding.size(1))

    def rotated(self, x: torch.Tensor, position: int) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        cos, sin = self.cos[position], self.sin[position]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def step(self, position: int) -> None:
        rows = len(self.tokens)
        now = norm(self.embedding[self.tokens])
        x = start = now + torch.sigmoid(F.linear(now[:, :SMEARED], self.smear)) * self.previous
        self.previous = now
        for index, (layer, (keys, values)) in enumerate(zip(self.layers, self.caches, strict=True)):
            x = 1.1 * x + 0.1 * start
            stream = norm(x)
            q, k, v = (F.linear(stream, m).view(rows, self.heads, self.head_dim) for m in layer["qkv"])
            if layer["values"] is not None:
                gate = 3 * torch.sigmoid(F.linear(stream[:, :GATED], layer["gate"]))
                v = v + gate[..., None] * layer["values"][self.tokens].view(v.shape)
            q, keys[:, :, position] = norm(self.rotated(q, position)) * 1.2, norm(self.rotated(k, position)) * 1.2
            values[:, :, position] = v
            seen = slice(0, position + 1)
            y = F.scaled_dot_product_attention(q[:, :, None], keys[:, :, seen], values[:, :, seen])
            x = x + F.linear(y.reshape(rows, -1), layer["output"])
            x = x + F.linear(F.linear(norm(x), layer["up"]).relu().square(), layer["down"])
            if index == len(self.layers) // 2:
                middle = x
        logits = 15 * torch.tanh(F.linear(norm(x - 0.2 * middle), self.head) / 15)
        self.tokens = logits.argmax(-1)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("layers", "width", "head-dim", "vocabulary", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    decoder = Decoder(args)
    for line in sys.stdin:
        rows, prompt, new = map(int, line.split())
        decoder.start(rows)
        decoder.step(prompt - 1)
        wall, processors = time.perf_counter(), time.process_time()
        for position in range(prompt, prompt + new):
            decoder.step(position)
        wall, processors = time.perf_counter() - wall, time.process_time() - processors
        print(
            json.dumps({"wall": wall / new, "processors": processors / new, "version": torch.__version__}), flush=True
        )


if __name__ == "__main__":
    main()
