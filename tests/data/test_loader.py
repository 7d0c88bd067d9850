import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.data import cache as cache_module
from marin.data.cache import TokenCache, write_cache
from marin.data.loader import BatchSource, segment_ids
from marin.errors import ConfigError

BOS = 0
CONTEXT = 8


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("loader") / "train")
    generator = np.random.default_rng(0)
    rows = [[BOS, *generator.integers(1, 5000, size).tolist()] for size in generator.integers(0, 40, 60)]
    write_cache(path, rows, tokenizer_digest="t", vocab_size=5000)
    return TokenCache.open(path)


@given(seed=st.integers(0, 2**63), batch_size=st.integers(1, 50), epoch=st.integers(0, 3))
@settings(max_examples=30)
def test_epoch_visits_every_window_exactly_once(cache, seed, batch_size, epoch):
    source = BatchSource(cache, CONTEXT, BOS)
    first, last = epoch * source.num_windows, (epoch + 1) * source.num_windows
    steps = range(first // batch_size, -(-last // batch_size))
    seen = np.concatenate([source.window_indices(seed, step, batch_size) for step in steps])
    offset = first - steps[0] * batch_size
    np.testing.assert_array_equal(np.sort(seen[offset : offset + source.num_windows]), np.arange(source.num_windows))


@given(seed=st.integers(0, 2**63), step=st.integers(0, 10**9), batch_size=st.integers(1, 20))
@settings(max_examples=50)
def test_batch_rows_are_consecutive_tokens_and_their_successors(cache, seed, step, batch_size):
    source = BatchSource(cache, CONTEXT, BOS)
    batch = source.batch_at(seed, step, batch_size)
    flat = cache.tokens[:]
    for row, window in enumerate(source.window_indices(seed, step, batch_size)):
        start = window * CONTEXT
        np.testing.assert_array_equal(batch.tokens_BT[row], flat[start : start + CONTEXT])
        np.testing.assert_array_equal(batch.targets_BT[row], flat[start + 1 : start + CONTEXT + 1])
    assert (batch.weight_BT == 1).all()
    assert [(array.shape, array.dtype) for array in batch] == [
        ((batch_size, CONTEXT), dtype) for dtype in (np.int32, np.int32, np.float32, np.int32)
    ]


def test_epoch_makes_each_token_a_target_once(cache):
    source = BatchSource(cache, CONTEXT, BOS)
    batch = source.batch_at(5, 0, source.num_windows)
    order = np.argsort(source.window_indices(5, 0, source.num_windows))
    np.testing.assert_array_equal(
        batch.targets_BT[order].reshape(-1), cache.tokens[1 : source.num_windows * CONTEXT + 1]
    )


def test_batches_of_consecutive_steps_are_the_large_batch_cut_up(cache):
    source = BatchSource(cache, CONTEXT, BOS)
    small = [source.batch_at(3, step, 5).tokens_BT for step in range(8, 12)]
    np.testing.assert_array_equal(np.concatenate(small), source.batch_at(3, 2, 20).tokens_BT)


def test_batch_with_another_seed_or_epoch_has_another_order(cache):
    source = BatchSource(cache, CONTEXT, BOS)
    size = source.num_windows
    orders = {tuple(source.window_indices(seed, epoch, size)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_segment_ids_start_at_zero_and_rise_at_each_beginning_document(cache):
    begins_BT = np.array([[1, 0, 0, 1, 1, 0], [0, 1, 0, 0, 0, 1]], bool)
    assert segment_ids(begins_BT).tolist() == [[0, 0, 0, 1, 2, 2], [0, 1, 1, 1, 1, 2]]
    batch = BatchSource(cache, 64, BOS).batch_at(0, 0, 4)
    for tokens_T, segments_T in zip(batch.tokens_BT, batch.segment_ids_BT, strict=True):
        assert segments_T[0] == 0
        np.testing.assert_array_equal(np.diff(segments_T), (tokens_T[1:] == BOS).astype(int))
    assert (BatchSource(cache, 64, None).batch_at(0, 0, 4).segment_ids_BT == 0).all()


def test_batch_read_from_the_store_equals_the_one_read_from_memory(cache, monkeypatch):
    expected = BatchSource(cache, CONTEXT, BOS).batch_at(1, 4, 6)
    monkeypatch.setattr(cache_module, "IN_MEMORY_BYTES", 0)
    stored = TokenCache.open(cache.path)
    for found, wanted in zip(BatchSource(stored, CONTEXT, BOS).batch_at(1, 4, 6), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_batch_at_takes_under_a_millisecond(cache):
    source = BatchSource(cache, 256, BOS)
    source.batch_at(0, 0, 8)
    times = []
    for step in range(50):
        start = time.perf_counter()
        source.batch_at(0, step, 8)
        times.append(time.perf_counter() - start)
    assert min(times) < 1e-3  # the best of 50, as other work shares the machine


def test_source_with_a_context_longer_than_the_cache_is_refused(cache):
    with pytest.raises(ConfigError, match="shorter context or more documents"):
        BatchSource(cache, len(cache), BOS)
    assert BatchSource(cache, len(cache) - 1, BOS).num_windows == 1


@pytest.mark.parametrize(("step", "batch_size"), [(-1, 4), (0, 0)])
def test_batch_at_an_impossible_place_is_refused(cache, step, batch_size):
    with pytest.raises(ConfigError, match="at least 1"):
        BatchSource(cache, CONTEXT, BOS).batch_at(0, step, batch_size)
