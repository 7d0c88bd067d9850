"""Choosing tokens: the distribution, its cuts, and that each row keeps to its own options."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from marin.inference import choosing
from marin.inference.choosing import RowOptions, choose

VOCAB = 300
LOGITS = np.random.default_rng(0).normal(0, 2, VOCAB).astype(np.float32)
run = jax.jit(choose)


def draws(count, *, temperature=1.0, top_k=2**30, top_p=1.0, logits=LOGITS, seed=7):
    """The tokens of `count` positions of one sample, drawn as rows of a batch."""
    rows = (
        np.full(count, value, kind)
        for value, kind in ((temperature, np.float32), (top_k, np.int32), (top_p, np.float32))
    )
    start = (np.full(count, seed, np.uint32), np.zeros(count, np.uint32), np.arange(count, dtype=np.int32))
    tokens, logprobs = run(np.tile(logits, (count, 1)), RowOptions(*(jnp.asarray(a) for a in (*start, *rows))))
    return np.asarray(tokens), np.asarray(logprobs)


def probabilities(temperature=1.0, top_k=None, top_p=1.0):
    """By sorting, as the definitions say."""
    p = np.exp(LOGITS.astype(np.float64) / temperature)
    order = np.argsort(-p)
    p[order[top_k or VOCAB :]] = 0
    p /= p.sum()
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= top_p]] = 0
    return p / p.sum()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5},
        {"top_k": 5},
        {"top_k": 1},
        {"top_p": 0.6},
        {"top_k": 40, "top_p": 0.9, "temperature": 1.4},
    ],
    ids=str,
)
def test_draws_have_the_distribution_that_the_options_define(options):
    count, expected = 4096, probabilities(**options)
    tokens, _ = draws(count, **options)
    seen = np.bincount(tokens, minlength=VOCAB)
    assert not seen[expected == 0].any()
    kept = expected > 0
    rare = kept & (expected * count < 5)  # pooled, as the test asks for
    groups = [(seen[i], expected[i] * count) for i in np.flatnonzero(kept & ~rare)]
    if rare.any():
        groups.append((seen[rare].sum(), expected[rare].sum() * count))
    observed, wanted = np.array(groups).T
    assert len(groups) == 1 or chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > 1e-3


def test_no_temperature_takes_the_likeliest_token_with_its_log_probability():
    tokens, logprobs = draws(3, temperature=0.0)
    assert (tokens == LOGITS.argmax()).all()
    np.testing.assert_allclose(logprobs, np.log(probabilities().max()), rtol=1e-5)


def test_of_several_likeliest_tokens_the_first_is_taken_as_argmax_does():
    logits_BV = np.random.default_rng(0).integers(0, 3, (40, 300)).astype(np.float32)
    logits_BV[:4] = np.array([-np.inf, 0.0, np.inf, np.nan])[:, None]
    columns = [np.zeros(40, kind) for kind in (np.uint32, np.uint32, np.int32, np.float32, np.int32)]
    tokens, _ = run(logits_BV, RowOptions(*columns, np.ones(40, np.float32)))
    np.testing.assert_array_equal(tokens[:3], [0, 0, 0])
    assert 0 <= tokens[3] < 300
    np.testing.assert_array_equal(tokens[4:], logits_BV[4:].argmax(axis=1))


def test_each_row_keeps_to_its_own_options():
    tile = np.tile(LOGITS, (4, 1))
    columns = [
        (1, 1, 1, 1),
        (0, 0, 0, 1),
        (5, 5, 5, 5),
        (1.0, 0.0, 1.0, 1.0),
        (2**30, 2**30, 1, 2**30),
        (1.0, 1.0, 1.0, 0.01),
    ]
    kinds = (np.uint32, np.uint32, np.int32, np.float32, np.int32, np.float32)
    together = RowOptions(*(jnp.asarray(np.array(c, k)) for c, k in zip(columns, kinds, strict=True)))
    tokens = np.asarray(run(tile, together)[0])
    assert (tokens[1:] == LOGITS.argmax()).all()
    assert tokens[0] == draws(6, seed=1)[0][5]


@pytest.mark.parametrize(
    "logits", [np.zeros(VOCAB), np.where(np.arange(VOCAB) == 299, 0, -1e30), np.full(VOCAB, -80.0)]
)
def test_flat_and_extreme_logits_give_tokens_that_exist(logits):
    tokens, logprobs = draws(64, logits=logits.astype(np.float32), top_k=7, top_p=0.5)
    assert ((tokens >= 0) & (tokens < VOCAB)).all() and np.isfinite(logprobs).all()
    if (logits == logits[0]).all():
        assert len(set(tokens.tolist())) > 10  # ties with the last of the likeliest are all kept
    else:
        assert (tokens == 299).all()


def test_share_of_nearly_one_finds_no_token_that_was_cut_off():
    rng = np.random.default_rng(0)
    rows, vocab_size = 64, 50_304
    inverse = jax.jit(choosing._inverse)
    for _ in range(40):
        weight_BV = np.zeros((rows, vocab_size), np.float32)
        for row in weight_BV:
            row[rng.choice(vocab_size, 50, replace=False)] = np.exp(-rng.exponential(3.0, 50))
            row[rng.integers(vocab_size)] = 1.0
        uniform_B = np.float32(1) - np.float32(2**-23) * rng.integers(1, 4, rows).astype(np.float32)
        token_B = np.asarray(inverse(weight_BV, uniform_B, weight_BV.argmax(axis=-1).astype(np.int32)))
        assert (weight_BV[np.arange(rows), token_B] > 0).all()
