"""Generating text from a model."""

from marin.inference.sampling import sample_text

__all__ = ["sample_text"]
