"""The two ways of learning merges learn the same."""

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from marin.data.documents import Document, write_documents
from marin.data.tokenizer import SPLIT_PATTERN, TOKENIZER_FILE, TrainTokenizerConfig, learning, train_tokenizer

SPECIAL = ("<|bos|>",)
# What pieces begin and end with, beside each other in every order.
CHARACTERS = st.sampled_from(
    [*" \t\n\r\x0b\x1c\x85\xa0\u2028\u3000'slAz9.-\x00\x7f\xff\xad", *"éſÅ²Ⅷ½漢—→\u0301🙂", "'s", " \n"]
)
TEXT = st.lists(CHARACTERS, max_size=30).map("".join)


def isolated(pattern):
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def words(pattern, text):
    """The pieces that a merge can happen in."""
    return [piece for piece, _ in isolated(pattern).pre_tokenize_str(text) if len(piece) > 1]


@settings(max_examples=200)
@given(TEXT)
@example("naïve “quoted—text” and — more. \n\n  → x\u00a0 y 1²3\tend …\n\n")
@example("x é\ny é  z")
def test_latin_1_parts_have_the_words_of_the_text(text):
    expected = [
        word.encode().decode("latin-1")
        for word, _ in isolated(SPLIT_PATTERN).pre_tokenize_str(text)
        if len(word.encode()) > 1
    ]
    parts = list(learning.latin_1_parts(text, isolated(SPLIT_PATTERN)))
    assert [word for part in parts for word in words(learning.MARKED_PATTERN, part)] == expected
    assert "".join(parts).replace("\xff", "").encode("latin-1").decode() == text


@settings(max_examples=200)
@given(st.text(st.sampled_from("  \t\n\r\x0b'slAz9.-\x00\x7f"), max_size=60), st.integers(1, 9))
def test_parts_of_an_ascii_text_have_its_words_and_are_short(text, size):
    parts = list(learning.ascii_parts(text, size))
    assert "".join(parts) == text
    assert [word for part in parts for word in words(SPLIT_PATTERN, part)] == words(SPLIT_PATTERN, text)
    for part in parts:
        assert learning._CUT_IN_ASCII.search(part, size) is None, "it could have been cut"


@settings(max_examples=25)
@given(st.lists(TEXT, min_size=1, max_size=10))
def test_both_ways_learn_the_same_merges_with_the_same_ids(texts):
    by_symbols = learning._learn_by_symbols(iter(texts), 300, SPECIAL, SPLIT_PATTERN)
    by_latin_1 = learning._learn_by_latin_1(iter(texts), 300, SPECIAL)
    assert json.loads(by_latin_1.__getstate__()) == json.loads(by_symbols.__getstate__())


@pytest.mark.parametrize("others", ["", "é", "漢字 текст "])
def test_trained_file_does_not_depend_on_the_way(tmp_path, monkeypatch, others):
    generator = np.random.default_rng(0)
    vocabulary = ["matrix", "the sum", "def f(x):", "12345", "don't", "\n\n    ", "a—b", others]
    texts = [" ".join(generator.choice(vocabulary, 60)) for _ in range(150)]
    path = str(tmp_path / "d.jsonl.zst")
    write_documents(path, [Document(str(i), text, "test") for i, text in enumerate(texts)])
    taken = []
    for share in (0.0, 1.0):
        monkeypatch.setattr(learning, "_MOSTLY_ASCII", share)
        taken.append(learning._is_mostly_ascii(texts))
        train_tokenizer(TrainTokenizerConfig(path, 280, str(tmp_path / str(share))))
    assert taken == [False, True]
    assert (tmp_path / "0.0" / TOKENIZER_FILE).read_bytes() == (tmp_path / "1.0" / TOKENIZER_FILE).read_bytes()
