"""The yardstick model "d6" and its training step in plain PyTorch, under torch.compile: the peer of `benchmarks.train_step`.

Run by that benchmark in an interpreter that has PyTorch; this project does not depend on it. Serves on standard input and
output: a line with a number n makes it take n steps and answer with one line of JSON.
"""

import argparse
import json
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def norm(x: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.size(-1),))


class Linear(nn.Linear):
    """A matrix kept in float32 and used in the format of its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight.to(x.dtype))


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.size(-1) // 2
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = Linear(width, 4 * width, bias=False), Linear(4 * width, width, bias=False)

    def forward(
        self, x: torch.Tensor, value: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        rows, tokens, width = x.shape
        stream = norm(x)
        q, k, v = (m(stream).view(rows, tokens, self.heads, -1) for m in (self.query, self.key, self.value))
        if value is not None:
            v = v + value.view(v.shape)
        q, k = norm(rotated(q, cos, sin)) * 1.2, norm(rotated(k, cos, sin)) * 1.2
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        x = x + self.output(y.transpose(1, 2).reshape(rows, tokens, width))
        return x + self.down(F.relu(self.up(norm(x))).square())


class Gpt(nn.Module):
    def __init__(self, args: argparse.Namespace):
        super().__init__()
        width, layers = args.width, args.layers
        self.dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32
        self.embedding = nn.Embedding(args.vocabulary, width)
        self.values = nn.ModuleDict(
            {str(i): nn.Embedding(args.vocabulary, width) for i in range(layers) if i % 2 == (layers - 1) % 2}
        )
        self.blocks = nn.ModuleList(Block(width, args.heads) for _ in range(layers))
        self.head = Linear(width, args.vocabulary, bias=False)
        self.residual = nn.Parameter(torch.linspace(1.15, 1.05, layers))
        self.input = nn.Parameter(torch.linspace(0.2, 0.05, layers))
        half = width // args.heads // 2
        angle = torch.outer(torch.arange(args.tokens).float(), 100_000 ** (-torch.arange(half).float() / half))
        self.register_buffer("cos", angle.cos()[:, None].to(self.dtype))
        self.register_buffer("sin", angle.sin()[:, None].to(self.dtype))
        nn.init.normal_(self.embedding.weight, std=0.8)
        nn.init.normal_(self.head.weight, std=0.001)
        bound = (3 / width) ** 0.5
        for block in self.blocks:
            for matrix in (block.query, block.key, block.value):
                nn.init.uniform_(matrix.weight, -bound, bound)
            nn.init.uniform_(block.up.weight, -0.4 * bound, 0.4 * bound)
            nn.init.zeros_(block.output.weight)
            nn.init.zeros_(block.down.weight)
        for table in self.values.values():
            nn.init.uniform_(table.weight, -bound, bound)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = start = norm(self.embedding(tokens).to(self.dtype))
        for i, block in enumerate(self.blocks):
            x = self.residual[i].to(x.dtype) * x + self.input[i].to(x.dtype) * start
            value = self.values[str(i)](tokens).to(x.dtype) if str(i) in self.values else None
            x = block(x, value, self.cos, self.sin)
        logits = 15 * torch.tanh(self.head(norm(x)).float() / 15)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


@torch.compile(dynamic=False, fullgraph=True)
def muon_step(grads: torch.Tensor, params: torch.Tensor, momentum: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
    """One step for matrices of one shape, stacked [n, out, in]."""
    momentum.mul_(0.95).add_(grads)
    x = grads + 0.95 * momentum
    tall = x.size(-2) > x.size(-1)
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a, b, c = COEFFICIENTS
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    x = x.mT if tall else x
    return params - rate * max(1.0, x.size(-2) / x.size(-1)) ** 0.5 * x


class Muon:
    def __init__(self, matrices: list[nn.Parameter], rate: float):
        shapes = sorted({tuple(m.shape) for m in matrices})
        self.groups = [[m for m in matrices if tuple(m.shape) == shape] for shape in shapes]
        self.momenta = [torch.zeros(len(group), *group[0].shape) for group in self.groups]
        self.rate = torch.tensor(rate)

    @torch.no_grad()
    def step(self) -> None:
        for group, momentum in zip(self.groups, self.momenta, strict=True):
            stepped = muon_step(torch.stack([m.grad for m in group]), torch.stack(list(group)), momentum, self.rate)
            for matrix, new in zip(group, stepped.unbind(0), strict=True):
                matrix.copy_(new)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (
        ("layers", 6),
        ("width", 384),
        ("heads", 6),
        ("vocabulary", 8192),
        ("tokens", 512),
        ("batch", 8),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    args = parser.parse_args()
    begin = time.perf_counter()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    model = Gpt(args)
    compiled = torch.compile(model, dynamic=False)
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and name.startswith("blocks")]
    rest = [p for p in model.parameters() if not any(p is m for m in matrices)]
    muon, adam = Muon(matrices, 0.02), torch.optim.AdamW(rest, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    rows = torch.randint(args.vocabulary, (64, args.batch, args.tokens + 1))
    count = 0

    def step() -> float:
        nonlocal count
        batch = rows[count % len(rows)]
        count += 1
        loss = compiled(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
        loss.backward()
        muon.step()
        adam.step()
        model.zero_grad(set_to_none=True)
        return loss.item()

    step()
    print(json.dumps({"first_step": time.perf_counter() - begin, "version": torch.__version__}), flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        losses = [step() for _ in range(int(line))]
        print(json.dumps({"seconds": time.perf_counter() - start, "loss": losses[-1]}), flush=True)


if __name__ == "__main__":
    main()
