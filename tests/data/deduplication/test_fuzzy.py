import random
import time

import numpy as np
import pytest

from marin.data.deduplication import buckets
from marin.data.deduplication.components import Components
from marin.data.deduplication.fuzzy import FuzzyConfig, _Groups, dedup_fuzzy_documents
from marin.data.deduplication.minhash import MinHashSettings, jaccard
from marin.data.documents import Document, read_documents
from marin.data.shards import write_shards
from marin.errors import ConfigError

THRESHOLD = 0.8


def corpus(num_originals, seed=0, num_words=120):
    """Originals, and copies of which from none to a fifth of the words are replaced, in a random order."""
    generator = random.Random(seed)
    vocabulary = [f"word{i}" for i in range(5000)]
    texts = []
    for _ in range(num_originals):
        original = generator.choices(vocabulary, k=num_words)
        texts.append(original)
        for _ in range(generator.choice([0, 0, 1, 3])):
            copy = list(original)
            for _ in range(generator.randrange(9)):
                copy[generator.randrange(num_words)] = generator.choice(vocabulary)
            texts.append(copy)
    generator.shuffle(texts)
    return [Document(f"d{i}", " ".join(words), "s") for i, words in enumerate(texts)]


def shingles(document, size=5):
    words = document.text.split()
    return {tuple(words[i : i + size]) for i in range(max(len(words) - size + 1, 1))}


def true_jaccard(one, other):
    return len(one & other) / len(one | other)


def first_of_groups(documents, pairs):
    """The ids that stay when, of each connected group, the first stays; the slow way."""
    group = list(range(len(documents)))
    for one, other in pairs:
        low, high = sorted((group[one], group[other]))
        group = [low if number == high else number for number in group]
    return [documents[i].id for i, number in enumerate(group) if number == i]


def kept_by_us(tmp_path, documents, name="out", shard_bytes=60_000, workers=1, settings=None):
    source = str(tmp_path / f"{name}-in")
    write_shards(source, documents, stage="make", settings={}, shard_bytes=shard_bytes)
    config = FuzzyConfig(source, settings or MinHashSettings(), str(tmp_path / name), num_workers=workers)
    dedup_fuzzy_documents(config)
    return [document.id for document in read_documents(str(tmp_path / name))]


@pytest.mark.parametrize("max_hashes", [buckets._MAX_HASHES, 20])
def test_fuzzy_keeps_the_first_of_every_group_of_true_jaccard(tmp_path, monkeypatch, max_hashes):
    monkeypatch.setattr(buckets, "_MAX_HASHES", max_hashes)
    documents = corpus(120)
    sets = [shingles(document) for document in documents]
    pairs = [
        (i, j)
        for i in range(len(sets))
        for j in range(i)
        if sets[i] & sets[j] and true_jaccard(sets[i], sets[j]) >= THRESHOLD
    ]
    assert 30 < len(pairs)
    assert kept_by_us(tmp_path, documents) == first_of_groups(documents, pairs)


def test_fuzzy_agrees_with_datasketch(tmp_path):
    from datasketch import MinHash, MinHashLSH

    documents = corpus(120, seed=1)
    settings = MinHashSettings()
    index = MinHashLSH(num_perm=128, params=(settings.bands, settings.rows))
    sets = [shingles(document) for document in documents]
    pairs = []
    for number, own in enumerate(sets):
        sketch = MinHash(num_perm=128)
        sketch.update_batch([" ".join(shingle).encode() for shingle in own])
        pairs += [(number, other) for other in index.query(sketch) if true_jaccard(own, sets[other]) >= THRESHOLD]
        index.insert(number, sketch)
    theirs, ours = set(first_of_groups(documents, pairs)), set(kept_by_us(tmp_path, documents))
    disagreements = theirs ^ ours
    # Decisions that matter: documents that have a partner at the threshold or above.
    matter = {number for pair in pairs for number in pair}
    assert len(matter) > 60
    assert len(disagreements) <= 0.01 * len(matter)


def test_fuzzy_result_does_not_depend_on_shards_workers_or_order(tmp_path):
    documents = corpus(60, seed=2)
    kept = kept_by_us(tmp_path, documents, "a", 25_000, 1)
    assert kept == kept_by_us(tmp_path, documents, "b", 25_000, 2)
    assert kept == kept_by_us(tmp_path, documents, "c", 10**9, 1)
    for part in ("documents", "dropped", "shards"):
        assert [file.read_bytes() for file in sorted((tmp_path / "a" / part).iterdir())] == [
            file.read_bytes() for file in sorted((tmp_path / "b" / part).iterdir())
        ]
    # In another order other members of the groups stay, but there are as many groups.
    assert len(kept_by_us(tmp_path, documents[::-1], "d")) == len(kept)


def test_fuzzy_groups_are_connected_and_not_only_pairs(tmp_path):
    words = [f"w{i}" for i in range(200)]
    changed = [[*(f"x{i}" for i in range(n)), *words[n:]] for n in (0, 15, 30)]
    documents = [Document(str(i), " ".join(text), "s") for i, text in enumerate(changed)]
    first, middle, last = map(shingles, documents)
    assert true_jaccard(first, middle) > THRESHOLD < true_jaccard(middle, last)
    assert true_jaccard(first, last) < THRESHOLD
    assert kept_by_us(tmp_path, documents) == ["0"]


def test_fuzzy_keeps_short_and_wordless_documents_apart(tmp_path):
    texts = ["", "...", "!", "one", "two", "One!", "中文", "中文。", "one two"]
    documents = [Document(str(i), text, "s") for i, text in enumerate(texts)]
    assert kept_by_us(tmp_path, documents) == ["0", "1", "2", "3", "4", "6", "8"]


def test_fuzzy_says_of_which_document_it_is_a_duplicate(tmp_path):
    documents = [Document("first", "a b c d e f g", "s"), Document("second", "A b c, d e f g", "s")]
    kept_by_us(tmp_path, documents)
    import zstandard

    (file,) = (tmp_path / "out" / "dropped").iterdir()
    line = zstandard.ZstdDecompressor().decompressobj().decompress(file.read_bytes())
    assert line == b'{"id":"second","reason":"near duplicate","detail":"of document first"}\n'


def test_many_equal_documents_are_joined_with_few_comparisons(tmp_path, monkeypatch):
    from marin.data.deduplication import fuzzy

    calls = []
    monkeypatch.setattr(fuzzy, "jaccard", lambda one, other: calls.append(1) or jaccard(one, other))
    documents = [Document(str(i), "a b c d e f g h", "s") for i in range(500)]
    assert kept_by_us(tmp_path, documents) == ["0"]
    assert len(calls) == 499


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"threshold": 1.5}, "threshold"),
        ({"threshold": 0.1}, "threshold"),
        ({"ngram_words": 0}, "ngram_words"),
        ({"num_hashes": 2, "threshold": 0.5}, "num_hashes"),
    ],
)
def test_minhash_settings_that_cannot_work_are_refused(settings, field):
    with pytest.raises(ConfigError, match=field):
        MinHashSettings(**settings)


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7, 0.8, 0.9, 1.0])
def test_minhash_bands_find_pairs_at_the_threshold(threshold):
    settings = MinHashSettings(threshold=threshold)
    assert settings.bands * settings.rows <= settings.num_hashes
    assert settings.recall(threshold) >= 0.999
    # With one row more it would not be enough.
    assert (
        1 - (1 - threshold ** (settings.rows + 1)) ** (settings.num_hashes // (settings.rows + 1)) < 0.999
        or threshold == 1
    )


def test_signatures_estimate_the_jaccard_similarity():
    from marin.data.deduplication.minhash import _distinct, _signatures
    from marin.data.words import words_of

    words = [f"w{i}" for i in range(400)]
    texts = [" ".join(words), " ".join([*(f"x{i}" for i in range(60)), *words[60:]])]
    settings = MinHashSettings(num_hashes=1024)
    found = _distinct(words_of(texts).ngrams(5))
    one, other = (found.hashes[found.starts[i] : found.starts[i + 1]].astype(np.uint32) for i in (0, 1))
    expected = true_jaccard(*(shingles(Document("", text, "")) for text in texts))
    assert jaccard(one, other) == pytest.approx(expected)
    first, second = _signatures(found, settings)
    assert (first == second).mean() == pytest.approx(expected, abs=4 * np.sqrt(expected * (1 - expected) / 1024))


def test_components_are_those_of_a_plain_search(tmp_path):
    generator = random.Random(0)
    edges = [(generator.randrange(300), generator.randrange(300)) for _ in range(200)]
    components = Components(tmp_path / "parents.npy", 300)
    for one, other in edges:
        components.join(one, other)
    group = list(range(300))
    for one, other in edges:
        low, high = sorted((group[one], group[other]))
        group = [low if number == high else number for number in group]
    assert components.roots(np.arange(300)).tolist() == group


class _AllUnlike(_Groups):
    """Groups of documents of which no two are similar, however many share a band."""

    def __init__(self, directory, num_documents):
        self._components = Components(directory / "components.npy", num_documents)

    def _are_similar(self, one, other):
        return False


def test_fuzzy_of_many_documents_that_share_a_band_takes_time_as_their_number_grows(tmp_path):
    size = 30_000  # what one template of a web site gives; 1.5 s, and 16 s where each looks at all before it
    hashes = np.zeros(size, np.uint64)
    groups = _AllUnlike(tmp_path, size)
    started = time.process_time()
    groups.connect(buckets.Bucket(hashes, hashes, np.arange(size)))
    assert time.process_time() - started < 6
    assert groups._components.roots(np.arange(size)).tolist() == list(range(size))
