"""Continuous batching: many requests share one batch, each joining and leaving it between bursts.

    scheduler.submit(request)            at any time between steps
    for event in scheduler.step(): ...   one piece of a prompt, then one burst of every running sample

A prompt is taken in pieces of at most `PIECE` tokens, one a step, so that running samples never wait for a long one. The
samples of a request share its prompt's cache. The batch has room for a power of four of rows, and for a power of two of
tokens, less than four times what the samples need. Nothing here knows threads: whoever calls `step` owns the scheduler.
"""

import collections
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from marin.errors import ConfigError
from marin.inference.choosing import RowOptions
from marin.inference.options import SamplingOptions
from marin.inference.programs import BURST, BurstInput, Programs
from marin.inference.tools import ToolTokens, ToolUse
from marin.models.decoding import KvCache

PIECE = 512
_SHORTEST_PIECE = 16
_SHORTEST_CACHE = 128
_NO_TOKEN = -1
_ALL_TOKENS = 2**30  # more than any vocabulary has, and still an int32
_ids = itertools.count()


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
    """A prompt to be continued `num_samples` times."""

    prompt: tuple[int, ...]
    options: SamplingOptions
    num_samples: int = 1
    id: int = dataclasses.field(default_factory=lambda: next(_ids))


@dataclasses.dataclass(frozen=True)
class Event:
    """Tokens that a sample gained, and why it ended if it did.

    `mask` is 0 where a tool forced the token. The token that ended a sample is in `stop_token` alone.
    """

    request: Request
    sample: int
    tokens: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str | None = None
    stop_token: int | None = None


class _Prompt:
    """A request whose prompt is being taken, or whose samples wait for room."""

    def __init__(self, request: Request, cache: KvCache) -> None:
        self.request, self.cache = request, cache
        self.taken, self.started = 0, 0
        self.logits: Any = None


class _Row:
    """One running sample."""

    def __init__(self, request: Request, sample: int, tools: ToolUse, room: int) -> None:
        self.request, self.sample, self.tools = request, sample, tools
        self.length = len(request.prompt)  # tokens in the cache
        self.left = min(request.options.max_tokens, room)  # tokens that it may still gain
        self.pending = _NO_TOKEN
        self.drawn = 0
        self.forced: list[int] = []

    def options(self) -> tuple[int, int, int, float, int, float]:
        asked = self.request.options
        top_k = min(asked.top_k or _ALL_TOKENS, _ALL_TOKENS)
        return asked.seed, self.sample, self.drawn, asked.temperature, top_k, asked.top_p


class Scheduler:
    """Runs requests on one model."""

    def __init__(
        self,
        programs: Programs,
        tokenizer: Any,
        *,
        max_length: int,
        max_rows: int,
        tools: ToolTokens | None,
        always_stop: frozenset[int],
    ) -> None:
        """Args:
        always_stop: tokens that end every sample (`stop_tokens_of`).
        """
        self._programs, self._tokenizer, self._tools = programs, tokenizer, tools
        self.max_length, self.max_rows = max_length, max_rows
        self._always_stop = always_stop
        self._waiting: collections.deque[Request] = collections.deque()
        self._prompt: _Prompt | None = None
        self._rows: list[_Row | None] = []
        self._cache: KvCache | None = None

    # ---- what is asked ---------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Raises:
        ConfigError: for an empty prompt, a token that there is not, or one that leaves no room for an answer.
        """
        check_prompt(request.prompt, self._programs.vocab_size, self.max_length)
        self._waiting.append(request)

    def cancel(self, request: Request) -> None:
        """Forgets a request; its rows are free at once. One that has ended is no error."""
        if request in self._waiting:
            self._waiting.remove(request)
        if self._prompt is not None and self._prompt.request is request:
            self._prompt = None
        self._rows = [None if row is not None and row.request is request else row for row in self._rows]

    def cancel_sample(self, request: Request, sample: int) -> bool:
        """Ends one running sample; False if it is not running."""
        for index, row in enumerate(self._rows):
            if row is not None and row.request is request and row.sample == sample:
                self._rows[index] = None
                return True
        return False

    @property
    def num_running(self) -> int:
        """Samples that are being continued."""
        return sum(row is not None for row in self._rows)

    @property
    def num_waiting(self) -> int:
        """Requests whose samples have not all begun."""
        return len(self._waiting) + (self._prompt is not None)

    @property
    def is_idle(self) -> bool:
        return not self.num_running and not self.num_waiting

    def step(self) -> list[Event]:
        """`take_prompt`, then `continue_samples`."""
        return [*self.take_prompt(), *self.continue_samples()]

    def continue_samples(self) -> list[Event]:
        """One burst of all running samples."""
        events = self._burst() if self.num_running else []
        if self.is_idle:
            # The room that a long one needed would slow down all that follow.
            self._cache, self._rows = None, []
        return events

    # ---- prompts ---------------------------------------------------------------------------------------------------

    def take_prompt(self) -> list[Event]:
        """One piece of a prompt, if one waits and there is a free row: the first tokens of its samples, after the last."""
        if self._prompt is None and self._waiting and self.num_running < self.max_rows:
            request = self._waiting.popleft()
            length = self._length_for(len(request.prompt) + BURST)
            self._prompt = _Prompt(request, self._programs.empty(1, length))
        prompt = self._prompt
        if prompt is None:
            return []
        tokens = prompt.request.prompt
        if prompt.taken < len(tokens):
            piece = tokens[prompt.taken : prompt.taken + PIECE]
            padded = np.zeros((1, _at_least(len(piece), _SHORTEST_PIECE, 2)), np.int32)
            padded[0, : len(piece)] = piece
            prompt.logits, prompt.cache = self._programs.prefill(
                padded, len(piece), prompt.cache, first=prompt.taken == 0
            )
            prompt.taken += len(piece)
        events: list[Event] = []
        if prompt.taken == len(tokens):
            while prompt.started < prompt.request.num_samples and self.num_running < self.max_rows:
                events.append(self._start(prompt))
            if prompt.started == prompt.request.num_samples:
                self._prompt = None
        return events

    def _start(self, prompt: _Prompt) -> Event:
        """The next sample of a prompt: its first token, and a row of the batch if it has not ended with it."""
        request = prompt.request
        tools = ToolUse(self._tokenizer, self._tools)
        row = _Row(request, prompt.started, tools, self.max_length - len(request.prompt))
        prompt.started += 1
        token_1, logprob_1 = self._programs.first(prompt.logits, _row_options([row]))
        row.drawn = 1
        event = self._grown(row, [int(token_1[0])], [float(logprob_1[0])], num_forced=0)
        if event.finish_reason is None:
            self._join(row, prompt)
        return event

    def _join(self, row: _Row, prompt: _Prompt) -> None:
        free = [index for index, other in enumerate(self._rows) if other is None]
        length = max(_slots(prompt.cache, self._programs), self._room())
        if not free or length > self._room():
            self._resize(self.num_running + 1, length)
            free = [index for index, other in enumerate(self._rows) if other is None]
        assert self._cache is not None
        if _slots(prompt.cache, self._programs) < self._room():
            prompt.cache = self._programs.resize(prompt.cache, [0], self._room())
        self._cache = self._programs.join(self._cache, free[0], prompt.cache)
        self._rows[free[0]] = row

    # ---- bursts ----------------------------------------------------------------------------------------------------

    def _burst(self) -> list[Event]:
        running = [row for row in self._rows if row is not None]
        length = self._length_for(max(row.length for row in running) + BURST)
        is_far_too_long = 4 * length <= self._room()
        if length > self._room() or is_far_too_long or 8 * len(running) <= len(self._rows):
            self._resize(len(running), length if is_far_too_long else max(length, self._room()))
        assert self._cache is not None
        forced = np.zeros((len(self._rows), BURST), np.int32)
        num_forced = np.zeros((len(self._rows),), np.int32)
        budget = np.zeros((len(self._rows),), np.int32)
        for index, row in enumerate(self._rows):
            if row is not None:
                now = row.forced[:BURST]
                forced[index, : len(now)], num_forced[index] = now, len(now)
                budget[index] = row.left
        pending = np.array([row.pending if row else 0 for row in self._rows], np.int32)
        pause = np.full(len(self._rows), self._tools.python_end if self._tools else _NO_TOKEN, np.int32)
        asked = BurstInput(pending, forced, num_forced, budget, pause, _row_options(self._rows))
        output, self._cache = self._programs.burst(self._cache, asked)
        tokens, logprobs, counts = jax.device_get(output)
        events = []
        for index, row in enumerate(self._rows):
            if row is None:
                continue
            count = int(counts[index])
            row.length += count
            used = min(len(row.forced), count)
            del row.forced[:used]
            row.drawn += count - used
            event = self._grown(row, tokens[index, :count].tolist(), logprobs[index, :count].tolist(), num_forced=used)
            events.append(event)
            if event.finish_reason is not None:
                self._rows[index] = None
        return events

    def _grown(self, row: _Row, tokens: list[int], logprobs: list[float], *, num_forced: int) -> Event:
        """What a row's new tokens mean: the sample goes on, waits for a tool's result, or ends."""
        stops = self._always_stop.union(row.request.options.stop_tokens)
        kept, finish, stop = len(tokens), None, None
        for index, token in enumerate(tokens):
            if index < num_forced:
                continue
            if token in stops:
                kept, finish, stop = index, "stop", token
                break
            row.forced.extend(row.tools.see(token))
        row.left -= kept
        if finish is None and row.left <= 0:
            finish = "length"
        row.pending = tokens[-1]
        mask = tuple(int(index >= num_forced) for index in range(kept))
        return Event(row.request, row.sample, tuple(tokens[:kept]), mask, tuple(logprobs[:kept]), finish, stop)

    # ---- the batch's shape -----------------------------------------------------------------------------------------

    def _length_for(self, tokens: int) -> int:
        return min(_at_least(tokens, _SHORTEST_CACHE, 2), _at_least(self.max_length + BURST, 1, 1))

    def _room(self) -> int:
        return 0 if self._cache is None else _slots(self._cache, self._programs)

    def _resize(self, num_rows: int, length: int) -> None:
        """A batch for at least so many rows, with the running ones first."""
        size = min(_at_least(num_rows, 1, 4), self.max_rows)
        kept = [index for index, row in enumerate(self._rows) if row is not None]
        if self._cache is None or not kept:
            self._cache = self._programs.empty(size, length)
        else:
            self._cache = self._programs.resize(self._cache, kept + [-1] * (size - len(kept)), length)
        rows = [self._rows[index] for index in kept]
        self._rows = rows + [None] * (size - len(rows))


def stop_tokens_of(tokenizer: Any) -> frozenset[int]:
    """Tokens that end every sample: those that end a document, and the one that ends an assistant's turn."""
    special = tokenizer.special_tokens
    ends = (special[name] for name in ("<|assistant_end|>", "<|eot_id|>", "<|im_end|>") if name in special)
    return tokenizer.document_ends.union(ends)


def check_prompt(prompt: Sequence[int], vocab_size: int, max_length: int) -> None:
    """Raises:
    ConfigError: for an empty prompt, a token that there is not, or one that leaves no room for an answer.
    """
    if not prompt:
        raise ConfigError("the prompt has no tokens: begin it with the token that begins a document")
    if len(prompt) >= max_length:
        raise ConfigError(
            f"the prompt has {len(prompt):,} tokens and the model has room for {max_length:,}, the answer among them:"
            " shorten it"
        )
    check_tokens(prompt, vocab_size)


def check_tokens(tokens: Sequence[int], vocab_size: int) -> None:
    """Raises:
    ConfigError: there is no such token.
    """
    wrong = next((token for token in tokens if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise ConfigError(f"the token {wrong} is none of this model's, which are 0 to {vocab_size - 1}")


def _row_options(rows: Sequence[_Row | None]) -> RowOptions:
    columns = zip(*((row.options() if row else (0, 0, 0, 0.0, 1, 1.0)) for row in rows), strict=True)
    kinds = (np.uint32, np.uint32, np.int32, np.float32, np.int32, np.float32)
    return RowOptions(*(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)))


def _slots(cache: KvCache, programs: Programs) -> int:
    """The room of a cache in tokens: that of a layer that keeps all, or of the longest ring."""
    sizes = {window: layer.keys_BKSC.shape[2] for window, layer in zip(programs.windows, cache.layers, strict=True)}
    return sizes[None] if None in sizes else max(sizes.values())


def _at_least(number: int, least: int, factor: int) -> int:
    """The first of `least`, `least * factor`, ... that is no less than `number`; the number itself for factor 1."""
    if factor == 1:
        return max(number, least)
    while least < number:
        least *= factor
    return least
