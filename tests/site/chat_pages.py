"""The chat page in a browser: opened, written to, and given answers that a test has chosen."""

import contextlib
import json
import time
from typing import Any

from chat_server import NAME

ANSWERS = "**/v1/chat/completions"
HOSTILE = (
    "# Title\n\nA **bold** and *soft* `<b>code</b>` word.\n\n- one\n- two\n\n```html\n<script>document.title='hit'</script>\n```\n"
    "> quoted\n\n<img src=x onerror=\"document.title='hit'\"> <script>document.title='hit'</script>\n\n"
    "[bad](javascript:document.title='hit') [data](data:text/html,hi) [good](https://example.org/a?b=1)\n\n3. third\n\n"
    "| <b>a</b> | b | c | d | e | f |\n|---|---|---|---|---|---|\n| <img src=x onerror=\"document.title='hit'\"> | figures | of | many | columns | here |\n"
)


@contextlib.contextmanager
def opened(browser: Any, served: Any, **options: Any):
    """The page, and what it complained of: script errors and refusals by its policy."""
    context = browser.new_context(**options)
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.goto(served.url)
    page.get_by_role("heading", name=NAME, exact=True).wait_for()
    try:
        yield page, complaints
    finally:
        context.close()


def scripted(page: Any, text: str) -> None:
    """The next answers are this text, in pieces, as the server would send them."""
    pieces = [text[at : at + 7] for at in range(0, len(text), 7)]
    events = [{"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]} for piece in pieces]
    answers_with(page, events)


def answers_with(page: Any, events: list[dict[str, Any]]) -> None:
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    page.route(ANSWERS, lambda route: route.fulfill(status=200, content_type="text/event-stream", body=body))


def held_back(page: Any) -> list[Any]:
    """Requests for answers, which are kept here until the test answers them."""
    held: list[Any] = []
    page.route(ANSWERS, lambda route: held.append(route))
    return held


def first_of(page: Any, held: list[Any]) -> Any:
    """The first of them, which may come after the page has shown that it asks."""
    end = time.monotonic() + 60
    while not held:
        assert time.monotonic() < end, "the page asks for no answer"
        page.wait_for_timeout(20)
    return held[0]


def send(page: Any, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")
