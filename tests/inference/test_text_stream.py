"""Text from tokens as they come."""

from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.inference.text_stream import TextStream, text_after


def pieces(tokenizer, tokens, sizes=None, stop=()):
    stream, found, at = TextStream(tokenizer, stop), [], 0
    for size in sizes or [1] * len(tokens):
        found.append(stream.push(tokens[at : at + size]))
        at += size
    found.append(stream.push(tokens[at:]) + stream.finish())
    return found


@pytest.fixture(scope="module")
def any_tokenizer(chat_tokenizer):
    return chat_tokenizer


def test_pieces_of_any_size_make_the_whole_text_and_never_half_a_character(any_tokenizer):
    @settings(max_examples=25)
    @given(st.text(max_size=30), st.lists(st.integers(0, 5), max_size=20))
    def check(text, sizes):
        tokens = any_tokenizer.encode(text)
        found = pieces(any_tokenizer, tokens, sizes)
        assert "".join(found) == text
        assert not any("\ufffd" in piece for piece in found) or "\ufffd" in text

    check()


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("one two three", ["two"], "one "),
        ("one two three", ["three", "e t"], "on"),
        ("ababac", ["abac"], "ab"),
        ("no such thing", ["xyz"], "no such thing"),
        ("ends with a be", ["begin"], "ends with a be"),
        ("caf\u00e9 \u2603 end", ["\u2603"], "caf\u00e9 "),
    ],
)
def test_stop_strings_end_the_text_wherever_tokens_cut_them(any_tokenizer, text, stop, expected):
    tokens = any_tokenizer.encode(text)
    for size in (1, 2, 100):
        found = pieces(any_tokenizer, tokens, [size] * (len(tokens) // size), stop)
        assert "".join(found) == expected


def test_tokens_that_are_told_are_those_of_the_text_and_none_of_the_stop_string(any_tokenizer):
    @settings(max_examples=50)
    @given(st.text("ab \u00e9\u2603", min_size=1, max_size=12), st.text("ab \u2603", max_size=4), st.integers(1, 4))
    def check(text, stop, size):
        tokens = any_tokenizer.encode(text)
        stream, said = TextStream(any_tokenizer, [stop]), ""

        def bytes_of(count):
            return b"".join(any_tokenizer.bytes_of(token) for token in tokens[:count])

        for at in range(0, len(tokens), size):
            said += stream.push(tokens[at : at + size])
            assert bytes_of(stream.num_tokens).startswith(said.encode())  # never more text than tokens
        said += stream.finish()
        assert said == (text.partition(stop)[0] if stop else text)
        assert bytes_of(stream.num_tokens).startswith(said.encode())
        assert stream.num_tokens == 0 or not stop or len(bytes_of(stream.num_tokens - 1)) < len(said.encode())
        assert stream.stopped or stream.num_tokens == len(tokens)

    check()


def test_bytes_that_are_no_text_are_told_without_the_stop_string_after_them(any_tokenizer):
    lonely = any_tokenizer.encode("\u2603")[0]
    stream = TextStream(any_tokenizer, ["x"])
    assert stream.push([lonely, *any_tokenizer.encode("x")]) == "\ufffd" and stream.num_tokens == 1


def test_tokens_that_each_end_inside_a_character_make_the_whole_text(any_tokenizer):
    """Each is the end of one character and the beginning of the next, as those of a vocabulary with few emoji are."""
    text = "\U0001f604\U0001f610\U0001f607\U0001f61f" * 8
    data = text.encode()
    parts = [data[:3], *(data[at : at + 4] for at in range(3, len(data), 4))]

    class Parts:
        special_tokens: ClassVar[dict[str, int]] = {}

        def decode(self, tokens):
            return b"".join(parts[token] for token in tokens).decode(errors="replace")

    found = pieces(Parts(), list(range(len(parts))))
    assert "".join(found) == text and not any("\ufffd" in piece for piece in found)
    assert found[1:9] == list(text[:8])  # each character as soon as it is whole


def test_bytes_that_are_no_text_do_not_wait_for_ever(any_tokenizer):
    lonely = [any_tokenizer.encode("\u2603")[0]] * 30
    found = pieces(any_tokenizer, lonely)
    assert any(found[:-1]) and set("".join(found)) == {"\ufffd"}


def test_calls_of_the_calculator_are_shown(any_tokenizer):
    special, encode = any_tokenizer.special_tokens, any_tokenizer.encode
    tokens = [*encode("so "), special["<|python_start|>"], *encode("1+1"), special["<|python_end|>"],
              special["<|output_start|>"], *encode("2"), special["<|output_end|>"], special["<|user_start|>"], *encode("!")]  # fmt: skip
    assert "".join(pieces(any_tokenizer, tokens)) == "so `1+1` = 2 !"


def test_characters_of_bytes_one_after_the_other_make_the_whole_text(byte_tokenizer):
    @settings(max_examples=50)
    @given(st.text("ab \u00e9\u65e5\u672c\U0001f600", max_size=12), st.lists(st.integers(0, 5), max_size=12))
    def check(text, sizes):
        tokens = byte_tokenizer.encode(text)
        found = pieces(byte_tokenizer, tokens, sizes)
        assert "".join(found) == byte_tokenizer.decode(tokens)
        assert not any("\ufffd" in piece for piece in found)

    check()
    assert pieces(byte_tokenizer, byte_tokenizer.encode("\u65e5\u672c"))[:6] == ["", "", "\u65e5", "", "", "\u672c"]


def test_bytes_that_are_no_text_leave_the_characters_before_and_after_them(byte_tokenizer):
    lonely = byte_tokenizer.encode("\u65e5")[-1]
    tokens = [*byte_tokenizer.encode("\u672c"), lonely, *byte_tokenizer.encode(" a\u65e5")]
    assert "".join(pieces(byte_tokenizer, tokens)) == "\u672c\ufffd a\u65e5"


def test_a_special_token_between_two_words_takes_no_space_away(byte_tokenizer):
    tokens = [*byte_tokenizer.encode("a"), byte_tokenizer.special_tokens["</s>"], *byte_tokenizer.encode(" b")]
    assert "".join(pieces(byte_tokenizer, tokens)) == "a b"


@pytest.mark.parametrize(
    ("prompt", "text"),
    [("a", " b a"), ("a ", "b"), ("\u65e5", "\u672c b"), ("a\u65e5", " b"), ("", "b"), ("\u65e5", "!")],
)
def test_text_after_a_prompt_has_the_space_before_its_first_word(byte_tokenizer, prompt, text):
    asked, tokens = byte_tokenizer.encode(prompt), byte_tokenizer.encode(text)
    asked = [byte_tokenizer.bos_id, *asked]
    stream = TextStream(byte_tokenizer, prompt=asked)
    assert "".join(stream.push([token]) for token in tokens) + stream.finish() == text
    assert text_after(asked, tokens, byte_tokenizer) == text


def test_bytes_of_tokens_with_spaces_before_words_make_those_of_the_text(byte_tokenizer):
    tokens = byte_tokenizer.encode("a b \u65e5\u00e9 a")
    assert b"".join(map(byte_tokenizer.bytes_of, tokens)).decode() == "a b \u65e5\u00e9 a"
    assert [byte_tokenizer.text_of(token) for token in tokens[:3]] == ["a", " b", " "]
    assert byte_tokenizer.bytes_of(tokens[3]) == "\u65e5".encode()[:1]
    assert byte_tokenizer.bytes_of(byte_tokenizer.bos_id) == b""
