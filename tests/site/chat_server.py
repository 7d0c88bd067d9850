"""A small model with a chat's tokens, and a server over it in a thread, for the tests of the server and of its page."""

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from local_server import answering

from marin.data.conversation import SPECIAL_TOKENS
from marin.data.documents import Document, write_documents
from marin.data.tokenizer import Tokenizer, TrainTokenizerConfig, train_tokenizer
from marin.inference import Engine
from marin.inference.server import Limits, Worker, build_app
from marin.models import GptConfig
from marin.web.guard import loopback_hosts

CONFIG = GptConfig(seq_len=32, hidden_dim=32, num_layers=3, num_heads=4, num_kv_heads=2)  # windows of 8 keys
NAME = "tiny"


def make_tokenizer(folder: pathlib.Path, special_tokens: tuple[str, ...] = SPECIAL_TOKENS) -> Tokenizer:
    documents = str(folder / "documents.jsonl.zst")
    texts = [f"the cat number {i} sat on a mat, and so on. " * 9 for i in range(3)]
    write_documents(documents, [Document(str(i), text, "test") for i, text in enumerate(texts)])
    train_tokenizer(
        TrainTokenizerConfig(documents, 266 + len(special_tokens), str(folder), special_tokens=special_tokens)
    )
    return Tokenizer.load(str(folder))


def model_of(config: Any, vocab_size: int, seed: int = 1, spread: float = 0.2) -> Any:
    """A model whose every weight matters, as the first values of some are zero."""
    model = config.build(vocab_size, key=jax.random.key(0))
    leaves, structure = jax.tree.flatten(eqx.filter(model, eqx.is_array))
    draw = np.random.default_rng(seed)  # NumPy's, as JAX compiles a program for each shape
    moved = [
        jnp.asarray(np.asarray(leaf) + np.float32(spread) * draw.standard_normal(leaf.shape, np.float32))
        for leaf in leaves
    ]
    return eqx.combine(jax.tree.unflatten(structure, moved), model)


def endless(model: Any) -> Any:
    """The model with no inclination to any special token, so that without temperature it never ends by itself."""
    weight_DV = model.lm_head.weight_IO
    return eqx.tree_at(lambda m: m.lm_head.weight_IO, model, weight_DV.at[:, : len(SPECIAL_TOKENS)].set(0.0))


@dataclasses.dataclass
class Served:
    url: str
    engine: Engine
    worker: Worker

    def until(self, condition: Any, seconds: float = 60.0) -> Any:
        """The first statistics of which the condition holds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            stats = self.worker.stats()
            if condition(stats):
                return stats
            time.sleep(0.02)
        raise AssertionError(f"not within {seconds} s: {self.worker.stats()}")


@contextlib.contextmanager
def serving(tokenizer: Tokenizer, model: Any = None, **options: Any) -> Iterator[Served]:
    """A server; `limits` beside the engine's sizes."""
    limits = options.pop("limits", Limits())
    model = model if model is not None else model_of(CONFIG, tokenizer.vocab_size)
    engine = Engine(model, tokenizer, **{"max_length": 256, "max_rows": 4} | options)
    engine.warm_up()
    worker = Worker(engine, limits)
    try:
        with answering(lambda port: build_app(worker, NAME, loopback_hosts(port))) as port:
            yield Served(f"http://127.0.0.1:{port}", engine, worker)
    finally:
        worker.close()
