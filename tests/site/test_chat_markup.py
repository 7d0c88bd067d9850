"""What an answer of the chat page is drawn as, in Chromium: its Markdown, and none of its markup."""

import re

import pytest
from chat_pages import HOSTILE, opened, scripted, send
from chat_server import CONFIG as MODEL
from chat_server import NAME, endless, make_tokenizer, model_of, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory):
    tokenizer = make_tokenizer(tmp_path_factory.mktemp("chat"))
    model = endless(model_of(MODEL, tokenizer.vocab_size))
    with serving(tokenizer, model, max_length=8192, max_rows=4) as server:
        yield server


def test_markdown_is_drawn_and_markup_stays_text(browser, served):
    with opened(browser, served) as (page, complaints):
        scripted(page, HOSTILE)
        page.get_by_label("Message").fill(HOSTILE)
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Retry").wait_for()
        body = page.locator(".message.assistant .body")
        assert body.locator("h2").inner_text() == "Title"
        assert body.locator("strong").inner_text() == "bold" and body.locator("em").inner_text() == "soft"
        assert body.locator("p code").inner_text() == "<b>code</b>"
        assert body.locator("ul li").all_inner_texts() == ["one", "two"]
        assert "<script>" in body.locator("pre").inner_text() and body.locator("blockquote").inner_text() == "quoted"
        assert body.locator("ol").get_attribute("start") == "3"
        assert [link.get_attribute("href") for link in body.locator("a").all()] == ["https://example.org/a?b=1"]
        assert page.locator("#messages :is(img, script, b, iframe)").count() == 0
        assert page.title() == f"Chat with {NAME}" and not complaints


def test_code_ends_with_a_fence_like_the_one_that_it_begins_with(browser, served):
    with opened(browser, served) as (page, complaints):
        scripted(page, "````md\nouter\n```python\ninner\n```\n````\nbetween\n```\na = 1\n```py\nb\n```\nand more")
        page.locator("#text").fill("fences")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Retry").wait_for()
        assert page.locator(".assistant pre").all_text_contents() == [
            "outer\n```python\ninner\n```",
            "a = 1\n```py\nb",
        ]
        assert page.locator(".assistant p:not(.who)").all_text_contents() == ["between", "and more"]
        assert complaints == []


def test_tables_of_an_answer_are_drawn_and_what_only_has_bars_stays_text(browser, served):
    said = (
        "Sums:\n| Sum | is | `a\\|b` |\n|:--|--:|:-:|\n| **1+1** | 2 |\n| 2+2 | 4 | even | more |\nlast\n\n"
        "a | b\nc | d\n\n| one | two |\n|---|\n\nleft | right\n--- | ---\n1 | 2\n- end"
    )
    with opened(browser, served) as (page, complaints):
        scripted(page, said)
        send(page, "sums")
        page.get_by_role("button", name="Retry").wait_for()
        body = page.locator(".message.assistant .body")
        first, second = body.locator("table").all()
        assert first.locator("th").all_inner_texts() == ["Sum", "is", "a|b"]
        rows = [row.locator("td").all_inner_texts() for row in first.locator("tbody tr").all()]
        assert rows == [["1+1", "2", ""], ["2+2", "4", "even"], ["last", "", ""]]
        assert first.locator("td strong").inner_text() == "1+1" and first.locator("th code").inner_text() == "a|b"
        aligned = [cell.evaluate("cell => getComputedStyle(cell).textAlign") for cell in first.locator("th").all()]
        assert aligned == ["left", "right", "center"]
        assert second.locator("th, td").all_inner_texts() == ["left", "right", "1", "2"]
        assert body.locator("p").all_inner_texts() == ["Sums:", "a | b\nc | d", "| one | two |\n|---|"]
        assert body.locator("li").all_inner_texts() == ["end"] and not complaints


def test_rules_between_parts_and_words_that_are_bold_and_slanted_are_drawn(browser, served):
    with opened(browser, served) as (page, complaints):
        scripted(page, "A ***strong `word`*** here\n\n---\n\nmore\n***\n_ _ _\n* * * *\n\n--\n-- - x\n** x")
        send(page, "rules")
        page.get_by_role("button", name="Retry").wait_for()
        body = page.locator(".message.assistant .body")
        assert body.locator("hr").count() == 4 and body.locator("li").count() == 0
        assert body.locator("strong > em").inner_text() == "strong word" and body.locator("em code").count() == 1
        assert body.locator("p").all_inner_texts() == ["A strong word here", "more", "--\n-- - x\n** x"]
        assert not complaints


LISTS = """1. one
   goes on
   - in one
   - also
     1. deeper

2. two
* star
  5) five
- dash
text
    - far in
- out"""


def test_lists_in_lists_stand_inside_of_their_items(browser, served):
    outline = """function outline(node) {
      return [...node.children].filter((child) => ["UL", "OL"].includes(child.tagName)).map((list) =>
        [list.localName + (list.start ?? ""), [...list.children].map((item) =>
          [item.childNodes[0].textContent, ...outline(item)])]);
    }"""
    with opened(browser, served) as (page, complaints):
        scripted(page, LISTS)
        send(page, "lists")
        page.get_by_role("button", name="Retry").wait_for()
        body = page.locator(".message.assistant .body")
        assert body.evaluate(outline) == [
            ["ol1", [["one", ["ul", [["in one"], ["also", ["ol1", [["deeper"]]]]]]], ["two"]]],
            ["ul", [["star", ["ol5", [["five"]]]], ["dash"]]],
            ["ul", [["far in"], ["out"]]],
        ]
        assert body.locator("li").first.inner_text().startswith("one\ngoes on")
        assert body.locator("> p").all_inner_texts() == ["text"] and not complaints
        styles = "list => [getComputedStyle(list).listStyleType, parseFloat(getComputedStyle(list).marginBottom) > 0]"
        assert body.locator("> ul").first.evaluate(styles) == ["disc", True]
        assert body.locator("li > ul").first.evaluate(styles) == ["circle", False]


def test_products_in_an_answer_keep_their_stars(browser, served):
    products = "7*8 is 56 and 3*4 is 12, 2 *3 * 4 is 24"
    with opened(browser, served) as (page, _):
        scripted(page, f"{products}, said *softly*.")
        send(page, "count")
        page.get_by_role("button", name="Retry").wait_for()
        body = page.locator(".message.assistant .body")
        assert body.inner_text() == f"{products}, said softly." and body.locator("em").all_inner_texts() == ["softly"]


def test_no_text_is_ever_parsed_as_html(repository):
    source = (repository / "marin/inference/server/static/chat.js").read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|eval\(", source)
