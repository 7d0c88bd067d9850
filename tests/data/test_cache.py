import filecmp
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from marin.data import cache as cache_module
from marin.data.cache import TokenCache, TokenizeConfig, tokenize, tokenize_step, write_cache
from marin.data.documents import Document, write_documents
from marin.data.tokenizer import Tokenizer, TrainTokenizerConfig, train_tokenizer
from marin.errors import CacheError, DataError

SHARED_DATA = pathlib.Path(os.environ.get("MARIN_SHARED_DATA", pathlib.Path(__file__).parents[3] / "shared" / "data"))
LEVANTER_CACHE = SHARED_DATA / "levanter_cache"
ROWS = [[0, 5, 6], [0], [0, *range(1, 2000)], [0, 7]]
FLAT = np.array(list(itertools.chain(*ROWS)), np.int32)


def write(path, rows=ROWS, vocab_size=5000):
    write_cache(str(path), rows, tokenizer_digest="t" * 64, vocab_size=vocab_size)
    return pathlib.Path(path)


@pytest.fixture
def written(tmp_path):
    return write(tmp_path / "train")


def file_bytes(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


# --- Levanter -----------------------------------------------------------------------------------------------------


def levanter_rows():
    """The rows of the cache that Levanter wrote, as indices into the documents of expected.npz.

    The file holds 550 rows, as its ledger says: the 300 documents in runs of 100 that overlap by 50. Why is not known;
    SOURCES.md names 300 documents only.
    """
    return [index for start in range(0, 300, 50) for index in range(start, min(start + 100, 300))]


@pytest.mark.skipif(not LEVANTER_CACHE.is_dir(), reason=f"{LEVANTER_CACHE} is absent: set MARIN_SHARED_DATA")
def test_cache_written_by_levanter_is_read_token_for_token():
    expected = np.load(LEVANTER_CACHE / "expected.npz")
    ends = np.cumsum(expected["lens"])
    documents = np.split(expected["flat"], ends[:-1])
    cache = TokenCache.open(str(LEVANTER_CACHE / "train"))
    rows = [documents[index] for index in levanter_rows()]
    np.testing.assert_array_equal(cache.tokens[:], np.concatenate(rows))
    np.testing.assert_array_equal(np.diff(cache.document_offsets), [len(row) for row in rows])


@pytest.mark.skipif(not LEVANTER_CACHE.is_dir(), reason=f"{LEVANTER_CACHE} is absent: set MARIN_SHARED_DATA")
def test_cache_of_the_same_rows_has_the_same_bytes_as_levanters(tmp_path):
    cache = TokenCache.open(str(LEVANTER_CACHE / "train"))
    ends = cache.document_offsets
    ours = write(tmp_path / "train", [cache.tokens[a:b].tolist() for a, b in itertools.pairwise(ends)], 8192)
    for name in ("data", "offsets"):
        theirs = LEVANTER_CACHE / "train" / "input_ids" / name
        assert filecmp.cmp(ours / "input_ids" / name / "c" / "0", theirs / "c" / "0", shallow=False)
        declared = [json.loads((path / "zarr.json").read_text()) for path in (ours / "input_ids" / name, theirs)]
        assert declared[0] == declared[1]
    ledgers = [json.loads((path / "shard_ledger.json").read_text()) for path in (ours, LEVANTER_CACHE / "train")]
    for key in ledgers[1].keys() - {"metadata"}:
        assert ledgers[0][key] == ledgers[1][key]
    assert cache.digest == TokenCache.open(str(ours)).digest
    assert cache.tokenizer_digest is None


# --- what is written is what is read ------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 4999), min_size=1, max_size=30), min_size=1, max_size=8))
@example([[0]])
@settings(max_examples=10)
def test_cache_written_and_read_is_the_same(tmp_path_factory, rows):
    cache = TokenCache.open(str(write(tmp_path_factory.mktemp("cache") / "train", rows)))
    flat = list(itertools.chain(*rows))
    assert len(cache) == len(cache.tokens) == len(flat)
    assert cache.num_documents == len(rows)
    assert cache.tokens[:].tolist() == flat
    assert cache.tokens[:].dtype == np.int32
    ends = cache.document_offsets
    assert [cache.tokens[a:b].tolist() for a, b in itertools.pairwise(ends)] == rows
    assert cache.digest == cache.compute_digest()


def test_cache_written_twice_has_the_same_bytes(written, tmp_path):
    assert file_bytes(written) == file_bytes(write(tmp_path / "again"))


def test_cache_of_several_chunk_files_reads_as_one(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "OUTER_CHUNK", 500)
    monkeypatch.setattr("marin.data.zarr_store.OUTER_CHUNK", 500)
    monkeypatch.setattr("marin.data.zarr_store.INNER_CHUNK", 50)
    path = write(tmp_path / "train")
    assert sorted(os.listdir(path / "input_ids/data/c")) == ["0", "1", "2", "3", "4"]
    monkeypatch.setattr(cache_module, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(cache_module, "_READ_TOKENS", 700)
    cache = TokenCache.open(str(path))
    assert cache.digest == cache.compute_digest()
    for part in (slice(0, 10), slice(450, 1700), slice(1999, 9999), slice(-3, None), slice(10, 5)):
        np.testing.assert_array_equal(cache.tokens[part], FLAT[part])
    np.testing.assert_array_equal(
        cache.windows(np.array([0, 490, 1500]), 20), [FLAT[s : s + 20] for s in (0, 490, 1500)]
    )
    (path / "input_ids/data/c/3").unlink()
    with pytest.raises(CacheError, match=r"data/c/3 is missing"):
        TokenCache.open(str(path))


def test_cache_windows_outside_are_refused(written):
    cache = TokenCache.open(str(written))
    for start in (-1, len(cache) - 4):
        with pytest.raises(IndexError):
            cache.windows(np.array([0, start]), 5)


def test_cache_of_no_rows_or_of_unknown_ids_is_refused(tmp_path):
    with pytest.raises(DataError, match="no documents"):
        write(tmp_path / "train", [])
    with pytest.raises(DataError, match=r"range\(5000\)"):
        write(tmp_path / "train", [[0, 5000]])
    with pytest.raises(CacheError, match="no finished token cache"):
        TokenCache.open(str(tmp_path / "train"))


# --- damage -------------------------------------------------------------------------------------------------------


def edit_ledger(path, **changes):
    ledger = json.loads((path / "shard_ledger.json").read_text())
    (path / "shard_ledger.json").write_text(json.dumps({**ledger, **changes}))


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda path: (path / "shard_ledger.json").unlink(), "no finished token cache"),
        (lambda path: (path / "shard_ledger.json").write_text("{"), "not valid JSON"),
        (lambda path: (path / "shard_ledger.json").write_text("[]"), "`total_num_rows` is None"),
        (lambda path: edit_ledger(path, is_finished=False), "never completed"),
        (lambda path: edit_ledger(path, total_num_rows=3), "counts 3 documents, the offsets 4"),
        (lambda path: edit_ledger(path, total_num_rows="4"), "`total_num_rows` is '4'"),
        (lambda path: (path / "input_ids/data/c/0").unlink(), r"data/c/0 is missing"),
        (lambda path: (path / "input_ids/offsets/c/0").unlink(), r"offsets/c/0 is missing"),
        (lambda path: (path / "input_ids/data/zarr.json").write_text("{}"), "no zarr3 array"),
        (lambda path: shutil.rmtree(path / "input_ids/offsets"), "no zarr3 array"),
        (lambda path: os.truncate(path / "input_ids/offsets/c/0", 100), "damaged or cut short"),
    ],
)
def test_cache_damaged_is_refused_on_opening(written, damage, expected):
    damage(written)
    with pytest.raises(CacheError, match=expected) as caught:
        TokenCache.open(str(written))
    assert "run the step" in str(caught.value) or "run its step" in str(caught.value)


@pytest.mark.parametrize("kept", [0, 20, 0.5, 0.999])
def test_cache_with_truncated_tokens_is_refused_on_reading(written, kept):
    chunk = written / "input_ids/data/c/0"
    os.truncate(chunk, int(kept * chunk.stat().st_size) if isinstance(kept, float) else kept)
    with pytest.raises(CacheError, match="input_ids/data"):
        TokenCache.open(str(written)).tokens[:10]


def test_cache_with_a_flipped_bit_is_refused_on_reading(written):
    chunk = written / "input_ids/data/c/0"
    data = bytearray(chunk.read_bytes())
    for position in range(0, 1500, 100):
        damaged = data.copy()
        damaged[position] ^= 1
        chunk.write_bytes(damaged)
        with pytest.raises(CacheError, match="damaged"):
            TokenCache.open(str(written)).tokens[:10]


# --- the step -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    root = tmp_path_factory.mktemp("inputs")
    texts = [f"document number {number} about <|bos|> and {number % 7 * 'more '}" for number in range(100)]
    write_documents(str(root / "train.jsonl.zst"), [Document(str(i), text, "test") for i, text in enumerate(texts)])
    train_tokenizer(TrainTokenizerConfig(str(root / "train.jsonl.zst"), 300, str(root / "tokenizer")))
    return str(root / "train.jsonl.zst"), str(root / "tokenizer"), texts


def test_tokenize_writes_each_document_after_the_beginning_token(inputs, tmp_path):
    documents, tokenizer_path, texts = inputs
    tokenize(TokenizeConfig(documents, tokenizer_path, str(tmp_path)))
    tokenizer = Tokenizer.load(tokenizer_path)
    cache = TokenCache.open(str(tmp_path))
    assert cache.path == str(tmp_path / "train")
    ends = cache.document_offsets
    rows = [cache.tokens[a:b].tolist() for a, b in itertools.pairwise(ends)]
    assert rows == [[tokenizer.bos_id, *tokenizer.encode(text)] for text in texts]
    assert (cache.tokenizer_digest, cache.vocab_size) == (tokenizer.digest, 300)
    assert int(tokenizer.token_bytes[cache.tokens[:]].sum()) == sum(len(text.encode()) for text in texts)


def test_tokenize_killed_at_any_moment_and_repeated_gives_the_same_bytes(inputs, tmp_path):
    documents, tokenizer_path, _ = inputs
    tokenize(TokenizeConfig(documents, tokenizer_path, str(tmp_path / "alone")))
    code = (
        "import sys; from marin.data.cache import *; print('ready', flush=True);"
        "[tokenize(TokenizeConfig(*sys.argv[1:])) for _ in range(1000)]"
    )
    for delay in (0.03, 0.2):
        process = subprocess.Popen(
            [sys.executable, "-c", code, documents, tokenizer_path, str(tmp_path / "killed")], stdout=subprocess.PIPE
        )
        with process:
            assert process.stdout.readline() == b"ready\n"
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
        if (tmp_path / "killed" / "train" / "shard_ledger.json").exists():
            TokenCache.open(str(tmp_path / "killed")).tokens[:]
    tokenize(TokenizeConfig(documents, tokenizer_path, str(tmp_path / "killed")))
    assert file_bytes(tmp_path / "killed" / "train") == file_bytes(tmp_path / "alone" / "train")


def test_tokenize_step_is_named_below_tokenized():
    assert tokenize_step("python_docs", "/data/train.jsonl.zst", "/data/tokenizer").name == "tokenized/python_docs"
