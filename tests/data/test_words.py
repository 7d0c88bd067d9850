import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from marin.data import words
from marin.data.words import ngram_hashes, words_between, words_of

ASCII = st.text(st.characters(max_codepoint=127), max_size=60)
ANY = st.text(st.sampled_from("aB9_ .,\n\té中文日ア。，한국ไทย😀̈\x00"), max_size=40)


def hashes_of(text):
    return words_of([text]).hashes.tolist()


@given(st.lists(ASCII, max_size=6))
def test_words_of_ascii_are_runs_of_word_characters(texts):
    found = words_of(texts)
    for index, text in enumerate(texts):
        expected = re.findall(r"[a-z0-9_]+", text.lower())
        got = found.hashes[found.starts[index] : found.starts[index + 1]].tolist()
        assert [hashes_of(word)[0] for word in expected] == got


@given(st.lists(ANY, min_size=1, max_size=6))
def test_words_do_not_depend_on_what_they_are_hashed_with(texts):
    found = words_of(texts)
    for index, text in enumerate(texts):
        assert found.hashes[found.starts[index] : found.starts[index + 1]].tolist() == hashes_of(text)


def test_words_of_different_words_are_different():
    vocabulary = [f"{a}{b}{c}" for a in "abcdefghij" for b in "klmno0123" for c in ("", "x", "yy", "aaa")]
    assert len(set(hashes_of(" ".join(vocabulary)))) == len(vocabulary)


def test_words_ignore_case_spacing_and_punctuation():
    assert hashes_of("Hello, World! Émile's") == hashes_of("hello\n world  émile s")
    assert hashes_of("one two") != hashes_of("two one")


def test_words_of_scripts_without_spaces_are_characters():
    assert len(hashes_of("中文字。日本")) == 5
    assert hashes_of("中文") == hashes_of("中") + hashes_of("文")
    assert len(hashes_of("abc中def")) == 3
    assert len(hashes_of("한국어 문장")) == 2


def test_words_of_a_long_text_are_those_of_its_parts(monkeypatch):
    text = "some words of different length, again and again; " * 200
    whole = hashes_of(text)
    monkeypatch.setattr(words, "_PIECE_CHARS", 100)
    assert words_of(["first", text, "last"]).hashes.tolist() == [*hashes_of("first"), *whole, *hashes_of("last")]
    assert len(hashes_of("x" * 1000)) == 10


@given(st.lists(ANY, min_size=1, max_size=6), st.integers(1, 6))
def test_ngrams_are_those_of_each_text_alone(texts, size):
    found = words_of(texts).ngrams(size)
    for index, text in enumerate(texts):
        alone = words_of([text])
        number = len(alone.hashes)
        assert found.starts[index + 1] - found.starts[index] == (max(number - size + 1, 1) if number else 0)
        got = found.hashes[found.starts[index] : found.starts[index + 1]]
        assert np.array_equal(got, alone.ngrams(size).hashes)


def test_ngrams_depend_on_the_order_of_words():
    assert words_of(["a b c"]).ngrams(3).hashes != words_of(["c b a"]).ngrams(3).hashes
    assert len(ngram_hashes(words_of(["a b"]).hashes, 3)) == 0


def test_words_between_shows_the_text_of_words():
    assert words_between("One, two 中文 THREE.", 1, 3) == "two 中"
    assert words_between("One, two 中文 THREE.", 4, 5) == "three"


def test_word_hashes_stay_the_same():
    # Sketches that are kept on disk while a stage runs, and the choice of what is a duplicate, depend on them.
    assert hashes_of("hello world") == [16965158064766073078, 4160489664314162120]
