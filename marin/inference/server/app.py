"""The routes of the server.

    POST /v1/chat/completions, /v1/completions     OpenAI's, streamed or whole
    GET  /v1/models, /health, /stats
    GET  /                                         the chat page

A request is checked in full before the engine sees it. When its client goes away its rows are free before the next burst.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from marin.errors import ConfigError, MarinError
from marin.inference import scheduler
from marin.inference.options import SamplingOptions
from marin.inference.prompting import chat_prompt, stop_strings
from marin.inference.server.answers import Answer
from marin.inference.server.problems import ProblemError
from marin.inference.server.protocol import ChatCompletion, CompletionBase, Message, TextCompletion, parse
from marin.inference.server.worker import Worker
from marin.inference.tools import answer_content
from marin.web.guard import Guard, Refusal, json_bodies, policy

logger = logging.getLogger(__name__)
_MOST_CHARACTERS = 512  # of one token; published vocabularies have at most 128
_SECONDS_TO_END = 2.0  # for a client to read that its time is over
_STATIC = {"chat.css": "text/css", "chat.js": "text/javascript"}


def build_app(worker: Worker, model_name: str, hosts: frozenset[str] | None = None) -> ASGIApp:
    """The app for a model by this name.

    Args:
        hosts: names under which it answers, as `Guard` takes them; None for any.
    """
    service = _Service(worker, model_name)
    routes = [
        Route("/", _page, methods=["GET"]),
        Route("/static/{name}", _static, methods=["GET"]),
        Route("/favicon.ico", _no_icon, methods=["GET"]),
        Route("/health", service.health, methods=["GET"]),
        Route("/stats", service.stats, methods=["GET"]),
        Route("/v1/models", service.models, methods=["GET"]),
        Route("/v1/models/{name:path}", service.model, methods=["GET"]),
        Route("/v1/chat/completions", service.chat, methods=["POST"]),
        Route("/v1/completions", service.complete, methods=["POST"]),
    ]
    handlers: Any = {ProblemError: _explain, HTTPException: _explain_http, Exception: _apologize}
    app = Starlette(routes=routes, exception_handlers=handlers)
    return Guard(app, hosts, policy=policy(forms="'none'"), rules=[json_bodies], refuse=_refuse)


class _Service:
    def __init__(self, worker: Worker, model_name: str) -> None:
        self._worker, self._name, self._limits = worker, model_name, worker.limits
        self._tokenizer = worker.engine.tokenizer

    async def health(self, request: Request) -> Response:
        alive = self._worker.is_alive
        return JSONResponse({"status": "ok" if alive else "stopping", "model": self._name}, 200 if alive else 503)

    async def stats(self, request: Request) -> Response:
        return JSONResponse(self._worker.stats())

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._described()]})

    async def model(self, request: Request) -> Response:
        self._check_name(request.path_params["name"])
        return JSONResponse(self._described())

    async def chat(self, request: Request) -> Response:
        asked = parse(ChatCompletion, await self._body(request))
        self._check_size(asked, [message.text for message in asked.messages], num_prompts=1)
        if len(asked.messages) > self._limits.messages:
            raise ProblemError(400, f"more than {self._limits.messages} messages", param="messages")
        try:
            # In a thread, as one long text would keep every stream waiting.
            prompt = await asyncio.to_thread(self._chat_prompt, asked.messages)
        except MarinError as error:
            raise ProblemError(400, str(error), param="messages") from None
        return await self._answer(request, asked, [prompt], chat=True, more_stops=stop_strings(self._tokenizer))

    async def complete(self, request: Request) -> Response:
        asked = parse(TextCompletion, await self._body(request))
        given = asked.prompt
        several: list[Any] = [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else list(given)
        if not several:
            raise ProblemError(400, "`prompt` is empty", param="prompt")
        for one in several[: self._limits.samples + 1]:
            self._check_size(asked, [one] if isinstance(one, str) else [], num_prompts=len(several))
        try:
            prompts = await asyncio.to_thread(self._encoded, several)
        except MarinError as error:
            raise ProblemError(400, str(error), param="prompt") from None
        return await self._answer(request, asked, prompts, chat=False, more_stops=())

    async def _answer(
        self,
        request: Request,
        asked: CompletionBase,
        prompts: list[list[int]],
        *,
        chat: bool,
        more_stops: tuple[str, ...],
    ) -> Response:
        samples = asked.n or 1
        options = [self._options(asked, prompt) for prompt in prompts]
        requests = [
            scheduler.Request(tuple(prompt), option, samples) for prompt, option in zip(prompts, options, strict=True)
        ]
        job = self._worker.submit(requests)
        answer = Answer(
            self._worker,
            job,
            self._tokenizer,
            model=self._name,
            chat=chat,
            logprobs=asked.wants_logprobs,
            token_ids=bool(asked.return_token_ids),
        ).with_stops([*(asked.stop or []), *more_stops])
        if asked.stream:
            usage = asked.stream_options is not None and asked.stream_options.include_usage
            stream = self._events(answer, chat=chat, usage=usage)
            return _Stream(stream, answer, self._limits.seconds + _SECONDS_TO_END)
        return await self._whole(request, answer)

    def _check_size(self, asked: CompletionBase, texts: list[str], *, num_prompts: int) -> None:
        """Refuses what cannot be answered before any text is made tokens of, which takes seconds for a megabyte."""
        self._check_name(asked.model)
        if (asked.n or 1) * num_prompts > self._limits.samples:
            raise ProblemError(400, f"more than {self._limits.samples} samples in one request", param="n")
        most = self._worker.engine.max_length * _MOST_CHARACTERS
        if sum(len(text) for text in texts) > most:
            raise ProblemError(
                400,
                f"the prompt has {sum(len(text) for text in texts):,} characters: this model has room for"
                f" {self._worker.engine.max_length:,} tokens, the answer among them",
                code="context_length_exceeded",
            )

    def _chat_prompt(self, messages: list[Message]) -> list[int]:
        return chat_prompt(
            [{"role": message.role_of_turn, "content": self._content(message)} for message in messages], self._tokenizer
        )

    def _content(self, message: Message) -> Any:
        if message.token_ids is None:
            return message.text
        scheduler.check_tokens(message.token_ids, self._worker.engine.programs.vocab_size)
        return answer_content(message.text, message.token_ids, self._tokenizer)

    def _encoded(self, prompts: list[Any]) -> list[list[int]]:
        encode, bos = self._tokenizer.encode, self._tokenizer.bos_id
        return [[bos, *encode(one)] if isinstance(one, str) else list(one) for one in prompts]

    async def _whole(self, request: Request, answer: Answer) -> Response:
        """The answer, unless the client goes away first."""
        work = asyncio.create_task(answer.whole(self._limits.seconds))
        gone = asyncio.create_task(_until_gone(request))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                return Response(status_code=499)
            return JSONResponse(work.result())
        except TimeoutError:
            raise self._too_slow() from None
        finally:
            gone.cancel()
            work.cancel()

    async def _events(self, answer: Answer, *, chat: bool, usage: bool) -> AsyncIterator[str]:
        deadline = asyncio.get_running_loop().time() + self._limits.seconds
        pieces = answer.pieces()
        try:
            if chat:
                for index in range(len(answer.choices)):
                    yield answer.chunk(index, None)
            while True:
                async with asyncio.timeout_at(deadline):
                    piece = await anext(pieces, None)
                if piece is None:
                    break
                if answer.says_something(*piece):
                    yield answer.chunk(*piece)
            if usage:
                yield answer.stream_event([], usage=answer.usage())
            yield "data: [DONE]\n\n"
        except TimeoutError:
            yield self._too_slow().event()
        except ProblemError as problem:
            yield problem.event()

    def _options(self, asked: CompletionBase, prompt: list[int]) -> SamplingOptions:
        room = self._worker.engine.max_length - len(prompt)
        wanted = asked.wanted_tokens
        if room < 1 or (wanted is not None and wanted > room):
            most = f"this model has room for {self._worker.engine.max_length:,}"
            raise ProblemError(
                400,
                f"the prompt has {len(prompt):,} tokens"
                + (f" and {wanted:,} are asked for: {most} together" if wanted else f": {most}, the answer among them"),
                param="max_tokens" if room >= 1 else None,
                code="context_length_exceeded",
            )
        try:
            scheduler.check_prompt(prompt, self._worker.engine.programs.vocab_size, self._worker.engine.max_length)
            return SamplingOptions(
                max_tokens=wanted or min(room, self._limits.answer_tokens),
                temperature=1.0 if asked.temperature is None else asked.temperature,
                top_k=asked.top_k,
                top_p=1.0 if asked.top_p is None else asked.top_p,
                seed=secrets.randbits(32) if asked.seed_number is None else asked.seed_number,
            )
        except ConfigError as error:
            raise ProblemError(400, str(error)) from None

    async def _body(self, request: Request) -> bytes:
        limit = self._limits.body_bytes
        try:
            body = bytearray()
            async with asyncio.timeout(self._limits.seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > limit:
                        self._worker.refused()
                        raise ProblemError(413, f"the body is larger than {limit:,} bytes", code="too_large")
        except (TimeoutError, ClientDisconnect):
            raise ProblemError(408, "the body did not come") from None
        return bytes(body)

    def _check_name(self, name: str) -> None:
        if name != self._name:
            raise ProblemError(
                404,
                f"there is no model {name[:100]!r}: this server has {self._name!r}",
                param="model",
                code="model_not_found",
            )

    def _too_slow(self) -> ProblemError:
        return ProblemError(504, f"the answer took longer than {self._limits.seconds:g} s", code="timeout")

    def _described(self) -> dict[str, Any]:
        length = self._worker.engine.max_length
        # The last is vLLM's: no field of OpenAI's says how long a prompt and its answer can be.
        return {"id": self._name, "object": "model", "created": 0, "owned_by": "marin", "max_model_len": length}


class _Stream(StreamingResponse):
    """A stream of events; however it ends, the engine then works no more for it.

    Args:
        seconds: after which it is broken off, as a client that does not read is never told that its time is over.
    """

    def __init__(self, events: AsyncIterator[str], answer: Answer, seconds: float) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        self._answer, self._seconds = answer, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await super().__call__(scope, receive, send)
        except TimeoutError:
            logger.warning("a client did not read its answer in time; it was broken off")
        finally:
            self._answer.close()


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _page(request: Request) -> Response:
    return HTMLResponse(_file("chat.html"))


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _STATIC:
        raise HTTPException(404)
    return Response(_file(name), media_type=_STATIC[name])


async def _no_icon(request: Request) -> Response:
    return Response(status_code=204)


def _file(name: str) -> str:
    return (resources.files("marin.inference.server") / "static" / name).read_text(encoding="utf-8")


def _refuse(refusal: Refusal) -> Response:
    return ProblemError(refusal.status, refusal.message).response()


async def _explain(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, ProblemError)
    return problem.response()


async def _explain_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    asked = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        message = f"{asked}: there is no such address; OpenAI's clients take the base URL {request.base_url}v1"
        return ProblemError(404, message).response()
    return ProblemError(error.status_code, f"{asked}: {error.detail}").response()


async def _apologize(request: Request, error: Exception) -> Response:
    return ProblemError(500, "the server failed; its log says how").response()
