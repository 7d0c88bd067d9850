"""Whether a run's parameters and FLOPs can be computed again without running its code: for models of ours they can.

A model that a submission defines itself says its own parameters and FLOPs, and nothing but its code could say whether they
are right. They are "not recomputable" then, whatever else fits.
"""

from collections.abc import Iterator

from marin.speedrun import plain_llama
from marin.speedrun.verdict import Finding
from marin.speedrun.verification.run_log import RunLog

_LLAMA = "marin.models.llama:LlamaConfig"


def check_architecture(log: RunLog) -> Iterator[Finding]:
    """Parameters and FLOPs a token of `run.json` against the sizes that it states."""
    run, model, vocab_size = log.run, log.run.config.model, log.run.config.vocab_size
    if run.model_class != _LLAMA:
        named = (
            f"the submission's own {run.model_class!r}"[:120]
            if run.model_class
            else "of a class that run.json does not name"
        )
        yield Finding(
            "arithmetic",
            "unchecked",
            "model_size",
            f"the model is {named}: its parameters and FLOPs are not recomputable without running code",
        )
        return
    if not vocab_size or not plain_llama.has_llama_sizes(model):
        yield Finding(
            "arithmetic",
            "unchecked",
            "model_size",
            "run.json states no vocabulary or not all sizes of the model: parameters not recomputable",
        )
        return
    parameters = plain_llama.llama_parameters(model, vocab_size)
    if parameters != run.num_parameters:
        message = f"run.json says {run.num_parameters:,} parameters, a Llama of these sizes and {vocab_size:,} tokens has {parameters:,}"
        yield Finding("log", "error", "num_parameters", message, parameters)
