"""What is asked of the engine, and what it gives back."""

import dataclasses
import hashlib
import math

from marin.errors import ConfigError

MAX_SEED = 2**32 - 1


@dataclasses.dataclass(frozen=True)
class SamplingOptions:
    """How to continue a prompt.

    Args:
        max_tokens: the most tokens of a sample, those that a tool forces among them.
        temperature: logits are divided by it; 0 takes the likeliest token each time.
        top_k: choose among this many likeliest tokens (and those as likely as the last of them); None for all.
        top_p: choose among the likeliest tokens that together have this much probability (Holtzman et al., 2020,
            arXiv:1904.09751), after `top_k`.
        seed: sample `i` of a prompt is a function of the weights, the prompt, these options and `i`, whatever else the
            engine does meanwhile, up to the rounding of sums in another order.
        stop_tokens: tokens that end a sample, beside those that always do: the one that begins a document, one that ends it,
            and the one that ends an assistant's turn.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0
    stop_tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ConfigError(f"`max_tokens` is {self.max_tokens}: use at least 1")
        if not (math.isfinite(self.temperature) and 0 <= self.temperature <= 100):
            raise ConfigError(f"`temperature` is {self.temperature}: use 0 (the likeliest token) to 100, such as 0.8")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"`top_k` is {self.top_k}: use at least 1, or None for all tokens")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"`top_p` is {self.top_p}: use a number above 0 and at most 1")
        if not 0 <= self.seed <= MAX_SEED:
            raise ConfigError(f"`seed` is {self.seed}: use a whole number from 0 to {MAX_SEED}")

    def of_prompt(self, *place: object) -> "SamplingOptions":
        """The same with a seed that follows from this one and a prompt's place among others, such as a question's number.

        Under one seed the samples of all prompts are drawn by the same numbers, so that their chances are no independent ones.
        """
        digest = hashlib.sha256("/".join(map(str, (self.seed, *place))).encode()).digest()
        return dataclasses.replace(self, seed=int.from_bytes(digest[:4], "big"))


@dataclasses.dataclass(frozen=True)
class Sample:
    """A continuation of a prompt.

    Args:
        tokens: what was generated, without the token that ended it.
        mask: 1 where the model chose the token, 0 where a tool did.
        logprobs: of each token its natural log-probability under the model, whatever the temperature.
        finish_reason: "stop" where the model ended it, "length" where `max_tokens` or the engine's room did.
        stop_token: the token that ended it; None for "length".
    """

    tokens: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    stop_token: int | None = None
