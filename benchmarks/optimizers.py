"""What each optimizer of the package reaches in 200 steps of the hackable template at CPU size.

    python -m benchmarks.optimizers                  # all; about 5 minutes on two cores
    python -m benchmarks.optimizers MuonConfig SoapConfig

Prints one JSON line an optimizer: name, value (the mean loss of the last 20 steps, in nats a byte), unit, n, context. It
shows that each one learns, not which is best: the rates are starts, not searched for, and 200 steps on a text of a few
hundred kilobytes favour whatever moves fast.
"""

import argparse
import importlib
import inspect
import json
import pkgutil
import statistics
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

import marin.optim
from experiments.hackable_transformer_starter_template import HackableTransformerConfig
from marin.data.rows import Batch
from marin.nn.precision import Precision
from marin.optim import GroupsConfig, OptimizerConfig
from marin.training.compile_cache import use_compile_cache
from marin.training.state import StepConfig, init_state, make_train_step

_STEPS, _ROWS, _CONTEXT = 200, 8, 64
# Starts, by class; one that is not here takes its own defaults.
_FIELDS: dict[str, dict[str, Any]] = {
    "AdamConfig": {"learning_rate": 3e-3},
    "LionConfig": {"learning_rate": 5e-4},
    "MuonConfig": {"learning_rate": 0.02, "adam_lr": 3e-3},
    "NorMuonConfig": {"learning_rate": 0.01, "adam_lr": 3e-3},
    "MuonHConfig": {"learning_rate": 0.02, "adam_lr": 3e-3},
    "AdamHConfig": {"learning_rate": 0.02, "adam_lr": 3e-3},
    "ScionConfig": {"learning_rate": 2**-10},
    "SoapConfig": {"learning_rate": 3e-3},
    "SophiaConfig": {"learning_rate": 1e-3},
    "MarsConfig": {"learning_rate": 3e-3},
    "AdoptConfig": {"learning_rate": 3e-3},
    "AdemamixConfig": {"learning_rate": 3e-3},
}


def optimizers() -> dict[str, type[OptimizerConfig]]:
    """Every optimizer of the package by name, but for the one that is made of others."""
    found: dict[str, type[OptimizerConfig]] = {}
    for info in pkgutil.iter_modules(marin.optim.__path__):
        for name, value in vars(importlib.import_module(f"marin.optim.{info.name}")).items():
            if inspect.isclass(value) and issubclass(value, OptimizerConfig) and value.__module__.endswith(info.name):
                found[name] = value
    return {name: kind for name, kind in found.items() if kind not in (OptimizerConfig, GroupsConfig)}


def main() -> None:
    parser = argparse.ArgumentParser(description="What each optimizer reaches in 200 steps.")
    parser.add_argument("names", nargs="*", help="classes such as MuonConfig; all without")
    names = parser.parse_args().names
    use_compile_cache()
    text = _text()
    for name, kind in optimizers().items():
        if names and name not in names:
            continue
        common: dict[str, Any] = {"warmup": 10, "min_lr_ratio": 0.0, "lr_schedule": "linear"}
        config = kind(**common | _FIELDS.get(name, {}))
        losses = _train(config, text)
        context = {
            "first_loss": round(losses[0], 4),
            "learning_rate": config.learning_rate,
            "steps": _STEPS,
            "tokens_a_step": _ROWS * _CONTEXT,
        }
        value = round(statistics.fmean(losses[-20:]), 4)
        print(
            json.dumps({"name": f"loss_{name}", "value": value, "unit": "nats/byte", "n": 1, "context": context}),
            flush=True,
        )


def _text() -> np.ndarray:
    """The bytes of the project's documentation, in the order of its paths."""
    root = Path(__file__).resolve().parents[1]
    return np.frombuffer(b"".join(path.read_bytes() for path in sorted((root / "docs").rglob("*.md"))), np.uint8)


def _train(config: OptimizerConfig, text: np.ndarray) -> list[float]:
    """The loss of each step."""
    template = HackableTransformerConfig(
        seq_len=_CONTEXT, hidden_dim=64, intermediate_dim=192, num_layers=2, num_heads=4, num_kv_heads=4
    )
    model = template.build(256, key=jax.random.key(0))
    optimizer = config.build(eqx.filter(model, eqx.is_array), _STEPS)
    step = jax.jit(make_train_step(optimizer, config.schedule(_STEPS), StepConfig(Precision("f32"))), donate_argnums=0)
    state, random, losses = init_state(model, optimizer, None), np.random.default_rng(0), []
    weight, segments = np.ones((_ROWS, _CONTEXT), np.float32), np.zeros((_ROWS, _CONTEXT), np.int32)
    for _ in range(_STEPS):
        starts = random.integers(0, len(text) - _CONTEXT - 1, _ROWS)
        rows = np.stack([text[start : start + _CONTEXT + 1] for start in starts]).astype(np.int32)
        state, metrics = step(state, Batch(rows[:, :-1], rows[:, 1:], weight, segments))
        losses.append(float(metrics["loss"]))
    return losses


if __name__ == "__main__":
    main()
