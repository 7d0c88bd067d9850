"""The parts of every local server: the address it listens on, and whom its guard turns away."""

import socket
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from marin.errors import ConfigError
from marin.web import guard
from marin.web.listen import address_of, bind, hosts_of, port_of

HOSTS = guard.loopback_hosts(8000)


async def _changed(request: Request) -> PlainTextResponse:
    return PlainTextResponse("changed", headers={"cache-control": "max-age=5"})


def _ask(method: str, headers: dict[str, str], **options: Any) -> httpx.Response:
    import asyncio

    app = Starlette(routes=[Route("/", _changed, methods=["GET", "POST"])])
    guarded = guard.Guard(app, options.pop("hosts", HOSTS), policy="default-src 'none'", **options)

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(guarded)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            return await client.request(method, "/", headers=headers)

    return asyncio.run(ask())


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
def test_the_address_that_is_printed_is_answered_and_no_foreign_name_is(host: str) -> None:
    with bind(0, host) as listener:
        printed, hosts = address_of(listener).removeprefix("http://"), hosts_of(listener)
    assert hosts is not None
    assert _ask("GET", {"host": printed}, hosts=hosts).status_code == 200
    assert _ask("GET", {"host": f"evil.example:{printed.partition(':')[2]}"}, hosts=hosts).status_code == 421


def test_a_server_that_others_can_reach_answers_under_any_name() -> None:
    with bind(0, "0.0.0.0") as listener:
        assert hosts_of(listener) is None


OWN = {"sec-fetch-site": "same-origin", "origin": "http://localhost:8000"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (OWN, 200),
        ({}, 200),  # no browser of today: the token decides
        (OWN | {"sec-fetch-site": "cross-site"}, 403),
        (OWN | {"sec-fetch-site": "same-site"}, 403),
        (OWN | {"sec-fetch-site": "none"}, 403),
        (OWN | {"origin": "http://localhost:9000"}, 403),  # another server on this machine
        (OWN | {"origin": "https://localhost:8000"}, 403),
        (OWN | {"origin": "null"}, 200),  # a form of a page that sends no referrer
        ({"origin": "null"}, 403),
        ({"origin": "http://evil.example"}, 403),
    ],
)
def test_changes_are_refused_to_pages_of_another_origin(headers: dict[str, str], status: int) -> None:
    rules = [guard.from_own_pages(HOSTS)]
    assert _ask("POST", headers, rules=rules).status_code == status
    assert _ask("GET", headers, rules=rules).status_code == 200


def test_every_answer_carries_the_headers_and_keeps_its_own() -> None:
    answered, refused = _ask("GET", {}), _ask("GET", {"host": "evil.example"})
    assert (answered.status_code, refused.status_code) == (200, 421)
    for answer in (answered, refused):
        assert answer.headers["content-security-policy"] == "default-src 'none'"
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert answered.headers["cache-control"] == "max-age=5"
    assert refused.headers["cache-control"] == "no-store"


def test_rules_are_the_apps_own_and_so_is_the_form_of_a_refusal() -> None:
    assert _ask("POST", {}, rules=[guard.read_only]).headers["allow"] == "GET, HEAD"
    assert _ask("POST", {"content-type": "text/plain"}, rules=[guard.json_bodies]).status_code == 415
    assert (
        _ask("POST", {"content-type": "application/json; charset=utf-8"}, rules=[guard.json_bodies]).text == "changed"
    )
    assert _ask("GET", {"host": "anything"}, hosts=None).text == "changed"
    loud = _ask("POST", {}, rules=[guard.read_only], refuse=lambda refusal: PlainTextResponse("no!", refusal.status))
    assert loud.text == "no!"


def test_address_that_cannot_be_used_is_explained() -> None:
    with bind(0) as taken:
        assert address_of(taken) == f"http://127.0.0.1:{port_of(taken)}"
        with pytest.raises(ConfigError, match=f"port {port_of(taken)} on 127.0.0.1 is in use.*--port 0"):
            bind(port_of(taken))
    with pytest.raises(ConfigError, match="--port is 65536: use a number from 0 to 65535"):
        bind(65536)
    with pytest.raises(ConfigError, match="192.0.2.1:0 cannot be used"):  # an address of no machine (RFC 5737)
        bind(0, "192.0.2.1")


def test_only_this_machine_reaches_the_default_address() -> None:
    with bind(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1" and listener.family == socket.AF_INET
