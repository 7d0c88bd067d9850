"""Functions and small modules that models are made of.

The letters of shape suffixes, here and everywhere: `B` batch, `T` tokens, `D` model width, `H` query heads, `K` key/value
heads, `C` head width, `F` feed-forward width, `V` vocabulary, `L` layers, `I`/`O` the inputs and outputs of a matrix.
"""

from marin.nn.attention import AttentionBackend, attention
from marin.nn.attention_reference import reference_attention
from marin.nn.linear import Embedding, Linear
from marin.nn.loss import cross_entropy, weighted_cross_entropy
from marin.nn.mlp import ACTIVATIONS, GatedMlp
from marin.nn.norm import LayerNorm, RmsNorm, RmsNormConfig
from marin.nn.precision import Precision
from marin.nn.remat import recomputing
from marin.nn.rotary import (
    Llama3RotaryConfig,
    NtkRotaryConfig,
    RotaryConfig,
    apply_rotary,
    rotary_angles,
    rotary_angles_at,
)

__all__ = [
    "ACTIVATIONS",
    "AttentionBackend",
    "Embedding",
    "GatedMlp",
    "LayerNorm",
    "Linear",
    "Llama3RotaryConfig",
    "NtkRotaryConfig",
    "Precision",
    "RmsNorm",
    "RmsNormConfig",
    "RotaryConfig",
    "apply_rotary",
    "attention",
    "cross_entropy",
    "recomputing",
    "reference_attention",
    "rotary_angles",
    "rotary_angles_at",
    "weighted_cross_entropy",
]
