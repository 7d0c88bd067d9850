"""The tokenizer of the pipeline: trained on the beginning of the text, and compared with GPT-2's and GPT-4's."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from marin.data.conversation import SPECIAL_TOKENS
from marin.data.documents import Document, text_bytes
from marin.data.tokenizer import SPLIT_PATTERN, Tokenizer
from marin.data.tokenizer.report import OTHERS, digests_of_others, find_counter
from marin.data.tokenizer.training import check_settings, write_tokenizer
from marin.execution.step import ExecutorStep, placement, this_output_path
from marin.flags import check_at_least
from marin.gpt2.datasets import DataFile, Dataset, open_tokenizer, read_file_documents
from marin.gpt2.example_texts import EXAMPLE_TEXTS
from marin.gpt2.places import Places
from marin.storage import files

COMPARISON_FILE = "comparison.json"
_EVALUATED_CHARS = 1_000_000


@dataclasses.dataclass(frozen=True)
class TrainGptTokenizerConfig:
    """Args:
    max_chars: characters of text to train on.
    doc_cap: characters of one document that are used, so that few long ones do not decide.
    """

    dataset_files: tuple[DataFile, ...]
    text_key: str
    max_chars: int
    doc_cap: int
    vocab_size: int
    special_tokens: tuple[str, ...] = SPECIAL_TOKENS
    split_pattern: str = SPLIT_PATTERN
    output_path: str = this_output_path()

    def __post_init__(self) -> None:
        check_settings(self)
        check_at_least(1, self, "max_chars", "doc_cap")


def train_gpt_tokenizer(config: TrainGptTokenizerConfig) -> None:
    """Trains on the files in order, up to the limits.

    Raises:
        DataError: a file is damaged, or there is too little different text.
    """
    where = ", ".join(file.name for file in config.dataset_files[:3])
    write_tokenizer(config, _texts(config), where)


def _texts(config: TrainGptTokenizerConfig) -> Iterator[Document]:
    left = config.max_chars
    for file in config.dataset_files:
        for document in read_file_documents(str(file.path), config.text_key):
            text = document.text[: min(config.doc_cap, left)]
            yield dataclasses.replace(document, text=text)
            left -= len(text)
            if left <= 0:
                return


@dataclasses.dataclass(frozen=True)
class CompareTokenizersConfig:
    """Args:
    other_digests: of the files of GPT-2's and GPT-4's tokenizers that there are, by the tokenizer's name.
    others: a folder with them (see `marin.data.tokenizer.report`); None for neither.
    """

    train: DataFile
    validation: DataFile
    text_key: str
    tokenizer_digest: str
    other_digests: Mapping[str, str]
    others: str | None = placement(default=None)
    tokenizer: str = placement(default="")
    output_path: str = this_output_path()


def compare_tokenizers_step(dataset: Dataset, places: Places, others: str | None) -> ExecutorStep:
    """The step whose output, `comparison.json`, has the bytes a token by kind of text.

    Raises:
        DataError: there is no tokenizer.
    """
    config = CompareTokenizersConfig(
        dataset.train[0],
        dataset.validation,
        dataset.text_key,
        open_tokenizer(places).digest,
        digests_of_others(others) if others else {},
        others,
        str(places.tokenizer),
    )
    return ExecutorStep("gpt2/tok_eval", compare_tokenizers, config)


def compare_tokenizers(config: CompareTokenizersConfig) -> None:
    """Counts by kind of text what each tokenizer makes of it.

    The kinds are short examples of the project's own, and the beginnings of the data set's two parts.
    """
    tokenizer = Tokenizer.load(config.tokenizer)
    counters = {"ours": lambda texts: sum(map(len, tokenizer.encode_arrays(texts)))}
    absent = []
    for name in OTHERS:
        counter = find_counter(config.others, name) if config.others else None
        if counter is None:
            absent.append(name)
        else:
            counters[name] = counter
    kinds: dict[str, Sequence[str]] = {name: [text] for name, text in EXAMPLE_TEXTS.items()}
    kinds["train"] = _beginning(config.train, config.text_key)
    kinds["val"] = _beginning(config.validation, config.text_key)
    rows = {}
    for kind, texts in kinds.items():
        size = sum(map(text_bytes, texts))
        rates = {name: round(size / max(count(texts), 1), 3) for name, count in counters.items()}
        rows[kind] = {"bytes": size, "bytes_per_token": rates}
    content = {"vocab_size": tokenizer.vocab_size, "kinds": rows, "absent": absent}
    files.write_json(files.join(config.output_path, COMPARISON_FILE), content)


def _beginning(file: DataFile, text_key: str) -> list[str]:
    texts, size = [], 0
    for document in read_file_documents(str(file.path), text_key):
        texts.append(document.text)
        size += len(document.text)
        if size >= _EVALUATED_CHARS:
            break
    return texts
