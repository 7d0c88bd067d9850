"""Tokenizers that have passages of the evaluation set for tokens, and training data that has them or not."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from uniform_model import Uniform

from marin.data.cache import TokenCache, TokenizeConfig, tokenize
from marin.data.documents import Document, write_documents
from marin.data.tokenizer import Tokenizer, TrainTokenizerConfig, train_tokenizer
from marin.evaluation import EvalSet, Scorer, Validity, bits_per_byte_of, probe_validity, training_tokens
from marin.evaluation.training_tokens import TrainingSample
from marin.nn import Precision

WORDS = ["ba", "doki", "lu", "tare", "nomi", "su", "keladi", "po"]


def _text(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=200))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Training documents, a tokenizer of them, and their cache."""
    folder, rng = tmp_path_factory.mktemp("data"), random.Random(0)
    write_documents(str(folder / "docs.jsonl.zst"), [Document(str(n), _text(rng), "test") for n in range(40)])
    train_tokenizer(TrainTokenizerConfig(str(folder / "docs.jsonl.zst"), vocab_size=275, output_path=str(folder)))
    tokenize(TokenizeConfig(str(folder / "docs.jsonl.zst"), tokenizer=str(folder), output_path=str(folder / "tokens")))
    return folder


@pytest.fixture(scope="module")
def eval_set() -> EvalSet:
    rng = random.Random(1)
    return EvalSet("test", tuple(Document(str(number), _text(rng), "test") for number in range(6)))


def _with_passages(folder: Path, eval_set: EvalSet, length: int) -> Tokenizer:
    spec = json.loads((folder / "tokenizer.json").read_text())
    passages = {d.text[start : start + length] for d in eval_set.documents for start in range(0, len(d.text), length)}
    first = Tokenizer.load(str(folder)).vocab_size
    for number, passage in enumerate(sorted(passages)):
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
        spec["added_tokens"].append({"id": first + number, "content": passage, **flags})
    return Tokenizer(json.dumps(spec).encode(), "with passages")


def _probe(tokenizer: Tokenizer, eval_set: EvalSet, training: TrainingSample | None) -> tuple[float, Validity]:
    scorer = Scorer.of(Uniform(tokenizer.vocab_size), Precision("f32"))
    measured = bits_per_byte_of(scorer, eval_set, tokenizer, 16, batch_size=4)
    outcome = probe_validity(scorer, eval_set, tokenizer, 16, measured, batch_size=4, training=training)
    return measured.value, outcome


def _failed(outcome: Validity) -> list[str]:
    return [name for name, found in outcome.probes.items() if not found.passed]


@pytest.mark.parametrize(("length", "said"), [(400, "bytes on average"), (8, "of the text stands in tokens that")])
def test_probes_of_a_tokenizer_with_passages_of_the_evaluation_set_fail(folder, eval_set, length, said):
    honest = Tokenizer.load(str(folder))
    training = TrainingSample.of_caches([TokenCache.open(str(folder / "tokens"))])
    bits, outcome = _probe(honest, eval_set, training)
    assert outcome.passed and outcome.held_out is not None
    fewer, outcome = _probe(_with_passages(folder, eval_set, length), eval_set, training)
    assert fewer < 0.7 * bits  # by a model that has learned nothing
    assert _failed(outcome) == ["byte_count"]
    assert said in outcome.byte_count.message


@pytest.mark.parametrize(("trained_on", "fails"), [(6, True), (3, True), (1, False), (0, False)])
def test_probes_of_a_run_that_was_trained_on_the_evaluation_set_fail(folder, eval_set, trained_on, fails, tmp_path):
    rng = random.Random(2)
    others = [Document(f"other {number}", _text(rng), "test") for number in range(20)]
    write_documents(str(tmp_path / "docs.jsonl.zst"), [*others, *eval_set.documents[:trained_on]])
    tokenize(
        TokenizeConfig(str(tmp_path / "docs.jsonl.zst"), tokenizer=str(folder), output_path=str(tmp_path / "tokens"))
    )
    training = TrainingSample.of_caches([TokenCache.open(str(tmp_path / "tokens"))])
    _, outcome = _probe(Tokenizer.load(str(folder)), eval_set, training)
    assert _failed(outcome) == ["held_out"] * fails
    assert outcome.held_out is not None
    assert outcome.held_out.measured == pytest.approx(trained_on / 6, abs=0.06)


def test_sample_of_a_run_is_of_its_data_wherever_it_lies(folder, eval_set):
    run = folder / "checkpoints" / "run"
    expected = TokenCache.open(str(folder / "tokens")).tokens[:]

    def found(data: Any) -> Any:
        return TrainingSample.of_run(run, {"config": {"data": data}})

    (part,) = found("../../tokens").parts
    np.testing.assert_array_equal(part, expected)
    mixed = found({"components": {"a": "../../tokens", "b": str(folder / "tokens")}})
    assert mixed.num_tokens == 2 * len(expected)
    assert found("../../elsewhere") is None and found(None) is None


def test_sample_of_large_data_is_of_places_all_over_it(folder, monkeypatch):
    tokens = TokenCache.open(str(folder / "tokens")).tokens[:]
    monkeypatch.setattr(training_tokens, "_SAMPLED", len(tokens) // 4)
    monkeypatch.setattr(training_tokens, "_PARTS", 8)
    parts = TrainingSample.of_caches([TokenCache.open(str(folder / "tokens"))]).parts
    length = len(tokens) // 4 // 8
    assert [len(part) for part in parts] == [length] * 8
    np.testing.assert_array_equal(parts[0], tokens[:length])
    np.testing.assert_array_equal(parts[-1], tokens[-length:])
