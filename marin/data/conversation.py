"""Conversations with tool calls as tokens, with a mask of what the model should learn to write.

A conversation is what JSON has of it:

    {"messages": [{"role": "system" | "user" | "assistant", "content": text or parts}, ...]}
    parts: [{"type": "text" | "python" | "python_output", "text": ...}, ...], only an assistant's

An optional system message comes first and goes before the first user's text, as there is no token for it. Then users and
assistants take turns, a user first. In tokens, with what is learned underlined:

    <|bos|> <|user_start|> text <|user_end|> <|assistant_start|> text <|python_start|> 2+2 <|python_end|>
                                                                 ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
    <|output_start|> 4 <|output_end|> text <|assistant_end|>
                                      ~~~~~~~~~~~~~~~~~~~~~
What a tool answered is given to the model, as a user's text is. No text ever becomes a special token.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from marin.data.chat import MaskedDocument, Turn, TurnEncoder
from marin.data.tokenizer import Tokenizer
from marin.errors import DataError

SPECIAL_TOKENS = (
    "<|bos|>",
    "<|user_start|>",
    "<|user_end|>",
    "<|assistant_start|>",
    "<|assistant_end|>",
    "<|python_start|>",
    "<|python_end|>",
    "<|output_start|>",
    "<|output_end|>",
)
"""What a tokenizer must have for `render`; give them to `TrainTokenizerConfig.special_tokens`."""
MAX_TOKENS = 2048
Conversation = Mapping[str, Any]
_PARTS = ("text", "python", "python_output")


def has_chat_tokens(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer has all of `SPECIAL_TOKENS`."""
    return all(name in tokenizer.special_tokens for name in SPECIAL_TOKENS)


def render(
    conversation: Conversation, tokenizer: Tokenizer, max_tokens: int | None = MAX_TOKENS
) -> tuple[list[int], list[int]]:
    """The tokens, and for each 1 where the model should learn to write it.

    Args:
        max_tokens: what follows so many tokens is cut off; None keeps all.
    Raises:
        DataError: it is no conversation; the message says which part of it.
        ConfigError: the tokenizer lacks one of `SPECIAL_TOKENS`.
    """
    return render_batch([conversation], tokenizer, max_tokens)[0]


def render_batch(
    conversations: Sequence[Conversation], tokenizer: Tokenizer, max_tokens: int | None = MAX_TOKENS
) -> list[MaskedDocument]:
    """`render` of each, encoded together, which is faster."""
    documents = TurnEncoder(tokenizer).encode([turns(conversation) for conversation in conversations])
    return [MaskedDocument(document.tokens[:max_tokens], document.mask[:max_tokens]) for document in documents]


def render_for_completion(conversation: Conversation, tokenizer: Tokenizer) -> list[int]:
    """The tokens up to where the next answer begins: they end with `<|assistant_start|>`.

    If the last message is an assistant's it is left out: it is the one to be written.
    """
    messages = _messages(conversation)
    if len(messages) > 1 and isinstance(messages[-1], Mapping) and messages[-1].get("role") == "assistant":
        messages = messages[:-1]
    asked = [*turns({"messages": messages}), Turn("<|assistant_start|>", "", "", False)]
    return TurnEncoder(tokenizer).encode([asked])[0].tokens


def turns(conversation: Conversation) -> list[Turn]:
    """The conversation in the parts of which `TurnEncoder` makes tokens.

    Raises:
        DataError: it is no conversation.
    """
    messages = _messages(conversation)
    found: list[Turn] = []
    before = ""
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, Mapping):
            raise _error(number, f"is a {type(message).__name__}, expected an object with `role` and `content`")
        role, content = message.get("role"), message.get("content")
        if role == "system" and number == 1 and len(messages) > 1:
            before = _only_text(number, role, content) + "\n\n"
            continue
        expected = "user" if (number - bool(before)) % 2 else "assistant"
        if role != expected:
            raise _error(
                number, f"is of the role {role!r}, expected {expected!r}: users and assistants take turns, a user first"
            )
        if role == "user":
            text = _only_text(number, role, content)
            found.append(Turn("<|user_start|>", before + text if number <= 2 else text, "<|user_end|>", False))
        else:
            found += _answer(number, content)
    return found


def _answer(number: int, content: object) -> list[Turn]:
    """What is learned stands in texts and behind them, so a token that begins a call is behind an empty text."""
    found = [Turn("<|assistant_start|>", "", "", False)]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, Sequence):
        raise _error(number, f"has content that is a {type(content).__name__}, expected text or a list of parts")
    for part in parts:
        kind, text = (part.get("type"), part.get("text")) if isinstance(part, Mapping) else (None, None)
        if kind not in _PARTS or not isinstance(text, str):
            raise _error(number, f"has the part {part!r:.80}, expected `type` {', '.join(_PARTS)} and a string `text`")
        if kind == "text":
            found.append(Turn("", text, "", True))
        elif kind == "python":
            found += [Turn("", "", "<|python_start|>", True), Turn("", text, "<|python_end|>", True)]
        else:
            found.append(Turn("<|output_start|>", text, "<|output_end|>", False))
    return [*found, Turn("", "", "<|assistant_end|>", True)]


def _messages(conversation: Conversation) -> list[Any]:
    messages = conversation.get("messages") if isinstance(conversation, Mapping) else None
    if not isinstance(messages, list | tuple) or not messages:
        raise DataError(
            "the conversation has no messages: expected an object with `messages`, a list of at least one message"
        )
    return list(messages)


def _only_text(number: int, role: str, content: object) -> str:
    """A user's or a system's text, which may come in parts of text."""
    if isinstance(content, str):
        return content
    parts: Sequence[Any] = content if isinstance(content, list | tuple) else []
    texts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in parts]
    if texts and all(isinstance(text, str) for text in texts):
        return "".join(text for text in texts if isinstance(text, str))
    raise _error(number, f"is a {role}'s and its content is {content!r:.60}, expected text")


def _error(number: int, problem: str) -> DataError:
    return DataError(f"message {number} of the conversation {problem}")
