"""A language model grades a sample of documents: `labels.jsonl` and `labels.json`, as `marin.datashop.labels` reads them.

All answers lie in a cache beside the runs (`answer_cache`), and the labels are read from it at the end, in the order of the
sample: a run that was stopped goes on where it was, another way to read labels costs nothing, and a larger sample costs what
it has more. What happens to a question on its way is told in `asking` and `endpoint`.

While it works, `progress.json` says how far it is and what was spent.
"""

import collections
from collections.abc import Iterator

from marin.data.shards import DocumentSet
from marin.datashop.annotate_config import AnnotateConfig
from marin.datashop.annotate_progress import PROGRESS, AnnotateProgress, perhaps_paid
from marin.datashop.answer_cache import AnswerCache, Tokens, open_cache
from marin.datashop.asking import Standing, ask
from marin.datashop.grading import scale_of
from marin.datashop.labels import LABELS, SUMMARY, counts_of, label_line
from marin.datashop.question import Question, graded, grading_question, read_prompt
from marin.datashop.trial import CostEstimate, Trial, estimate_cost, try_prompt
from marin.errors import BudgetError, DataError, EndpointError, Terminated
from marin.execution.step import ExecutorStep
from marin.storage import files

__all__ = [
    "AnnotateConfig",
    "CostEstimate",
    "Trial",
    "annotate",
    "annotate_step",
    "estimate_cost",
    "try_prompt",
]


def annotate_step(name: str, config: AnnotateConfig) -> ExecutorStep:
    """The step `labels/{name}`: a language model's grades for a sample."""
    return ExecutorStep(
        name=f"labels/{name}",
        fn=annotate,
        config=config,
        description=f"grades of {config.model} for a sample of documents",
    )


def annotate(config: AnnotateConfig) -> None:
    """Grades every document of the sample.

    Raises:
        BudgetError: the budget is used up; what was paid for is kept for a run with a larger one.
        EndpointError: the endpoint gives no answers.
        DataError: the sample cannot be read, or too many documents have no answer.
    """
    sample = DocumentSet.open(str(config.sample))
    prompt = read_prompt(config)
    with open_cache(config, prompt) as cache:
        standing = Standing()
        progress = AnnotateProgress(config, sample.num_documents, cache, standing)
        try:
            ask(config, _questions(config, prompt, sample), cache, standing, progress.answered, progress.every_second)
        except BudgetError as error:
            raise BudgetError(
                f"stopped at the budget: {progress.line()}; {error}. Set a larger budget to go on: what was paid for is kept"
            ) from None
        except EndpointError as error:
            raise EndpointError(f"{error} ({progress.line()}; what was paid for is kept)") from None
        except (KeyboardInterrupt, Terminated):
            progress.print_line("stopped: ")
            raise
        finally:
            progress.write("stopped")
        progress.print_line()
        _check_unanswered(config, sample, _questions(config, prompt, sample), standing)
        _write_labels(config, prompt, sample, cache, standing)


def _questions(config: AnnotateConfig, prompt: str, sample: DocumentSet) -> Iterator[Question]:
    for document in sample.documents():
        yield grading_question(config, prompt, document.text)


def _check_unanswered(
    config: AnnotateConfig, sample: DocumentSet, questions: Iterator[Question], standing: Standing
) -> None:
    """Counts documents: several that begin alike are one question."""
    unanswered = standing.unanswered
    if not unanswered:
        return
    reasons = collections.Counter(unanswered[one.digest] for one in questions if one.digest in unanswered)
    if reasons.total() > config.max_unanswered_fraction * sample.num_documents:
        shown = "; ".join(f"{count:,} x {reason}" for reason, count in reasons.most_common(3))
        raise DataError(
            f"{reasons.total():,} of {sample.num_documents:,} documents have no answer ({shown}): run the same command again to "
            f"ask for these only, or change `max_example_chars` or `max_unanswered_fraction`"
        )


def _write_labels(
    config: AnnotateConfig, prompt: str, sample: DocumentSet, cache: AnswerCache, standing: Standing
) -> None:
    """Reads a label from each answer, in the order of the sample."""
    labels: list[float] = []
    why_null: collections.Counter[str] = collections.Counter()
    used, num_estimated = Tokens(), 0
    counted: set[str] = set()
    with files.writing(files.join(config.output_path, LABELS)) as stream:
        for document in sample.documents():
            question = grading_question(config, prompt, document.text)
            answer = cache.get(question.digest)
            found = graded(config, question, answer, standing.unanswered)
            if answer is not None and question.digest not in counted:  # documents with one text were paid for once
                used.add(answer.input_tokens, answer.output_tokens)
                num_estimated += answer.is_estimated
                counted.add(question.digest)
            if found.label is not None:
                labels.append(found.label)
            else:
                why_null["no answer" if answer is None else str(found.why_null)] += 1
            said = None if answer is None else answer.text
            stream.write(label_line(document.id, found.label, config.model, answer=said, why_null=found.why_null))
    summary = {
        **counts_of(labels, scale_of(config.processor_type), why_null),
        "annotator": config.model,
        "processor_type": config.processor_type,
        "prompt": prompt,
        "sample_digest": sample.digest,
        "tokens": {
            "requests": used.requests,
            "input": used.input,
            "output": used.output,
            "requests_without_usage": num_estimated,
        },
        "cost_dollars": config.dollars(used.input, used.output),
        "perhaps_paid": perhaps_paid(config, cache),
    }
    files.write_json(files.join(config.output_path, SUMMARY), summary)
    files.remove_file(files.join(config.output_path, PROGRESS))
    counts = ", ".join(f"{label}: {count:,}" for label, count in summary["histogram"].items())
    print(f"labels: {len(labels):,} of {sample.num_documents:,} documents ({counts})", flush=True)
    for reason, count in why_null.items():
        print(f"{count:>10,}  {reason}", flush=True)
    if summary["lopsided"]:
        print(f"warning: {summary['lopsided']}", flush=True)
