"""Measuring models: bits per byte on named documents, probes of what was measured, and what general compressors need for the same bytes."""

from marin.data.eval_set import EvalSet
from marin.evaluation.bits_per_byte import BitsPerByte, bits_per_byte, bits_per_byte_of
from marin.evaluation.compressors import compressor_bits_per_byte
from marin.evaluation.scoring import Scorer
from marin.evaluation.validity import Validity, probe_validity

__all__ = [
    "BitsPerByte",
    "EvalSet",
    "Scorer",
    "Validity",
    "bits_per_byte",
    "bits_per_byte_of",
    "compressor_bits_per_byte",
    "probe_validity",
]
