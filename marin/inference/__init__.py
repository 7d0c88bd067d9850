"""Generating text from a model: the engine with its cache, and a simple sampler for any model."""

from marin.inference.engine import Engine
from marin.inference.options import Sample, SamplingOptions
from marin.inference.sampling import sample_text

__all__ = ["Engine", "Sample", "SamplingOptions", "sample_text"]
