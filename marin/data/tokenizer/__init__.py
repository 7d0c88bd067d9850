"""Byte-level BPE tokenizers: trained here or loaded from any `tokenizer.json`, the ecosystem's file format."""

from marin.data.tokenizer.learning import SPLIT_PATTERN
from marin.data.tokenizer.loaded import TOKENIZER_FILE, Tokenizer
from marin.data.tokenizer.report import TokenizerReportConfig, report_tokenizer, tokenizer_report_step
from marin.data.tokenizer.training import (
    BOS_TOKEN,
    MIN_VOCAB_SIZE,
    TrainTokenizerConfig,
    train_tokenizer,
    train_tokenizer_step,
)

__all__ = [
    "BOS_TOKEN",
    "MIN_VOCAB_SIZE",
    "SPLIT_PATTERN",
    "TOKENIZER_FILE",
    "Tokenizer",
    "TokenizerReportConfig",
    "TrainTokenizerConfig",
    "report_tokenizer",
    "tokenizer_report_step",
    "train_tokenizer",
    "train_tokenizer_step",
]
