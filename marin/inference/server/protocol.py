"""What a request may say: the fields of OpenAI's chat and text completions that this server honours.

A field that would change the answer and is not honoured is refused by name, not passed over, and so is a field that nobody
knows: it may be a misspelt one. Of messages, as at OpenAI, further fields are passed over: clients keep their own there.
"""

import difflib
import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from marin.inference.options import MAX_SEED
from marin.inference.server.problems import ProblemError
from marin.inference.server.wrong_fields import explain

_MAX_STOPS = 4
# OpenAI's fields that would change the answer, and the values that ask for nothing.
_NOT_HONOURED: dict[str, tuple[Any, ...]] = {
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
    "logit_bias": (None, {}),
    "presence_penalty": (None, 0, 0.0),
    "frequency_penalty": (None, 0, 0.0),
    "top_logprobs": (None, 0),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "echo": (None, False),
    "suffix": (None, ""),
    "best_of": (None, 1),
    "min_p": (None, 0, 0.0),
    "min_tokens": (None, 0),
    "repetition_penalty": (None, 1, 1.0),
    "ignore_eos": (None, False),
    "stop_token_ids": (None, []),
    "reasoning_effort": (None, "none"),
    "verbosity": (None,),
    "web_search_options": (None,),
    "moderation": (None,),
}
# OpenAI's fields that leave the answer as it is.
_WITHOUT_EFFECT = (
    "metadata", "parallel_tool_calls", "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "safety_identifier", "service_tier", "store", "user",
)  # fmt: skip
_NOT_HONOURED_OF_MESSAGES = ("tool_calls", "function_call", "audio")
Stop = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Asked = TypeVar("Asked", bound="CompletionBase")


class StreamOptions(BaseModel):
    include_usage: bool = False


class CompletionBase(BaseModel):
    """Fields of both kinds of completions. `top_k` and `return_token_ids` are beside OpenAI's, under vLLM's names."""

    model_config = ConfigDict(strict=True, extra="ignore")

    model: str
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    seed: int | None = None
    stop: list[Stop] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None

    @field_validator("top_k")
    @classmethod
    def _of_all_tokens(cls, value: int | None) -> int | None:
        return None if value in (-1, 0) else value  # vLLM's words for no limit

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        value = [value] if isinstance(value, str) else value
        if isinstance(value, list) and len(value) > _MAX_STOPS:
            raise ValueError(f"at most {_MAX_STOPS} stop strings")
        return value

    @property
    def seed_number(self) -> int | None:
        return None if self.seed is None else self.seed % (MAX_SEED + 1)

    @property
    def wants_logprobs(self) -> bool:
        return False

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_tokens


class TextPart(BaseModel):
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A turn. `token_ids` are those that came with an answer of this server: where they hold calls of the calculator, the
    conversation goes on with them in place of the content, which is what calls look like to people."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    token_ids: list[int] | None = None

    @model_validator(mode="before")
    @classmethod
    def _says_nothing_else(cls, value: Any) -> Any:
        for name in _NOT_HONOURED_OF_MESSAGES if isinstance(value, dict) else ():
            if value.get(name):
                raise ValueError(f"`{name}` is not supported by this server")
        return value

    @model_validator(mode="after")
    def _is_an_answer(self) -> "Message":
        if self.token_ids is not None and self.role != "assistant":
            raise ValueError(f"`token_ids` stand with a message of the role {self.role!r}: only an answer has them")
        return self

    @property
    def role_of_turn(self) -> str:
        return "system" if self.role == "developer" else self.role

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatCompletion(CompletionBase):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.logprobs)

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class TextCompletion(CompletionBase):
    """A prompt is text or token ids, or a list of either."""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: Annotated[int, Field(ge=0)] | None = None

    @field_validator("logprobs")
    @classmethod
    def _of_no_others(cls, value: int | None) -> int | None:
        if value:
            raise ValueError("log-probabilities are told of the chosen tokens alone: use 0")
        return value

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs is not None


def parse(kind: type[Asked], body: bytes) -> Asked:
    """A request of this kind.

    Raises:
        ProblemError: naming the first field that is wrong, or that this server does not honour.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise ProblemError(400, "the body is not JSON") from None
    if not isinstance(fields, dict):
        raise ProblemError(400, "the body is not a JSON object")
    for name, neutral in _NOT_HONOURED.items():
        if name in fields and not any(type(fields[name]) is type(value) and fields[name] == value for value in neutral):
            raise ProblemError(
                400, f"`{name}` is not supported by this server", param=name, code="unsupported_parameter"
            )
    _check_known(kind, fields)
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise explain(error) from None


def _check_known(kind: type[CompletionBase], fields: dict[str, Any]) -> None:
    """Raises:
    ProblemError: naming the first field that is neither OpenAI's nor ours. One that is null asks for nothing.
    """
    for name, value in fields.items():
        if value is None or name in kind.model_fields or name in _NOT_HONOURED or name in _WITHOUT_EFFECT:
            continue
        name = name[:100]
        close = difflib.get_close_matches(name, kind.model_fields, n=1)
        meant = f", but there is `{close[0]}`" if close else ""
        raise ProblemError(400, f"there is no field `{name}`{meant}", param=name, code="unknown_parameter")
