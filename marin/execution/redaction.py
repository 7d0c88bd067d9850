"""Secrets are kept out of records: by the name of what holds them, by the value of this process's own, and by their shape."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

HIDDEN = "<hidden>"
SECRET_NAME = re.compile(
    r"(?i)(?:^|_)(?:(?:hf|api|auth|access|bearer|wandb|secret)_(?:token|key)|password|secret|credentials)$"
)
_ENVIRONMENT_NAME = re.compile(r"(?i)(?:token(?!i[sz])|api_?key|secret|password|credential|access_?key)")
# Variables such as MAX_TOKENS=10000000 and TOKENS_PER_STEP=5e5 count what is trained on.
_COUNT_NAME, _COUNT = re.compile(r"(?i)tokens(?:_|$)"), re.compile(r"[\d_.,e+]+")
# Tokens that say what they are: Hugging Face, GitHub, AWS, Google, OpenAI and Anthropic keys, and private keys.
_SHAPES = re.compile(
    r"\bhf_[A-Za-z0-9]{30,}|\bgh[pousr]_[A-Za-z0-9]{30,}|\bgithub_pat_\w{30,}|\bAKIA[0-9A-Z]{16}\b|\bAIza[\w-]{35}"
    r"|\bsk-[A-Za-z0-9_-]{24,}|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
_SHORTEST = 8


def secret_values(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The secrets that this process was given, by the name of their variable."""
    given = os.environ if environment is None else environment
    return {
        name: value
        for name, value in given.items()
        if _ENVIRONMENT_NAME.search(name)
        and len(value) >= _SHORTEST
        and not (_COUNT_NAME.search(name) and _COUNT.fullmatch(value))
        and not os.path.exists(value)
    }


def secrets_in(text: str, environment: Mapping[str, str] | None = None) -> list[str]:
    """What in a text is, or looks like, a secret: names and shapes, never the secret itself."""
    found = [f"the value of {name}" for name, value in secret_values(environment).items() if value in text]
    return found + sorted({f"a token that begins with {match[0][:4]!r}" for match in _SHAPES.finditer(text)})


def without_secrets(parts: Mapping[str, str]) -> dict[str, str]:
    """The parts of a step's config, by place, without the secrets among them; None is shown, as it holds none."""
    values = list(secret_values().values())

    def is_secret(place: str) -> bool:
        return any(SECRET_NAME.search(word) for word in re.findall(r"\w+", place))

    return {
        place: HIDDEN if shown != "None" and is_secret(place) else _hidden_in(str(shown), values)
        for place, shown in parts.items()
    }


def hidden_in(value: Any, values: Sequence[str] | None = None) -> Any:
    """JSON types, in whose texts secrets are hidden, those of this process and what looks like one."""
    values = list(secret_values().values()) if values is None else values
    if isinstance(value, str):
        return _hidden_in(value, values)
    if isinstance(value, dict):
        return {key: hidden_in(item, values) for key, item in value.items()}
    return [hidden_in(item, values) for item in value] if isinstance(value, list) else value


def _hidden_in(text: str, values: Sequence[str]) -> str:
    for value in values:
        text = text.replace(value, HIDDEN)
    return _SHAPES.sub(HIDDEN, text)


def redact(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> list[str]:
    """A command line without its secrets."""
    values, hidden, hide_next = list(secret_values(environment).values()), [], False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        is_secret = bool(SECRET_NAME.search(name.lstrip("-").replace("-", "_")))
        if hide_next:
            argument = HIDDEN
        elif is_secret and equals and value:
            argument = f"{name}={HIDDEN}"
        hide_next = is_secret and not equals and name.startswith("-")
        hidden.append(_hidden_in(argument, values))
    return hidden
