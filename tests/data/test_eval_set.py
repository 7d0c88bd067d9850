"""The stream of an evaluation set: the same targets whatever the batch, and the bytes of the text."""

import dataclasses
import json
import re
import string

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.data.documents import Document, write_documents
from marin.data.eval_set import EvalSet
from marin.data.tokenizer import Tokenizer, TrainTokenizerConfig, train_tokenizer
from marin.errors import ConfigError, DataError

TEXTS = (
    "A graph is a set of nodes.",
    "naïve — 漢字 🙂\u0301\x00",
    "",
    "x",
    "The quick brown fox jumps. " * 9,
    "<|bos|>",
)
DOCUMENTS = tuple(Document(str(i), text, "test") for i, text in enumerate(TEXTS))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_documents(str(folder / "docs.jsonl.zst"), DOCUMENTS * 3)
    train_tokenizer(TrainTokenizerConfig(str(folder / "docs.jsonl.zst"), 290, output_path=str(folder)))
    return Tokenizer.load(str(folder))


def targets(stream, batch_size):
    """(target, document of the input) of every valid position, in order."""
    found = []
    for _, target, segment, valid in stream.batches(batch_size):
        found += list(zip(target[valid].tolist(), segment[valid].tolist(), strict=True))
    return found


@given(context_length=st.integers(1, 70), batch_size=st.integers(1, 40))
@settings(max_examples=25)
def test_stream_has_each_token_as_a_target_once_whatever_the_batch_size(tokenizer, context_length, batch_size):
    stream = EvalSet("test", DOCUMENTS).stream(tokenizer, context_length)
    expected = [token for text in TEXTS for token in [tokenizer.bos_id, *tokenizer.encode(text)]]
    found = targets(stream, batch_size)
    assert [target for target, _ in found] == expected[1:]
    assert found == targets(stream, 1)
    assert stream.num_targets == len(expected) - 1


def test_stream_bytes_are_those_of_the_text(tokenizer):
    stream = EvalSet("test", DOCUMENTS).stream(tokenizer, 16)
    for number, text in enumerate(TEXTS):
        of_document = stream.tokens[stream.segments == number]
        assert stream.token_bytes[of_document].sum() == len(text.encode())
    assert stream.num_bytes == sum(len(text.encode()) for text in TEXTS)
    counted = sum(int(stream.token_bytes[target[valid]].sum()) for _, target, _, valid in stream.batches(3))
    assert counted == stream.num_bytes  # the first token of all begins a document and has no bytes


def test_stream_digest_names_what_is_scored(tokenizer):
    eval_set = EvalSet("test", DOCUMENTS)
    digest = eval_set.stream(tokenizer, 16).digest
    renamed = EvalSet("other", tuple(dataclasses.replace(document, id="x" + document.id) for document in DOCUMENTS))
    assert renamed.stream(tokenizer, 16).digest == digest
    assert eval_set.stream(tokenizer, 17).digest != digest
    assert EvalSet("test", DOCUMENTS[::-1]).stream(tokenizer, 16).digest != digest


def test_stream_of_a_tokenizer_that_loses_bytes_names_the_document(tokenizer, monkeypatch):
    texts = list(tokenizer.token_texts)
    texts[tokenizer.encode("x")[0]] = b""
    monkeypatch.setattr(tokenizer, "token_texts", tuple(texts))
    with pytest.raises(DataError, match="'3' of `test` stand for 0 bytes, its text has 1"):
        EvalSet("test", DOCUMENTS[2:4]).stream(tokenizer, 16)


def _no_capitals(spec: dict) -> None:
    """Capital letters are unknown, and one letter stands for each unknown."""
    capitals = set(string.ascii_uppercase)
    kept = [token for token in spec["model"]["vocab"] if not capitals & set(token)]
    spec["model"]["vocab"] = {token: number for number, token in enumerate(kept)}
    spec["model"]["merges"] = [pair for pair in spec["model"]["merges"] if not capitals & set("".join(pair))]
    spec["model"]["unk_token"] = "q"


def _spaces_are_letters(spec: dict) -> None:
    to_letter = {"type": "Metaspace", "replacement": "e", "prepend_scheme": "never", "split": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    spec["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [to_letter, byte_level]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_no_capitals, "b'q graph ' at byte 0, where its text has b'A graph '"),
        (_spaces_are_letters, "b'Aegraphei' at byte 1"),
    ],
)
def test_stream_of_a_tokenizer_that_takes_two_texts_for_one_is_refused_though_the_bytes_add_up(tmp_path, change, said):
    write_documents(str(tmp_path / "docs.jsonl.zst"), DOCUMENTS * 3)
    train_tokenizer(TrainTokenizerConfig(str(tmp_path / "docs.jsonl.zst"), 290, output_path=str(tmp_path)))
    spec = json.loads((tmp_path / "tokenizer.json").read_text())
    change(spec)
    lossy = Tokenizer(json.dumps(spec).encode(), "lossy")
    assert lossy.token_bytes[lossy.encode(TEXTS[0])].sum() == len(TEXTS[0])
    with pytest.raises(DataError, match=re.escape(said)) as raised:
        EvalSet("test", DOCUMENTS[:1]).stream(lossy, 16)
    assert "does not keep every byte" in str(raised.value)


def test_eval_set_limited_to_some_batches_is_their_beginning(tokenizer):
    stream = EvalSet("test", DOCUMENTS).stream(tokenizer, 4)
    whole, some = list(stream.batches(2)), list(stream.batches(2, limit=3))
    assert len(some) == 3
    np.testing.assert_array_equal(some, whole[:3])


def test_eval_set_without_text_or_windows_is_refused(tokenizer, tmp_path):
    write_documents(str(tmp_path / "empty.jsonl.zst"), [Document("0", "", "t")])
    with pytest.raises(DataError, match="no text"):
        EvalSet.read("empty", str(tmp_path / "empty.jsonl.zst"))
    with pytest.raises(ConfigError, match="at least 1"):
        EvalSet("test", DOCUMENTS).stream(tokenizer, 0)


def test_a_set_that_is_scored_again_is_not_encoded_again(tokenizer, monkeypatch):
    encoded = []
    encode = type(tokenizer).encode_arrays
    monkeypatch.setattr(type(tokenizer), "encode_arrays", lambda self, texts: encoded.append(1) or encode(self, texts))
    eval_set = EvalSet("test", DOCUMENTS)
    first = eval_set.stream(tokenizer, 16)
    assert eval_set.stream(tokenizer, 16) is first
    count = len(encoded)
    assert count > 0
    other = eval_set.stream(tokenizer, 17)
    assert other.context_length == 17
    assert len(encoded) == 2 * count
    assert eval_set == EvalSet("test", DOCUMENTS)
