"""What a person fills in, and what becomes of it: the settings of a run, or for each field what is wrong with it.

A wish is kept as it was typed, so that a form with mistakes is shown again as it was left. `settings` are the fields of
`DatashopRunnerConfig`; `config_text` writes them as a file that `marin datashop run` takes, and that a person can copy and
change like any other experiment.
"""

import dataclasses
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from marin.datashop.annotate_config import EXAMPLE
from marin.datashop.ask_config import check_endpoint
from marin.datashop.config import DatashopRunnerConfig
from marin.datashop.grading import scale_of
from marin.datashop.labels import EXAMPLES_SCALE
from marin.errors import ConfigError
from marin.site.datashop.paths import path_problem
from marin.site.datashop.uploads import Uploads

WAYS = {"examples": "Example documents", "prompt": "A prompt", "corpus": "A target corpus"}
PROCESSORS = {"finalscore0-5": "“Final Score: 0” to “5”", "medu": "Great, Good, Okay, Poor, Useless"}
DUPLICATES = {"exact": "Repeated documents", "fuzzy": "Repeated and nearly repeated ones", "none": "None"}
BUILT_IN = "python_docs"
"""The pool that needs no file: the embedded corpus."""

PROMPT = """\
Below is an extract from a document. Judge how useful it would be for teaching mathematics, from 0 to 5:

0: nothing of it is about mathematics
3: it explains some mathematics, among other things
5: it is a clear explanation or exercise from beginning to end

Extract:
{example}

Give your reason in one sentence, then end with "Final Score: " and the number.
"""
_NAME = re.compile(r"[a-z0-9]+([_-][a-z0-9]+)*")
_NUMBER = re.compile(r"[+-]?(\d{1,15}|[1-9]\d{0,2}([,_]\d{3}){1,4})(\.\d{0,15})?", re.ASCII)
_LONGEST_PROMPT = 50_000
_FEW_EXAMPLES = 20


@dataclasses.dataclass(frozen=True)
class Wish:
    """The form's fields as they were typed; files are ids of uploads."""

    name: str = ""
    pool: tuple[str, ...] = ()
    pool_path: str = ""
    way: str = "examples"
    positives: tuple[str, ...] = ()
    negatives: tuple[str, ...] = ()
    corpus: tuple[str, ...] = ()
    prompt: str = PROMPT
    processor_type: str = "finalscore0-5"
    model: str = ""
    endpoint: str = ""
    sample_size: str = "2000"
    price_input: str = ""
    price_output: str = ""
    budget_dollars: str = ""
    budget_tokens: str = ""
    keep: str = "fraction"
    keep_percent: str = "10"
    threshold: str = ""
    deduplicate: str = "exact"
    vocab_size: str = "8192"

    @staticmethod
    def from_form(form: Mapping[str, Sequence[str]]) -> "Wish":
        """What was sent; a field that was not keeps no value. Line ends become those of Unix."""
        values: dict[str, Any] = {}
        for item in dataclasses.fields(Wish):
            given = [value.replace("\r\n", "\n") for value in form.get(item.name, ())]
            if isinstance(item.default, tuple):
                values[item.name] = tuple(dict.fromkeys(given))
            elif given:
                values[item.name] = given[0] if item.name == "prompt" else given[0].strip()
        return Wish(**values)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "Wish":
        known = {item.name for item in dataclasses.fields(Wish)}
        kept: dict[str, Any] = {
            name: tuple(content) if isinstance(content, list) else content
            for name, content in value.items()
            if name in known
        }
        return Wish(**kept)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def files(self) -> frozenset[str]:
        """Ids of the uploads that a run of it reads."""
        described = {"examples": (*self.positives, *self.negatives), "corpus": self.corpus}.get(self.way, ())
        return frozenset((*self.pool, *described))

    @property
    def needs_model(self) -> bool:
        return self.way in ("prompt", "corpus")


@dataclasses.dataclass
class Checked:
    """A wish that was looked at: `settings` for a config, and `problems` by field; with problems there is nothing to run."""

    settings: dict[str, Any]
    problems: dict[str, str]


def check(wish: Wish, uploads: Uploads, folders: Sequence[str]) -> Checked:
    """The settings that the wish asks for.

    Args:
        folders: where paths may lead to, without links.
    """
    return _Checker(wish, uploads, folders).checked()


class _Checker:
    def __init__(self, wish: Wish, uploads: Uploads, folders: Sequence[str]) -> None:
        self._wish, self._uploads, self._folders = wish, uploads, folders
        self._settings: dict[str, Any] = {}
        self._problems: dict[str, str] = {}

    def checked(self) -> Checked:
        self._check_name()
        self._check_pool()
        {"examples": self._check_examples, "prompt": self._check_prompt, "corpus": self._check_corpus}.get(
            self._wish.way, self._no_way
        )()
        if self._wish.needs_model:
            self._check_model()
        self._check_filter()
        if not self._problems:
            try:
                DatashopRunnerConfig(**self._settings)
            except ConfigError as error:
                self._problems["form"] = str(error)
        return Checked(self._settings, self._problems)

    def _check_name(self) -> None:
        name = self._wish.name
        if _NAME.fullmatch(name) and len(name) <= 60:
            self._settings["experiment_name"] = name
        else:
            self._problems["name"] = (
                "Give a name of small letters, digits, dashes and underscores, such as math-docs: it names the outputs."
            )

    def _check_pool(self) -> None:
        paths: list[str] = self._files("pool", tuple(item for item in self._wish.pool if item != BUILT_IN))
        if BUILT_IN in self._wish.pool:
            paths.append(BUILT_IN)
        if self._wish.pool_path:
            problem = path_problem(self._wish.pool_path, self._folders)
            if problem:
                self._problems["pool_path"] = problem
            paths.append(self._wish.pool_path)
            self._settings["on_bad_row"] = "skip"  # as of uploads, rows without a text are left out and counted
        if not paths and "pool" not in self._problems:
            self._problems["pool"] = "Choose the documents to search: at least one file, or a path."
        self._settings["pretraining_data_path"] = tuple(paths)

    def _check_examples(self) -> None:
        positives = self._files("positives", self._wish.positives)
        negatives = self._files("negatives", self._wish.negatives)
        both = set(self._wish.positives) & set(self._wish.negatives)
        if not positives and "positives" not in self._problems:
            self._problems["positives"] = "Choose at least one file with documents of the kind that is wanted."
        elif both:
            self._problems["negatives"] = "A file cannot be an example of both: take it out of one list."
        elif positives:
            count = sum(upload.documents for number in self._wish.positives if (upload := self._uploads.get(number)))
            if count < _FEW_EXAMPLES:
                self._problems["positives"] = (
                    f"{count} examples are too few to learn from and to measure on: give at least {_FEW_EXAMPLES}."
                )
        self._settings["positives"] = tuple(positives)
        if negatives:
            self._settings["negatives"] = tuple(negatives)

    def _check_prompt(self) -> None:
        prompt = self._wish.prompt
        if EXAMPLE not in prompt:
            self._problems["prompt"] = f"Write {EXAMPLE} where the document should stand."
        elif len(prompt) > _LONGEST_PROMPT:
            self._problems["prompt"] = f"The prompt is longer than {_LONGEST_PROMPT:,} characters."
        if self._wish.processor_type not in PROCESSORS:
            self._problems["processor_type"] = "Choose how the answer ends."
        self._settings["data_filter_prompt"] = prompt
        self._settings["dataset_output_processor_config_kwargs"] = {"processor_type": self._wish.processor_type}

    def _check_corpus(self) -> None:
        corpus = self._files("corpus", self._wish.corpus)
        if not corpus and "corpus" not in self._problems:
            self._problems["corpus"] = "Choose at least one file of the kind of text that the dataset should help with."
        self._settings["corpus_content_paths"] = tuple(corpus)

    def _no_way(self) -> None:
        self._problems["way"] = "Say in which way you describe what is wanted."

    def _check_model(self) -> None:
        wish = self._wish
        if not wish.model:
            self._problems["model"] = "Give the model's name at the endpoint, such as meta-llama/Llama-3.1-8B-Instruct."
        self._settings["annotator_model_name"] = wish.model
        if wish.endpoint:
            try:
                check_endpoint(wish.endpoint)
            except ConfigError:
                self._problems["endpoint"] = (
                    "Give a base URL such as http://127.0.0.1:8000/v1, without a password: the key is read from "
                    "OPENAI_API_KEY."
                )
            self._settings["endpoint"] = wish.endpoint
        elif not os.environ.get("OPENAI_BASE_URL"):
            self._problems["endpoint"] = (
                "Give the server's base URL, such as http://127.0.0.1:8000/v1 of `marin serve`."
            )
        self._number("sample_size", int, lambda value: 10 <= value <= 1_000_000, "a whole number from 10 to 1,000,000")
        price = "dollars for a million tokens, such as 0.6"
        more = {
            "dollars_per_million_input": self._optional("price_input", float, price),
            "dollars_per_million_output": self._optional("price_output", float, price),
            "budget_dollars": self._optional("budget_dollars", float, "dollars, such as 5"),
            "budget_tokens": self._optional("budget_tokens", int, "a whole number of tokens, such as 2000000"),
        }
        if bool(wish.price_input) != bool(wish.price_output):
            self._problems.setdefault("price_output", "Give both prices or none.")
        if more["budget_dollars"] is not None and not wish.price_input:
            self._problems.setdefault("budget_dollars", "A budget in dollars needs both prices.")
        for budget in ("budget_dollars", "budget_tokens"):
            if more[budget] == 0:
                self._problems[budget] = "Use more than 0."
        self._settings["text_generation_inference_config_kwargs"] = {
            name: value for name, value in more.items() if value is not None
        }

    def _check_filter(self) -> None:
        wish = self._wish
        if wish.keep == "threshold":
            low, high = self._label_scale()
            self._number(
                "threshold",
                float,
                lambda value: low < value <= high,
                f"a score above {low:g} and at most {high:g}, such as {(low + high) / 2:g}",
            )
        else:
            percent = _parsed(wish.keep_percent, float)
            if percent is None or not 0 < percent < 100:
                self._problems["keep_percent"] = (
                    f"Give a part of the pool in percent, above 0 and below 100, such as 10.{_comma_hint(wish.keep_percent)}"
                )
            else:
                self._settings["keep_fraction"] = round(percent / 100, 12)
        if wish.deduplicate not in DUPLICATES:
            self._problems["deduplicate"] = "Choose what counts as repeated."
        self._settings["deduplicate"] = wish.deduplicate
        self._number(
            "vocab_size",
            int,
            lambda value: 300 <= value <= 1_000_000,
            "a whole number from 300 to 1,000,000, such as 8192",
        )

    def _label_scale(self) -> tuple[float, float]:
        """The lowest and the highest label of the way; scores are on that scale."""
        if self._wish.way == "examples":
            return EXAMPLES_SCALE
        is_prompt = self._wish.way == "prompt" and self._wish.processor_type in PROCESSORS
        return scale_of(self._wish.processor_type if is_prompt else "medu")

    def _files(self, field: str, numbers: Sequence[str]) -> list[str]:
        found = [self._uploads.get(number) for number in numbers]
        if None in found:
            self._problems[field] = "A file of this list is not there any more: upload it again, or take it out."
        return [str(upload.path) for upload in found if upload is not None]

    def _number(self, field: str, kind: Callable[[str], Any], is_right: Callable[[Any], bool], expected: str) -> None:
        value = _parsed(getattr(self._wish, field), kind)
        if value is None or not is_right(value):
            self._problems[field] = f"Give {expected}.{_comma_hint(getattr(self._wish, field))}"
        else:
            self._settings[field] = value

    def _optional(self, field: str, kind: Callable[[str], Any], expected: str) -> Any:
        text = getattr(self._wish, field)
        value = _parsed(text, kind) if text else None
        if text and (value is None or not math.isfinite(value) or value < 0):
            self._problems[field] = f"Give {expected}, or leave it empty.{_comma_hint(text)}"
        return value


def config_text(settings: Mapping[str, Any], where: str) -> str:
    """A config file with these settings.

    Args:
        where: the file's own path, for the command in its docstring.
    """
    lines = [f"    {name}={_written(name, value)}," for name, value in settings.items()]
    has_built_in = BUILT_IN in settings["pretraining_data_path"]
    imports = ["from marin.data.corpora.python_docs import python_docs_step"] if has_built_in else []
    doc = f'"""Written by the page of `marin datashop`; to run it without the page:\n\n    marin datashop run {_plain(where)}\n"""'
    return "\n".join(
        [doc, "", *imports, "from marin.datashop.config import DatashopRunnerConfig", "", "config = DatashopRunnerConfig(",
         *lines, ")", ""]
    )  # fmt: skip


def _written(name: str, value: Any) -> str:
    if name != "pretraining_data_path":
        return repr(value)
    paths = ['python_docs_step() / "train.jsonl.zst"' if path == BUILT_IN else repr(path) for path in value]
    return f"({', '.join(paths)},)"


def _plain(path: str) -> str:
    """A path that can stand in a docstring."""
    return re.sub(r"[^ -~]|[\\\"]", "?", path)


def _parsed(text: str, kind: Callable[[str], Any]) -> Any:
    """The number that was typed, None if it is none. Commas and underscores may only part thousands: `5,00` may mean 5."""
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        return None
    try:
        return kind(re.sub("[,_]", "", found[0]))
    except ValueError:
        return None


def _comma_hint(text: str) -> str:
    """What to say of a number that has a comma where none parts thousands."""
    if "," not in text or _NUMBER.fullmatch(text):
        return ""
    return " Write a point before decimals, as in 0.6; a comma may only part thousands, as in 1,500."
