"""A grading prompt from a target corpus: a language model says what would teach a model to do well on texts like these.

Each corpus, or its beginning, is described; the descriptions are shuffled and merged two by two until one is left; and this
one is put into a prompt that grades a document from Great to Useless (`processor_type="medu"`). The way follows Held et al.,
"Optimizing Pretraining Data Mixtures with LLM-Estimated Utility" (arXiv 2501.11747); the texts of the prompts are ours.

    final_benchmark_description_prompt.txt    the prompt, with `{example}`: read it, and change what is not meant
    descriptions.json                         what each corpus was said to be, and each merge
"""

import dataclasses
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marin.data.documents import Document
from marin.data.sources import ImportConfig, documents_of
from marin.data.tokenizer import Tokenizer
from marin.datashop.annotate_config import EXAMPLE
from marin.datashop.answer_cache import AnswerCache, open_cache
from marin.datashop.ask_config import AskConfig
from marin.datashop.asking import Standing, ask
from marin.datashop.grading import without_thoughts
from marin.datashop.question import question
from marin.errors import ConfigError, DataError, EndpointError
from marin.execution.step import ExecutorStep, Input
from marin.storage import files

PROMPT_FILE, DESCRIPTIONS = "final_benchmark_description_prompt.txt", "descriptions.json"
_BYTES_PER_TOKEN = 4  # of English under tokenizers of 32,000 entries and more
_PURPOSE = "descriptions of corpora, and their merges"

_SECTIONS = """\
Answer in three short parts, and generalize where details do not matter:
1. Kind: what kind of text or test this is, and for whom.
2. Needs: the languages, knowledge and skills that it takes to do well on it.
3. Training text: what documents would teach these best."""

DESCRIBE = (
    """\
Below are excerpts from a corpus that a language model will be tested on.

--- excerpts ---
{corpus}
--- end of excerpts ---

What should the model read in training to do well on such texts?
"""
    + _SECTIONS
)

MERGE = (
    """\
Two people have each read other excerpts from one corpus that a language model will be tested on, and have described it.

--- first description ---
{first}
--- second description ---
{second}
--- end of descriptions ---

Write one description that keeps what matters in both.
"""
    + _SECTIONS
)

GRADE = """\
A document may become training text of a language model. The model will be tested on this:

--- test ---
{description}
--- end of test ---

--- document ---
{example}
--- end of document ---

First say in a few sentences what the document is about, which languages and skills it shows, and how well it is written. Then
judge how useful it is as training text for the test above. End with one line that says "Final Score:" and one of the words
Great, Good, Okay, Poor and Useless.
"""


@dataclass(frozen=True, kw_only=True)
class MeduConfig(AskConfig):
    """A prompt from target corpora; see `AskConfig` for the other fields.

    Args:
        corpus: what a model should become good at; each entry is described by itself. Files, folders and patterns in any format
            that `marin.data.sources` reads, or document sets.
        max_corpus_tokens: of a corpus that the model reads; counted with `tokenizer`, or else as 4 bytes each.
        tokenizer: the folder or `tokenizer.json` of the model, to count exactly.
        text_key: the field with the text, for rows.
        seed: of the order in which descriptions are merged.
    """

    corpus: Sequence[Input]
    max_corpus_tokens: int = 7000
    tokenizer: Input | None = None
    text_key: str = "text"
    max_tokens: int = 1024
    seed: int = 42

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.corpus, str) or not self.corpus:
            raise ConfigError(f"config field `corpus` is {self.corpus!r}: give a list of at least one path")
        if self.max_corpus_tokens < 1:
            raise ConfigError(f"config field `max_corpus_tokens` is {self.max_corpus_tokens}: use at least 1")


def medu_config(corpus: Sequence[Input], settings: Mapping[str, Any], **own: Any) -> MeduConfig:
    """The config of the prompt that an annotation with these settings will use.

    Args:
        settings: the annotation's; whatever says which model is asked and what it may cost holds for the prompt too. The budget is
            one for each of the two. How long an answer may be is another matter for descriptions.
        own: further fields of the prompt's config.
    """
    shared = {field.name for field in dataclasses.fields(AskConfig)} - {"max_tokens", "output_path"}
    return MeduConfig(corpus=corpus, **own, **{key: value for key, value in settings.items() if key in shared})


def medu_prompt_step(name: str, corpus: Sequence[Input], settings: Mapping[str, Any]) -> ExecutorStep:
    """A step that writes the prompt, beside the annotation that will use it; `settings` are those of `medu_config`."""
    return ExecutorStep(
        name=name,
        fn=write_medu_prompt,
        config=medu_config(list(corpus), settings),
        description="a grading prompt from a corpus",
    )


def write_medu_prompt(config: MeduConfig) -> None:
    """Describes, merges, and writes the prompt. Every answer is kept, so a second run does not pay for it again.

    Raises:
        BudgetError: the budget is used up.
        EndpointError: the endpoint gives no answers.
        DataError: a corpus cannot be read, or holds no text.
    """
    texts = [corpus_beginning(config, str(path)) for path in config.corpus]
    with open_cache(config, _PURPOSE) as cache:
        described = _answers(config, cache, [DESCRIBE.replace("{corpus}", text) for text in texts])
        print(f"medu: {len(described)} corpora described", flush=True)
        merged = []
        left = list(described)
        random.Random(config.seed).shuffle(left)
        while len(left) > 1:
            # An odd one out is merged first, as the public pipeline does, so that all others meet in pairs.
            pairs = [(left[0], left[1])] if len(left) % 2 else list(zip(left[::2], left[1::2], strict=True))
            new = _answers(config, cache, [_merge_prompt(*pair) for pair in pairs])
            merged += [
                {"first": first, "second": second, "merged": text}
                for (first, second), text in zip(pairs, new, strict=True)
            ]
            left = left[2 * len(pairs) :] + new
            print(f"medu: {len(left)} descriptions left", flush=True)
    corpora = [{"corpus": str(path), "description": text} for path, text in zip(config.corpus, described, strict=True)]
    files.write_json(
        files.join(config.output_path, DESCRIPTIONS), {"corpora": corpora, "merges": merged, "final": left[0]}
    )
    files.write_bytes(files.join(config.output_path, PROMPT_FILE), grading_prompt(left[0]).encode())


def grading_prompt(description: str) -> str:
    """The prompt that grades documents by their use for what is described."""
    # The description's own braces must not become a second place for the document.
    return GRADE.replace("{description}", description.replace(EXAMPLE, "(example)"))


def corpus_beginning(config: MeduConfig, path: str) -> str:
    """As many documents of a corpus as the model may read, with blank lines between them; the last one is cut.

    Raises:
        DataError: it cannot be read, or holds no text.
    """
    reader = ImportConfig(paths=[path], source_name="corpus", text_key=config.text_key)
    text = _joined(documents_of(reader), config.max_corpus_tokens * 16)
    if not text.strip():
        raise DataError(f"the corpus {path} holds no text: give another one")
    if config.tokenizer is not None:
        tokenizer = Tokenizer.load(str(config.tokenizer))
        ids = tokenizer.encode(text)
        return tokenizer.decode(ids[: config.max_corpus_tokens]) if len(ids) > config.max_corpus_tokens else text
    return text.encode()[: config.max_corpus_tokens * _BYTES_PER_TOKEN].decode(errors="ignore")


def _joined(documents: Iterator[Document], most_chars: int) -> str:
    """The first documents, until there are enough characters for any tokenizer."""
    parts: list[str] = []
    size = 0
    for document in documents:
        parts.append(document.text[: most_chars - size])
        size += len(parts[-1]) + 2
        if size >= most_chars:
            break
    return "\n\n".join(parts)


def _merge_prompt(first: str, second: str) -> str:
    before, _, after = MERGE.partition("{first}")
    between, _, end = after.partition("{second}")
    return before + first + between + second + end


def _answers(config: MeduConfig, cache: AnswerCache, messages: list[str]) -> list[str]:
    """The model's answers to messages, each whole."""
    questions = [question(config, message) for message in messages]
    standing = Standing()
    ask(config, questions, cache, standing)
    texts = []
    for asked in questions:
        answer = cache.get(asked.digest)
        if answer is None:
            raise EndpointError(f"a description has no answer: {standing.unanswered[asked.digest]}")
        text = without_thoughts(answer.text).strip()
        if answer.was_cut_off or not text:
            what = "was cut off" if answer.was_cut_off else "is empty"
            raise DataError(
                f"a description {what} (`max_tokens` is {config.max_tokens}): set a larger `max_tokens`, or ask another model"
            )
        texts.append(text)
    return texts
