"""A prompt tried on ten documents of the pool: what the model answers, and what the whole sample would cost.

Ten documents cost little and show whether the prompt is understood; answers are kept where the run looks for them, so nothing
is paid for twice. What the trial itself can cost at most is known before it is sent.
"""

import dataclasses
import hashlib
import heapq
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from marin.data.corpora.python_docs import extracted_documents, split_of
from marin.data.documents import Document
from marin.data.sources import ImportConfig, documents_of
from marin.datashop.annotate_config import AnnotateConfig
from marin.datashop.ask_config import ANSWER_CACHE
from marin.datashop.medu import PROMPT_FILE, MeduConfig, write_medu_prompt
from marin.datashop.question import grading_question
from marin.datashop.trial import estimate_cost, try_prompt
from marin.errors import ConfigError
from marin.site.datashop.wishes import BUILT_IN
from marin.storage import files

NUM_TRIALS = 10
_LOOKED_AT = 1000
_TIMEOUT, _PATIENCE, _MOST_TRIES = 45.0, 45.0, 2  # a person is waiting


def most_cost(settings: Mapping[str, Any], prefix: str) -> tuple[int, float | None]:
    """The most that a trial can cost, in tokens and in dollars; dollars are None without prices.

    Raises:
        MarinError: the documents cannot be read.
    """
    config = _config(settings, prefix)
    questions = [grading_question(config, str(config.prompt), document.text) for document in _documents(settings)]
    most_input = sum(question.most_input_tokens for question in questions)
    most_output = sum(question.most_output_tokens for question in questions)
    return most_input + most_output, config.dollars(most_input, most_output)


def try_wish(settings: Mapping[str, Any], sample_size: int, prefix: str) -> dict[str, Any]:
    """The trial as JSON: `trials`, and `estimate` or why there is none. To be called where no event loop runs.

    Raises:
        MarinError: the documents cannot be read, or the endpoint gives no answers.
    """
    config = _config(settings, prefix)
    trials = try_prompt(config, _documents(settings), NUM_TRIALS)
    found: dict[str, Any] = {"wish": wish_digest(settings), "trials": [dataclasses.asdict(trial) for trial in trials]}
    try:
        found["estimate"] = dataclasses.asdict(estimate_cost(config, sample_size, trials))
    except ConfigError as error:
        found["no_estimate"] = str(error)
    return found


def written_prompt(settings: Mapping[str, Any], folder: str, prefix: str) -> str:
    """The prompt that the model writes for a target text, for a person to read and change.

    Args:
        folder: for the prompt and what it was made of.
    Raises:
        MarinError: the text cannot be read, or the endpoint gives no answers.
    """
    write_medu_prompt(
        MeduConfig(corpus=settings["corpus_content_paths"], output_path=folder, **_asking(settings, prefix))
    )
    return files.read_bytes(files.join(folder, PROMPT_FILE)).decode()


def wish_digest(settings: Mapping[str, Any]) -> str:
    """What a trial is about: with another prompt, model or pool it says nothing."""
    asked = [settings.get(name) for name in ("data_filter_prompt", "annotator_model_name", "endpoint")]
    asked += [settings["pretraining_data_path"], settings.get("dataset_output_processor_config_kwargs")]
    return hashlib.sha256(repr(asked).encode()).hexdigest()[:16]


def _config(settings: Mapping[str, Any], prefix: str) -> AnnotateConfig:
    return AnnotateConfig(
        output_path="",
        prompt=settings["data_filter_prompt"],
        **settings["dataset_output_processor_config_kwargs"],
        **_asking(settings, prefix),
    )


def _asking(settings: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """How the model is asked while a person waits."""
    return {
        "model": settings["annotator_model_name"],
        "endpoint": settings.get("endpoint"),
        "concurrency": NUM_TRIALS,
        "timeout": _TIMEOUT,
        "patience": _PATIENCE,
        "max_tries": _MOST_TRIES,
        "cache": files.join(prefix, ANSWER_CACHE),
        **settings["text_generation_inference_config_kwargs"],
    }


def _documents(settings: Mapping[str, Any]) -> list[Document]:
    """Ten documents of the first thousands of the pool, the same ones each time."""
    paths = settings["pretraining_data_path"]
    each = max(_LOOKED_AT // len(paths), NUM_TRIALS)
    looked_at = itertools.chain.from_iterable(itertools.islice(_read(path), each) for path in paths)
    return heapq.nsmallest(
        NUM_TRIALS, looked_at, key=lambda document: hashlib.blake2b(document.id.encode(), digest_size=8).digest()
    )


def _read(path: str) -> Iterator[Document]:
    if path == BUILT_IN:  # made here, as no run may have written it yet
        return (document for document in extracted_documents() if split_of(document.id) == "train")
    return documents_of(ImportConfig([path], "pool", on_bad_row="skip"))
