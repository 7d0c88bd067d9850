"""CORE's questions one at a time in plain PyTorch, with all logits: the peer of `benchmarks.core`.

Run by that benchmark in an interpreter that has PyTorch; this project does not depend on it. Reads questions from a file of JSON
lines (task, rows of tokens, first scored token of each), then serves on standard input and output: a line with a task makes it
answer all its questions and say how long that took.
"""

import argparse
import json
import sys
import time

import torch
import torch.nn.functional as F
from peer_gpt import Gpt, norm


class Scorer(Gpt):
    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.size(1)
        x = start = norm(self.embedding(tokens))
        for i, block in enumerate(self.blocks):
            x = self.residual[i] * x + self.input[i] * start
            value = self.values[str(i)](tokens) if str(i) in self.values else None
            x = block(x, value, self.cos[:length], self.sin[:length])
        return 15 * torch.tanh(self.head(norm(x)).float() / 15)

    @torch.no_grad()
    def answer(self, rows: list[list[int]], starts: list[int]) -> bool | int:
        """The choice with the least mean loss; of a single row whether its continuation is the likeliest."""
        longest = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        logits = self.logits(tokens)
        losses = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        losses = losses.view(len(rows), -1)
        likeliest = logits.argmax(dim=-1)
        if len(rows) == 1:
            first = starts[0]
            return bool((likeliest[0, first - 1 : -1] == tokens[0, first:]).all())
        means = [losses[i, start - 1 : len(row) - 1].mean().item() for i, (row, start) in enumerate(zip(rows, starts))]
        return means.index(min(means))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions")
    for name, default in (("layers", 6), ("width", 384), ("heads", 6), ("vocabulary", 8192), ("tokens", 2048)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    args.precision = "f32"
    torch.manual_seed(0)
    model = Scorer(args).eval()
    with open(args.questions) as lines:
        questions = [json.loads(line) for line in lines]
    for question in questions[:2]:
        model.answer(question["rows"], question["starts"])
    print(json.dumps({"version": torch.__version__}), flush=True)
    for line in sys.stdin:
        asked = [question for question in questions if question["task"] == line.strip()]
        begin = time.perf_counter()
        for question in asked:
            model.answer(question["rows"], question["starts"])
        print(json.dumps({"seconds": time.perf_counter() - begin, "count": len(asked)}), flush=True)


if __name__ == "__main__":
    main()
