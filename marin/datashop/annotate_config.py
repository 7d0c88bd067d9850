"""What an annotation is made with: the sample, the prompt, and how labels are read from answers."""

from dataclasses import dataclass

from marin.datashop.ask_config import AskConfig
from marin.datashop.grading import ProcessorType, scale_of
from marin.errors import ConfigError
from marin.execution.step import Input, InputName

EXAMPLE = "{example}"


@dataclass(frozen=True, kw_only=True)
class AnnotateConfig(AskConfig):
    """A language model's grades for a sample of documents; see `AskConfig` for the other fields.

    Args:
        sample: a document set.
        prompt: sent as the one message of a user, with `{example}` replaced by the document.
        prompt_path: a file with the prompt instead, such as the one that MEDU writes (`marin.datashop.medu`).
        processor_type: how a label is read from an answer (`marin.datashop.grading`).
        max_example_chars: of a document; the rest of it is not shown to the model.
        max_example_tokens: as `max_example_chars`, counted by `tokenizer`: for a model whose context is the limit.
        tokenizer: the model's folder or `tokenizer.json`.
        max_unanswered_fraction: with more documents than this without any answer, the labels are not finished.
    """

    sample: Input = ""
    prompt: str | None = None
    prompt_path: str | InputName | None = None
    processor_type: ProcessorType = "finalscore0-5"
    max_example_chars: int = 24_000
    max_example_tokens: int | None = None
    tokenizer: Input | None = None
    max_unanswered_fraction: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        scale_of(self.processor_type)
        if (self.prompt is None) == (self.prompt_path is None):
            raise ConfigError("config fields `prompt` and `prompt_path`: give just one of them")
        if self.prompt is not None:
            check_prompt(self.prompt)
        if self.max_example_chars < 1:
            raise ConfigError(f"config field `max_example_chars` is {self.max_example_chars}: use at least 1")
        if (self.max_example_tokens is None) != (self.tokenizer is None):
            raise ConfigError("config fields `max_example_tokens` and `tokenizer`: give both of them, or none")
        if self.max_example_tokens is not None and self.max_example_tokens < 1:
            raise ConfigError(f"config field `max_example_tokens` is {self.max_example_tokens}: use at least 1")
        if not 0 <= self.max_unanswered_fraction <= 1:
            raise ConfigError(
                f"config field `max_unanswered_fraction` is {self.max_unanswered_fraction}: use a fraction from 0 to 1"
            )


def check_prompt(prompt: str, where: str = "config field `prompt`") -> None:
    """Raises:
    ConfigError: the prompt has no place for a document.
    """
    if EXAMPLE not in prompt:
        raise ConfigError(f"{where} has no {EXAMPLE}: write it where the document should stand")
