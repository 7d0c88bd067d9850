"""tiktoken and `tokenizers` on one `tokenizer.json`: the same ids for every text, or a reason why tiktoken is not used."""

import json
import re
import sys
import time
import unicodedata

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from marin.data.documents import Document, write_documents
from marin.data.tokenizer import SPLIT_PATTERN, Tokenizer, TrainTokenizerConfig, train_tokenizer
from marin.data.tokenizer.byte_bpe import byte_of_symbol

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = (
    "the then theme", "return the sum of", "don't SHOULDN'T we'LL", "def f(x):", "12345 1999", "naïve café", "数学の本",
    "🙂👩‍👩‍👧", "e\u0301n\u0303", "\n\n    ", "\t\t", "aaaa aaaaaaaa", "----", "mississippi", "ab abc abcd bcd cd",
)  # fmt: skip
PIECES = (
    *WORDS, "<|bos|>", "<|endoftext|>", "<|begin_of_text|>", " ", "  ", "\r\n", "'s", "'S", "'ſ", "ſ", "K", "İ", "ǅ",
    "\0", "\x7f", "\x85", "\u200b", "\u2028", "\ufeff", "\xa0", "½", "Ⅷ", "٣", "\u0301", "한국어", "שלום", "\U000e0041",
    "🇨🇭", "\U0001f3fd", "ﬆ", "ß", "\0<no token>",
)  # fmt: skip
TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    st.lists(st.one_of(st.sampled_from(PIECES), st.characters(exclude_categories=["Cs"])), max_size=20).map("".join),
    st.tuples(st.sampled_from(PIECES), st.integers(1, 300)).map(lambda run: run[0] * run[1]),
)


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    """A tokenizer of ours, as JSON."""
    root = tmp_path_factory.mktemp("tokenizer")
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(WORDS, 60)) + f" {number * number}" for number in range(150)]
    write_documents(str(root / "d.jsonl.zst"), [Document(str(i), text, "test") for i, text in enumerate(texts)])
    train_tokenizer(TrainTokenizerConfig(str(root / "d.jsonl.zst"), 450, str(root)))
    return json.loads((root / "tokenizer.json").read_text())


def opened(spec, **changes):
    return Tokenizer(json.dumps({**spec, **changes}).encode(), "tokenizer.json")


def special(token_id, content, **changes):
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, "special": True, **flags, **changes}


def split(pattern, behavior="Isolated"):
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    first = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}
    return {"type": "Sequence", "pretokenizers": [first, byte_level]}


def llama3_style(spec):
    """As `tiktoken` files are converted: every way to make each token is a merge, and whole pieces need none."""
    symbols = {byte: symbol for symbol, byte in byte_of_symbol().items()}
    made = ["".join(pair) for pair in spec["model"]["merges"]]
    # Bytes in their own order, not that of the characters, and a token that only a whole piece can be.
    vocab = {token: index for index, token in enumerate([symbols[b] for b in range(256)] + made + ["zqxj"])}
    merges = []
    for token in made:
        pairs = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in vocab and token[i:] in vocab]
        merges += sorted(pairs, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
    specials = [special(len(vocab) + i, name) for i, name in enumerate(("<|begin_of_text|>", "<|end_of_text|>"))]
    return {
        **spec,
        "added_tokens": specials,
        "pre_tokenizer": split(LLAMA3_PATTERN),
        "model": {**spec["model"], "vocab": vocab, "merges": [list(pair) for pair in merges], "ignore_merges": True},
    }


def gpt2_style(spec):
    """Merges as strings, the library's own split, and one special token that is also in the vocabulary."""
    model = spec["model"]
    tokens = [token for token in model["vocab"] if token != "<|bos|>"]
    vocab = {token: index for index, token in enumerate([*tokens, "<|endoftext|>"])}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        **spec,
        "added_tokens": [special(len(tokens), "<|endoftext|>")],
        "pre_tokenizer": byte_level,
        "model": {**model, "vocab": vocab, "merges": [" ".join(pair) for pair in model["merges"]]},
    }


STYLES = {
    "ours": lambda spec: spec,
    "llama3": llama3_style,
    "gpt2": gpt2_style,
    "o200k": lambda spec: {**spec, "pre_tokenizer": split(O200K_PATTERN)},
}


@pytest.fixture(scope="module", params=STYLES)
def tokenizer(spec, request):
    return opened(STYLES[request.param](spec))


def ids_of_tokenizers(tokenizer, text):
    return tokenizer._hf.encode(text, add_special_tokens=False).ids


@given(TEXT)
@settings(max_examples=100)
@example("")
@example("\r\n\r\n \n\n x\u2028\u2028 y \u3000\u3000z\t")
@example("zqxj zqxj,zqxjzqxj")
@example("<|bos|><|endoftext|><|begin_of_text|>")
def test_ids_are_those_of_tokenizers(tokenizer, text):
    assert tokenizer.encoder_reason is None
    assert tokenizer.encode(text) == ids_of_tokenizers(tokenizer, text)


def test_ids_of_many_code_points_are_those_of_tokenizers(tokenizer):
    """Beside a letter, a digit, a space and a line end, so that a character that one engine classes otherwise shows."""
    points = [chr(point) for point in [*range(0x800), *range(0x800, 0x20000, 61)] if not 0xD800 <= point < 0xE000]
    text = "".join(f"{char}th{char}e 1{char}9 {char}\n" for char in points)
    assert tokenizer.encode(text) == ids_of_tokenizers(tokenizer, text)


@pytest.mark.parametrize("category", ["L", "N", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "P", "S", "s"])
def test_classes_of_characters_are_the_same_in_both_engines(category):
    import tiktoken
    from tokenizers import Regex, pre_tokenizers

    pattern = r"\s" if category == "s" else rf"\p{{{category}}}"
    encoding = tiktoken.Encoding(
        "x", pat_str=pattern, mergeable_ranks={bytes([b]): b for b in range(256)}, special_tokens={}
    )
    splitter = pre_tokenizers.Split(Regex(pattern), behavior="removed", invert=True)
    points = "".join(chr(p) for p in [*range(0x3100), *range(0x3100, 0x20000, 11)] if not 0xD800 <= p < 0xE000)
    in_tiktoken, in_tokenizers = "", ""
    for start in range(0, len(points), 8192):
        part = points[start : start + 8192]
        in_tiktoken += bytes(encoding.encode_ordinary(part)).decode()  # what does not match is dropped
        in_tokenizers += "".join(part[a:b] for _, (a, b) in splitter.pre_tokenize_str(part))
    assert in_tiktoken == in_tokenizers
    assert len(in_tiktoken) >= 25
    if category != "s":  # assigned in both; the versions of Unicode may differ from Python's for others
        python = {char for char in points if unicodedata.category(char).startswith(category)}
        assert python <= set(in_tiktoken)


@pytest.mark.parametrize("char", ["a", " ", "\n", "!", "1", "字", "🙂", "\t", "\u0301"])
def test_ids_of_a_long_run_of_one_character_are_those_of_tokenizers(tokenizer, char):
    text = f"x{char * 100_000}y"
    assert tokenizer.encode(text) == ids_of_tokenizers(tokenizer, text)


def test_run_of_spaces_that_tiktoken_cannot_split_is_encoded_all_the_same(spec, capfd):
    text = " " * 1_000_000 + "x"
    tokenizer = opened(spec)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert capfd.readouterr() == ("", "")


def test_runs_of_spaces_take_time_by_their_length_and_not_by_its_square(spec):
    text = (" " * 24_000 + "x") * 5
    tokenizer = opened(spec)
    tokenizer.encode(text[:1000])
    start = time.process_time()
    ids = tokenizer.encode(text)
    assert time.process_time() - start < 1.0  # 0.02 s; 3 s where each space looks at all behind it
    assert ids == ids_of_tokenizers(tokenizer, text)


def test_lengths_of_tokens_are_the_same_whoever_encodes(tokenizer):
    sizes = tokenizer._encoder.sizes
    np.testing.assert_array_equal(sizes[: len(tokenizer.token_bytes)], tokenizer.token_bytes[: len(sizes)])


# --- what tiktoken cannot do --------------------------------------------------------------------------------------


def with_model(spec, **changes):
    return {**spec, "model": {**spec["model"], **changes}}


def without_merge(spec, ignore_merges):
    """The last token of two letters loses its merge."""
    merges = spec["model"]["merges"]
    last = max(index for index, pair in enumerate(merges) if len("".join(pair)) == 2)
    return with_model(spec, merges=merges[:last] + merges[last + 1 :], ignore_merges=ignore_merges)


def reversed_merges(spec):
    merges = spec["model"]["merges"]
    return with_model(spec, merges=[merges[1], merges[0], *merges[2:]])


def without_byte(spec):
    vocab = dict(spec["model"]["vocab"])
    del vocab["\u0101"]  # the byte 1
    return with_model(spec, vocab=vocab)


def before_byte_level(spec, stage):
    return {**spec, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [stage, *split("x")["pretokenizers"]]}}


NOT_EXPRESSIBLE = {
    "normalizer": (lambda s: {**s, "normalizer": {"type": "NFC"}}, "normalizes"),
    "lower case": (lambda s: {**s, "normalizer": {"type": "Lowercase"}}, "normalizes"),
    "prefix space": (
        lambda s: {**s, "pre_tokenizer": {**gpt2_style(s)["pre_tokenizer"], "add_prefix_space": True}},
        "adds a space",
    ),
    "no split": (lambda s: {**s, "pre_tokenizer": split("x")["pretokenizers"][1]}, "does not split"),
    "digits": (lambda s: before_byte_level(s, {"type": "Digits", "individual_digits": True}), "'Digits'"),
    "merged split": (lambda s: {**s, "pre_tokenizer": split(SPLIT_PATTERN, "MergedWithNext")}, "its Split"),
    "anchor": (lambda s: {**s, "pre_tokenizer": split(SPLIT_PATTERN + r"|\s+$")}, "may mean something else"),
    "word class": (lambda s: {**s, "pre_tokenizer": split(r"\w+|\W+")}, "may mean something else"),
    "interval+": (lambda s: {**s, "pre_tokenizer": split(r"\p{N}{1,3}+|[\s\S]")}, "may mean something else"),
    "any case": (lambda s: {**s, "pre_tokenizer": split(r"(?i:ss|ff)|[\s\S]")}, "may mean something else"),
    "dropout": (lambda s: with_model(s, dropout=0.1), "`dropout`"),
    "byte fallback": (lambda s: with_model(s, byte_fallback=True), "`byte_fallback`"),
    "missing merge": (lambda s: without_merge(s, False), "own bytes"),
    "missing merge, ignored": (lambda s: without_merge(s, True), "also an ordinary one|own bytes"),
    "order of merges": (reversed_merges, "not in the order"),
    "missing byte": (without_byte, "byte 0x01"),
    "added token": (
        lambda s: {**s, "added_tokens": [*s["added_tokens"], special(450, "<töl>", special=False)]},
        "is looked for in the text",
    ),
    "special and ordinary": (lambda s: with_model(s, ignore_merges=True), "also an ordinary one"),
}


@pytest.mark.parametrize("name", NOT_EXPRESSIBLE)
def test_file_that_tiktoken_cannot_express_is_encoded_by_tokenizers_and_says_why(spec, name):
    change, reason = NOT_EXPRESSIBLE[name]
    tokenizer = opened(change(spec))
    assert tokenizer.encoder_reason is not None
    assert re.search(reason, tokenizer.encoder_reason), tokenizer.encoder_reason
    for text in ("don't  SHOULDN'T\n\n x 1234 <töl>", "mississippi " * 3, "ß ff ﬀ"):
        if name != "dropout":
            assert tokenizer.encode(text) == ids_of_tokenizers(tokenizer, text)


def test_model_that_is_no_bpe_is_encoded_by_tokenizers(spec):
    vocab = {"the": 0, "[UNK]": 1}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"}
    tokenizer = opened(spec, model=model, pre_tokenizer={"type": "Whitespace"}, added_tokens=[], decoder=None)
    assert tokenizer.encode("the end") == [0, 1]
    assert "Whitespace" in str(tokenizer.encoder_reason)


@given(TEXT)
@example("a1b2 c")
@settings(max_examples=60)
def test_text_that_the_pattern_does_not_match_is_kept(spec, text):
    tokenizer = opened(spec, pre_tokenizer=split(r"\p{L}+|\s+"))
    assert tokenizer.encoder_reason is None or "differently" in tokenizer.encoder_reason
    assert tokenizer.encode(text) == ids_of_tokenizers(tokenizer, text)


def test_without_tiktoken_the_tokenizers_library_encodes(spec, monkeypatch):
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    tokenizer = opened(spec)
    assert tokenizer.encoder_reason == "tiktoken is not installed"
    assert tokenizer.encode("the 数学") == ids_of_tokenizers(tokenizer, "the 数学")


# --- batches ------------------------------------------------------------------------------------------------------


def test_arrays_of_many_texts_are_the_same_for_any_number_of_threads(tokenizer):
    texts = [f"{WORDS[i % len(WORDS)]} {i}" * (1 + i % 90) for i in range(250)]
    expected = [ids_of_tokenizers(tokenizer, text) for text in texts]
    for num_threads in (0, 1, 3):
        assert [ids.tolist() for ids in tokenizer.encode_arrays(texts, num_threads)] == expected
    assert tokenizer.encode_arrays([]) == []
