"""How a language model is asked: which one, with what parameters, where it is reached, and what it may cost."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import urlsplit

from marin.errors import ConfigError
from marin.execution.step import InputName, placement, this_output_path

_LIMITS = ("max_tokens", "max_completion_tokens")

ANSWER_CACHE = "datashop/answers"
"""Below the prefix: answers that were paid for, shared by all annotations."""


@dataclass(frozen=True, kw_only=True)
class AskConfig:
    """What decides an answer, and below it, as placement, how it is got.

    Args:
        model: its name at the endpoint.
        temperature: of sampling.
        max_tokens: of an answer.
        request: further fields of the request's body; None as a value leaves a field out, so
            `{"max_tokens": None, "max_completion_tokens": 256}` renames one. With a budget one of these two must stay.
        output_path: of the step.
        endpoint: an OpenAI-compatible base URL, which ends in `/v1` for most servers; None is the environment's
            `OPENAI_BASE_URL`.
        api_key_env: the environment variable that holds the key; a server that asks for none needs none.
        concurrency: requests in flight at once.
        timeout: seconds for one request, from sending it to the last byte of its answer.
        max_tries: for a question, not counting those that the endpoint put off because it is busy, or missed because it was gone.
        patience: seconds with faults and without a single answer after which the endpoint is taken to be gone; a tenth of
            that is enough for one that was never reached.
        budget_tokens: read and written ones together, also those of earlier runs that the cache knows of; no request is sent
            that could go beyond.
        budget_dollars: as `budget_tokens`, with the two prices.
        dollars_per_million_input: price of tokens read.
        dollars_per_million_output: price of tokens written.
        cache: a folder with all answers that were paid for; None is one in the output path.
    """

    marin_resumable: ClassVar[bool] = True

    model: str
    temperature: float = 0.1
    max_tokens: int = 256
    request: Mapping[str, Any] = field(default_factory=dict)
    output_path: str = this_output_path()

    endpoint: str | None = placement(default=None)
    api_key_env: str = placement(default="OPENAI_API_KEY")
    concurrency: int = placement(default=64)
    timeout: float = placement(default=120.0)
    max_tries: int = placement(default=6)
    patience: float = placement(default=600.0)
    budget_tokens: int | None = placement(default=None)
    budget_dollars: float | None = placement(default=None)
    dollars_per_million_input: float | None = placement(default=None)
    dollars_per_million_output: float | None = placement(default=None)
    cache: str | InputName | None = placement(default=InputName.hardcoded(ANSWER_CACHE))

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError(
                "config field `model` is empty: give the model's name at the endpoint (`/v1/models` lists it)"
            )
        for name in ("max_tokens", "concurrency", "timeout", "max_tries", "patience"):
            _check_positive(name, getattr(self, name))
        if not 0 <= self.temperature <= 2:
            raise ConfigError(f"config field `temperature` is {self.temperature}: use 0 to 2, such as 0.1")
        reserved = sorted({"model", "messages", "stream", "n"} & set(self.request))
        if reserved:
            raise ConfigError(f"config field `request` has {reserved[0]!r}, which is set for you: remove it")
        for name in ("dollars_per_million_input", "dollars_per_million_output"):
            if getattr(self, name) is not None and not getattr(self, name) >= 0:
                raise ConfigError(f"config field `{name}` is {getattr(self, name)}: use 0 or more")
        for name in ("budget_tokens", "budget_dollars"):
            if getattr(self, name) is not None:
                _check_positive(name, getattr(self, name), ", or None for no limit")
                self._check_answers_have_an_end(name)
        if self.budget_dollars is not None and not self.has_prices:
            raise ConfigError(
                "config field `budget_dollars` needs the prices: set `dollars_per_million_input` and "
                "`dollars_per_million_output`"
            )
        if self.endpoint is not None:
            check_endpoint(self.endpoint)

    def _check_answers_have_an_end(self, budget: str) -> None:
        """A budget holds only if no answer can be longer than it is counted."""
        sent = {name: limit for name, limit in self._limits.items() if limit is not None}
        if not sent:
            raise ConfigError(
                f"config field `request` leaves out `max_tokens`, so an answer could go beyond `{budget}`: limit it by"
                " `max_completion_tokens`, a whole number"
            )
        for name, limit in sent.items():
            if type(limit) is not int or limit < 1:
                raise ConfigError(
                    f"`{name}` of the request is {limit!r}: with `{budget}` use a whole number of at least 1, such as 256"
                )

    def check_before_run(self, *, on_this_machine: bool) -> None:
        """Raises:
        ConfigError: it is not known which endpoint to ask.
        """
        self.base_url()

    def base_url(self) -> str:
        """Where the endpoint is, from the config or the environment.

        Raises:
            ConfigError: neither says.
        """
        base = self.endpoint or os.environ.get("OPENAI_BASE_URL")
        if not base:
            raise ConfigError(
                "no endpoint is known: set config field `endpoint`, or OPENAI_BASE_URL, to the base URL of a server, such as "
                "http://127.0.0.1:8000/v1 for `marin serve` or vLLM, or https://api.openai.com/v1"
            )
        check_endpoint(base)
        return base.rstrip("/")

    @property
    def most_answer_tokens(self) -> int:
        """The longest answer that a request allows."""
        return max([self.max_tokens, *(limit for limit in self._limits.values() if isinstance(limit, int))])

    @property
    def _limits(self) -> dict[str, Any]:
        """The fields of a request that limit an answer; None for one that is left out."""
        return {"max_tokens": self.max_tokens} | {name: self.request[name] for name in _LIMITS if name in self.request}

    @property
    def has_prices(self) -> bool:
        return self.dollars_per_million_input is not None and self.dollars_per_million_output is not None

    def dollars(self, input_tokens: float, output_tokens: float) -> float | None:
        """What so many tokens cost; None without prices."""
        if self.dollars_per_million_input is None or self.dollars_per_million_output is None:
            return None
        return (input_tokens * self.dollars_per_million_input + output_tokens * self.dollars_per_million_output) / 1e6


def _check_positive(name: str, value: float, otherwise: str = "") -> None:
    if not value > 0:
        raise ConfigError(f"config field `{name}` is {value}: use more than 0{otherwise}")


def check_endpoint(endpoint: str) -> None:
    """Raises:
    ConfigError: it is no base URL of a server.
    """
    try:
        parts = urlsplit(endpoint)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query and not parts.fragment
        has_secret = "@" in parts.netloc
        _ = parts.port
    except ValueError:
        usable, has_secret = False, False
    if has_secret:
        raise ConfigError(
            "config field `endpoint` holds a user or password: put the key into the variable of `api_key_env`"
        )
    if not usable:
        raise ConfigError(f"config field `endpoint` is {endpoint!r}: give a base URL such as http://127.0.0.1:8000/v1")
