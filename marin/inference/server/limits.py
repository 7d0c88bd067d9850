"""What a server takes on, so that no request can take it from the others."""

import dataclasses

from marin.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Limits:
    """Args:
    body_bytes: of a request.
    queue: requests that may wait for room; one more is told to come back.
    samples: of one request, over all its prompts.
    messages: of a conversation.
    answer_tokens: where a request does not say how many.
    seconds: from a request's arrival to its end.
    """

    body_bytes: int = 1_000_000
    queue: int = 256
    samples: int = 64
    messages: int = 500
    answer_tokens: int = 512
    seconds: float = 300.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if not getattr(self, field.name) > 0:
                raise ConfigError(f"the server's limit `{field.name}` is {getattr(self, field.name)}: use more than 0")
