"""Conversations and prompts with responses, as tokens and a mask of what the model should learn to write.

A row of a file (its fields) becomes turns; each turn is what its role puts before it, its text, and what the role puts
after. The mask is 1 for the text of an answer and for what ends it, 0 for everything that the model is given. The three
parts of a turn are encoded one by one, so that the mask falls between tokens and a chat that a server continues has the
same tokens as here.

What roles put around a text may name special tokens, which the tokenizer must have. The text itself never becomes a
special token: a user who types `<|eot_id|>` has typed characters.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from marin.data.documents import is_unicode
from marin.data.formats import BadRow, Row
from marin.data.tokenizer import Tokenizer
from marin.errors import ConfigError

_SPECIAL = r"<\|[^<>|\s]+\|>"


@dataclass(frozen=True)
class ChatTemplate:
    """What surrounds a turn of each role.

    Args:
        roles: (before, after) by the role's name.
        learned: the roles whose turns the model should learn to write.
    """

    roles: Mapping[str, tuple[str, str]]
    learned: Sequence[str] = ("assistant",)

    def __post_init__(self) -> None:
        for role in self.learned:
            if role not in self.roles:
                raise ConfigError(
                    f"`learned` of a chat template names {role!r}: use roles that it has, {list(self.roles)}"
                )


def _llama3(role: str) -> tuple[str, str]:
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n", "<|eot_id|>"


LLAMA3 = ChatTemplate({role: _llama3(role) for role in ("system", "user", "assistant")})
"""Llama 3's, for its tokenizer."""
CHATML = ChatTemplate({role: (f"<|im_start|>{role}\n", "<|im_end|>\n") for role in ("system", "user", "assistant")})
"""OpenAI's ChatML, as Qwen's tokenizers have it."""
TURNS = ChatTemplate({role: (f"<|{role}_start|>", f"<|{role}_end|>") for role in ("user", "assistant")})
"""One token before and one after each turn. There is no system role: such a text goes before the first user's."""
PLAIN = ChatTemplate({"system": ("", "\n\n"), "user": ("User: ", "\n\n"), "assistant": ("Assistant: ", "\n\n")})
"""Text only, for tokenizers without special tokens."""


@dataclass(frozen=True)
class ChatFormat:
    """Rows with a list of messages, each with a role and its content.

    Args:
        messages_key: the field with the list.
    """

    template: ChatTemplate = PLAIN
    messages_key: str = "messages"
    role_key: str = "role"
    content_key: str = "content"

    @property
    def fields(self) -> list[str]:
        return [self.messages_key]


@dataclass(frozen=True)
class PromptFormat:
    """Rows with a prompt and a response. The response is learned, and so is that the document ends after it.

    Args:
        separator: text between the two, part of what the model is given.
    """

    prompt_key: str = "prompt"
    response_key: str = "response"
    separator: str = "\n\n"

    @property
    def fields(self) -> list[str]:
        return [self.prompt_key, self.response_key]


class Turn(NamedTuple):
    """One part of a conversation, before it is tokens."""

    before: str
    text: str
    after: str
    learned: bool


class MaskedDocument(NamedTuple):
    """Tokens from the beginning token on, and for each 1 where the model should learn to write it."""

    tokens: list[int]
    mask: list[int]


def turns_of(row: Row, format: ChatFormat | PromptFormat) -> list[Turn] | BadRow:
    """The turns of a row; a `BadRow` with a reason where it has none of them, or nothing to learn."""
    turns = _chat_turns(row, format) if isinstance(format, ChatFormat) else _prompt_turns(row, format)
    if isinstance(turns, BadRow):
        return turns
    if not any(turn.learned and turn.text for turn in turns):
        return BadRow(row.number, "nothing_to_learn", "no turn has a text that the model should learn to write")
    if not all(is_unicode(turn.text) for turn in turns):
        return BadRow(row.number, "lone_surrogate", "a text holds one (\\ud800 to \\udfff), which is no text")
    return turns


def _chat_turns(row: Row, format: ChatFormat) -> list[Turn] | BadRow:
    messages = row.fields.get(format.messages_key)
    if not isinstance(messages, list) or not messages:
        detail = row.instead_of("a list of messages", format.messages_key, "messages_key")
        return BadRow(row.number, "no_messages", detail)
    turns: list[Turn] = []
    template, waiting = format.template, ""
    for number, message in enumerate(messages, start=1):
        role = message.get(format.role_key) if isinstance(message, dict) else None
        text = _text(message.get(format.content_key)) if isinstance(message, dict) else None
        if not isinstance(role, str) or text is None:
            detail = (
                f"message {number} is no object with a string `{format.role_key}` and a text `{format.content_key}`"
            )
            return BadRow(row.number, "bad_message", detail)
        if role == "system" and role not in template.roles and not turns:
            waiting += text + "\n\n"
        elif role not in template.roles:
            detail = f"message {number} is of the role {role!r}, the template has {', '.join(template.roles)}"
            return BadRow(row.number, "unknown_role", detail)
        elif waiting and role in template.learned:
            detail = (
                f"message {number} is an answer right after the system's text, which has no place but before a question"
            )
            return BadRow(row.number, "no_question", detail)
        else:
            turns.append(
                Turn(template.roles[role][0], waiting + text, template.roles[role][1], role in template.learned)
            )
            waiting = ""
    return turns


def _prompt_turns(row: Row, format: PromptFormat) -> list[Turn] | BadRow:
    for key in format.fields:
        if not isinstance(row.fields.get(key), str):
            return BadRow(row.number, "no_text", row.instead_of("a string", key))
    prompt, response = (row.fields[key] for key in format.fields)
    return [Turn("", prompt, format.separator, False), Turn("", response, "", True)]


def _text(content: object) -> str | None:
    """A message's text; its content may also be a list of parts of text."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in content
    ):
        return "".join(part["text"] for part in content)
    return None


@dataclass
class TurnEncoder:
    """Turns as tokens; what surrounds them is encoded once."""

    tokenizer: Tokenizer
    _markers: dict[str, list[int]] = field(default_factory=dict)

    def encode(self, conversations: Sequence[Sequence[Turn]]) -> list[MaskedDocument]:
        """Each conversation as a document.

        Raises:
            ConfigError: the tokenizer lacks a special token that a turn's surroundings name.
        """
        texts = iter(self.tokenizer.encode_batch([turn.text for turns in conversations for turn in turns]))
        documents = []
        for turns in conversations:
            tokens, mask = [self.tokenizer.bos_id], [0]
            for turn in turns:
                before, text, after = self._marker(turn.before), next(texts), self._marker(turn.after)
                tokens += [*before, *text, *after]
                mask += [0] * len(before) + [int(turn.learned)] * (len(text) + len(after))
            documents.append(MaskedDocument(tokens, mask))
        return documents

    def _marker(self, text: str) -> list[int]:
        if text not in self._markers:
            self._markers[text] = self._encode_marker(text)
        return self._markers[text]

    def _encode_marker(self, text: str) -> list[int]:
        special = self.tokenizer.special_tokens
        # The tokenizer's own, whatever they look like, and what looks like one; of two that begin alike the longer.
        names = "|".join(map(re.escape, sorted(special, key=len, reverse=True)))
        ids: list[int] = []
        position = 0
        for found in re.finditer(f"{names}|{_SPECIAL}" if names else _SPECIAL, text):
            if found.group() not in special:
                raise ConfigError(
                    f"the chat template has the token {found.group()}, the tokenizer has not (special tokens: "
                    f"{', '.join(special) or 'none'}): train one with it, or use the template PLAIN"
                )
            ids += self.tokenizer.encode(text[position : found.start()])
            ids.append(special[found.group()])
            position = found.end()
        return ids + self.tokenizer.encode(text[position:])
