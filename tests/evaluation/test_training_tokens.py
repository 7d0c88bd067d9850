"""Tokenizers that have passages of the evaluation set for tokens, and training data that has them or not."""

import json
import random
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from marin.data.cache import TokenCache, TokenizeConfig, tokenize
from marin.data.documents import Document, write_documents
from marin.data.tokenizer import Tokenizer, TrainTokenizerConfig, train_tokenizer
from marin.evaluation import EvalSet, Scorer, Validity, bits_per_byte_of, probe_validity, training_tokens
from marin.evaluation.training_tokens import counts_of_run, sampled_counts, unseen_share
from marin.nn import Precision

WORDS = ["ba", "doki", "lu", "tare", "nomi", "su", "keladi", "po"]


class Uniform(eqx.Module):
    """Has learned nothing."""

    vocab_size: int = eqx.field(static=True)

    @property
    def lm_head_DV(self):
        return jnp.zeros((2, self.vocab_size), jnp.float32)

    @property
    def logit_softcap(self):
        return None

    def activations(self, tokens_BT, segment_ids_BT):
        return jnp.ones((*tokens_BT.shape, 2), jnp.float32)


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


def _probe(tokenizer: Tokenizer, eval_set: EvalSet, counts: np.ndarray | None) -> tuple[float, Validity]:
    scorer = Scorer(Uniform(tokenizer.vocab_size), Precision("f32"))
    measured = bits_per_byte_of(scorer, eval_set, tokenizer, 16, batch_size=4)
    return measured.value, probe_validity(
        scorer, eval_set, tokenizer, 16, measured, batch_size=4, training_counts=counts
    )


@pytest.mark.parametrize(("length", "said"), [(400, "bytes on average"), (8, "of the text stands in tokens that")])
def test_probes_of_a_tokenizer_with_passages_of_the_evaluation_set_fail(folder, eval_set, length, said):
    honest = Tokenizer.load(str(folder))
    counts = sampled_counts([TokenCache.open(str(folder / "tokens"))], honest.vocab_size)
    bits, outcome = _probe(honest, eval_set, counts)
    assert outcome.passed
    cheat = _with_passages(folder, eval_set, length)
    padded = np.pad(counts, (0, cheat.vocab_size - len(counts)))  # training data with none of the passages
    fewer, outcome = _probe(cheat, eval_set, padded)
    assert fewer < 0.7 * bits  # by a model that has learned nothing
    assert [name for name, found in outcome.probes.items() if not found.passed] == ["byte_count"]
    assert said in outcome.byte_count.message


def test_counts_of_a_run_are_those_of_its_data_wherever_it_lies(folder, eval_set):
    tokenizer = Tokenizer.load(str(folder))
    run = folder / "checkpoints" / "run"
    expected = np.bincount(TokenCache.open(str(folder / "tokens")).tokens[:], minlength=tokenizer.vocab_size)

    def found(data: Any) -> Any:
        return counts_of_run(run, {"config": {"data": data}}, tokenizer.vocab_size)

    np.testing.assert_array_equal(found("../../tokens"), expected)
    np.testing.assert_array_equal(
        found({"components": {"a": "../../tokens", "b": str(folder / "tokens")}}), 2 * expected
    )
    assert found("../../elsewhere") is None and found(None) is None
    assert unseen_share(eval_set.stream(tokenizer, 16), expected) == 0.0


def test_counts_of_large_data_are_of_places_all_over_it(folder, monkeypatch):
    tokens = TokenCache.open(str(folder / "tokens")).tokens[:]
    monkeypatch.setattr(training_tokens, "_SAMPLED", len(tokens) // 4)
    monkeypatch.setattr(training_tokens, "_PARTS", 8)
    counts = sampled_counts([TokenCache.open(str(folder / "tokens"))], 300)
    length = len(tokens) // 4 // 8
    assert counts.sum() == 8 * length
    ends = np.bincount(np.concatenate([tokens[:length], tokens[-length:]]), minlength=300)
    assert (counts >= ends).all()
