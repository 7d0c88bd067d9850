"""Measuring models: bits per byte on named documents, and what general compressors need for the same bytes."""

from marin.data.eval_set import EvalSet
from marin.evaluation.bits_per_byte import BitsPerByte, bits_per_byte
from marin.evaluation.compressors import compressor_bits_per_byte

__all__ = ["BitsPerByte", "EvalSet", "bits_per_byte", "compressor_bits_per_byte"]
