import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.data.cache import TokenCache, write_cache
from marin.data.cache import reading as cache_module
from marin.data.loader import BatchSource, open_batches
from marin.data.mixture import Mixture
from marin.data.permutation import derive_seed, permute
from marin.data.rows import segment_ids
from marin.errors import CacheError, ConfigError

BOS = 0
CONTEXT = 8


def make_cache(folder, seed, num_documents):
    generator = np.random.default_rng(seed)
    rows = [[BOS, *generator.integers(1, 5000, size).tolist()] for size in generator.integers(0, 40, num_documents)]
    write_cache(str(folder / "train"), rows, tokenizer_digest="t", vocab_size=5000)
    return TokenCache.open(str(folder / "train"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("loader"), 0, 60)


@pytest.fixture(scope="module")
def other_cache(tmp_path_factory):
    return make_cache(tmp_path_factory.mktemp("other"), 1, 25)


@pytest.fixture(scope="module")
def mixed(cache, other_cache):
    """A mixture with stages and an epoch limit."""
    mixture = Mixture(
        {"a": cache.path, "b": other_cache.path},
        [(0, {"a": 0.7, "b": 0.3}), (5000, {"a": 0.5, "b": 0.5})],
        max_epochs={"b": 60},
    )
    return open_batches(mixture, CONTEXT, BOS)


def windows_of(source, seed, step, batch_size):
    """Which window each row of a batch is."""
    return source.order.locate(seed, np.arange(step * batch_size, (step + 1) * batch_size))[1]


def assert_same(one, other):
    for found, wanted in zip(one, other, strict=True):
        np.testing.assert_array_equal(found, wanted)


@given(seed=st.integers(0, 2**63), batch_size=st.integers(1, 50), epoch=st.integers(0, 3))
@settings(max_examples=30)
def test_epoch_visits_every_window_exactly_once(cache, seed, batch_size, epoch):
    source = BatchSource.of_cache(cache, CONTEXT, BOS)
    num_rows = source.order.num_rows[0]
    first, last = epoch * num_rows, (epoch + 1) * num_rows
    steps = range(first // batch_size, -(-last // batch_size))
    seen = np.concatenate([windows_of(source, seed, step, batch_size) for step in steps])
    offset = first - steps[0] * batch_size
    np.testing.assert_array_equal(np.sort(seen[offset : offset + num_rows]), np.arange(num_rows))


def test_rows_come_in_the_order_of_the_permutation_of_their_epoch(cache):
    """Published results name their data by seed and cache, so this order never changes."""
    source = BatchSource.of_cache(cache, CONTEXT, BOS)
    num_rows = source.order.num_rows[0]
    for sample in (0, 1, num_rows - 1, num_rows, 5 * num_rows + 3, 12_345):
        epoch, position = divmod(sample, num_rows)
        expected = permute(position, num_rows, derive_seed(42, "epoch", epoch))
        assert windows_of(source, 42, sample, 1)[0] == expected


@given(seed=st.integers(0, 2**63), step=st.integers(0, 10**9), batch_size=st.integers(1, 20))
@settings(max_examples=50)
def test_batch_rows_are_consecutive_tokens_and_their_successors(cache, seed, step, batch_size):
    source = BatchSource.of_cache(cache, CONTEXT, BOS)
    batch = source.batch_at(seed, step, batch_size)
    flat = cache.tokens[:]
    for row, window in enumerate(windows_of(source, seed, step, batch_size)):
        start = window * CONTEXT
        np.testing.assert_array_equal(batch.tokens_BT[row], flat[start : start + CONTEXT])
        np.testing.assert_array_equal(batch.targets_BT[row], flat[start + 1 : start + CONTEXT + 1])
    assert (batch.weight_BT == 1).all()
    assert [(array.shape, array.dtype) for array in batch] == [
        ((batch_size, CONTEXT), dtype) for dtype in (np.int32, np.int32, np.float32, np.int32)
    ]


def test_epoch_makes_each_token_a_target_once(cache):
    source = BatchSource.of_cache(cache, CONTEXT, BOS)
    num_rows = source.order.num_rows[0]
    batch = source.batch_at(5, 0, num_rows)
    order = np.argsort(windows_of(source, 5, 0, num_rows))
    np.testing.assert_array_equal(batch.targets_BT[order].reshape(-1), cache.tokens[1 : num_rows * CONTEXT + 1])
    counts = source.components[0].rows.counts
    assert counts.num_tokens == len(cache) == num_rows * CONTEXT + 1 + counts.num_lost_tokens


def test_batches_of_consecutive_steps_are_the_large_batch_cut_up(cache):
    source = BatchSource.of_cache(cache, CONTEXT, BOS)
    small = [source.batch_at(3, step, 5).tokens_BT for step in range(8, 12)]
    np.testing.assert_array_equal(np.concatenate(small), source.batch_at(3, 2, 20).tokens_BT)


def test_batch_with_another_seed_or_epoch_has_another_order(cache):
    source = BatchSource.of_cache(cache, CONTEXT, BOS)
    size = source.order.num_rows[0]
    orders = {tuple(windows_of(source, seed, epoch, size)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


@given(
    seed=st.integers(0, 2**63),
    first=st.integers(0, 10**6),
    rows_a_host=st.integers(1, 6),
    num_hosts=st.sampled_from([1, 2, 3, 8]),
)
@settings(max_examples=25)
def test_batch_of_several_hosts_is_the_batch_of_one(mixed, seed, first, rows_a_host, num_hosts):
    size = rows_a_host * num_hosts
    parts = [mixed.batch_from(seed, first, size, host=(index, num_hosts)) for index in range(num_hosts)]
    assert_same([np.concatenate(arrays) for arrays in zip(*parts, strict=True)], mixed.batch_from(seed, first, size))


@given(seed=st.integers(0, 2**63), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8))
@settings(max_examples=30)
def test_batches_of_changing_sizes_are_the_same_samples_cut_up(mixed, seed, sizes):
    starts = np.cumsum([0, *sizes[:-1]])
    parts = [mixed.batch_from(seed, int(start), size) for start, size in zip(starts, sizes, strict=True)]
    whole = mixed.batch_from(seed, 0, sum(sizes))
    assert_same([np.concatenate(arrays) for arrays in zip(*parts, strict=True)], whole)


@given(seed=st.integers(0, 2**63), step=st.integers(0, 10**7), batch_size=st.integers(1, 30))
@settings(max_examples=25)
def test_mixture_of_one_cache_gives_the_batches_of_the_cache(cache, seed, step, batch_size):
    for weights in ({"only": 0.3}, {"only": 2, "none": 0}):
        mixture = open_batches(Mixture(dict.fromkeys(weights, cache.path), weights), CONTEXT, BOS)
        assert_same(
            mixture.batch_at(seed, step, batch_size),
            BatchSource.of_cache(cache, CONTEXT, BOS).batch_at(seed, step, batch_size),
        )


def test_mixture_batch_has_the_rows_of_its_components_in_their_order(mixed):
    component_B, row_B = mixed.order.locate(1, np.arange(40, 72))
    batch = mixed.batch_at(1, 20, 2)
    assert len(set(component_B)) == 2
    for row in range(2):
        expected = mixed.components[component_B[row]].rows.read(row_B[row : row + 1])
        assert_same([array[row] for array in batch], [array[0] for array in expected])


def test_mixture_digest_follows_content_weights_and_packing(cache, other_cache):
    parts = {"a": cache.path, "b": other_cache.path}
    mixtures = [
        Mixture(parts, {"a": 1, "b": 1}),
        Mixture(parts, {"a": 1, "b": 2}),
        Mixture(parts, {"a": 1, "b": 1}, packing="best_fit"),
        Mixture(parts, {"a": 1, "b": 1}, max_epochs={"a": 9}),
        Mixture(parts | {"b": cache.path}, {"a": 1, "b": 1}),
    ]
    digests = [open_batches(mixture, CONTEXT, BOS).digest for mixture in mixtures]
    assert len(set(digests)) == len(mixtures)
    assert open_batches(mixtures[0], CONTEXT, BOS).digest == digests[0]
    assert open_batches(cache.path, CONTEXT, BOS).digest == cache.digest


def test_stages_of_weights_begin_with_the_sample_of_their_step(cache, other_cache):
    mixture = Mixture({"a": cache.path, "b": other_cache.path}, [(0, {"a": 1}), (3, {"b": 1})])
    source = open_batches(mixture, CONTEXT, BOS, sample_at=lambda step: step * 4)
    component_B, _ = source.order.locate(0, np.arange(24))
    assert component_B.tolist() == [0] * 12 + [1] * 12


def test_mixture_says_how_often_components_repeat_and_when_their_limits_end_the_data(cache, other_cache):
    parts = {"a": cache.path, "b": other_cache.path}
    source = open_batches(Mixture(parts, {"a": 1, "b": 1}, max_epochs={"b": 2}), CONTEXT, BOS)
    epochs = {entry.name: entry for entry in source.use(10_000)}
    assert epochs["b"].epochs == 2 and epochs["b"].limited
    assert epochs["a"].epochs == pytest.approx((10_000 - 2 * epochs["b"].num_rows) / epochs["a"].num_rows)
    assert not epochs["a"].limited
    source.check_enough(10**12)
    limited = open_batches(Mixture(parts, {"a": 1, "b": 1}, max_epochs={"a": 1, "b": 1}), CONTEXT, BOS)
    total = sum(limited.order.num_rows)
    limited.check_enough(limited.order.num_samples)
    assert total - 2 <= limited.order.num_samples <= total
    with pytest.raises(ConfigError, match="max_epochs"):
        limited.check_enough(total + 1)
    with pytest.raises(ConfigError, match="beyond the end"):
        limited.batch_at(0, total, 1)


@pytest.mark.parametrize("mixed", [False, True])
def test_digest_of_batches_tells_loss_masks_apart_and_is_the_cache_s_without_one(mixed, tmp_path):
    digests = set()
    for name, mask in (("plain", None), ("one", [0, 0, 1, 1]), ("other", [0, 1, 1, 1])):
        path = tmp_path / name
        write_cache(str(path / "train"), [[BOS, 5, 6, 7]] * 4, tokenizer_digest="t", vocab_size=9)
        if mask is not None:
            write_cache(str(path / "loss_mask"), [mask] * 4, tokenizer_digest="t", vocab_size=2)
        data = Mixture({"chats": str(path)}, {"chats": 1}) if mixed else str(path)
        digests.add(open_batches(data, 4, BOS).digest)
        if not mixed and mask is None:
            assert digests == {TokenCache.open(str(path)).digest}
    assert len(digests) == 3


def test_loss_mask_beside_a_cache_weights_the_targets(tmp_path):
    rows = [[BOS, 11, 12, 13], [BOS, 21, 22, 23, 24]]
    masks = [[0, 0, 1, 1], [0, 1, 0, 1, 0]]  # the first document ends with a token that counts, and so does its end
    write_cache(str(tmp_path / "train"), rows, tokenizer_digest="t", vocab_size=30)
    write_cache(str(tmp_path / "loss_mask"), masks, tokenizer_digest="t", vocab_size=2)
    batch = open_batches(str(tmp_path), 8, BOS).batch_at(0, 0, 1)
    assert batch.tokens_BT.tolist() == [[BOS, 11, 12, 13, BOS, 21, 22, 23]]
    assert batch.weight_BT.tolist() == [[0, 1, 1, 1, 1, 0, 1, 0]]
    write_cache(str(tmp_path / "loss_mask"), masks[::-1], tokenizer_digest="t", vocab_size=2)
    with pytest.raises(CacheError, match="remove both"):
        open_batches(str(tmp_path), 8, BOS)


def test_segment_ids_start_at_zero_and_rise_at_each_beginning_document(cache):
    begins_BT = np.array([[1, 0, 0, 1, 1, 0], [0, 1, 0, 0, 0, 1]], bool)
    assert segment_ids(begins_BT).tolist() == [[0, 0, 0, 1, 2, 2], [0, 1, 1, 1, 1, 2]]
    batch = BatchSource.of_cache(cache, 64, BOS).batch_at(0, 0, 4)
    for tokens_T, segments_T in zip(batch.tokens_BT, batch.segment_ids_BT, strict=True):
        assert segments_T[0] == 0
        np.testing.assert_array_equal(np.diff(segments_T), (tokens_T[1:] == BOS).astype(int))
    assert (BatchSource.of_cache(cache, 64, None).batch_at(0, 0, 4).segment_ids_BT == 0).all()


def test_batch_read_from_the_store_equals_the_one_read_from_memory(cache, monkeypatch):
    expected = BatchSource.of_cache(cache, CONTEXT, BOS).batch_at(1, 4, 6)
    monkeypatch.setattr(cache_module, "IN_MEMORY_BYTES", 0)
    stored = TokenCache.open(cache.path)
    for found, wanted in zip(BatchSource.of_cache(stored, CONTEXT, BOS).batch_at(1, 4, 6), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_batch_at_takes_under_a_millisecond(cache):
    source = BatchSource.of_cache(cache, 256, BOS)
    source.batch_at(0, 0, 8)
    times = []
    for step in range(50):
        start = time.perf_counter()
        source.batch_at(0, step, 8)
        times.append(time.perf_counter() - start)
    assert min(times) < 1e-3  # the best of 50, as other work shares the machine


def test_source_with_a_context_longer_than_the_cache_is_refused(cache):
    with pytest.raises(ConfigError, match="shorter context or more documents"):
        BatchSource.of_cache(cache, len(cache), BOS)
    assert BatchSource.of_cache(cache, len(cache) - 1, BOS).order.num_rows == (1,)


@pytest.mark.parametrize(("step", "batch_size"), [(-1, 4), (0, 0)])
def test_batch_at_an_impossible_place_is_refused(cache, step, batch_size):
    with pytest.raises(ConfigError, match="at least 1"):
        BatchSource.of_cache(cache, CONTEXT, BOS).batch_at(0, step, batch_size)


@pytest.mark.parametrize("host", [(2, 2), (-1, 2), (0, 3)])
def test_batch_of_an_impossible_host_is_refused(cache, host):
    with pytest.raises(ConfigError, match=f"host {host[0]} of {host[1]}"):
        BatchSource.of_cache(cache, CONTEXT, BOS).batch_at(0, 0, 4, host=host)
