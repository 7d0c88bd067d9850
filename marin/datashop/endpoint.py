"""An OpenAI-compatible endpoint: one question goes in, and what became of it comes out.

    Answer     whole and in OpenAI's form; it was paid for
    Busy       turned away because there is too much to do (429, or 503 with Retry-After), or no connection: later
    Failed     time is up, connection broken, HTTP 408, 409, 425 or 5xx but 501 and 505, a body that is no answer: again
    Refused    this question will never be answered (400, 413, 422 and the like)
    EndpointError, raised    no question will be answered: no access, no such model or address, no credit

Each question carries its digest as `Idempotency-Key`, so an endpoint that honours it charges once for a question that had to be
sent again because no response came. After a whole response that is of no use the key is another one, as the same key may
bring the same response. An HTTP error is taken to be free of charge; a broken connection, a time-out and a garbled answer are not, as nobody can
know. Redirects are not followed, and the key is in no message.
"""

import asyncio
import json
import os
import re
import urllib.parse
import urllib.request
from types import TracebackType
from typing import Any, Self

import aiohttp

from marin.data.retries import may_pass, retry_after
from marin.datashop.ask_config import AskConfig
from marin.datashop.question import Answer, Busy, Failed, Outcome, Question, Refused
from marin.errors import ConfigError, EndpointError
from marin.execution.redaction import HIDDEN

_MOST_BYTES = 16_000_000  # of an answer
_CONNECT_SECONDS = 20.0
_NEVER = {
    401: "the key is missing or wrong: set the variable of `api_key_env`",
    402: "the account has no credit: top it up, and run the same command again to go on",
    403: "access is denied: ask the endpoint's owner",
    404: "there is no such model or address: see `/v1/models` of the endpoint, and give its base URL, which ends in /v1 as a rule",
    405: "the address takes no questions: give the base URL, which ends in /v1 as a rule",
}


class Endpoint:
    """Connections to an endpoint; an asynchronous context manager.

    Raises:
        ConfigError: no address is known, or the key is none.
    """

    def __init__(self, config: AskConfig):
        self.base = config.base_url()
        self._url = self.base + "/chat/completions"
        self._key = _key_of(config.api_key_env)
        self._timeout = config.timeout
        headers = {"content-type": "application/json", "accept": "application/json", "user-agent": "marin"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=config.concurrency),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        # Not by `trust_env`: that looks into ~/.netrc, in a thread, for each request.
        self._proxy = _proxy_for(self.base)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def send(self, question: Question, number: int = 0) -> Outcome:
        """Sends a question once.

        Args:
            number: of whole responses to it that were of no use.
        Raises:
            EndpointError: neither this question nor another one will be answered.
        """
        headers = {"idempotency-key": f"{question.digest}-{number}" if number else question.digest}
        try:
            async with asyncio.timeout(self._timeout):
                request = self._session.post(
                    self._url, data=question.body, headers=headers, proxy=self._proxy, allow_redirects=False
                )
                async with request as response:
                    data = await _read(response)
                    if data is None:
                        return Failed(f"an answer of more than {_MOST_BYTES:,} bytes", may_be_paid=True, is_whole=True)
                    if response.status == 200:
                        return self._read_answer(question, data)
                    return self._turned_away(response, data)
        except aiohttp.ConnectionTimeoutError:
            return Busy(f"no connection to {self.base} within {_CONNECT_SECONDS:g} s", None, is_there=False)
        except TimeoutError:
            return Failed(f"no answer within {self._timeout:g} s", may_be_paid=True, is_whole=False)
        except aiohttp.ClientConnectorCertificateError as error:
            why = self._shown(str(error.certificate_error))
            raise EndpointError(f"{self.base} shows a certificate that is not accepted ({why}): mend it") from None
        except aiohttp.ClientConnectorError as error:
            why = error.os_error.strerror or str(error)
            return Busy(self._shown(f"no connection to {self.base} ({why})"), None, is_there=False)
        except aiohttp.InvalidURL:
            raise ConfigError(f"the endpoint {self.base!r} is no address: give a base URL") from None
        except (
            aiohttp.ClientHttpProxyError
        ) as error:  # before the question was sent; its text shows the proxy's password
            return Busy(self._shown(f"the proxy refuses ({error.status} {error.message})"), None, is_there=False)
        except (aiohttp.ClientError, OSError) as error:
            return Failed(self._shown(f"the connection broke ({error or type(error).__name__})"), True, is_whole=False)

    def _read_answer(self, question: Question, data: bytes) -> Outcome:
        try:
            body = json.loads(data)
            choice = body["choices"][0]
            text = choice["message"]["content"]
            if text is None:  # nothing but thoughts, or a refusal
                text = choice["message"].get("refusal") or ""
            if isinstance(text, list):  # in parts, thoughts among them, as some servers answer
                text = "".join(part["text"] for part in text if part["type"] == "text")
            if not isinstance(text, str):
                raise TypeError("content is no text")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return Failed(self._shown(f"what came is no answer: {data[:100]!r}"), may_be_paid=True, is_whole=True)
        usage = _usage(body)
        return Answer(
            text=text.encode("utf-8", "replace").decode(),
            was_cut_off=choice.get("finish_reason") == "length",
            input_tokens=usage[0] if usage else question.most_input_tokens,
            output_tokens=usage[1] if usage else question.most_output_tokens,
            is_estimated=usage is None,
        )

    def _turned_away(self, response: aiohttp.ClientResponse, data: bytes) -> Outcome:
        status = response.status
        code, message = _explanation(data)
        problem = self._shown(f"HTTP {status} {response.reason or ''}".rstrip() + (f": {message}" if message else ""))
        if status in _NEVER or code == "insufficient_quota":
            raise EndpointError(f"{self.base}: {problem}: {_NEVER.get(status, _NEVER[402])}")
        wait = retry_after(response.headers.get("retry-after"))
        if status == 429 or (status == 503 and wait is not None):
            return Busy(problem, wait)
        if status == 409 or may_pass(status):
            return Failed(problem, may_be_paid=False, is_whole=True, wait=wait)
        if status < 400:
            raise EndpointError(
                f"{self.base}: {problem}: it answers elsewhere, which is not followed; give the base URL that it names"
            )
        return Refused(problem)

    def _shown(self, text: str) -> str:
        """A message of the endpoint's, fit for a terminal and without the key."""
        if self._key:
            text = text.replace(self._key, HIDDEN)
        return re.sub(r"[^\x20-\x7e\xa0-\U0010ffff]+", " ", text)[:300]


def _key_of(variable: str) -> str | None:
    """The key in the environment, without the end of the line that reading it from a file leaves behind it.

    Raises:
        ConfigError: it cannot stand in a header.
    """
    key = os.environ.get(variable, "").strip()
    if not key.isprintable():
        raise ConfigError(
            f"the key in the environment variable {variable} is of several lines: set it to the key alone"
        )
    return key or None


def _proxy_for(url: str) -> str | None:
    """The proxy that the environment names for an address (HTTPS_PROXY, NO_PROXY and so on).

    Raises:
        ConfigError: it is of a kind that is not spoken here.
    """
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    if host in ("localhost", "127.0.0.1", "::1") or urllib.request.proxy_bypass(host):
        return None
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy is not None and not proxy.startswith(("http://", "https://")):
        raise ConfigError(
            f"the proxy for {parts.scheme} addresses is no HTTP proxy: set {parts.scheme.upper()}_PROXY to one"
        )
    return proxy


async def _read(response: aiohttp.ClientResponse) -> bytes | None:
    """The body; None if it is too long for an answer."""
    blocks, size = [], 0
    async for block in response.content.iter_any():
        blocks.append(block)
        size += len(block)
        if size > _MOST_BYTES:
            response.close()
            return None
    return b"".join(blocks)


def _usage(body: dict[str, Any]) -> tuple[int, int] | None:
    usage = body.get("usage")
    if not isinstance(usage, dict):
        return None
    read, written = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if type(read) is int and type(written) is int and 0 < read < 1 << 40 and 0 <= written < 1 << 40:
        return read, written
    return None


def _explanation(data: bytes) -> tuple[str | None, str]:
    """The error's code and message, as OpenAI gives them; else the beginning of the body."""
    try:
        error = json.loads(data)["error"]
        if isinstance(error, str):
            return None, error
        code, message = error.get("code"), error.get("message")
        return code if isinstance(code, str) else None, message if isinstance(message, str) else ""
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None, data[:200].decode("utf-8", "replace").strip()
