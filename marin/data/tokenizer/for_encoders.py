"""Texts as an encoder takes them: ids between the marks that it was trained with, cut to its length.

Reads the `tokenizer.json` of any encoder's folder, or the `vocab.txt` of older BERTs, through the `tokenizers` library. As
everywhere here, text is never taken for a special token. Of a long text no more is read than can matter: `CHARS_A_TOKEN`
characters for each token that is asked for, a rule that belongs to what an encoder is trained and scored on.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32

from marin.data.tokenizer.loaded import TOKENIZER_FILE
from marin.data.tokenizer.training import TrainTokenizerConfig, sample, write_tokenizer
from marin.errors import DataError
from marin.storage import files

VOCABULARY_FILE, TOKENIZER_CONFIG_FILE = "vocab.txt", "tokenizer_config.json"
CHARS_A_TOKEN = 16
"""English has 4 to 5 characters a token; only text such as long runs of spaces has more than this."""
PAD, UNKNOWN, BEGIN, END, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNKNOWN, BEGIN, END, MASK)
_PAD_NAMES, _MASK_NAMES = (PAD, "<pad>"), (MASK, "<mask>")
_MARKS = ((BEGIN, END), ("<s>", "</s>"))


class EncoderTokenizer:
    """An opened tokenizer of an encoder."""

    def __init__(self, hf: Any, data_files: Mapping[str, bytes], where: str) -> None:
        self._hf, self._where = hf, where
        self.files = dict(data_files)
        """What it was read from, by name."""
        self._vocab: dict[str, int] = hf.get_vocab(with_added_tokens=True)
        self._hf.encode_special_tokens = True
        self._hf.no_padding()
        self._hf.no_truncation()
        if self._hf.post_processor is None:
            self._hf.post_processor = _between_marks(self._vocab, where)
        self.num_marks = len(hf.encode("").ids)
        self.vocab_size = max(self._vocab.values()) + 1
        self.pad_id = self._id_of(_PAD_NAMES)

    @staticmethod
    def load(folder: str | Path) -> "EncoderTokenizer":
        """The tokenizer in a folder.

        Raises:
            DataError: there is none, or it cannot be read.
        """
        from tokenizers import Tokenizer

        folder = str(folder)
        present = [name for name in (TOKENIZER_FILE, VOCABULARY_FILE) if files.exists(files.join(folder, name))]
        if not present:
            raise DataError(f"{folder} has neither {TOKENIZER_FILE} nor {VOCABULARY_FILE}: copy the encoder's into it")
        names = [present[0], TOKENIZER_CONFIG_FILE]
        read = {n: files.read_bytes(files.join(folder, n)) for n in names if files.exists(files.join(folder, n))}
        where = files.join(folder, present[0])
        try:
            if present[0] == TOKENIZER_FILE:
                return EncoderTokenizer(Tokenizer.from_str(read[TOKENIZER_FILE].decode()), read, where)
            config = json.loads(read.get(TOKENIZER_CONFIG_FILE, b"{}"))
            return EncoderTokenizer(_word_pieces(read[VOCABULARY_FILE].decode("utf-8-sig"), config, where), read, where)
        except DataError:
            raise
        except Exception as error:  # the library raises nothing more specific
            raise DataError(
                f"{where} is no tokenizer that the `tokenizers` library reads ({error}): fetch it again"
            ) from None

    @property
    def mask_id(self) -> int:
        """Raises:
        DataError: the tokenizer has no mask.
        """
        return self._id_of(_MASK_NAMES)

    @property
    def marks(self) -> tuple[int, int]:
        """The ids that begin and end a text."""
        ids = self._hf.encode("").ids
        return int(ids[0]), int(ids[-1])

    def encode(self, texts: Sequence[str], max_tokens: int) -> list[Int32[np.ndarray, " n"]]:
        """The ids of each text with its marks, `max_tokens` at most; the library uses all processors."""
        self._hf.enable_truncation(max_tokens)
        cut = [text[: CHARS_A_TOKEN * max_tokens] for text in texts]
        try:
            return [np.array(found.ids, np.int32) for found in self._hf.encode_batch_fast(cut)]
        finally:
            self._hf.no_truncation()

    def encode_whole(self, texts: Sequence[str]) -> list[Int32[np.ndarray, " n"]]:
        """The ids of each text, without marks and uncut."""
        return [
            np.array(found.ids, np.int32) for found in self._hf.encode_batch_fast(list(texts), add_special_tokens=False)
        ]

    def _id_of(self, names: Sequence[str]) -> int:
        for name in names:
            if name in self._vocab:
                return self._vocab[name]
        raise DataError(f"{self._where} has none of the tokens {', '.join(names)}, which an encoder's tokenizer has")


def train_encoder_tokenizer(documents: str, vocab_size: int, output_path: str, max_bytes: int) -> EncoderTokenizer:
    """Trains a byte-level BPE with an encoder's special tokens on a sample of documents, and writes `tokenizer.json`.

    Raises:
        DataError: the documents do not have enough different text for `vocab_size` tokens.
    """
    config = TrainTokenizerConfig(documents, vocab_size, output_path=output_path, special_tokens=SPECIAL_TOKENS)
    write_tokenizer(config, sample(documents, max_bytes), documents)
    where = files.join(output_path, TOKENIZER_FILE)
    from tokenizers import Tokenizer

    hf = Tokenizer.from_str(files.read_bytes(where).decode())
    hf.post_processor = _between_marks(hf.get_vocab(), where)
    files.write_bytes(where, hf.to_str(pretty=True).encode())
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "unk_token": UNKNOWN,
        "cls_token": BEGIN,
        "sep_token": END,
        "mask_token": MASK,
    }
    files.write_json(files.join(output_path, TOKENIZER_CONFIG_FILE), described)
    return EncoderTokenizer.load(output_path)


def _word_pieces(vocabulary: str, config: Mapping[str, Any], where: str) -> Any:
    """BERT's tokenizer from its `vocab.txt`, a token a line."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    tokens = vocabulary.replace("\r\n", "\n").rstrip("\n").split("\n")  # other ends of lines may be tokens
    vocab = {token: index for index, token in enumerate(tokens)}
    if UNKNOWN not in vocab:
        raise DataError(f"{where} has no {UNKNOWN}, which stands for words that it lacks: copy the encoder's own file")
    hf = Tokenizer(models.WordPiece(vocab, unk_token=UNKNOWN, max_input_chars_per_word=100))
    hf.normalizer = normalizers.BertNormalizer(
        lowercase=bool(config.get("do_lower_case", True)),
        strip_accents=config.get("strip_accents"),
        handle_chinese_chars=bool(config.get("tokenize_chinese_chars", True)),
    )
    hf.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    hf.decoder = decoders.WordPiece()
    hf.add_special_tokens([token for token in SPECIAL_TOKENS if token in vocab])
    return hf


def _between_marks(vocab: Mapping[str, int], where: str) -> Any:
    from tokenizers.processors import TemplateProcessing

    for begin, end in _MARKS:
        if begin in vocab and end in vocab:
            return TemplateProcessing(
                single=f"{begin} $A {end}", special_tokens=[(begin, vocab[begin]), (end, vocab[end])]
            )
    raise DataError(
        f"{where} has no marks for the ends of a text ({BEGIN} and {END}, or <s> and </s>): it is no encoder's"
    )
