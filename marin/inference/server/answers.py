"""From a job's events to the texts of its samples, and to the bodies and stream events that OpenAI's clients read."""

import asyncio
import dataclasses
import json
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from marin.data.tokenizer import Tokenizer
from marin.inference.scheduler import Event
from marin.inference.server.worker import Job, Worker
from marin.inference.text_stream import TextStream


@dataclasses.dataclass
class Choice:
    """One sample of a request so far."""

    stream: TextStream
    text: str = ""
    num_tokens: int = 0
    finish_reason: str | None = None
    tokens: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)

    def take(self, event: Event) -> tuple[str, Event]:
        """The text that an event adds, and what of the event belongs to it: the tokens up to a stop string."""
        new, kept = "", 0
        while kept < len(event.tokens) and not self.stream.stopped:
            new += self.stream.push(event.tokens[kept : kept + 1])
            kept += 1
        event = dataclasses.replace(
            event, tokens=event.tokens[:kept], mask=event.mask[:kept], logprobs=event.logprobs[:kept]
        )
        self.num_tokens += kept
        self.tokens.extend(event.tokens)
        self.logprobs.extend(event.logprobs)
        if event.finish_reason is not None and not self.stream.stopped:
            new += self.stream.finish()
        self.finish_reason = "stop" if self.stream.stopped else event.finish_reason
        self.text += new
        return new, event


class Answer:
    """The choices of a request: `num_samples` of each prompt, the first prompt's first."""

    def __init__(
        self,
        worker: Worker,
        job: Job,
        tokenizer: Tokenizer,
        *,
        model: str,
        chat: bool,
        logprobs: bool,
        token_ids: bool,
    ) -> None:
        self._worker, self._job, self._tokenizer = worker, job, tokenizer
        self._chat, self._logprobs, self._token_ids = chat, logprobs, token_ids
        self._samples = job.requests[0].num_samples
        self.choices: list[Choice] = []
        kind = "chat.completion" if chat else "text_completion"
        prefix = "chatcmpl" if chat else "cmpl"
        self._head = {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }

    def with_stops(self, stop: list[str]) -> "Answer":
        """The same, where these strings end a sample."""
        total = self._samples * len(self._job.requests)
        self.choices = [Choice(TextStream(self._tokenizer, stop)) for _ in range(total)]
        return self

    async def pieces(self) -> AsyncIterator[tuple[int, str, Event]]:
        """(choice, new text, event) until all have ended; however it ends, the engine then works no more for it."""
        try:
            while any(choice.finish_reason is None for choice in self.choices):
                place, event = await self._job.next_event()
                index = place * self._samples + event.sample
                choice = self.choices[index]
                if choice.finish_reason is not None:
                    continue
                text, event = choice.take(event)
                if choice.finish_reason is not None and event.finish_reason is None:
                    self._worker.cancel(self._job, (place, event.sample))
                yield index, text, event
        finally:
            self.close()

    def close(self) -> None:
        """Tells the engine that nothing more is wanted; of an answer that has ended it does nothing."""
        if any(choice.finish_reason is None for choice in self.choices):
            self._worker.cancel(self._job)

    async def whole(self, seconds: float) -> dict[str, Any]:
        """The body of an answer that is not streamed.

        Raises:
            TimeoutError: it took longer.
        """
        async with asyncio.timeout(seconds):
            async for _ in self.pieces():
                pass
        return {
            **self._head,
            "choices": [self._choice(index) for index in range(len(self.choices))],
            "usage": self.usage(),
        }

    def usage(self) -> dict[str, int]:
        prompt = sum(len(request.prompt) for request in self._job.requests)
        answer = sum(choice.num_tokens for choice in self.choices)
        return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}

    def chunk(self, index: int, text: str, event: Event | None, *, first: bool = False) -> str:
        """A stream's event with new text; without an event of the engine, the one that opens a chat's choice."""
        choice = self.choices[index]
        finish = choice.finish_reason if event is not None else None
        logprobs = self._logprobs_of(event.tokens, event.logprobs) if event is not None else None
        body: dict[str, Any] = {"index": index, "finish_reason": finish, "logprobs": logprobs}
        if self._token_ids and event is not None:
            body["token_ids"] = list(event.tokens)
        if self._chat:
            body["delta"] = ({"role": "assistant", "content": ""} if first else {}) | (
                {"content": text} if text else {}
            )
        else:
            body["text"] = text
        return self.stream_event([body])

    def says_something(self, index: int, text: str, event: Event) -> bool:
        """Whether a stream has a chunk for this; of tokens that make no character yet others things may be told."""
        tells_tokens = self._logprobs or self._token_ids
        return bool(text or self.choices[index].finish_reason is not None or (tells_tokens and event.tokens))

    def stream_event(self, choices: list[dict[str, Any]], **more: Any) -> str:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return f"data: {json.dumps({**self._head, 'object': kind, 'choices': choices, **more})}\n\n"

    def _choice(self, index: int) -> dict[str, Any]:
        choice = self.choices[index]
        logprobs = self._logprobs_of(choice.tokens, choice.logprobs)
        body: dict[str, Any] = {"index": index, "finish_reason": choice.finish_reason, "logprobs": logprobs}
        if self._token_ids:
            body["token_ids"] = choice.tokens
        if self._chat:
            return body | {"message": {"role": "assistant", "content": choice.text, "refusal": None}}
        return body | {"text": choice.text}

    def _logprobs_of(self, tokens: Any, logprobs: Any) -> dict[str, Any] | None:
        if not self._logprobs:
            return None
        texts = [self._tokenizer.decode([token]) for token in tokens]
        if not self._chat:
            return {"tokens": texts, "token_logprobs": list(logprobs), "top_logprobs": None, "text_offset": None}
        known = [self._tokenizer.bytes_of(token) for token in tokens]
        entries = [
            {"token": text, "logprob": logprob, "bytes": None if data is None else list(data), "top_logprobs": []}
            for text, logprob, data in zip(texts, logprobs, known, strict=True)
        ]
        return {"content": entries, "refusal": None}
