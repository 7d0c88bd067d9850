"""A small bundle that tests make, a tokenizer of 400 tokens and models of width 32."""

import json
import os
import random
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from marin.data.documents import Document, write_documents
from marin.data.tokenizer import Tokenizer, TrainTokenizerConfig, train_tokenizer
from marin.evaluation.core import CORE_TASKS
from marin.models import GptConfig

WORDS = "the a cat dog bird sits runs sings on under near red green blue old small house tree river stone"


def made_items(kind: str, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Items of a kind, with what real ones have: digits, blank ends, choices of many lengths and one inside another."""
    draw = random.Random(seed)

    def words(least: int, most: int) -> str:
        return " ".join(draw.choices(WORDS.split(), k=draw.randint(least, most)))

    items: list[dict[str, Any]] = []
    for i in range(count):
        if kind == "multiple_choice":
            choices = [words(1, 5) for _ in range(draw.choice([2, 3, 4]))]
            items.append({"query": f"Question: {words(4, 20)}?\n", "choices": choices, "gold": i % len(choices)})
        elif kind == "schema":
            start = words(3, 8)
            options = [f"{start} {words(1, 3)}" for _ in range(2)]
            items.append({"context_options": options, "continuation": words(2, 4) + ".", "gold": i % 2})
        else:
            items.append({"context": f"{words(3, 30)} {i} ", "continuation": words(1, 3)})
    if kind == "multiple_choice" and count > 3:
        items[1] = {"query": "Question: copper?", "choices": ["the cat", "the cat sits", "the cat runs"], "gold": 1}
    return items


def write_bundle(folder: Path, tasks: dict[str, list[dict[str, Any]]]) -> Path:
    entries = []
    for label, items in tasks.items():
        known = CORE_TASKS[label]
        path = folder / "eval_data" / known.uri
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items))
        entry: dict[str, Any] = {"label": label, "dataset_uri": known.uri, "icl_task_type": known.kind}
        entry["num_fewshot"] = [min(known.num_shots, 3)]
        if label == "arc_easy":
            entry["continuation_delimiter"] = "\nAnswer: "
        entries.append(entry)
    (folder / "core.yaml").write_text(yaml.safe_dump({"icl_tasks": entries}))
    rows = "".join(f"{label},x,x,0,0,{CORE_TASKS[label].baseline}\n" for label in tasks)
    header = "Eval Task,Task Category,Task Type,#shots,#datapoints,Random baseline\n"
    (folder / "eval_meta_data.csv").write_text(header + rows)
    return folder


@pytest.fixture(scope="session")
def small_bundle(tmp_path_factory) -> Path:
    kinds = {
        "arc_easy": "multiple_choice",
        "copa": "multiple_choice",
        "lambada_openai": "language_modeling",
        "bigbench_operators": "language_modeling",
        "winograd": "schema",
    }
    tasks = {label: made_items(kind, 14, seed) for seed, (label, kind) in enumerate(kinds.items())}
    return write_bundle(tmp_path_factory.mktemp("bundle"), tasks)


@pytest.fixture(scope="session")
def small_tokenizer(tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    draw = random.Random(5)
    texts = [" ".join(draw.choices([*WORDS.split(), "Question:", "Answer:"], k=40)) + "?\n" for _ in range(40)]
    documents = [Document(str(i), text, "made") for i, text in enumerate(texts)]
    write_documents(str(folder / "documents.jsonl.zst"), documents)
    train_tokenizer(TrainTokenizerConfig(str(folder / "documents.jsonl.zst"), 320, output_path=str(folder)))
    return Tokenizer.load(str(folder))


def moved_from_its_start(config: Any, vocab_size: int, *, scale: float = 0.1) -> Any:
    """A model none of whose parts is silent, as some matrices are before training."""
    model = config.build(vocab_size, key=jax.random.key(0))
    leaves, structure = jax.tree.flatten(eqx.filter(model, eqx.is_array))
    draw = np.random.default_rng(1)  # NumPy's, as JAX compiles a program for each shape
    noise = [np.float32(scale) * draw.standard_normal(leaf.shape, np.float32) for leaf in leaves]
    moved = [jnp.asarray(np.asarray(leaf) + each) for leaf, each in zip(leaves, noise, strict=True)]
    return eqx.combine(jax.tree.unflatten(structure, moved), model)


@pytest.fixture(scope="session")
def small_model(small_tokenizer) -> Any:
    config = GptConfig(seq_len=64, hidden_dim=32, num_layers=2, num_heads=2, num_kv_heads=1)
    return moved_from_its_start(config, small_tokenizer.vocab_size)


@pytest.fixture(scope="session")
def real_tokenizer(real_bundle, tmp_path_factory) -> Tokenizer:
    """4,096 tokens of the real tasks' own text, so that their prompts are about as long as those of real models."""
    folder = tmp_path_factory.mktemp("real_tokenizer")
    paths = sorted((real_bundle / "eval_data").rglob("*.jsonl"))
    lines = [line for path in paths for line in path.read_text().split("\n")[:300] if line]
    documents = [Document(str(i), line, "core") for i, line in enumerate(lines)]
    write_documents(str(folder / "documents.jsonl.zst"), documents)
    train_tokenizer(TrainTokenizerConfig(str(folder / "documents.jsonl.zst"), 4096, output_path=str(folder)))
    return Tokenizer.load(str(folder))


@pytest.fixture(scope="session")
def real_bundle() -> Path:
    root = Path(os.environ.get("MARIN_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))
    if not (root / "core_eval_bundle" / "core.yaml").is_file():
        pytest.skip("the shared data with CORE's tasks is not here (set MARIN_SHARED_DATA)")
    return root / "core_eval_bundle"
