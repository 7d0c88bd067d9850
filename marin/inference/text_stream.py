"""Tokens to text as they come: no half characters, and nothing of a stop string.

Bytes that do not yet make a character wait for those that follow. So does text that may turn out to be the beginning of a
stop string, and what is told of the tokens that it was made of.
"""

import collections
from collections.abc import Sequence

from marin.data.tokenizer import Tokenizer

_INCOMPLETE = "\ufffd"
_MOST_UNFINISHED = 3  # bytes that may still become a character, and as many signs in their place
# How a call of the calculator and its result look to people.
_SHOWN = {"<|python_start|>": "`", "<|python_end|>": "`", "<|output_start|>": " = ", "<|output_end|>": " "}


class TextStream:
    """The text of one sample.

    Args:
        stop: strings that end the sample; they are not part of its text.
        prompt: the tokens before it, after which its text begins: some tokenizers write no space before the first word of all.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), prompt: Sequence[int] = ()) -> None:
        self._tokenizer, self._stop = tokenizer, tuple(text for text in stop if text)
        self._special = {
            tokenizer.special_tokens[name]: shown for name, shown in _SHOWN.items() if name in tokenizer.special_tokens
        }
        self._without_text = frozenset(tokenizer.special_tokens.values())
        self._before = _last_characters(prompt, tokenizer)  # the tokens that made the last whole characters
        self._waiting: list[int] = []  # since a token that ended a character
        self._sent = 0  # characters of their text
        self._held = ""
        self._made = self._given = 0  # characters so far, and those of them that are certain
        # Of each token whose text is not certain: the character that it begins with.
        self._begins: collections.deque[int] = collections.deque()
        self.stopped = False
        """Whether a stop string was met; nothing more comes then."""
        self.num_tokens = 0
        """Tokens that the text so far was made of. One that is partly text and partly stop string is among them."""

    def push(self, tokens: Sequence[int]) -> str:
        """The text that is certain after these tokens."""
        text = "".join(self._decoded(token) for token in tokens)
        return self._released(text, last=False)

    def finish(self) -> str:
        """What still waits, when there are no more tokens."""
        return self._released(self._flush(), last=True)

    def _decoded(self, token: int) -> str:
        if token in self._special:
            before = self._flush()
            new = before + self._special[token]
            self._begins.append(self._made + len(before))
        else:
            before, sent = self._since_before() if self._waiting else "", self._sent
            self._waiting.append(token)
            text = self._since_before()
            unfinished = len(text) - len(text.rstrip(_INCOMPLETE))
            certain = len(text) - min(unfinished, _MOST_UNFINISHED)
            new, self._sent = text[sent:certain], max(certain, sent)
            # Signs that stood for the bytes before it, and still do, are none of this token's text.
            begin = min(_same(before, text), self._sent)
            self._begins.append(self._made - sent + begin)
            if not unfinished:
                # They stay as context, since some tokenizers write a space only between two.
                ended = [token for token in self._waiting if token not in self._without_text]
                self._before, self._waiting, self._sent = ended or self._before, [], 0
        self._made += len(new)
        return new

    def _since_before(self) -> str:
        return text_after(self._before, self._waiting, self._tokenizer)

    def _flush(self) -> str:
        text = self._since_before()[self._sent :] if self._waiting else ""
        self._before, self._waiting, self._sent = [], [], 0
        return text

    def _released(self, text: str, *, last: bool) -> str:
        if self.stopped:
            return ""
        text = self._certain(text, last=last)
        self._given += len(text)
        # Without a stop string every token is one of the text's, even while its bytes make no character yet.
        every = not self._stop or (last and not self.stopped)
        while self._begins and (every or self._begins[0] < self._given):
            self._begins.popleft()
            self.num_tokens += 1
        return text

    def _certain(self, text: str, *, last: bool) -> str:
        text = self._held + text
        self._held = ""
        found = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.stopped = True
            return text[: min(found)]
        if last:
            return text
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def text_after(before: Sequence[int], tokens: Sequence[int], tokenizer: Tokenizer) -> str:
    """The text of tokens that follow others: with the space before its first word, which tokenizers like Llama 2's leave out of a text
    that begins with it.

    Args:
        before: the others, from the beginning of a character on.
    """
    known = tokenizer.decode(before) if before else ""
    whole = tokenizer.decode([*before, *tokens])
    # Where characters are made of tokens that are bytes, a whole run of those is signs while its last character is not whole, those
    # among them too that were.
    return whole[len(known) :] if whole.startswith(known) else tokenizer.decode(tokens)


def _last_characters(prompt: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """The last tokens of a prompt, from one on with which no character can have begun before."""
    for begin in range(len(prompt) - 1, -1, -1):
        if _INCOMPLETE not in tokenizer.decode(prompt[begin : begin + 1]):
            return list(prompt[begin:])
    return list(prompt)


def _same(one: str, other: str) -> int:
    """How many characters at their beginning are the same."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` are the beginning of `stop`."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
