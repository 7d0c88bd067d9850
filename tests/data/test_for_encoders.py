"""Tokenizers of encoders: BERT's from its vocabulary file, one that is trained here, and what is refused."""

import json
from pathlib import Path

import pytest

from marin.data.documents import Document, write_documents
from marin.data.tokenizer.for_encoders import CHARS_A_TOKEN, EncoderTokenizer, train_encoder_tokenizer
from marin.errors import DataError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "fox", "un", "##aff", "##able", "cafe", ".", "The"]


def bert_folder(folder: Path, **config: object) -> Path:
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def words_of(tokenizer: EncoderTokenizer, text: str, max_tokens: int = 16) -> list[str]:
    return [WORDS[token] for token in tokenizer.encode([text], max_tokens)[0]]


def test_vocabulary_file_is_read_as_bert_reads_it(tmp_path: Path) -> None:
    tokenizer = EncoderTokenizer.load(bert_folder(tmp_path / "bert"))
    assert words_of(tokenizer, "The unaffable Café.") == ["[CLS]", "the", "un", "##aff", "##able", "cafe", ".", "[SEP]"]
    assert words_of(tokenizer, "zebra fox") == ["[CLS]", "[UNK]", "fox", "[SEP]"]
    assert words_of(tokenizer, "") == ["[CLS]", "[SEP]"]
    assert (tokenizer.pad_id, tokenizer.mask_id, tokenizer.marks, tokenizer.num_marks) == (0, 4, (2, 3), 2)
    cased = EncoderTokenizer.load(bert_folder(tmp_path / "cased", do_lower_case=False))
    assert words_of(cased, "The fox") == ["[CLS]", "The", "fox", "[SEP]"]


def test_vocabulary_file_of_another_system_is_read_alike(tmp_path: Path) -> None:
    folder = bert_folder(tmp_path / "bert")
    (folder / "vocab.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(WORDS).encode() + b"\r\n")
    tokenizer = EncoderTokenizer.load(folder)
    assert words_of(tokenizer, "The unaffable Café.") == ["[CLS]", "the", "un", "##aff", "##able", "cafe", ".", "[SEP]"]
    assert tokenizer.vocab_size == len(WORDS)


def test_vocabulary_file_without_a_token_for_unknown_words_is_refused(tmp_path: Path) -> None:
    folder = bert_folder(tmp_path / "bert")
    (folder / "vocab.txt").write_text("\n".join(word for word in WORDS if word != "[UNK]"))
    with pytest.raises(DataError, match=r"vocab.txt has no \[UNK\]"):
        EncoderTokenizer.load(folder)


def test_text_that_looks_like_a_special_token_is_text(tmp_path: Path) -> None:
    tokenizer = EncoderTokenizer.load(bert_folder(tmp_path / "bert"))
    found = tokenizer.encode(["fox [SEP] [MASK] fox"], 32)[0].tolist()
    assert found.count(WORDS.index("[SEP]")) == 1 and WORDS.index("[MASK]") not in found


def test_long_text_is_cut_with_its_marks_kept(tmp_path: Path) -> None:
    tokenizer = EncoderTokenizer.load(bert_folder(tmp_path / "bert"))
    assert words_of(tokenizer, "fox " * 1000, 6) == ["[CLS]", "fox", "fox", "fox", "fox", "[SEP]"]
    behind = " " * (CHARS_A_TOKEN * 6) + "fox"  # further than six tokens' worth of characters
    assert words_of(tokenizer, behind, 6) == ["[CLS]", "[SEP]"]
    assert len(tokenizer.encode_whole(["fox " * 100])[0]) == 100


def test_trained_tokenizer_is_the_same_when_opened_again(tmp_path: Path) -> None:
    documents = str(tmp_path / "d.jsonl.zst")
    write_documents(
        documents, [Document(str(i), f"the number {i} and {i * i} are numbers", "made") for i in range(200)]
    )
    trained = train_encoder_tokenizer(documents, 300, str(tmp_path / "out"), 1_000_000)
    again = EncoderTokenizer.load(tmp_path / "out")
    texts = ["the number 7", "ünïcode \x00", ""]
    for first, second in zip(trained.encode(texts, 20), again.encode(texts, 20), strict=True):
        assert first.tolist() == second.tolist()
        assert (first[0], first[-1]) == trained.marks
    assert trained.vocab_size == 300 and trained.mask_id != trained.pad_id


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, "neither tokenizer.json nor vocab.txt"),
        (b"{", "no tokenizer that the `tokenizers` library reads"),
        (json.dumps({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}).encode(), "marks"),
    ],
)
def test_folder_without_an_encoders_tokenizer_is_refused(content: bytes | None, named: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(DataError, match=named):
        EncoderTokenizer.load(tmp_path)
