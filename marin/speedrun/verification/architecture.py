"""Whether a run's parameters and FLOPs can be computed again without running its code: for models of ours they can.

A model that a submission defines itself says its own parameters and FLOPs, and nothing but its code could say whether they
are right. They are "not recomputable" then, whatever else fits.
"""

from collections.abc import Iterator

from marin.speedrun.arithmetic import findings as arithmetic
from marin.speedrun.arithmetic.findings import close, row_length
from marin.speedrun.arithmetic.known_models import model_of_class
from marin.speedrun.verdict import Finding
from marin.speedrun.verification.run_log import RunLog


def not_recomputable(log: RunLog) -> Finding | None:
    """Why nobody can compute parameters and FLOPs of `run.json` again; None where that can be done."""
    run = log.run
    known = model_of_class(run.model_class)
    if known is None:
        own = f"the submission's own {run.model_class!r}"[:120]
        named = own if run.model_class else "of a class that run.json does not name"
        message = f"the model is {named}: its parameters and FLOPs are not recomputable without running code"
    elif not run.config.vocab_size or not known.has_sizes(run.config.model):
        message = "run.json states no vocabulary or not all sizes of the model: parameters not recomputable"
    else:
        return None
    return arithmetic.unchecked("model_size", message)


def check_architecture(log: RunLog) -> Iterator[Finding]:
    """Parameters and FLOPs a token of `run.json` against the sizes that it states."""
    run, model, vocab_size = log.run, log.run.config.model, log.run.config.vocab_size
    known = model_of_class(run.model_class)
    if known is None or not vocab_size or not known.has_sizes(model):
        return
    parameters = known.parameters(model, vocab_size)
    if parameters != run.num_parameters:
        message = (
            f"run.json says {run.num_parameters:,} parameters, a {known.name} of these sizes and {vocab_size:,} tokens "
            f"has {parameters:,}"
        )
        yield Finding("log", "error", "num_parameters", message, parameters)
    length = row_length(run.config.train, model)
    if length is None or run.model_flops_per_token is None:
        return
    per_token = known.flops_per_token(model, vocab_size, length)
    if not close(per_token, run.model_flops_per_token):
        message = (
            f"run.json says {run.model_flops_per_token:.6g} FLOPs per token, a {known.name} of these sizes and "
            f"{vocab_size:,} tokens has {per_token:.6g} in rows of {length:,}"
        )
        yield Finding("log", "error", "model_flops_per_token", message, per_token)
