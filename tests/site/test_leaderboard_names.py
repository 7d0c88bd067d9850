"""Names that are long, written from the right, or not what they seem, and figures on the border of a digit, in a real browser."""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from leaderboard_pages import opened, serving

from marin.site import wording
from marin.site.leaderboard.build import build_site
from marin.speedrun.results import Author, RunInfo, write_results

TRACK = "tracks/fineweb-edu.html"
ARABIC = "محمد"
TURNED = "exe\u202egnp\u200b"


def _run(bits_per_byte: float, day: int, **changes: Any) -> RunInfo:
    seconds, peak = 100.0 * day, 312e12
    values: dict[str, Any] = {
        "author": Author(name="Somebody", affiliation="Independent"),
        "description": "A run.",
        "resources": {"accelerator_type": "A100", "gpu_count": 1},
        "model_size": 1_125_000,
        "model_flops": 0.0625 * seconds * peak,
        "training_time": seconds,
        "training_hardware_flops": seconds * peak,
        "c4_en_bpb": bits_per_byte,
        "run_completion_timestamp": f"2026-01-{day:02d} 00:00:00 UTC",
    }
    return RunInfo(**values | changes)


@pytest.fixture(scope="module")
def names_site(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("names")
    author = Author(name=ARABIC, affiliation="Independent")
    runs = {
        "l" * 200: _run(1.5, 2, author=Author(name="N" * 150, affiliation="Independent")),
        "from_the_right": _run(1.40625, 3, author=author, git_commit="a" * 40),
        "نموذج/تجربة": _run(1.28125, 4),
        f"odd/{TURNED}": _run(1.2, 5, resources={"accelerator_type": "A100", "gpu_count": 1, "note": TURNED}),
    }
    for name, info in runs.items():
        write_results(root / "results" / name / "speedrun_results.json", info)
    build_site([root / "results"], [], root / "site")
    return root / "site"


@pytest.fixture(scope="module")
def names_address(names_site: pathlib.Path) -> Iterator[str]:
    with serving(names_site) as base:
        yield base


def _keys(site: pathlib.Path) -> dict[str, str]:
    entries = json.loads((site / "data" / "tracks" / "fineweb-edu.json").read_text())["entries"]
    return {entry["name"]: entry["key"] for entry in entries}


# Where the first of some characters is drawn, from the left, within an element.
_LEFT_OF = """(element, text) => {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const at = node.data.indexOf(text);
    if (at < 0) continue;
    const range = document.createRange();
    range.setStart(node, at);
    range.setEnd(node, at + 1);
    return range.getBoundingClientRect().left;
  }
}"""


@pytest.mark.parametrize("query", ["", "?sort=date.down"])  # rows as they were built, and as scripts make them
def test_date_beside_an_author_written_from_the_right_reads_from_the_left(
    browser: Any, names_address: str, query: str
) -> None:
    with opened(browser, names_address, 900) as (page, problems):
        page.goto(TRACK + query)
        under = page.locator("#board tr", has_text="from_the_right").locator(".sub")
        year, month, day = (under.evaluate(_LEFT_OF, text) for text in ("2026", "-01", "-03"))
        assert under.evaluate(_LEFT_OF, ARABIC) < year < month < day
        name = page.locator("#board tr", has_text="تجربة").locator("th a")
        assert name.evaluate(_LEFT_OF, "نموذج") < name.evaluate(_LEFT_OF, "تجربة")
        page.locator("#plot").focus()
        for _ in range(2):
            page.keyboard.press("ArrowRight")
        assert problems == []


def test_compared_names_and_settings_show_what_is_invisible_in_them(
    browser: Any, names_address: str, names_site: pathlib.Path
) -> None:
    keys = _keys(names_site)
    with opened(browser, names_address) as (page, problems):
        page.goto(f"compare.html?runs={keys[f'odd/{TURNED}']},{keys['from_the_right']}")
        page.wait_for_selector(".compare-table")
        said = page.locator("#compare").inner_text()
        assert wording.clean(TURNED) == "exe\ufffdgnp\ufffd"
        assert said.count("exe\ufffdgnp\ufffd") == 3  # over both tables, and as a setting
        assert not {"\u202e", "\u200b"} & set(said)
        assert "exe\ufffdgnp\ufffd" in page.get_by_role("button", name="Remove").first.get_attribute("aria-label")
        assert problems == []


def test_a_name_covers_no_other_line_and_is_cleaned_alike_with_and_without_scripts(
    browser: Any, names_address: str
) -> None:
    texts = [
        f"z{chr(0x310) * 60}algo", "Việt Nam", "שָׁלוֹם", "हिन्दी", "ก็ำ", f"a{chr(0x301) * 4}b", f"a{chr(0x301) * 5}b", TURNED,
        "plain", "two  spaces\tand a tab", "half \ud800 pair", "x" * 400, "\U0001f469\u200d\U0001f467",
    ]  # fmt: skip
    shown = [wording.clean(text, 160) for text in texts]
    assert shown[0] == f"z{chr(0x310) * 4}{chr(0xFFFD) * 56}algo"
    assert shown[1:5] == texts[1:5]
    with opened(browser, names_address) as (page, problems):
        page.goto(TRACK)
        written = [page.evaluate(f"marin.clean({json.dumps(text)}, 160)") for text in texts]
        assert written == shown
        assert problems == []


@pytest.mark.parametrize("width", [375, 1440])
def test_every_line_of_a_name_begins_beside_its_box_as_the_heading_does(
    browser: Any, names_address: str, width: int
) -> None:
    with opened(browser, names_address, width) as (page, problems):
        page.goto(TRACK)
        page.wait_for_selector("#board .pick input")
        names = page.evaluate("""[...document.querySelectorAll("#board tbody .c-name")].map((cell) => ({
          box: cell.querySelector(".pick input").getBoundingClientRect().right,
          lines: [...cell.querySelectorAll("a, .mark, .sub")].flatMap((part) => [...part.getClientRects()])
            .filter((line) => line.width > 0).map((line) => line.left),
        }))""")
        heading = page.evaluate("""() => {
          const range = document.createRange();
          range.selectNodeContents(document.querySelector("#board thead .c-name button"));
          return range.getBoundingClientRect().left;
        }""")
        assert max(len(name["lines"]) for name in names) > 2
        for name in names:
            assert min(name["lines"]) == pytest.approx(heading, abs=1) and min(name["lines"]) > name["box"]
        assert problems == []


def test_a_name_of_one_long_word_leaves_the_other_columns_in_sight(
    browser: Any, names_address: str, names_site: pathlib.Path
) -> None:
    entry = f"entries/{_keys(names_site)['l' * 200]}.html"
    over = "(boxes) => boxes.map((box) => box.scrollWidth - box.clientWidth)"
    with opened(browser, names_address) as (page, problems):
        for path in ("index.html", TRACK, entry):
            page.goto(path)
            assert max(page.locator(".scroll:visible").evaluate_all(over)) <= 1, path
        assert problems == []
    with opened(browser, names_address, 360) as (page, problems):
        page.goto(TRACK)
        cells = "(cells) => cells.map((cell) => [...cell.querySelectorAll('*')].map((part) => part.getBoundingClientRect().right - cell.getBoundingClientRect().right))"
        assert max(max(cell) for cell in page.locator("#board tbody th").evaluate_all(cells)) <= 1
        assert problems == []


def test_figures_on_the_border_of_a_digit_are_the_same_with_and_without_scripts(
    browser: Any, names_address: str
) -> None:
    with opened(browser, names_address, java_script_enabled=False) as (page, _):
        page.goto(TRACK)
        built = page.locator("#board tbody tr", has_text="from_the_right").locator("td.num").all_inner_texts()
    assert {"1.12 M", "6.2 %"} <= set(built)
    values = [
        1_125_000,
        8_125_000,
        2_125_000_000,
        0.0625,
        0.03125,
        100.5,
        1.125,
        4500,
        1.28125,
        1e-5,
        1.125e-7,
        12_345.5,
    ]
    values += [1.125e18, 0, 99.95, 1e-300, 123456789, 9_999.5, 123_456 * 3600, 8888.25]
    # Halves as people write them, which as numbers lie a little above or below.
    values += [1.00005, 1.00015, 1.00025, 0.0005, 1.005, 2.675, 1.115e9, 8.345e18, 0.00125, 0.03415, 3601.5]
    with opened(browser, names_address) as (page, problems):
        page.goto(f"{TRACK}?sort=date.down")
        made = page.locator("#board tbody tr", has_text="from_the_right").locator("td.num").all_inner_texts()
        assert made == built
        for unit, write in {
            "count": wording.count,
            "seconds": wording.duration,
            "hours": wording.hours,
            "percent": wording.percent,
            "flops": wording.flops,
            "plain": wording.bits,
        }.items():
            kept = {"count": lambda value: isinstance(value, int), "plain": lambda value: value < 1e4}
            shown = [value for value in values if kept.get(unit, lambda _: True)(value)]
            written = page.evaluate(
                "([unit, values]) => values.map((value) => marin.write[unit](value))", [unit, shown]
            )
            assert written == [write(value) for value in shown], unit
        margins = [0.0131, 0.0149, 0.0199, 0.02, 0.00996, 9.96e-5, 1.25e-4, 1.04e-5, 3.6e-7, 0.0, 1.0, 0.25, 2.5e-6]
        written = page.evaluate("(values) => values.map((value) => marin.write.margin(value))", margins)
        assert written == [wording.margin(value) for value in margins]
        assert written[:3] == ["0.013", "0.015", "0.02"]
        assert problems == []


def test_a_budget_with_a_comma_for_decimals_is_refused(browser: Any, names_address: str) -> None:
    with opened(browser, names_address) as (page, problems):
        page.goto(f"{TRACK}?x=training_time")
        budget, said = page.get_by_label("Best under"), page.locator(".best-under")
        for typed, words in (
            ("2,5 min", "A budget is a number"),
            ("12,34", "A budget is a number"),
            ("1,000 s", "Best under 16.7 min"),
            ("12.5 min", "Best under 12.5 min"),
        ):
            budget.fill(typed)
            assert words in said.inner_text(), typed
        assert problems == []


def test_a_column_chosen_from_the_list_starts_as_one_chosen_by_its_head(browser: Any, names_address: str) -> None:
    with opened(browser, names_address, 360) as (page, problems):
        page.goto(TRACK)
        for column, state in (("Date", "sort=date.down"), ("Verified", "sort=rung.down"), ("Entry", "sort=name.up")):
            page.get_by_label("Sort by").select_option(label=column)
            assert page.url.endswith(state)
        page.get_by_label("Sort by").select_option(label="Rank")
        assert "sort" not in page.url
        assert problems == []


def test_entries_are_added_and_removed_by_keys_alone(
    browser: Any, names_address: str, names_site: pathlib.Path
) -> None:
    from playwright.sync_api import expect

    focused = "[document.activeElement.tagName, document.activeElement.getAttribute('aria-label')]"
    with opened(browser, names_address) as (page, problems):
        page.goto(f"compare.html?runs={_keys(names_site)['from_the_right']}")
        page.wait_for_selector(".compare-table")
        heads = page.locator(".compare-table").first.locator("thead th")
        page.get_by_label("Add an entry").focus()
        page.keyboard.type("somebody odd")
        page.locator(".found button").wait_for()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(heads).to_have_count(3)
        assert page.evaluate(focused) == ["INPUT", "Add an entry"]
        page.keyboard.type("nobody has this")
        page.get_by_text("No other entry has these words").wait_for()
        page.get_by_role("button", name="Remove").first.focus()
        page.keyboard.press("Enter")
        expect(heads).to_have_count(2)
        assert page.evaluate(focused) == ["INPUT", "Add an entry"]
        assert page.get_by_role("button", name="Remove").bounding_box()["width"] < 40
        assert problems == []


def test_best_entries_of_a_track_are_those_with_a_rank(browser: Any, tmp_path: pathlib.Path) -> None:
    impossible = _run(0.5, 6, training_time=1e-9)
    write_results(tmp_path / "mixed" / "good" / "speedrun_results.json", _run(1.3, 5))
    for folder in ("mixed", "alone"):
        write_results(tmp_path / folder / "too_good" / "speedrun_results.json", impossible)
        build_site([tmp_path / folder], [], tmp_path / f"{folder}_site")
    for folder, names in (("mixed", ["good"]), ("alone", [])):
        with serving(tmp_path / f"{folder}_site") as base, opened(browser, base) as (page, problems):
            page.goto("index.html")
            card = page.locator(".card", has=page.get_by_role("link", name="FineWeb-Edu", exact=True))
            assert card.locator("tbody a").all_inner_texts() == names
            assert card.get_by_text("No entry has a rank yet.").count() == (0 if names else 1)
            assert "held" in page.locator("section", has_text="Newest entries").last.inner_text()
            assert problems == []


def test_the_command_of_an_entry_is_whole_on_paper(browser: Any, names_address: str, names_site: pathlib.Path) -> None:
    with opened(browser, names_address, 718) as (page, problems):
        page.goto(f"entries/{_keys(names_site)['from_the_right']}.html")
        page.emulate_media(media="print")
        command = page.locator(".command")
        assert "--force_run_failed true" in command.inner_text()
        assert command.evaluate("(element) => element.scrollWidth - element.clientWidth") == 0
        assert problems == []


def test_a_comparison_of_eight_fits_on_paper(browser: Any, site: pathlib.Path) -> None:
    keys = sorted(path.stem for path in (site / "entries").iterdir())[:8]
    with serving(site) as base, opened(browser, base) as (page, problems):
        page.goto(f"compare.html?runs={','.join(keys)}")
        page.wait_for_selector(".compare-table")
        page.emulate_media(media="print")
        page.set_viewport_size({"width": 718, "height": 1000})  # A4 within its margins
        assert page.evaluate("document.documentElement.scrollWidth") == 718
        last = page.locator(".compare-table").first.locator("thead th").last.bounding_box()
        assert last["x"] + last["width"] <= 718
        assert problems == []
