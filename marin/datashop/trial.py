"""A prompt tried on a few documents: what the model answers, what label that is, and what the whole sample would cost."""

import itertools
import math
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from marin.data.documents import Document
from marin.datashop.annotate_config import AnnotateConfig
from marin.datashop.answer_cache import AnswerCache, open_cache
from marin.datashop.asking import Standing, ask
from marin.datashop.question import Answer, Question, graded, grading_question, read_prompt, shown_example
from marin.errors import ConfigError


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


def try_prompt(config: AnnotateConfig, documents: Iterable[Document], limit: int = 10) -> list[Trial]:
    """Grades the first few documents; their answers are kept, so the annotation does not pay for them again.

    Runs its own event loop: call it from a thread in which there is none.

    Args:
        config: as for `annotate`; `sample` and `output_path` are not used, but for `cache` None.
        limit: documents at most.
    Raises:
        BudgetError: the budget does not reach.
        EndpointError: the endpoint gives no answers.
        LeaseHeldError: an annotation with this prompt is running.
    """
    chosen = list(itertools.islice(documents, limit))
    prompt = read_prompt(config)
    questions = [grading_question(config, prompt, document.text) for document in chosen]
    started: dict[str, float] = {}
    seconds: dict[str, float] = {}

    def sent() -> Iterator[Question]:
        for question in questions:
            started.setdefault(question.digest, time.monotonic())
            yield question

    def answered(question: Question, answer: Answer) -> None:
        seconds[question.digest] = time.monotonic() - started[question.digest]

    standing = Standing()
    with open_cache(config, prompt, wait=False) as cache:
        ask(config, sent(), cache, standing, answered)
        return [
            _trial(config, document, question, cache, standing, seconds)
            for document, question in zip(chosen, questions, strict=True)
        ]


def _trial(
    config: AnnotateConfig,
    document: Document,
    question: Question,
    cache: AnswerCache,
    standing: Standing,
    seconds: Mapping[str, float],
) -> Trial:
    answer = cache.get(question.digest)
    found = graded(config, question, answer, standing.unanswered)
    read, written = (0, 0) if answer is None else (answer.input_tokens, answer.output_tokens)
    return Trial(
        id=document.id,
        example=shown_example(config, document.text),
        answer=None if answer is None else answer.text,
        label=found.label,
        why_null=found.why_null,
        input_tokens=read,
        output_tokens=written,
        cost_dollars=config.dollars(read, written),
        seconds=seconds.get(question.digest, 0.0),
    )


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
    from scipy import stats

    mean = statistics.fmean(values)
    half = float(stats.t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return mean * times, max(0.0, mean - half) * times, (mean + half) * times
