"""What becomes of one question, for whatever an endpoint may do with it."""

import asyncio
import json
from typing import Any

import pytest
from scripted_endpoint import Received, Reply, error, serving

from marin.datashop import endpoint as endpoint_module
from marin.datashop.ask_config import AskConfig
from marin.datashop.endpoint import Endpoint
from marin.datashop.question import Answer, Busy, Failed, Outcome, Refused, question
from marin.errors import ConfigError, EndpointError


def outcome_of(reply: Reply, number: int = 0, **fields: Any) -> tuple[Outcome, Received]:
    with serving(lambda received: reply) as served:
        config = AskConfig(**{"model": "m", "endpoint": served.url, "timeout": 10.0} | fields)

        async def send() -> Outcome:
            async with Endpoint(config) as opened:
                return await opened.send(question(config, "hello"), number)

        return asyncio.run(send()), served.received[0]


def completion(message: Any = None, **fields: Any) -> Reply:
    body = {"choices": [{"message": message or {"content": "yes"}, "finish_reason": "stop"}]} | fields
    return Reply(raw=json.dumps(body).encode())


def test_answer_has_its_text_and_what_it_took() -> None:
    found, received = outcome_of(completion(usage={"prompt_tokens": 7, "completion_tokens": 2}))
    assert found == Answer("yes", False, 7, 2, False)
    assert received.body["messages"] == [{"role": "user", "content": "hello"}]
    assert "authorization" not in received.headers
    assert outcome_of(Reply("yes", finish_reason="length"))[0] == Answer("yes", True, 1, 8, False)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": None, "refusal": "I will not."}, "I will not."),
        ({"content": None, "reasoning_content": "Final Score: 3"}, ""),  # it thought, and did not answer
        ({"content": "half \ud800 a pair"}, "half ? a pair"),
        (
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "5?"}]},
                    {"type": "text", "text": "Score: 3"},
                ]
            },
            "Score: 3",
        ),
        ({"content": [{"type": "text", "text": "Final "}, {"type": "text", "text": "Score: 3"}]}, "Final Score: 3"),
    ],
)
def test_answer_that_is_none_or_no_text_is_what_can_be_written_down(message: dict[str, Any], text: str) -> None:
    found = outcome_of(completion(message))[0]
    assert isinstance(found, Answer) and found.text == text


@pytest.mark.parametrize("usage", [None, 5, {}, {"prompt_tokens": "7", "completion_tokens": 2}, {"prompt_tokens": -1, "completion_tokens": 2}, {"prompt_tokens": 7.5, "completion_tokens": 2}, {"prompt_tokens": 10**30, "completion_tokens": 1}])  # fmt: skip
def test_usage_that_makes_no_sense_is_the_worst_case(usage: Any) -> None:
    found = outcome_of(completion(usage=usage), max_tokens=99)[0]
    assert isinstance(found, Answer) and found.is_estimated and (found.input_tokens, found.output_tokens) == (133, 99)


@pytest.mark.parametrize(
    "request_fields",
    [{"max_tokens": None}, {"max_tokens": 1e4}, {"max_completion_tokens": 256.0}, {"max_completion_tokens": True}, {"max_tokens": 0}],
)  # fmt: skip
@pytest.mark.parametrize("budget", ["budget_tokens", "budget_dollars"])
def test_budget_that_an_answer_could_pass_is_refused(request_fields: dict[str, Any], budget: str) -> None:
    prices = {"dollars_per_million_input": 1.0, "dollars_per_million_output": 1.0}
    AskConfig(model="m", request=request_fields)  # without a budget there is nothing to pass
    with pytest.raises(ConfigError, match=rf"max_(completion_)?tokens.*{budget}.*whole number"):
        AskConfig(model="m", request=request_fields, **{budget: 100.0}, **prices)


def test_longest_answer_of_a_budget_is_the_limit_under_either_name() -> None:
    renamed = {"max_tokens": None, "max_completion_tokens": 900}
    assert AskConfig(model="m", request=renamed, budget_tokens=5000).most_answer_tokens == 900


@pytest.mark.parametrize("raw", [b"", b"null", b"[]", b"{}", b"<html>busy</html>", b"\xff\xfe", b'{"choices": [{}]}', b'{"choices": [{"message": {"content": 3}}]}', b'{"choices": [{"message": {"content": ["a"]}}]}', b'{"choices": [{"message": {"content": [{"type": "text", "text": null}]}}]}', b"[" * 100_000])  # fmt: skip
def test_body_that_is_no_answer_is_tried_again_and_may_be_paid(raw: bytes) -> None:
    found = outcome_of(Reply(raw=raw))[0]
    assert isinstance(found, Failed) and found.may_be_paid and found.is_whole
    assert found.problem.startswith("what came is no answer") and found.problem.isprintable()


def test_body_without_an_end_is_not_read_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "_MOST_BYTES", 100_000)
    found = outcome_of(Reply(raw=b" " * 5_000_000))[0]
    assert found == Failed("an answer of more than 100,000 bytes", may_be_paid=True, is_whole=True)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (error(429, retry_after="2"), Busy("HTTP 429 X: no", 2.0)),
        (error(503, retry_after="2"), Busy("HTTP 503 X: no", 2.0)),
        (error(503), Failed("HTTP 503 X: no", may_be_paid=False, is_whole=True)),
        (error(500, retry_after="9"), Failed("HTTP 500 X: no", may_be_paid=False, is_whole=True, wait=9.0)),
        *(
            (error(status), Failed(f"HTTP {status} X: no", may_be_paid=False, is_whole=True))
            for status in (507, 521, 523, 530)  # the last three are what a proxy says of a server that is not there
        ),
        (error(501), Refused("HTTP 501 X: no")),
        (error(400, "too\nlong \x1b[31m"), Refused("HTTP 400 X: too long  [31m")),
        (Reply(status=422, raw=b"[1]"), Refused("HTTP 422 X: [1]")),
        (Reply(status=500, raw=b'{"error": "boom"}'), Failed("HTTP 500 X: boom", may_be_paid=False, is_whole=True)),
        (Reply("yes", fault="hang"), Failed("no answer within 1 s", may_be_paid=True, is_whole=False)),
        (Reply("yes", fault="drip"), Failed("no answer within 1 s", may_be_paid=True, is_whole=False)),
    ],
)
def test_fault_is_told_from_another_by_what_to_do(reply: Reply, expected: Outcome) -> None:
    assert outcome_of(reply, timeout=1.0 if reply.fault else 10.0)[0] == expected


@pytest.mark.parametrize("fault", ["reset", "cut"])
def test_broken_connection_may_be_paid(fault: str) -> None:
    found = outcome_of(Reply("yes", fault=fault))[0]
    assert (
        isinstance(found, Failed) and found.may_be_paid and not found.is_whole and "connection broke" in found.problem
    )


def test_key_is_another_one_only_after_a_response() -> None:
    first, again, other = (outcome_of(completion(), number)[1].key for number in (0, 0, 2))
    assert first == again and other == f"{first}-2"


def test_proxy_of_the_environment_is_for_other_hosts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("https_proxy", "socks5://proxy:1080")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert endpoint_module._proxy_for("http://models.example/v1") == "http://proxy:3128"
    assert endpoint_module._proxy_for("http://127.0.0.1:8000/v1") is None
    with pytest.raises(ConfigError, match="no HTTP proxy: set HTTPS_PROXY"):
        endpoint_module._proxy_for("https://models.example/v1")
    monkeypatch.setenv("no_proxy", "models.example")
    assert endpoint_module._proxy_for("https://models.example/v1") is None


def test_password_of_a_proxy_that_refuses_is_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async def send() -> Outcome:
        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            monkeypatch.setenv("https_proxy", f"http://user:sekret@127.0.0.1:{port}")
            config = AskConfig(model="m", endpoint="https://models.example/v1", timeout=10.0)
            async with Endpoint(config) as opened:
                return await opened.send(question(config, "hello"))

    assert asyncio.run(send()) == Busy("the proxy refuses (407 Proxy Authentication Required)", None, is_there=False)


def test_key_in_the_environment_is_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "k-12345")
    found, received = outcome_of(error(400, "bad k-12345"), api_key_env="KEY")
    assert found == Refused("HTTP 400 X: bad <hidden>") and received.headers["authorization"] == "Bearer k-12345"
    with pytest.raises(EndpointError, match="access is denied"):
        outcome_of(error(403))


def test_key_is_sent_without_the_end_of_its_line_and_more_lines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", " k-12345\r\n")
    _, received = outcome_of(Reply("hello"), api_key_env="KEY")
    assert received.headers["authorization"] == "Bearer k-12345"
    monkeypatch.setenv("KEY", "k-12345\nk-67890")
    with pytest.raises(ConfigError, match="variable KEY is of several lines") as caught:
        outcome_of(Reply("hello"), api_key_env="KEY")
    assert "12345" not in str(caught.value)
