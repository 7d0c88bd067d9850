"""The calls of the calculator within a sample: what the model writes between `<|python_start|>` and `<|python_end|>` is
calculated, and the result, between `<|output_start|>` and `<|output_end|>`, is put after it in place of what it would write.
"""

import dataclasses
from collections.abc import Sequence

from marin.data.conversation import has_chat_tokens
from marin.data.tokenizer import Tokenizer
from marin.inference.calculator import calculate


@dataclasses.dataclass(frozen=True)
class ToolTokens:
    """The special tokens around a call and its result."""

    python_start: int
    python_end: int
    output_start: int
    output_end: int

    @staticmethod
    def of(tokenizer: Tokenizer) -> "ToolTokens | None":
        """Those of a tokenizer; None if it lacks one."""
        special = tokenizer.special_tokens
        names = [f"<|{field.name}|>" for field in dataclasses.fields(ToolTokens)]
        return ToolTokens(*(special[name] for name in names)) if all(name in special for name in names) else None


class ToolUse:
    """Follows the tokens of one sample."""

    def __init__(self, tokenizer: Tokenizer, tokens: ToolTokens | None) -> None:
        self._tokenizer, self._tokens = tokenizer, tokens
        self._call: list[int] | None = None

    def see(self, token: int) -> list[int]:
        """The tokens that must follow this one, which the model chose; most often none."""
        known = self._tokens
        if known is None:
            return []
        if token == known.python_start:
            self._call = []
        elif token == known.python_end and self._call is not None:
            expression, self._call = self._tokenizer.decode(self._call), None
            result = calculate(expression)
            if result is not None:
                return [known.output_start, *self._tokenizer.encode(result), known.output_end]
        elif self._call is not None:
            self._call.append(token)
        return []


def answer_content(text: str, tokens: Sequence[int], tokenizer: Tokenizer) -> str | list[dict[str, str]]:
    """The content of an answer's message (see `marin.data.conversation`): its text, or with calls its parts.

    So a conversation goes on with the tokens that calls were made of, and not with what they look like to people. The
    templates of other tokenizers than ours have no place for parts: there it is the text.

    Args:
        text: what people were shown.
        tokens: what it was made of.
    """
    parts = _message_parts(tokens, tokenizer) if has_chat_tokens(tokenizer) else []
    return parts if any(part["type"] != "text" for part in parts) else text


def _message_parts(tokens: Sequence[int], tokenizer: Tokenizer) -> list[dict[str, str]]:
    """Its texts, its calls and what they gave back, one after the other."""
    known = ToolTokens.of(tokenizer)
    begins = {} if known is None else {known.python_start: "python", known.output_start: "python_output"}
    ends = () if known is None else (known.python_end, known.output_end)
    parts: list[tuple[str, list[int]]] = [("text", [])]
    for token in tokens:
        if token in begins or token in ends:
            parts.append((begins.get(token, "text"), []))
        else:
            parts[-1][1].append(token)
    return [{"type": kind, "text": tokenizer.decode(held)} for kind, held in parts if held]
