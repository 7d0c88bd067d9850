"""The chart of a track and the drawn ones in a real browser: pointer, finger, keys, other costs and days, and what they say of themselves."""

import math
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
from leaderboard_pages import opened, serving

TRACK = "tracks/fineweb-edu.html"


@pytest.fixture(scope="module")
def address(site: pathlib.Path) -> Iterator[str]:
    with serving(site) as base:
        yield base


def test_chart_and_table_light_each_other_up_and_keys_walk_the_frontier(browser: Any, address: str) -> None:
    with opened(browser, address) as (page, problems):
        page.goto(TRACK)
        page.locator("#plot").scroll_into_view_if_needed()
        row = page.locator("#board tbody tr").nth(2)
        row.hover()
        assert "lit" in row.get_attribute("class")
        assert page.locator(".tip b").inner_text() == row.locator("th a").inner_text()
        page.locator("#plot").focus()
        page.keyboard.press("ArrowRight")
        first = page.locator(".tip b").inner_text()
        page.keyboard.press("ArrowRight")
        assert page.locator(".tip b").inner_text() != first
        page.locator("#board tr.lit").wait_for(state="attached", timeout=30_000)
        assert page.locator("#board tr.lit").count() == 1
        box = page.locator("#plot").bounding_box()
        ring = page.locator("#plot .ring")
        page.mouse.move(box["x"] + float(ring.get_attribute("cx")), box["y"] + float(ring.get_attribute("cy")))
        page.locator("#board tr.lit").wait_for(state="attached", timeout=30_000)
        assert page.locator("#board tr.lit").count() == 1
        page.locator("#plot").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        page.wait_for_url("**/entries/*.html")
        assert problems == []


def test_chart_under_a_finger_names_the_point_that_is_tapped_and_opens_it_at_the_second_tap(
    browser: Any, address: str
) -> None:
    with opened(browser, address, 375, has_touch=True, is_mobile=True) as (page, problems):
        page.goto(TRACK)
        plot, tip = page.locator("#plot"), page.locator("#plot .tip")
        plot.scroll_into_view_if_needed()
        page.wait_for_function("marin.table.chart.drawn.length > 1")
        points = page.evaluate(
            "(({ drawn, px, py }) => drawn.map((index) => [px[index], py[index]]))(marin.table.chart)"
        )
        for x, y in (points[0], points[3]):
            plot.tap(position={"x": x, "y": y})
            tip.wait_for(state="visible")
            assert page.locator("#board tr.lit th a").inner_text() == tip.locator("b").inner_text()
        plot.tap(position={"x": 3, "y": 3})
        tip.wait_for(state="hidden")
        for _ in range(2):
            assert page.url.endswith(TRACK)
            plot.tap(position={"x": points[0][0], "y": points[0][1]})
        page.wait_for_url("**/entries/*.html")
        assert problems == []


def test_chart_shows_other_costs_other_days_and_the_best_under_a_budget(browser: Any, address: str) -> None:
    with opened(browser, address) as (page, problems):
        page.goto(TRACK)
        for title in ("Model FLOPs", "Training time", "Hardware FLOPs"):
            page.get_by_label("Figure on the x axis").select_option(label=title)
            page.locator(".plot text", has_text=f"{title} (log)").wait_for(state="attached")
        budget = page.get_by_label("Best under")
        budget.fill("1e17")
        assert "Best under 1.00×10¹⁷ (Hardware FLOPs): family/size_2" in page.locator(".best-under").inner_text()
        budget.fill("12")
        assert "No entry costs at most" in page.locator(".best-under").inner_text()
        budget.fill("cheap")
        assert "A budget is a number" in page.locator(".best-under").inner_text()
        slider = page.get_by_label("The frontier as it was on a day")
        slider.focus()
        page.keyboard.press("Home")
        assert page.locator(".controls output").inner_text() == "2026-01-01"
        assert "day=2026-01-01" in page.url
        budget.fill("1e19")
        assert "family/size_0" in page.locator(".best-under").inner_text()
        assert problems == []


def test_chart_is_not_flattened_by_a_time_that_was_refuted(browser: Any, address: str) -> None:
    with opened(browser, address) as (page, _):
        page.goto(f"{TRACK}?x=training_time")  # of one that is listed without a rank it is a billionth of a second
        page.wait_for_selector("#plot svg text")
        times = page.locator("#plot svg text").all_text_contents()
        assert "5 min" in times and "1 s" not in times


def test_chart_says_of_itself_what_it_shows(browser: Any, address: str) -> None:
    from playwright.sync_api import expect

    def says(text: str) -> re.Pattern[str]:
        return re.compile(f"^{re.escape(text)}.* Left and right arrow keys")

    with opened(browser, address) as (page, problems):
        page.goto(TRACK)
        plot = page.locator("#plot")
        built = page.locator("#pareto").get_attribute("data-text")
        expect(plot).to_have_attribute("aria-label", says(built))
        page.get_by_label("Figure on the x axis").select_option(label="Training time")
        expect(plot).to_have_attribute(
            "aria-label", says("Scatter chart of training time against bits per byte for 10 ")
        )
        page.get_by_label("Search entries").fill("size_3")
        one = "Scatter chart of training time against bits per byte for 1 entry. 1 on the Pareto frontier."
        expect(plot).to_have_attribute("aria-label", says(one))
        page.get_by_label("Search entries").fill("nobody")
        none = "Scatter chart of training time against bits per byte for 0 entries. 0 on the Pareto frontier."
        expect(plot).to_have_attribute("aria-label", says(none))
        page.get_by_label("Search entries").fill("")
        page.get_by_label("The frontier as it was on a day").focus()
        page.keyboard.press("Home")
        day = "Scatter chart of training time against bits per byte for 1 entry as of 2026-01-01."
        expect(plot).to_have_attribute("aria-label", says(day))
        page.keyboard.press("End")
        page.get_by_label("Figure on the x axis").select_option(label="Hardware FLOPs")
        expect(plot).to_have_attribute("aria-label", says(built))
        assert problems == []


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (3.0, 3.0000000000000004),
        (-1e12, math.nextafter(-1e12, 0)),
        (0.5, math.nextafter(0.5, 1)),
        (-0.02, 0.31),
        (0, 1e12),
    ],
)
def test_ticks_of_any_range_are_few_and_come_to_an_end(browser: Any, address: str, low: float, high: float) -> None:
    with opened(browser, address) as (page, problems):
        page.goto("compare.html")
        page.set_default_timeout(20_000)
        ticks = page.evaluate(
            "([low, high]) => marin.ticks({ low, high, isLog: false }, 'plain', 6).map(([value]) => value)", [low, high]
        )
        slack = 1e-9 * max(abs(low), abs(high))  # ten digits are written
        assert len(ticks) <= 7 and all(low - slack <= value <= high + slack for value in ticks)
        assert len(ticks) >= 3 or high - low < slack
        assert problems == []


@pytest.mark.parametrize("width", [375, 1440])
def test_points_of_the_drawn_charts_say_what_they_are_and_open_their_entry(
    browser: Any, address: str, width: int
) -> None:
    with opened(browser, address, width) as (page, problems):
        page.goto(TRACK)
        for figure in page.locator("figure.live").all():
            figure.scroll_into_view_if_needed()
            figure.locator("svg").wait_for()
            points = figure.locator("[role=link]")
            assert points.count() >= 2
            label = points.first.get_attribute("aria-label")
            points.first.focus()
            tip = figure.locator(".tip")
            assert label == f"{tip.locator('b').inner_text()}: {tip.inner_text().splitlines()[1]}"
            page.keyboard.press("Escape")
            assert tip.is_hidden()
        assert page.locator("figure.live").count() == 2
        records = page.locator("figure.live").first
        names = [point.get_attribute("aria-label").partition(": ")[0] for point in records.locator("[role=link]").all()]
        keys = records.get_attribute("data-keys").split(" ")
        assert [key.rpartition("-")[0] for key in keys] == [re.sub("[^a-z0-9]+", "-", name) for name in names]
        points.last.focus()
        page.keyboard.press("Enter")
        page.wait_for_url("**/entries/family-size-*.html")
        assert problems == []
