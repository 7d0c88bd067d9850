import filecmp
import hashlib
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

from marin.data.cache import TokenCache, TokenizeConfig, tokenize, tokenize_step, tokenizing, write_cache
from marin.data.cache import reading as cache_module
from marin.data.cache.verify import verify_cache
from marin.data.documents import Document, read_documents, write_documents
from marin.data.shards import DocumentSet, write_shards
from marin.data.tokenizer import Tokenizer, TrainTokenizerConfig, train_tokenizer
from marin.data.zarr_store import LEVANTER, OURS, Chunking
from marin.errors import CacheError, DataError

SHARED_DATA = pathlib.Path(os.environ.get("MARIN_SHARED_DATA", pathlib.Path(__file__).parents[3] / "shared" / "data"))
LEVANTER_CACHE = SHARED_DATA / "levanter_cache"
ROWS = [[0, 5, 6], [0], [0, *range(1, 2000)], [0, 7]]
FLAT = np.array(list(itertools.chain(*ROWS)), np.int32)


def write(path, rows=ROWS, vocab_size=5000, chunking=OURS):
    write_cache(str(path), rows, tokenizer_digest="t" * 64, vocab_size=vocab_size, chunking=chunking)
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
    ours = write(tmp_path / "train", [cache.tokens[a:b].tolist() for a, b in itertools.pairwise(ends)], 8192, LEVANTER)
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
@settings(max_examples=10)  # each example waits for the disk
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
    path = write(tmp_path / "train", chunking=Chunking(outer=500, inner=50))
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


def test_cache_with_a_flipped_bit_is_refused_on_reading_or_reads_as_before(written):
    """What a chunk holds after the last token is not read, so a flip there changes nothing."""
    chunk = written / "input_ids/data/c/0"
    data = bytearray(chunk.read_bytes())
    refused = 0
    for position in range(0, 3000, 100):
        damaged = data.copy()
        damaged[position] ^= 1
        chunk.write_bytes(damaged)
        try:
            np.testing.assert_array_equal(TokenCache.open(str(written)).tokens[:], FLAT)
        except CacheError as error:
            refused += "damaged" in str(error)
    assert refused > 20


def problems(path):
    return [finding.text for finding in verify_cache(str(path)) if not finding.ok]


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_verify_of_a_whole_cache_finds_nothing_and_says_what_it_checked(written):
    findings = list(verify_cache(str(written.parent)))
    assert all(finding.ok for finding in findings)
    assert [finding.text.split(":")[0] for finding in findings] == ["ledger", "files", "documents", "ids", "digest"]


def test_verify_finds_every_flipped_bit(written):
    names = [path for path in written.rglob("*") if path.is_file() and path.name != "shard_ledger.json"]
    assert len(names) == 4
    for path in names:
        data = path.read_bytes()
        for position in np.linspace(0, len(data) - 1, 12, dtype=int):
            flip(path, position)
            assert any(path.name in text for text in problems(written)), (path, position)
            path.write_bytes(data)
    assert problems(written) == []


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda path: (path / "shard_ledger.json").unlink(), "no finished token cache"),
        (lambda path: edit_ledger(path, is_finished=False), "never completed"),
        (lambda path: os.truncate(path / "input_ids/data/c/0", 100), "damaged or cut short"),
        (lambda path: (path / "input_ids/data/c/0").unlink(), "data/c/0 is missing"),
        (lambda path: flip(path / "input_ids/offsets/zarr.json", 3), "no zarr3 array"),
    ],
)
def test_verify_finds_damage_in_a_cache_from_elsewhere(written, damage, expected):
    ledger = json.loads((written / "shard_ledger.json").read_text())
    edit_ledger(written, metadata={"preprocessor_metadata": ledger["metadata"]["preprocessor_metadata"]})
    assert problems(written) == []
    damage(written)
    assert any(expected in text for text in problems(written))


def test_verify_finds_ids_outside_the_vocabulary_and_another_content(written):
    ledger = json.loads((written / "shard_ledger.json").read_text())
    edit_ledger(written, metadata={"preprocessor_metadata": {"vocab_size": 100}, "marin": {"digest": "0" * 64}})
    found = problems(written)
    assert len(found) == 2
    assert "from 0 to 1,999" in found[0] and "the ledger says 000" in found[1]
    assert ledger["metadata"]["marin"]["digest"] in found[1]


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


@pytest.fixture(scope="module")
def shards(inputs, tmp_path_factory):
    """The same documents as a set of five shards."""
    path = str(tmp_path_factory.mktemp("set"))
    write_shards(path, read_documents(inputs[0]), stage="test", settings={}, shard_bytes=1200)
    return path


def test_tokenize_of_a_set_of_shards_gives_what_one_file_gives(inputs, shards, tmp_path, capsys):
    documents, tokenizer_path, _ = inputs
    assert len(DocumentSet.open(shards).shards) == 5
    tokenize(TokenizeConfig(documents, tokenizer_path, str(tmp_path / "file")))
    for num_workers in (1, 2):
        tokenize(TokenizeConfig(shards, tokenizer_path, str(tmp_path / f"set{num_workers}"), num_workers))
        assert "bytes a token" in capsys.readouterr().out
    assert file_bytes(tmp_path / "set1") == file_bytes(tmp_path / "set2")
    assert os.listdir(tmp_path / "set2") == ["train"]
    ours, other = TokenCache.open(str(tmp_path / "set1")), TokenCache.open(str(tmp_path / "file"))
    assert ours.digest == ours.compute_digest() == other.digest
    np.testing.assert_array_equal(ours.document_offsets, other.document_offsets)
    files = [file_bytes(tmp_path / name / "train" / "input_ids") for name in ("set1", "file")]
    assert files[0] == files[1]


def test_tokenize_keeps_what_its_digest_has_always_been(inputs, tmp_path):
    """The digest stands in published results, so it may never change for the same documents."""
    rows = [[0, 5, 6], [0], [0, 7]]
    cache = TokenCache.open(str(write(tmp_path / "train", rows)))
    tokens = hashlib.sha256(np.array([0, 5, 6, 0, 0, 7], "<i4").tobytes()).hexdigest()
    ends = hashlib.sha256(np.array([3, 4, 6], "<i8").tobytes()).hexdigest()
    assert cache.digest == hashlib.sha256(f"tokens {tokens} ends {ends}".encode()).hexdigest()


def test_tokenize_goes_on_with_the_shards_that_are_not_done(inputs, shards, tmp_path, monkeypatch, capsys):
    _, tokenizer_path, _ = inputs
    tokenize(TokenizeConfig(shards, tokenizer_path, str(tmp_path / "alone")))
    config = TokenizeConfig(shards, tokenizer_path, str(tmp_path / "stopped"), 1)
    with monkeypatch.context() as patched:
        patched.setattr(tokenizing, "write_token_blocks", lambda *args, **kwargs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tokenize(config)
    pieces = tmp_path / "stopped" / "pieces"
    (pieces / "shard-00001.json").unlink()
    os.truncate(pieces / "shard-00002.tokens", 40)
    (pieces / "shard-00003.lengths").write_bytes(b"")
    (pieces / ".shard-00004.tokens.1.tmp").write_bytes(b"the remains of a killed process")
    capsys.readouterr()
    tokenize(config)
    assert "2 shards were there" in capsys.readouterr().out
    assert file_bytes(tmp_path / "stopped") == file_bytes(tmp_path / "alone")


def test_tokenize_uses_no_piece_of_other_documents_or_of_another_tokenizer(inputs, shards, tmp_path, monkeypatch):
    documents, tokenizer_path, _ = inputs
    train_tokenizer(TrainTokenizerConfig(documents, 310, str(tmp_path / "other")))
    with monkeypatch.context() as patched:
        patched.setattr(tokenizing, "write_token_blocks", lambda *args, **kwargs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tokenize(TokenizeConfig(shards, tokenizer_path, str(tmp_path / "out"), 1))
    for source, tokenizer in ((shards, str(tmp_path / "other")), (documents, tokenizer_path)):
        tokenize(TokenizeConfig(source, tokenizer, str(tmp_path / "out")))
        tokenize(TokenizeConfig(source, tokenizer, str(tmp_path / "alone")))
        assert file_bytes(tmp_path / "out") == file_bytes(tmp_path / "alone")
        shutil.rmtree(tmp_path / "alone")


def test_tokenize_of_a_damaged_shard_names_it(inputs, shards, tmp_path):
    damaged = tmp_path / "set"
    shutil.copytree(shards, damaged)
    path = damaged / "documents" / "shard-00003.jsonl.zst"
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(DataError, match=r"shard-00003\.jsonl\.zst"):
        tokenize(TokenizeConfig(str(damaged), inputs[1], str(tmp_path / "out"), 2))
    with pytest.raises(DataError, match="nowhere"):
        tokenize(TokenizeConfig(str(tmp_path / "nowhere.jsonl.zst"), inputs[1], str(tmp_path / "out")))


def start_and_kill(config, delay):
    """Tokenizes again and again in a process of its own, which is killed after `delay` seconds."""
    code = (
        "import sys, shutil; from marin.data.cache import *; print('ready', flush=True)\n"
        "while True:\n"
        "    tokenize(TokenizeConfig(*sys.argv[1:4], int(sys.argv[4])))\n"
        "    shutil.rmtree(sys.argv[3] + '/train')"
    )
    arguments = [config.documents, config.tokenizer, config.output_path, str(config.num_workers)]
    with subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)


def killed_then_repeated(config, alone, delays):
    """Whether a finished cache was ever seen, after each kill all files as without a kill."""
    for delay in delays:
        start_and_kill(config, delay)
        train = pathlib.Path(config.output_path, "train")
        if (train / "shard_ledger.json").exists():
            TokenCache.open(config.output_path).tokens[:]
            assert file_bytes(train) == file_bytes(alone / "train")
    tokenize(config)
    assert file_bytes(pathlib.Path(config.output_path)) == file_bytes(alone)


def test_tokenize_killed_at_any_moment_and_repeated_gives_the_same_bytes(inputs, shards, tmp_path):
    tokenize(TokenizeConfig(shards, inputs[1], str(tmp_path / "alone")))
    config = TokenizeConfig(shards, inputs[1], str(tmp_path / "killed"), 1)
    killed_then_repeated(config, tmp_path / "alone", (0.03, 0.2))


@pytest.mark.torture
@pytest.mark.timeout(1800)
def test_tokenize_killed_fifty_times_gives_the_same_bytes(inputs, shards, tmp_path):
    tokenize(TokenizeConfig(shards, inputs[1], str(tmp_path / "alone")))
    for num_workers, longest in ((1, 0.5), (2, 3.0)):
        config = TokenizeConfig(shards, inputs[1], str(tmp_path / f"killed{num_workers}"), num_workers)
        killed_then_repeated(config, tmp_path / "alone", np.linspace(0.01, longest, 25))


def test_tokenize_step_is_named_below_tokenized():
    assert tokenize_step("python_docs", "/data/train.jsonl.zst", "/data/tokenizer").name == "tokenized/python_docs"
