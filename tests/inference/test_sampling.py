"""Sampling from a model whose next token is known."""

import equinox as eqx
import jax.numpy as jnp

from marin.inference import sample_text
from marin.nn import Precision

VOCAB = 10


class Letters:
    """Ids 1 to 9 are the letters a to i, 0 begins a document."""

    vocab_size, bos_id = VOCAB, 0

    def __init__(self, *ends):
        self.document_ends = frozenset((0, *ends))

    def encode(self, text):
        return [ord(character) - 96 for character in text]

    def decode(self, ids):
        return "".join(chr(i + 96) for i in ids)


class Successor(eqx.Module):
    """After a letter comes the next, after i the end of the document."""

    scale: jnp.ndarray

    @property
    def lm_head_DV(self):
        return self.scale * jnp.eye(VOCAB, dtype=jnp.float32)

    @property
    def logit_softcap(self):
        return None

    def activations(self, tokens_BT, segment_ids_BT):
        return jnp.eye(VOCAB, dtype=jnp.float32)[(tokens_BT + 1) % VOCAB]


MODEL, LETTERS = Successor(jnp.asarray(50.0)), Letters()
F32 = Precision("f32")


def _sample(tokenizer=LETTERS, **options):
    return sample_text(MODEL, tokenizer, context_length=4, precision=F32, **options)


def test_sample_without_temperature_takes_the_likeliest_and_stops_at_the_document_end():
    assert _sample(prompt="c", temperature=0.0) == "defghi"


def test_sample_stops_at_a_token_of_its_own_for_the_document_end():
    assert _sample(Letters(7), prompt="c", temperature=0.0) == "def"


def test_sample_goes_beyond_the_context_and_keeps_to_the_token_limit():
    assert _sample(prompt="", num_tokens=6, temperature=0.0) == "abcdef"


def test_sample_with_a_seed_is_the_same_each_time_and_differs_between_seeds():
    flat = Successor(jnp.asarray(0.5))

    def draw(seed):
        return sample_text(flat, Letters(), context_length=4, precision=F32, seed=seed, num_tokens=30, temperature=2.0)

    assert draw(1) == draw(1)
    assert len({draw(seed) for seed in range(5)}) > 1
