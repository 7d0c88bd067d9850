"""A prompt tried on a few documents: what the model answers, what label that is, and what the whole sample would cost."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from marin.datashop.annotate_config import AnnotateConfig
from marin.errors import ConfigError

# Two-sided 95 % quantiles of Student's t by degrees of freedom; from 30 on, the normal one is within 5 %.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110,
    2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045,
)  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """One document's grade.

    Args:
        id: the document's.
        example: the text that the model saw.
        answer: None where there was none.
        why_null: why there is no label.
        cost_dollars: None without prices.
        seconds: from the first request to the answer; 0 where the answer had been paid for before.
    """

    id: str
    example: str
    answer: str | None
    label: float | None
    why_null: str | None
    input_tokens: int
    output_tokens: int
    cost_dollars: float | None
    seconds: float


@dataclass(frozen=True)
class CostEstimate:
    """What labelling a sample should cost, with a 95 % interval of the mean over the trials.

    Args:
        tokens, dollars: expected, low and high; dollars are None without prices.
    """

    num_documents: int
    num_trials: int
    tokens: tuple[float, float, float]
    dollars: tuple[float, float, float] | None


def estimate_cost(config: AnnotateConfig, num_documents: int, trials: Sequence[Trial]) -> CostEstimate:
    """What labelling `num_documents` should cost, judged by trials.

    Raises:
        ConfigError: fewer than two trials were answered.
    """
    answered = [trial for trial in trials if trial.answer is not None]
    if len(answered) < 2:
        raise ConfigError(
            f"{len(answered)} of {len(trials)} trials were answered: at least 2 are needed for an estimate"
        )
    tokens = _interval([trial.input_tokens + trial.output_tokens for trial in answered], num_documents)
    costs = [config.dollars(trial.input_tokens, trial.output_tokens) for trial in answered]
    dollars = _interval([cost for cost in costs if cost is not None], num_documents) if config.has_prices else None
    return CostEstimate(num_documents, len(answered), tokens, dollars)


def _interval(values: Sequence[float], times: int) -> tuple[float, float, float]:
    mean = statistics.fmean(values)
    degrees = len(values) - 1
    t = _T95[degrees - 1] if degrees <= len(_T95) else 1.96
    half = t * statistics.stdev(values) / math.sqrt(len(values))
    return mean * times, max(0.0, mean - half) * times, (mean + half) * times
