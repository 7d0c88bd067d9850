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
    """One sample of a request so far. Its tokens are those that its text was made of: what waits with text that may begin a
    stop string is told with it, and what made a stop string never is."""

    stream: TextStream
    text: str = ""
    finish_reason: str | None = None
    tokens: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    _waiting: list[tuple[int, float]] = dataclasses.field(default_factory=list)  # tokens that are not certain

    def take(self, event: Event) -> "Piece":
        """What an event adds."""
        text = ""
        for token, logprob in zip(event.tokens, event.logprobs, strict=True):
            if self.stream.stopped:
                break
            self._waiting.append((token, logprob))
            text += self.stream.push([token])
        if event.finish_reason is not None and not self.stream.stopped:
            text += self.stream.finish()
        certain = self.stream.num_tokens - len(self.tokens)
        told, self._waiting = self._waiting[:certain], self._waiting[certain:]
        piece = Piece(text, [token for token, _ in told], [logprob for _, logprob in told])
        self.text += piece.text
        self.tokens.extend(piece.tokens)
        self.logprobs.extend(piece.logprobs)
        self.finish_reason = "stop" if self.stream.stopped else event.finish_reason
        return piece


@dataclasses.dataclass(frozen=True)
class Piece:
    """What a choice gained: text, and the tokens that it was made of with their log-probabilities."""

    text: str
    tokens: list[int]
    logprobs: list[float]


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
        self.choices = [
            Choice(TextStream(self._tokenizer, stop, request.prompt))
            for request in self._job.requests
            for _ in range(self._samples)
        ]
        return self

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """(choice, what it gained) until all have ended; however it ends, the engine then works no more for it."""
        try:
            while any(choice.finish_reason is None for choice in self.choices):
                place, event = await self._job.next_event()
                index = place * self._samples + event.sample
                choice = self.choices[index]
                if choice.finish_reason is not None:
                    continue
                piece = choice.take(event)
                if choice.finish_reason is not None and event.finish_reason is None:
                    self._worker.cancel(self._job, (place, event.sample))
                yield index, piece
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
        answer = sum(len(choice.tokens) for choice in self.choices)
        return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}

    def chunk(self, index: int, piece: Piece | None) -> str:
        """A stream's event with what a choice gained; without that, the one that opens a chat's choice."""
        choice = self.choices[index]
        finish = choice.finish_reason if piece is not None else None
        logprobs = self._logprobs_of(piece.tokens, piece.logprobs) if piece is not None else None
        body: dict[str, Any] = {"index": index, "finish_reason": finish, "logprobs": logprobs}
        if self._token_ids and piece is not None:
            body["token_ids"] = piece.tokens
        text = piece.text if piece is not None else ""
        if self._chat:
            opening = {"role": "assistant", "content": ""} if piece is None else {}
            body["delta"] = opening | ({"content": text} if text else {})
        else:
            body["text"] = text
        return self.stream_event([body])

    def says_something(self, index: int, piece: Piece) -> bool:
        """Whether a stream has a chunk for this; of tokens that make no character yet others things may be told."""
        tells_tokens = self._logprobs or self._token_ids
        return bool(piece.text or self.choices[index].finish_reason is not None or (tells_tokens and piece.tokens))

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
        texts = [self._tokenizer.text_of(token) for token in tokens]
        if not self._chat:
            return {"tokens": texts, "token_logprobs": list(logprobs), "top_logprobs": None, "text_offset": None}
        known = [self._tokenizer.bytes_of(token) for token in tokens]
        entries = [
            {"token": text, "logprob": logprob, "bytes": None if data is None else list(data), "top_logprobs": []}
            for text, logprob, data in zip(texts, logprobs, known, strict=True)
        ]
        return {"content": entries, "refusal": None}
