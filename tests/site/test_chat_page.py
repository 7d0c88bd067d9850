"""The chat page as a person uses it, in Chromium, over a server with a small model."""

import json
import re

import pytest
from chat_pages import ANSWERS, HOSTILE, answers_with, first_of, held_back, opened, scripted, send
from chat_server import CONFIG as MODEL
from chat_server import NAME, endless, make_tokenizer, model_of, serving

from marin.data.conversation import render, render_for_completion
from marin.inference.text_stream import TextStream


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory):
    tokenizer = make_tokenizer(tmp_path_factory.mktemp("chat"))
    model = endless(model_of(MODEL, tokenizer.vocab_size))
    with serving(tokenizer, model, max_length=8192, max_rows=4) as server:
        yield server


def test_a_message_is_answered_and_can_be_answered_again(browser, served):
    with opened(browser, served) as (page, complaints):
        page.get_by_text("Settings").click()
        page.get_by_label("Longest answer").fill("12")
        page.get_by_label("Message").fill("the cat")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Retry").wait_for()
        shown = page.locator(".message .who").all_inner_texts()
        assert shown == ["You", "Model"]
        assert page.locator(".message.user .body").inner_text() == "the cat"
        assert page.locator(".message.assistant .body").inner_text().strip()
        page.get_by_role("button", name="Retry").click()
        page.get_by_role("button", name="Retry").wait_for()
        assert page.locator(".message").count() == 2
        page.get_by_label("Message").fill("and so on")
        page.get_by_role("button", name="Send").click()
        page.get_by_role("button", name="Retry").wait_for()
        assert page.locator(".message").count() == 4
        page.get_by_role("button", name="New chat").click()
        assert page.locator(".message").count() == 0 and not complaints


@pytest.mark.parametrize("way", ["button", "key"])
def test_an_answer_can_be_stopped_and_the_server_stops_too(browser, served, way):
    with opened(browser, served) as (page, complaints):
        page.get_by_text("Settings").click()
        page.get_by_label("Longest answer").fill("8000")
        page.get_by_label("Temperature").fill("0")
        page.get_by_label("Message").fill("the cat")
        page.keyboard.press("Enter")
        page.locator(".message.assistant .body").filter(has_text=re.compile(r"[\s\S]{20}")).wait_for()
        assert page.get_by_role("button", name="Stop").is_visible()
        if way == "button":
            page.get_by_role("button", name="Stop").click()
        else:
            page.keyboard.press("Escape")
        page.get_by_role("button", name="Retry").wait_for()
        served.until(lambda stats: stats["running_samples"] == 0)
        assert page.locator(".message").count() == 2 and not complaints


def test_a_page_that_was_open_before_its_server_answers_once_it_is_there(browser, served):
    page = browser.new_page()
    page.route("**/v1/models", lambda route: route.abort())
    page.goto(served.url)
    page.get_by_text("The server cannot be reached.").wait_for()
    page.get_by_text("Settings").click()
    page.get_by_label("Longest answer").fill("8")
    send(page, "the cat")
    page.get_by_text("The server cannot be reached. Retry when it runs.").wait_for()
    page.unroute_all()
    page.get_by_role("button", name="Retry").click()
    page.locator(".message.assistant .body").wait_for()
    page.get_by_role("button", name="Retry").wait_for()
    assert page.get_by_role("heading", name=NAME, exact=True).is_visible()
    assert page.locator("#problem").inner_text() == ""
    page.close()


def test_a_message_can_be_taken_back_while_the_server_says_nothing(browser, served):
    page = browser.new_page()
    page.route("**/v1/models", lambda route: None)
    page.goto(served.url)
    send(page, "the cat")
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Retry").wait_for(timeout=20_000)
    assert page.get_by_role("button", name="Send").is_visible()
    page.close()


def test_a_conversation_goes_on_where_the_server_is_started_again_with_another_model(browser, served):
    page = browser.new_page()
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": [{"id": "former", "max_model_len": 256}]}))
    page.goto(served.url)
    page.get_by_role("heading", name="former", exact=True).wait_for()
    assert page.locator("#max-tokens").get_attribute("placeholder") == "256"  # no more than the model has room for
    page.unroute_all()
    page.get_by_text("Settings").click()
    page.get_by_label("Longest answer").fill("8")
    send(page, "the cat")
    page.get_by_role("alert").get_by_text(f"this server has '{NAME}'. Retry to ask that one.").wait_for()
    page.get_by_role("button", name="Retry").click()
    page.locator(".message.assistant .body").wait_for()
    assert page.get_by_role("heading", name=NAME, exact=True).is_visible()
    assert page.get_by_role("alert").inner_text() == ""
    page.close()


@pytest.mark.parametrize("way", ["a message", "another answer"])
def test_answers_of_a_former_model_are_told_to_another_without_their_tokens(browser, served, way):
    page = browser.new_page()
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": [{"id": "former"}]}))
    page.goto(served.url)
    page.get_by_role("heading", name="former", exact=True).wait_for()
    for told in ("one", "two"):
        beyond = {
            "index": 0,
            "delta": {"content": f"answer {told}"},
            "token_ids": [5_000_000],
        }  # no token of the next model
        answers_with(page, [{"choices": [beyond]}])
        send(page, told)
        page.get_by_text(f"answer {told}").wait_for()
        page.get_by_role("button", name="Retry").wait_for()
    page.unroute_all()
    page.get_by_text("Settings").click()
    page.get_by_label("Longest answer").fill("8")
    if way == "a message":
        send(page, "three")
    else:
        page.get_by_role("button", name="Retry").click()
    page.get_by_role("alert").get_by_text(f"this server has '{NAME}'. Retry to ask that one.").wait_for()
    if way == "another answer":  # the former one was put back, and is told with what follows it
        send(page, "three")
    else:
        page.get_by_role("button", name="Retry").click()
    page.locator(".message.assistant .body").nth(2).wait_for()
    page.get_by_role("button", name="Retry").wait_for()
    assert page.get_by_role("alert").inner_text() == ""
    assert page.locator(".message.user .body").all_inner_texts() == ["one", "two", "three"]
    page.close()


def test_an_answer_that_reached_its_longest_says_so(browser, served):
    with opened(browser, served) as (page, _):
        page.get_by_text("Settings").click()
        page.get_by_label("Longest answer, in tokens").fill("5")
        send(page, "hello")
        page.locator(".message.assistant").get_by_text("Cut off here").wait_for()
        page.get_by_role("button", name="Retry").click()
        page.locator(".message.assistant").get_by_text("Cut off here").wait_for()
        assert page.get_by_text("Cut off here").count() == 1
    with opened(browser, served) as (page, _):
        scripted(page, "It ends by itself.")
        send(page, "hello")
        page.get_by_role("button", name="Retry").wait_for()
        assert page.get_by_text("Cut off here").count() == 0


def test_what_stands_below_a_long_answer_is_in_sight_unless_a_person_reads_further_up(browser, served):
    long = [{"choices": [{"index": 0, "delta": {"content": "word and more " * 200}, "finish_reason": "length"}]}]
    with opened(browser, served, viewport={"width": 375, "height": 600}) as (page, _):
        answers_with(page, long)
        send(page, "hello")
        page.get_by_role("button", name="Retry").wait_for()
        end = page.locator("#messages").bounding_box()
        for below in (page.get_by_text("Cut off here"), page.get_by_role("button", name="Retry")):
            box = below.bounding_box()
            assert end["y"] < box["y"] and box["y"] + box["height"] <= end["y"] + end["height"]
        held = held_back(page)
        send(page, "again")
        route = first_of(page, held)
        page.locator("#messages").evaluate("list => { list.scrollTop = 40; }")
        body = "".join(f"data: {json.dumps(event)}\n\n" for event in long) + "data: [DONE]\n\n"
        route.fulfill(status=200, content_type="text/event-stream", body=body)
        page.get_by_role("button", name="Retry").wait_for()
        assert page.locator("#messages").evaluate("list => list.scrollTop") == 40


def test_focus_stays_where_a_person_has_put_it_and_is_never_lost(browser, served):
    with opened(browser, served) as (page, _):
        page.get_by_text("Settings").click()
        for way in ("Enter", "Send", "Retry", "Stop"):
            held = held_back(page)
            if way in ("Enter", "Stop"):
                send(page, "hello")
            else:
                page.get_by_role("button", name=way).first.focus()
                page.get_by_label("Message").evaluate("box => { box.value = 'hello'; }")
                page.keyboard.press("Enter")
            page.get_by_role("button", name="Stop").wait_for()
            assert page.evaluate("document.activeElement.id") == "text"
            at = "text"
            if way == "Enter":
                at = "temperature"
                page.get_by_label("Temperature").focus()
            if way == "Stop":
                page.get_by_role("button", name="Stop").click()
            else:
                first_of(page, held).fulfill(status=500, content_type="text/html", body="")
            page.get_by_role("button", name="Retry").wait_for()
            assert page.evaluate("document.activeElement.id") == at
            page.unroute(ANSWERS)


def test_a_server_that_refuses_or_is_gone_is_said_and_can_be_retried(browser, served):
    with opened(browser, served) as (page, _):
        page.get_by_label("Message").fill("zq " * 9000)
        page.get_by_role("button", name="Send").click()
        page.get_by_role("alert").get_by_text("room for 8,192, the answer among them").wait_for()
        page.route(ANSWERS, lambda route: route.abort())
        page.get_by_label("Message").fill("hello")
        page.keyboard.press("Enter")
        page.get_by_role("alert").get_by_text("cannot be reached").wait_for()
        page.unroute(ANSWERS)
        scripted(page, "Back again.")
        page.get_by_role("button", name="Retry").click()
        page.get_by_text("Back again.").wait_for()
        assert page.locator(".message").count() == 2 and page.get_by_role("alert").inner_text() == ""


@pytest.mark.parametrize("status", [400, 429, None])
def test_an_answer_stays_where_no_other_comes_in_its_place(browser, served, status):
    with opened(browser, served) as (page, _):
        scripted(page, "The first answer.")
        send(page, "hello")
        page.get_by_role("button", name="Retry").wait_for()
        page.unroute(ANSWERS)
        held = held_back(page)
        page.get_by_role("button", name="Retry").click()
        page.get_by_role("button", name="Stop").wait_for()
        assert page.locator(".message").count() == 1
        if status is None:
            page.get_by_role("button", name="Stop").click()
        else:
            said = json.dumps({"error": {"message": "not this time"}})
            first_of(page, held).fulfill(status=status, content_type="application/json", body=said)
            page.get_by_role("alert").get_by_text("not this time").wait_for()
        page.get_by_text("The first answer.").wait_for()
        assert page.locator(".message").count() == 2 and page.get_by_role("button", name="Retry").count() == 1
        with page.expect_request(ANSWERS) as asked:
            send(page, "and more")
        assert [m["content"] for m in json.loads(asked.value.post_data)["messages"]][:2] == [
            "hello",
            "The first answer.",
        ]


def test_new_chat_during_an_answer_begins_with_nothing(browser, served):
    with opened(browser, served) as (page, complaints):
        page.get_by_text("Settings").click()
        page.get_by_label("Longest answer").fill("8000")
        page.get_by_label("Temperature").fill("0")
        send(page, "first secret")
        page.locator(".message.assistant .body").filter(has_text=re.compile(r"[\s\S]{20}")).wait_for()
        page.get_by_role("button", name="New chat").click()
        served.until(lambda stats: stats["running_samples"] == 0)
        with page.expect_request(ANSWERS) as asked:
            send(page, "second")
        assert json.loads(asked.value.post_data)["messages"] == [{"role": "user", "content": "second"}]
        page.get_by_role("button", name="Stop").click()
        assert not complaints


def test_a_page_that_is_loaded_again_has_its_conversation_and_another_tab_has_not(browser, served):
    with opened(browser, served) as (page, complaints):
        scripted(page, "It is *84*.")
        send(page, "What is 12*7? مرحبا 😀")
        page.get_by_role("button", name="Retry").wait_for()
        page.unroute(ANSWERS)
        held_back(page)
        page.get_by_role("button", name="Retry").click()  # no answer comes before the page is loaded again
        page.get_by_role("button", name="Stop").wait_for()
        page.reload()
        page.get_by_role("button", name="Retry").wait_for()
        assert page.locator(".message .body").all_inner_texts() == ["What is 12*7? مرحبا 😀", "It is 84."]
        other = page.context.new_page()
        other.goto(served.url)
        other.get_by_role("heading", name=NAME, exact=True).wait_for()
        assert other.locator(".message").count() == 0
        send(page, "and 12*8?")
        page.get_by_role("button", name="Stop").wait_for()
        page.reload()
        page.get_by_role("button", name="Retry").wait_for()
        assert page.locator(".message .body").all_inner_texts()[1:] == ["It is 84.", "and 12*8?"]
        page.get_by_role("button", name="New chat").click()
        page.reload()
        page.get_by_role("heading", name=NAME, exact=True).wait_for()
        assert page.locator(".message").count() == 0 and not complaints


def test_a_setting_beyond_its_limits_shows_what_is_used(browser, served):
    with opened(browser, served) as (page, complaints):
        scripted(page, "yes")
        page.get_by_text("Settings").click()
        page.get_by_label("Temperature").fill("5")
        send(page, "the cat")
        page.get_by_role("button", name="Retry").wait_for()
        assert page.get_by_label("Temperature").input_value() == "2" and not complaints


def test_a_second_turn_has_the_call_of_the_first_answer_as_the_model_wrote_it(browser, served, monkeypatch):
    tokenizer = served.engine.tokenizer
    call = [
        {"type": "python", "text": "12*7"},
        {"type": "python_output", "text": "84"},
        {"type": "text", "text": "so 84"},
    ]
    first = [{"role": "user", "content": "12 times 7?"}, {"role": "assistant", "content": call}]
    tokens = render({"messages": first}, tokenizer)[0][len(render_for_completion({"messages": first}, tokenizer)) : -1]
    prompts, submit = [], served.worker.submit
    monkeypatch.setattr(
        served.worker, "submit", lambda jobs: prompts.extend(job.prompt for job in jobs) or submit(jobs)
    )
    with opened(browser, served) as (page, complaints):
        stream = TextStream(tokenizer)
        events = [
            {"choices": [{"index": 0, "delta": {"content": stream.push([token])}, "token_ids": [token]}]}
            for token in tokens
        ]
        answers_with(page, events)
        send(page, "12 times 7?")
        page.locator(".message.assistant").get_by_text("12*7 = 84 so 84").wait_for()
        page.unroute(ANSWERS)
        page.get_by_role("button", name="Retry").wait_for()
        send(page, "sure?")
        served.until(lambda stats: bool(prompts))
        asked = render_for_completion({"messages": [*first, {"role": "user", "content": "sure?"}]}, tokenizer)
        assert prompts == [tuple(asked)]
        page.get_by_role("button", name="Stop").click()
        assert not complaints


def test_answers_are_as_long_as_there_is_room_unless_a_person_says(browser, served):
    with opened(browser, served) as (page, _):
        with page.expect_request(ANSWERS) as asked:
            send(page, "hello")
        assert "max_tokens" not in json.loads(asked.value.post_data)
        page.get_by_role("button", name="Stop").click()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"status": 502, "content_type": "text/html", "body": "<h1>Bad gateway</h1>"}, "The server answered with 502"),
        ({"status": 200, "content_type": "text/event-stream", "body": ""}, "ended before the answer did"),
        ({"status": 200, "content_type": "text/event-stream", "body": "data: [DONE]\n\n"}, "had nothing to say"),
    ],
)
def test_an_answer_that_does_not_come_is_said_and_loses_nothing(browser, served, answer, said):
    with opened(browser, served) as (page, _):
        page.route(ANSWERS, lambda route: route.fulfill(**answer))
        send(page, "first")
        page.get_by_role("alert").get_by_text(said).wait_for()
        assert page.locator("#status").inner_text() != "The model is writing."
        page.unroute(ANSWERS)
        held = held_back(page)
        send(page, "second")
        page.wait_for_function("document.querySelectorAll('.message').length === 1")
        page.get_by_role("button", name="Stop").wait_for()
        assert page.locator(".message.user .body").inner_text() == "first\n\nsecond"
        route = first_of(page, held)
        assert held == [route]
        assert json.loads(route.request.post_data)["messages"] == [{"role": "user", "content": "first\n\nsecond"}]
        route.abort()


def test_a_message_that_is_refused_can_be_changed(browser, served):
    with opened(browser, served) as (page, _):
        send(page, "zq " * 9000)
        said = "room for 8,192, the answer among them. Write less, lower the longest answer in the settings, or begin a new chat."
        page.get_by_role("alert").get_by_text(said).wait_for()
        assert page.get_by_role("alert").inner_text().startswith("The prompt has ")
        assert page.locator(".message").count() == 0
        assert page.get_by_label("Message").input_value() == ("zq " * 9000).strip()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1200])
def test_the_page_fits_and_is_accessible(browser, served, scheme, width, tmp_path):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    options = {"color_scheme": scheme, "viewport": {"width": width, "height": 640}, "bypass_csp": True}
    with opened(browser, served, **options) as (page, _):
        scripted(page, HOSTILE + "\n\n" + "longword" * 60)
        page.get_by_label("Message").fill("a\nb " + "wide" * 100)
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Retry").wait_for()
        page.get_by_text("Settings").click()
        found = axe.Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        box = page.get_by_role("button", name="Send").bounding_box()
        assert box["y"] + box["height"] <= 640 and box["height"] >= 44


def test_a_conversation_is_whole_on_paper(browser, served):
    with opened(browser, served, viewport={"width": 700, "height": 500}) as (page, _):
        scripted(page, "first line\n\n" + "word and more " * 400 + "\n\n```\n" + "code " * 60 + "\n```\n\nlast line")
        send(page, "hello")
        page.get_by_role("button", name="Retry").wait_for()
        page.emulate_media(media="print")
        whole = page.evaluate("[document.documentElement.scrollHeight, document.documentElement.scrollWidth]")
        for shown in ("hello", "first line", "last line"):
            box = page.get_by_text(shown).bounding_box()
            assert 0 <= box["y"] and box["y"] + box["height"] <= whole[0]
        assert whole[0] > 1000 and whole[1] <= 700
        assert page.locator("pre").evaluate("pre => pre.scrollWidth <= pre.clientWidth")
        assert not page.locator("button, textarea, summary").filter(visible=True).count()
