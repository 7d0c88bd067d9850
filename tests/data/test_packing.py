"""Rows by best fit: every token is somewhere, once, and every segment begins where a document does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.data.cache import TokenCache, write_cache
from marin.data.packing import best_fit, pack
from marin.data.packing_cropped import fill_rows
from marin.data.rows import RowCounts
from marin.errors import CacheError, ConfigError

BOS = 0


def cache_of(folder, documents):
    """A cache of documents of these sizes, BOS included; every other token has a value of its own."""
    ids = iter(range(1, 10**6))
    rows = [[BOS, *(next(ids) for _ in range(size - 1))] if size else [] for size in documents]
    write_cache(str(folder), rows, tokenizer_digest="t", vocab_size=10**6)
    return TokenCache.open(str(folder)), rows


def reference_best_fit(lengths, capacity):
    """Best-fit decreasing, one piece after another."""
    spaces = []
    for length in sorted(lengths, reverse=True):
        fitting = [space for space in spaces if space >= length]
        if fitting:
            spaces.remove(min(fitting))
            spaces.append(min(fitting) - length)
        else:
            spaces.append(capacity - length)
    return sorted(spaces)


@given(capacity=st.integers(1, 60), data=st.data())
@settings(max_examples=100)
def test_best_fit_fills_rows_as_the_algorithm_of_the_textbook(capacity, data):
    lengths = np.array(data.draw(st.lists(st.integers(1, capacity), max_size=80)), np.int64)
    row_of_piece, num_rows = best_fit(lengths, capacity)
    filled = np.bincount(row_of_piece, weights=lengths, minlength=num_rows) if len(lengths) else np.zeros(num_rows)
    assert sorted((capacity - filled).tolist()) == reference_best_fit(lengths.tolist(), capacity)


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=30).filter(any),
    context_length=st.integers(2, 16),
)
@settings(max_examples=30)
def test_best_fit_rows_have_each_token_as_a_target_once_and_each_document_end(sizes, context_length, tmp_path_factory):
    cache, documents = cache_of(tmp_path_factory.mktemp("packing"), sizes)
    rows = pack(cache, context_length, BOS, "best_fit")
    batch = rows.read(np.arange(rows.num_rows))
    counted = batch.targets_BT[batch.weight_BT == 1]
    expected = [token for row in documents if row for token in [*row[1:], BOS]]
    assert sorted(counted.tolist()) == sorted(expected)
    assert rows.counts == RowCounts(len(cache), 0, int(rows.counts.num_padding))
    # What is an input: every token of every document once, and the beginnings that continuations and padding have.
    inputs = batch.tokens_BT[batch.tokens_BT != BOS]
    assert sorted(inputs.tolist()) == sorted(token for row in documents for token in row[1:])


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=30).filter(any),
    context_length=st.integers(2, 16),
    packing=st.sampled_from(["best_fit", "best_fit_truncate", "best_fit_crop"]),
)
@settings(max_examples=30)
def test_best_fit_segments_begin_with_the_beginning_token_and_hold_one_document(
    sizes, context_length, packing, tmp_path_factory
):
    cache, documents = cache_of(tmp_path_factory.mktemp("packing"), sizes)
    document_of = {token: number for number, row in enumerate(documents) for token in row[1:]}
    following = {a: b for row in documents for a, b in zip(row[1:], [*row[2:], BOS], strict=False)}
    rows = pack(cache, context_length, BOS, packing)
    batch = rows.read(np.arange(rows.num_rows))
    for tokens, targets, weight, segments in zip(*batch, strict=True):
        assert segments[0] == 0
        assert set(np.diff(segments)) <= {0, 1}
        for segment in np.unique(segments):
            inside = segments == segment
            own, own_targets = tokens[inside], targets[inside]
            assert own[0] == BOS
            if (weight[inside] == 0).all():  # padding, or a continuation's beginning alone
                continue
            assert len({document_of[token] for token in own[1:].tolist()}) <= 1
            assert own_targets[:-1].tolist() == own[1:].tolist()
            if len(own) > 1:
                assert own_targets[-1] == following[int(own[-1])]


def nanochats_rows(lengths, capacity, buffer):
    """(document, tokens taken) of each row, by going through the whole buffer for each of them."""
    waiting, coming, rows = [], list(enumerate(lengths)), []
    while waiting or coming:
        row, space = [], capacity
        while space and (waiting or coming):
            while coming and len(waiting) < buffer:
                waiting.append(coming.pop(0))
            fitting = [entry for entry in waiting if entry[1] <= space]
            # The first of the longest that fit, else the first of the shortest.
            entry = max(fitting, key=lambda e: e[1]) if fitting else min(waiting, key=lambda e: e[1])
            waiting.remove(entry)
            row.append((entry[0], min(entry[1], space)))
            space -= row[-1][1]
        rows.append(row)
    return rows


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=40), capacity=st.integers(2, 20), buffer=st.integers(1, 8)
)
@settings(max_examples=80)
def test_cropped_rows_are_filled_as_nanochats_loader_fills_them(lengths, capacity, buffer):
    document, taken, row = fill_rows(np.array(lengths, np.int64), capacity, buffer)
    found = [list(zip(document[row == r].tolist(), taken[row == r].tolist(), strict=True)) for r in range(row[-1] + 1)]
    assert found == nanochats_rows(lengths, capacity, buffer)


def test_cropped_rows_of_a_worked_example(tmp_path):
    cache, documents = cache_of(tmp_path, [3, 9, 4, 2, 7])
    rows = pack(cache, 7, BOS, "best_fit_crop")
    # A row is 8 tokens, 7 of them inputs. The first takes the 7, and of the shortest, the 2, one token, which is only a target.
    # The second takes 4 and 3, and cuts the 9 to one token, again only a target; then nothing is left.
    (_, a, b), _, (_, c, d, e), _, (_, *longest) = documents
    batch = rows.read(np.arange(rows.num_rows))
    assert batch.tokens_BT.tolist() == [[BOS, *longest], [BOS, c, d, e, BOS, a, b]]
    assert batch.targets_BT.tolist() == [[*longest, BOS], [c, d, e, BOS, a, b, BOS]]
    assert batch.segment_ids_BT.tolist() == [[0] * 7, [0] * 4 + [1] * 3] and (batch.weight_BT == 1).all()
    assert rows.counts == RowCounts(num_tokens=25, num_lost_tokens=11, num_padding=0)


def test_cropped_row_ends_with_the_beginning_of_a_document_that_is_cut(tmp_path):
    cache, documents = cache_of(tmp_path, [5, 6, 6])
    rows = pack(cache, 7, BOS, "best_fit_crop")
    first, second, third = documents
    batch = rows.read(np.arange(rows.num_rows))
    # The 6, then two tokens of the shortest, the 5, the second of them a target only; the other 6 has the last row.
    assert batch.tokens_BT[0].tolist() == [*second, BOS] and batch.targets_BT[0].tolist() == [
        *second[1:],
        BOS,
        first[1],
    ]
    assert batch.tokens_BT[1].tolist() == [*third, BOS] and batch.weight_BT[1].tolist() == [1] * 6 + [0]
    assert rows.counts == RowCounts(num_tokens=17, num_lost_tokens=3, num_padding=1)


def test_best_fit_that_truncates_counts_what_it_loses(tmp_path):
    cache, _ = cache_of(tmp_path, [3, 20, 8, 9])
    rows = pack(cache, 8, BOS, "best_fit_truncate")
    # Of 20 tokens a row of 8 holds 8 as inputs and one more as the last target; of 9 likewise all.
    assert rows.counts == RowCounts(num_tokens=40, num_lost_tokens=11, num_padding=5)
    assert rows.num_rows == 4


def test_best_fit_wastes_little_on_documents_of_many_sizes(tmp_path):
    sizes = np.random.default_rng(0).lognormal(4.5, 1, 4000).astype(int) + 2
    cache, _ = cache_of(tmp_path, sizes.tolist())
    counts = pack(cache, 512, BOS, "best_fit").counts
    assert counts.num_lost_tokens == 0
    assert counts.num_padding / counts.num_tokens < 0.005


def test_best_fit_row_of_a_long_document_goes_on_after_a_beginning_token(tmp_path):
    cache, documents = cache_of(tmp_path, [6])
    rows = pack(cache, 4, BOS, "best_fit")
    batch = rows.read(np.arange(rows.num_rows))
    _, a, b, c, d, e = documents[0]
    assert batch.tokens_BT.tolist() == [[BOS, a, b, c], [BOS, d, e, BOS]]
    assert batch.targets_BT.tolist() == [[a, b, c, d], [d, e, BOS, BOS]]
    assert batch.weight_BT.tolist() == [[1, 1, 1, 1], [0, 1, 1, 0]]
    assert batch.segment_ids_BT.tolist() == [[0, 0, 0, 0], [0, 0, 0, 1]]


def test_best_fit_with_a_loss_mask_counts_what_the_mask_says(tmp_path):
    cache, _ = cache_of(tmp_path / "train", [4, 3])
    write_cache(str(tmp_path / "mask"), [[0, 0, 1, 1], [0, 1, 0]], tokenizer_digest="t", vocab_size=2)
    rows = pack(cache, 8, BOS, "best_fit", TokenCache.open(str(tmp_path / "mask")))
    assert rows.read(np.arange(1)).weight_BT.tolist() == [[0, 1, 1, 1, 1, 0, 0, 0]]


def test_best_fit_of_documents_without_the_beginning_token_names_the_document(tmp_path):
    write_cache(str(tmp_path), [[BOS, 1], [5, 6, 7]], tokenizer_digest="t", vocab_size=10)
    rows = pack(TokenCache.open(str(tmp_path)), 8, BOS, "best_fit")
    with pytest.raises(CacheError, match="document 1 begins with token 5"):
        rows.read(np.arange(rows.num_rows))


@pytest.mark.parametrize(
    ("context_length", "bos_id", "packing", "message"),
    [
        (1, BOS, "best_fit", "at least 2"),
        (0, BOS, "best_fit", "at least 1"),
        (8, None, "best_fit", "concatenate"),
        (8, BOS, "worst_fit", "best_fit_truncate"),
    ],
)
def test_packing_that_cannot_be_is_refused(tmp_path, context_length, bos_id, packing, message):
    cache, _ = cache_of(tmp_path, [20])
    with pytest.raises(ConfigError, match=message):
        pack(cache, context_length, bos_id, packing)


@pytest.mark.parametrize("packing", ["concatenate", "best_fit", "best_fit_truncate", "best_fit_crop"])
def test_packing_of_a_cache_whose_documents_are_all_empty_is_refused(tmp_path, packing):
    write_cache(str(tmp_path / "cache"), [[], []], tokenizer_digest="t", vocab_size=10)
    with pytest.raises(ConfigError, match=r"the token cache .*/cache has (no|0) tokens"):
        pack(TokenCache.open(str(tmp_path / "cache")), 8, 1, packing)
