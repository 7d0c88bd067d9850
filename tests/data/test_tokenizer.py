import base64
import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from marin.data.documents import Document, read_documents, write_documents
from marin.data.shards import write_shards
from marin.data.tokenizer import (
    BOS_TOKEN,
    TOKENIZER_FILE,
    Tokenizer,
    TokenizerReportConfig,
    TrainTokenizerConfig,
    report_tokenizer,
    tokenizer_report_step,
    train_tokenizer,
    train_tokenizer_step,
)
from marin.data.tokenizer.training import sample
from marin.errors import ConfigError, DataError
from marin.execution.graph import Graph
from marin.execution.step import resolve, versioned

VOCAB_SIZE = 400
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
WORDS = ["matrix", "return the sum", "Parameters", "def f(x):", "12345", "naïve", "数学", "🙂", "don't", "\n\n    "]


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("documents") / "train.jsonl.zst")
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(WORDS, 60)) + f" {number} {number * number}" for number in range(200)]
    write_documents(path, [Document(str(i), text, "test") for i, text in enumerate(texts)])
    return path


@pytest.fixture(scope="module")
def tokenizer(documents, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("tokenizer"))
    train_tokenizer(TrainTokenizerConfig(documents, VOCAB_SIZE, path))
    return Tokenizer.load(path)


def edited(tokenizer, tmp_path, **changes):
    spec = json.loads(tokenizer._hf.to_str())
    (tmp_path / TOKENIZER_FILE).write_text(json.dumps({**spec, **changes}))
    return Tokenizer.load(str(tmp_path))


def test_trained_tokenizer_has_exactly_the_vocabulary_asked_for(tokenizer):
    assert tokenizer.vocab_size == VOCAB_SIZE
    assert tokenizer.bos_id == 0


def test_training_twice_gives_the_same_bytes_whatever_the_number_of_threads(documents, tokenizer, tmp_path):
    code = (
        "import sys; from marin.data.tokenizer import *;"
        f"train_tokenizer(TrainTokenizerConfig(sys.argv[1], {VOCAB_SIZE}, sys.argv[2]))"
    )
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", code, documents, str(tmp_path)], check=True, env=environment)
    assert Tokenizer.load(str(tmp_path)).digest == tokenizer.digest


def test_training_records_what_it_was_trained_on(documents, tmp_path):
    train_tokenizer(TrainTokenizerConfig(documents, 300, str(tmp_path)))
    info = json.loads((tmp_path / "tokenizer_info.json").read_text())
    assert info["digest"] == Tokenizer.load(str(tmp_path)).digest
    assert (info["vocab_size"], info["special_tokens"]) == (300, {BOS_TOKEN: 0})
    assert info["trained_on"]["documents"] == 200


@given(TEXT)
@example("emoji 👩‍👩‍👧‍👦 🇨🇭, CJK 漢字かな한국어, combining é ñ̃, control \x00\x01\x7f\x85, \u200b\ufeff\u2028, RTL שלום")
@example("  leading\t\ttabs \r\n\r\n  and trailing   ")
@example(f"{BOS_TOKEN} 123456789 don't SHOULDN'T" + "a" * 300 + " " * 300 + "\n" * 50)
@example("")
def test_encode_keeps_the_text_and_its_byte_count(tokenizer, text):
    ids = tokenizer.encode(text)
    assert int(tokenizer.token_bytes[np.array(ids, np.int64)].sum()) == len(text.encode())
    assert tokenizer.decode(ids) == text
    assert tokenizer.bos_id not in ids


@given(st.lists(TEXT, max_size=6))
def test_encode_batch_gives_what_encode_gives(tokenizer, texts):
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]


def test_token_bytes_are_zero_for_the_special_token_and_one_for_each_byte(tokenizer):
    assert tokenizer.token_bytes.dtype == np.int32
    assert tokenizer.token_bytes.shape == (VOCAB_SIZE,)
    assert tokenizer.token_bytes[0] == 0
    assert (tokenizer.token_bytes[1:257] == 1).all()
    assert (tokenizer.token_bytes[257:] >= 2).all()


def test_numbers_are_split_after_two_digits(tokenizer):
    pieces = [tokenizer.decode([token]) for token in tokenizer.encode("1234567")]
    assert max(map(len, pieces)) <= 2


def test_bytes_of_tokens_make_those_of_the_text_wherever_tokens_cut_its_characters(tokenizer, tmp_path):
    text = "🤖 café \ufffd x"
    ids = tokenizer.encode(text)
    assert any("\ufffd" in tokenizer.decode([token]) for token in ids)
    assert b"".join(tokenizer.bytes_of(token) for token in ids) == text.encode()
    assert tokenizer.bytes_of(tokenizer.bos_id) == b""
    assert edited(tokenizer, tmp_path, pre_tokenizer=None).bytes_of(ids[0]) is None


def test_decode_of_a_part_of_a_character_gives_the_replacement_character(tokenizer):
    ids = tokenizer.encode("🤖")
    assert len(ids) > 1
    assert "\ufffd" in tokenizer.decode(ids[:1])


def test_encode_of_a_lone_surrogate_is_refused(tokenizer):
    with pytest.raises(DataError, match="lone surrogates"):
        tokenizer.encode_batch(["fine", "bad \ud800"])


def test_training_with_too_small_a_vocabulary_is_refused(documents, tmp_path):
    with pytest.raises(ConfigError, match="`vocab_size` is 256"):
        train_tokenizer(TrainTokenizerConfig(documents, 256, str(tmp_path)))


def test_training_with_special_tokens_and_a_pattern_of_ones_own_uses_them(documents, tmp_path):
    specials = (BOS_TOKEN, "<|user_start|>", "<|user_end|>")
    pattern = r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"
    config = TrainTokenizerConfig(documents, 300, str(tmp_path), special_tokens=specials, split_pattern=pattern)
    train_tokenizer(config)
    trained = Tokenizer.load(str(tmp_path))
    assert trained.special_tokens == {BOS_TOKEN: 0, "<|user_start|>": 1, "<|user_end|>": 2}
    assert (trained.vocab_size, trained.encoder_reason) == (300, None)
    assert all(len(trained.decode([token])) == 1 for token in trained.encode("1999"))
    ids = trained.encode("<|user_start|>")
    assert not {0, 1, 2} & set(ids) and trained.decode(ids) == "<|user_start|>"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"vocab_size": 257, "special_tokens": (BOS_TOKEN, "<|x|>")}, "`vocab_size` is 257"),
        ({"special_tokens": (BOS_TOKEN, BOS_TOKEN)}, "`special_tokens`"),
        ({"special_tokens": (BOS_TOKEN, "a")}, "'a', which is how the file writes one of the 256 bytes"),
        ({"special_tokens": (BOS_TOKEN, "\u0120")}, "one of the 256 bytes"),  # the space
        ({"special_tokens": (BOS_TOKEN, "\ud800")}, "lone surrogate"),
        ({"split_pattern": "(unclosed"}, "`split_pattern`"),
        ({"max_bytes": 0}, "`max_bytes` is 0"),
    ],
)
def test_training_with_a_setting_that_cannot_work_names_it(documents, tmp_path, changes, field):
    config = TrainTokenizerConfig(documents, 300, str(tmp_path))
    with pytest.raises(ConfigError, match=field):
        train_tokenizer(dataclasses.replace(config, **changes))


@pytest.mark.parametrize("text", ["the\nthe\nuser\nsays\n", "the\nthe\nusér\nsays\n"])
def test_training_with_a_special_token_that_texts_become_is_refused_as_texts_would_lose_it(tmp_path, text):
    write_documents(str(tmp_path / "d.jsonl.zst"), [Document("d", text * 50, "s")])
    config = TrainTokenizerConfig(str(tmp_path / "d.jsonl.zst"), 263, str(tmp_path), special_tokens=(BOS_TOKEN, "the"))
    with pytest.raises(ConfigError, match="'the', which is also a piece of the documents' text"):
        train_tokenizer(config)
    assert not (tmp_path / "tokenizer.json").exists()


def test_training_reads_no_more_than_max_bytes_spread_over_a_document_set(documents, tmp_path):
    write_shards(str(tmp_path / "set"), read_documents(documents), stage="test", settings={}, shard_bytes=20_000)
    whole = [document.id for document in read_documents(documents)]
    assert [document.id for document in sample(str(tmp_path / "set"), 10**9)] == whole
    few = [int(document.id) for document in sample(str(tmp_path / "set"), 30_000)]
    assert 20_000 < sum(len(d.text.encode()) for d in sample(str(tmp_path / "set"), 30_000)) <= 30_000
    assert min(few) < 20 and max(few) > 170
    assert few == sorted(few)
    assert [document.id for document in sample(documents, 5_000)] == whole[: len(list(sample(documents, 5_000)))]


@pytest.mark.parametrize("kind", ["set", "file"])
def test_document_that_does_not_fit_is_passed_over_and_does_not_end_the_sample(tmp_path, kind):
    path = str(tmp_path / ("set" if kind == "set" else "documents.jsonl.zst"))

    def sampled(sizes):
        texts = [Document(str(number), "é" * (size // 2), "test") for number, size in enumerate(sizes)]
        if kind == "set":
            write_shards(path, texts, stage="test", settings={}, shard_bytes=2_000)
        else:
            write_documents(path, texts)
        return [int(document.id) for document in sample(path, 1_000)]

    if kind == "set":
        assert sampled([100] * 3 + [2_000] + [100] * 17) == [7, 11, 15, 19]
        assert sampled([2_000, 100, 5_000, 300]) == [1, 3]  # a seventh of all is not one document
    else:
        assert sampled([100, 2_000, 300, 700, 100]) == [0, 2, 4]
        assert sampled([950, 100, 50]) == [0]  # nine tenths are there: no more is read
    with pytest.raises(DataError, match="no document fits into the 1,000 bytes"):
        sampled([1_002])


def test_training_on_too_little_text_is_refused_and_writes_nothing(documents, tmp_path):
    with pytest.raises(DataError, match="smaller vocabulary or more documents"):
        train_tokenizer(TrainTokenizerConfig(documents, 60_000, str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_tokenizer_with_a_prefix_space_or_normalizer_refuses_to_count_bytes(tokenizer, tmp_path):
    prefix_space = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    for changes, problem in (
        ({"pre_tokenizer": prefix_space}, "adds a space"),
        ({"normalizer": {"type": "NFC"}}, "normalizes"),
        ({"pre_tokenizer": None}, "not byte-level"),
    ):
        with pytest.raises(DataError, match=problem):
            _ = edited(tokenizer, tmp_path, **changes).token_bytes


def test_tokenizer_made_elsewhere_is_used_with_its_own_special_and_added_tokens(tokenizer, tmp_path):
    def added(token_id, content, special):
        return {
            "id": token_id,
            "content": content,
            "special": special,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }

    vocab = json.loads(tokenizer._hf.to_str())["model"]
    vocab["vocab"]["<|endoftext|>"] = vocab["vocab"].pop(BOS_TOKEN)
    other = edited(
        tokenizer,
        tmp_path,
        model=vocab,
        added_tokens=[added(0, "<|endoftext|>", True), added(VOCAB_SIZE, "<tööl>", False)],
    )
    assert (other.bos_id, other.vocab_size) == (0, VOCAB_SIZE + 1)
    text = "x<tööl>y<|endoftext|>"
    ids = other.encode(text)
    assert VOCAB_SIZE in ids
    assert 0 not in ids
    assert int(other.token_bytes[ids].sum()) == len(text.encode())


def test_tokenizer_without_a_beginning_token_says_which_it_looked_for(tokenizer, tmp_path):
    with pytest.raises(DataError, match=r"<\|bos\|>, <\|begin_of_text\|>"):
        _ = edited(tokenizer, tmp_path, added_tokens=[]).bos_id


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff\xfe", b'{"model": {"type": "Unheard"}}'])
def test_loading_a_malformed_tokenizer_is_refused_with_its_path(tmp_path, content):
    (tmp_path / TOKENIZER_FILE).write_bytes(content)
    with pytest.raises(DataError, match=TOKENIZER_FILE):
        Tokenizer.load(str(tmp_path))


def test_loading_an_absent_tokenizer_is_refused_with_its_path(tmp_path):
    with pytest.raises(DataError, match=TOKENIZER_FILE):
        Tokenizer.load(str(tmp_path))


def test_tokenizer_step_is_named_and_asks_for_what_it_is_given():
    step = train_tokenizer_step("/data/train.jsonl.zst", 512)
    assert step.name == "tokenizers/bpe"
    assert step.fn is train_tokenizer
    assert dataclasses.asdict(step.config)["vocab_size"] == 512


def test_tokenizer_step_of_too_few_tokens_is_refused_when_it_is_made_and_versioned_ones_when_they_are_known():
    with pytest.raises(ConfigError, match="`vocab_size` is 256"):
        train_tokenizer_step("/data/train.jsonl.zst", 256)
    step = train_tokenizer_step("/data/train.jsonl.zst", versioned(256))
    with pytest.raises(ConfigError, match="`vocab_size` is 256"):
        resolve(step.config, "/out", "/p", lambda step: "/q")


# --- the report ---------------------------------------------------------------------------------------------------


def test_report_counts_bytes_and_tokens_of_each_source(tokenizer, tmp_path, capsys):
    texts = {"books": ["the sum of", "naïve 数学"], "code": ["def f(x):\n    return x"]}
    rows = [Document(f"{source}{i}", text, source) for source, some in texts.items() for i, text in enumerate(some)]
    write_documents(str(tmp_path / "d.jsonl.zst"), rows)
    (tmp_path / TOKENIZER_FILE).write_text(tokenizer._hf.to_str())
    (tmp_path / "others" / "gpt2").mkdir(parents=True)
    (tmp_path / "others" / "gpt2" / TOKENIZER_FILE).write_text(tokenizer._hf.to_str())
    ranks = "".join(f"{base64.b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(256))
    (tmp_path / "others" / "cl100k_base.tiktoken").write_text(ranks)
    config = TokenizerReportConfig(
        str(tmp_path), str(tmp_path / "d.jsonl.zst"), str(tmp_path / "others"), output_path=str(tmp_path / "report")
    )
    report_tokenizer(config)
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["absent"] == []
    assert [*report["sources"]] == ["books", "code", "all"]
    for source, some in (*texts.items(), ("all", [*texts["books"], *texts["code"]])):
        found = report["sources"][source]
        size = sum(len(text.encode()) for text in some)
        rate = round(size / sum(len(tokenizer.encode(text)) for text in some), 4)
        assert (found["documents"], found["bytes"]) == (len(some), size)
        assert found["bytes_per_token"] == {"this": rate, "gpt2": rate, "cl100k_base": 1.0}
    assert (tmp_path / "report" / "report.md").read_text() in capsys.readouterr().out


def test_report_without_other_tokenizers_names_them_and_of_a_damaged_one_names_its_file(tokenizer, documents, tmp_path):
    (tmp_path / TOKENIZER_FILE).write_text(tokenizer._hf.to_str())
    config = TokenizerReportConfig(str(tmp_path), documents, None, 2000, str(tmp_path / "report"))
    report_tokenizer(config)
    assert json.loads((tmp_path / "report" / "report.json").read_text())["absent"] == ["gpt2", "cl100k_base"]
    lines = [f"{base64.b64encode(bytes([byte])).decode()} {byte}" for byte in range(256)]
    for ranks, reason in (
        (["no ranks at all"], "r50k_base"), (lines[:200], "56 of the 256 bytes have no token"), ([*lines, "ISE= 7"], "two tokens have one id"),
    ):  # fmt: skip
        (tmp_path / "r50k_base.tiktoken").write_text("\n".join(ranks))
        with pytest.raises(DataError, match=rf"r50k_base\.tiktoken.*{reason}" if reason != "r50k_base" else reason):
            report_tokenizer(dataclasses.replace(config, others=str(tmp_path)))
    assert tokenizer_report_step("/t", "/d").fn is report_tokenizer


def test_report_beside_tokenizers_that_were_replaced_is_another_report(tmp_path):
    others = tmp_path / "others"
    others.mkdir()

    def fingerprint():
        step = tokenizer_report_step("/t", "/d", str(others))
        return Graph([step], str(tmp_path)).node(step).fingerprint

    found = [fingerprint()]
    for content in ("{}", "[]"):
        (others / "gpt2.json").write_text(content)
        found.append(fingerprint())
    assert len(set(found)) == 3
