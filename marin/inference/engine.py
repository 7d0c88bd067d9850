"""Continuing prompts with a model: compiled once, batched, with a cache of keys and values.

    engine = Engine(loaded.model, loaded.tokenizer, max_length=2048, max_rows=16)
    samples = engine.generate([prompt_tokens], SamplingOptions(max_tokens=128), num_samples=16)

A server drives the same `Scheduler` request by request (`marin.inference.server`).
"""

from collections.abc import Iterator, Sequence
from typing import Any

from marin.data.tokenizer import Tokenizer
from marin.errors import ConfigError
from marin.inference.options import Sample, SamplingOptions
from marin.inference.programs import BURST, Programs
from marin.inference.scheduler import Event, Request, Scheduler, stop_tokens_of
from marin.inference.tools import ToolTokens
from marin.nn.precision import Precision


class Engine:
    """Generates with one model on one device."""

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        max_rows: int,
        precision: Precision | None = None,
        tools: bool = True,
    ) -> None:
        """Args:
            max_length: the most tokens of a prompt with its answer.
            max_rows: samples that are continued at once.
            precision: number format to compute in; None for that of the weights.
            tools: whether the calculator answers, where the tokenizer has the tokens for its calls.
        Raises:
            ConfigError: for a model that cannot be decoded with a cache, or a size below its least.
        """
        if max_length < 2 or max_rows < 1:
            raise ConfigError(
                f"an engine of `max_length` {max_length} and `max_rows` {max_rows} can do nothing: use at least 2 and 1"
            )
        self.tokenizer, self.max_length, self.max_rows = tokenizer, max_length, max_rows
        self._precision = precision
        self.programs = Programs(model, tokenizer.vocab_size, precision)
        self._tools = ToolTokens.of(tokenizer) if tools else None

    def load(self, model: Any) -> None:
        """Goes on with other weights of the same model, as training makes them; nothing is compiled again."""
        self.programs.take_weights(Programs(model, self.tokenizer.vocab_size, self._precision))

    def scheduler(self, *, stops: bool = True) -> Scheduler:
        """A batch of this engine's own size, with nothing in it.

        Args:
            stops: whether the tokens that end a document or an answer end a sample; measurements go on beyond them.
        """
        return Scheduler(
            self.programs,
            self.tokenizer,
            max_length=self.max_length,
            max_rows=self.max_rows,
            tools=self._tools,
            always_stop=stop_tokens_of(self.tokenizer) if stops else frozenset(),
        )

    def warm_up(self, *, every_length: bool = False) -> None:
        """Compiles what the first requests need: a short prompt, alone and with as many others as there is room for.

        Args:
            every_length: compile for longer ones too; else the first that needs more room keeps all others waiting meanwhile.
        """
        options = SamplingOptions(max_tokens=BURST + 2)
        lengths = [1]
        while every_length and 2 * lengths[-1] + BURST + 2 < self.max_length:
            lengths.append(2 * lengths[-1])
        for samples in sorted({1, self.max_rows}):
            for length in lengths:
                self.generate([(self.tokenizer.bos_id,) * length], options, num_samples=samples)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        options: SamplingOptions | Sequence[SamplingOptions],
        *,
        num_samples: int = 1,
    ) -> list[list[Sample]]:
        """`num_samples` continuations of each prompt, which are tokens.

        Args:
            options: of all prompts, or of each; samples of several are independent where their seeds are (`of_prompt`).
        Raises:
            ConfigError: for an empty prompt, or one that leaves no room for an answer.
        """
        scheduler = self.scheduler()
        each = [options] * len(prompts) if isinstance(options, SamplingOptions) else options
        requests = [Request(tuple(prompt), own, num_samples) for prompt, own in zip(prompts, each, strict=True)]
        for request in requests:
            scheduler.submit(request)
        events: dict[tuple[int, int], list[Event]] = {}
        while not scheduler.is_idle:
            for event in scheduler.step():
                events.setdefault((event.request.id, event.sample), []).append(event)
        return [[_sample(events[request.id, index]) for index in range(num_samples)] for request in requests]

    def stream(self, prompt: Sequence[int], options: SamplingOptions) -> Iterator[int]:
        """The tokens of one continuation, as they come."""
        scheduler = self.scheduler()
        scheduler.submit(Request(tuple(prompt), options))
        while not scheduler.is_idle:
            for work in (scheduler.take_prompt, scheduler.continue_samples):  # the first token before the first burst
                for event in work():
                    yield from event.tokens


def _sample(events: list[Event]) -> Sample:
    last = events[-1]
    assert last.finish_reason is not None
    return Sample(
        tokens=tuple(token for event in events for token in event.tokens),
        mask=tuple(bit for event in events for bit in event.mask),
        logprobs=tuple(value for event in events for value in event.logprobs),
        finish_reason=last.finish_reason,
        stop_token=last.stop_token,
    )
