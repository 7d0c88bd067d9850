"""A conversation as the tokens of a prompt, in the form that a tokenizer's special tokens suggest.

Our own chat tokens come first (`marin.data.conversation`), then Llama 3's and ChatML's; a tokenizer with none of them gets
plain text with `User:` and `Assistant:`. A message's text never becomes a special token.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from marin.data.chat import CHATML, LLAMA3, PLAIN, ChatTemplate, Turn, TurnEncoder
from marin.data.conversation import has_chat_tokens, render_for_completion
from marin.data.tokenizer import Tokenizer
from marin.errors import DataError

_ROLES = ("system", "user", "assistant")
Messages = Sequence[Mapping[str, Any]]


def chat_prompt(messages: Messages, tokenizer: Tokenizer) -> list[int]:
    """The tokens up to where the next answer begins.

    Raises:
        DataError: the messages are no conversation whose next turn is an assistant's.
    """
    if not messages or messages[-1].get("role") != "user":
        raise DataError("the last message is not a user's: end the conversation with what is to be answered")
    if has_chat_tokens(tokenizer):
        return render_for_completion({"messages": list(messages)}, tokenizer)
    template = template_of(tokenizer)
    turns = []
    for number, message in enumerate(messages, start=1):
        role = message.get("role")
        if role not in _ROLES:
            raise DataError(f"message {number} is of the role {role!r}: use {', '.join(_ROLES)}")
        before, after = template.roles[role]
        turns.append(Turn(before, message["content"], after, False))
    turns.append(Turn(template.roles["assistant"][0], "", "", False))
    return TurnEncoder(tokenizer).encode([turns])[0].tokens


def template_of(tokenizer: Tokenizer) -> ChatTemplate:
    """The template that other tokenizers than ours are given."""
    special = tokenizer.special_tokens
    if "<|start_header_id|>" in special:
        return LLAMA3
    return CHATML if "<|im_start|>" in special else PLAIN


def stop_strings(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Text that ends an answer where no token does."""
    has_turns = has_chat_tokens(tokenizer) or template_of(tokenizer) is not PLAIN
    return () if has_turns else ("\n\nUser:", "\nUser:")
