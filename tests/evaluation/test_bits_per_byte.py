"""Bits per byte against figures that can be worked out by hand."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from uniform_model import Uniform

from marin.data.documents import Document
from marin.data.tokenizer import Tokenizer, TrainTokenizerConfig, train_tokenizer
from marin.errors import DataError
from marin.evaluation import EvalSet, bits_per_byte, compressor_bits_per_byte
from marin.models import LlamaConfig
from marin.nn import Precision

TEXTS = ("A graph is a set of nodes.", "naïve — 漢字 🙂", "x", "The quick brown fox jumps over the lazy dog. " * 9)
DOCUMENTS = tuple(Document(str(i), text, "test") for i, text in enumerate(TEXTS))
F32 = Precision("f32")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    from marin.data.documents import write_documents

    folder = tmp_path_factory.mktemp("tokenizer")
    write_documents(str(folder / "docs.jsonl.zst"), DOCUMENTS * 3)
    train_tokenizer(
        TrainTokenizerConfig(documents=str(folder / "docs.jsonl.zst"), vocab_size=300, output_path=str(folder))
    )
    return Tokenizer.load(str(folder))


@pytest.fixture(scope="module")
def eval_set() -> EvalSet:
    return EvalSet("test", DOCUMENTS)


def test_bits_per_byte_of_a_uniform_model_is_tokens_times_log_of_the_vocabulary_over_bytes(tokenizer, eval_set):
    measured = bits_per_byte(Uniform(tokenizer.vocab_size), eval_set, tokenizer, 16, precision=F32)
    ids = [tokenizer.encode(text) for text in TEXTS]
    num_tokens = sum(len(x) + 1 for x in ids) - 1  # every token but the first begin-of-document is predicted
    num_bytes = sum(len(text.encode()) for text in TEXTS)
    assert measured.num_tokens == num_tokens
    assert measured.num_bytes == num_bytes
    assert measured.value == pytest.approx(num_tokens * math.log2(tokenizer.vocab_size) / num_bytes, rel=1e-6)


@pytest.fixture(scope="module")
def small_model(tokenizer):
    config = LlamaConfig(seq_len=16, hidden_dim=16, intermediate_dim=16, num_layers=1, num_heads=2, num_kv_heads=2)
    return dataclasses.replace(config, initializer_range=0.3).build(tokenizer.vocab_size, key=jax.random.key(0))


def test_bits_per_byte_does_not_depend_on_the_batch_size(small_model, tokenizer, eval_set):
    values = [
        bits_per_byte(small_model, eval_set, tokenizer, 16, precision=F32, batch_size=size).value for size in (1, 3, 16)
    ]
    assert values[1] == pytest.approx(values[0], rel=1e-6)
    assert values[2] == pytest.approx(values[0], rel=1e-6)


def test_bits_per_byte_is_the_sum_over_documents_scored_alone_window_by_window(small_model, tokenizer):
    one = EvalSet("one", (DOCUMENTS[0],))
    measured = bits_per_byte(small_model, one, tokenizer, 16, precision=F32)
    ids = np.array([tokenizer.bos_id, *tokenizer.encode(TEXTS[0])])
    nats = 0.0
    for start in range(0, len(ids) - 1, 16):
        window, targets = ids[start : start + 16], ids[start + 1 : start + 17]
        window = window[: len(targets)]
        logits = small_model.activations(jnp.asarray(window[None]), None) @ small_model.lm_head_DV
        nats -= float(jnp.sum(jax.nn.log_softmax(logits[0])[jnp.arange(len(targets)), jnp.asarray(targets)]))
    assert measured.value == pytest.approx(nats / math.log(2) / len(TEXTS[0].encode()), rel=1e-5)


def test_bits_per_byte_of_a_model_that_is_not_finite_is_refused(small_model, tokenizer, eval_set):
    broken = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), small_model)
    with pytest.raises(DataError, match="not finite"):
        bits_per_byte(broken, eval_set, tokenizer, 16, precision=F32)


def test_bits_per_byte_limited_to_a_batch_scores_the_beginning(small_model, tokenizer, eval_set):
    some = bits_per_byte(small_model, eval_set, tokenizer, 16, precision=F32, batch_size=2, max_batches=1)
    assert some.num_tokens == 32


def test_eval_set_digest_follows_text_and_order_not_names(eval_set):
    renamed = EvalSet("other", tuple(dataclasses.replace(d, id="x" + d.id) for d in DOCUMENTS))
    assert renamed.digest == eval_set.digest
    assert EvalSet("test", DOCUMENTS[::-1]).digest != eval_set.digest
    joined = (Document("0", TEXTS[0] + TEXTS[1], ""), *DOCUMENTS[2:])
    assert EvalSet("test", joined).digest != eval_set.digest


def test_compressors_need_about_eight_bits_for_noise_and_almost_none_for_repetition():
    noise = compressor_bits_per_byte(np.random.default_rng(0).bytes(20_000))
    repeated = compressor_bits_per_byte(b"marin " * 4000)
    assert all(7.9 < value < 8.2 for value in noise.values())
    assert all(value < 0.2 for value in repeated.values())
    assert set(noise) == {"gzip_9", "xz_9", "zstd_19"}
    with pytest.raises(ValueError, match="no bytes"):
        compressor_bits_per_byte(b"")
