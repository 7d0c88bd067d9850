"""Language models: the protocol that training and evaluation rely on, and the models that keep it."""

from marin.models.flops import lm_flops_per_token
from marin.models.gpt import Gpt, GptConfig
from marin.models.llama import LlamaConfig, LlamaModel
from marin.models.lm import LmConfig, LmModel, count_parameters

__all__ = [
    "Gpt",
    "GptConfig",
    "LlamaConfig",
    "LlamaModel",
    "LmConfig",
    "LmModel",
    "count_parameters",
    "lm_flops_per_token",
]
