"""What pages claim of entries that say much and of entries that say little, side by side in a browser."""

import json
import pathlib
import random
from collections.abc import Iterator
from typing import Any

import pytest
from forgeries.honest import Plan, write_submission
from leaderboard_pages import opened, serving

from marin.site.leaderboard import curves
from marin.site.leaderboard.build import build_site
from marin.speedrun.importers.nanochat import LEADERBOARD


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """An entry with a log, one whose architecture only its own code knows, and three rows of a list without settings."""
    root = tmp_path_factory.mktemp("claims")
    write_submission(root / "results" / "plain", [Plan(seed=1)], random.Random(3))
    own = Plan(seed=2, author="Grace Other", model_class="main:Mine", extra_model={"my_trick": 2})
    write_submission(root / "results" / "own", [own], random.Random(4))
    rows = [
        {
            "run_name": f"row_{number}",
            "author": {"name": "Lists", "affiliation": ""},
            "eval_paloma_c4_en_bpb": 1.3 - number / 10,
            "training_hardware_flops": 1e19 * (number + 1),
        }
        for number in range(3)
    ]
    (root / "runs.json").write_text(json.dumps(rows))
    build_site([root / "results"], [str(root / "runs.json"), LEADERBOARD], root / "site")
    return root / "site"


@pytest.fixture(scope="module")
def address(built: pathlib.Path) -> Iterator[str]:
    with serving(built) as base:
        yield base


def _key(built: pathlib.Path, name: str) -> str:
    (found,) = [path.stem for path in (built / "entries").iterdir() if path.stem.rpartition("-")[0] == name]
    return found


@pytest.mark.parametrize("scripts", [True, False])
def test_rung_below_that_could_not_be_checked_is_said_and_stays_dark(
    browser: Any, built: pathlib.Path, address: str, scripts: bool
) -> None:
    own = _key(built, "own")
    entry = json.loads((built / "data" / "entries" / f"{own}.json").read_text())["entry"]
    assert (entry["rung"], entry["open_rungs"]) == ("log", ["arithmetic"])
    with opened(browser, address, java_script_enabled=scripts) as (page, problems):
        for place in (f"entries/{own}.html", f"tracks/{entry['track']}.html", "index.html"):
            page.goto(place)
            where = ".byline .rung" if place.startswith("entries") else f"tr:has(a[href*='{own}']) .c-rung .rung"
            shown = page.locator(where)
            assert " ".join(shown.inner_text().split()) == "log with arithmetic open"
            second = "element => getComputedStyle(element.querySelector('.ladder')).getPropertyValue('--s2')"
            off = "element => getComputedStyle(element.querySelector('.ladder')).getPropertyValue('--s5')"
            assert shown.evaluate(second) == shown.evaluate(off)
        page.goto(f"entries/{_key(built, 'plain')}.html")
        assert page.locator(".byline .rung").inner_text().strip() == "log"
        assert problems == []


def test_filter_by_a_rung_leaves_out_entries_of_which_it_is_open(
    browser: Any, built: pathlib.Path, address: str
) -> None:
    entry = json.loads((built / "data" / "entries" / f"{_key(built, 'own')}.json").read_text())["entry"]
    with opened(browser, address) as (page, problems):
        page.goto(f"tracks/{entry['track']}.html")
        names = page.locator("#board tbody .c-name a")
        page.get_by_text("Filters", exact=True).click()
        for rung, left in (("arithmetic", ["plain"]), ("log", ["own", "plain"]), ("re-run", [])):
            page.get_by_label("Rung passed", exact=True).select_option(rung)
            assert sorted(names.all_inner_texts()) == left, rung
        assert problems == []


def test_settings_are_compared_among_the_entries_that_state_some(
    browser: Any, built: pathlib.Path, address: str
) -> None:
    rows, own, plain = [_key(built, f"row-{number}") for number in range(3)], _key(built, "own"), _key(built, "plain")
    with opened(browser, address) as (page, problems):
        page.goto(f"compare.html?runs={','.join([*rows, own])}")
        page.get_by_text("No two of them have settings to compare. 3 of them state no settings.").wait_for()
        assert page.locator(".compare-table").count() == 1
        page.goto(f"compare.html?runs={','.join([rows[0], own, rows[1], plain])}")
        settings = page.locator("section", has=page.get_by_role("heading", name="Settings that differ"))
        settings.wait_for()
        heads = settings.locator("thead th a")
        assert heads.all_inner_texts() == ["own", "plain"]
        colours = "table => [...table.querySelectorAll('.swatch')].map((swatch) => swatch.style.background)"
        figures = page.locator(".compare-table").first.evaluate(colours)
        assert settings.evaluate(colours) == [figures[1], figures[3]]  # those of the same entries in the other table
        assert (
            "model_config.my_trick" in settings.inner_text() and "model_config.hidden_dim" not in settings.inner_text()
        )
        assert "2 of them state no settings." in settings.inner_text()
        verified = page.locator("tr", has=page.get_by_role("rowheader", name="Verified", exact=True)).locator("td")
        assert verified.all_inner_texts() == ["parsed", "log with arithmetic open", "parsed", "log"]
        assert problems == []


@pytest.mark.parametrize(("numbers", "best"), [((3, 6), 0), ((5, 6), 1)])
def test_none_is_best_where_entries_of_one_track_were_scored_on_different_texts(
    browser: Any, built: pathlib.Path, address: str, numbers: tuple[int, ...], best: int
) -> None:
    """nanochat's third row is of FineWeb-Edu, the fifth and sixth are of ClimbMix, which has fewer bits per byte."""
    with opened(browser, address) as (page, problems):
        page.goto(f"compare.html?runs={','.join(_key(built, f'nanochat-{number}') for number in numbers)}")
        page.wait_for_selector(".compare-table")
        for title, wanted in (("Bits per byte", best), ("CORE", 1), ("Training time", 1)):
            row = page.locator("tr", has=page.get_by_role("rowheader", name=title, exact=True))
            assert row.locator(".best").count() == wanted, title
        assert problems == []


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Seven families with long names, of five sizes each."""
    root = tmp_path_factory.mktemp("many")
    rows = [
        {
            "run_name": f"hackable_starter/attention/family_of_{'abcdefg'[family]}_scaling/{size}m_wide",
            "author": {"name": "Ada Example", "affiliation": ""},
            "eval_paloma_c4_en_bpb": 0.7 + 0.5 * 0.8**size + family / 1000,
            "training_hardware_flops": 10.0 ** (18 + size / 2),
            "run_completion_timestamp": f"2026-01-{1 + family:02d} 00:00:00 UTC",
        }
        for family in range(7)
        for size in range(5)
    ]
    (root / "runs.json").write_text(json.dumps(rows))
    build_site([], [str(root / "runs.json")], root / "site")
    with serving(root / "site") as base:
        yield base


def test_scaling_view_names_its_families_whole_and_says_how_many_it_draws(browser: Any, many: str) -> None:
    with opened(browser, many) as (page, problems):
        page.goto("tracks/fineweb-edu.html")
        assert (
            "The chart has room for 6 of the 7 families."
            in page.locator("section", has=page.locator("#scaling-title")).inner_text()
        )
        assert problems == []
        page.goto("charts/fineweb-edu-scaling-wide-light.svg")
        names = page.locator(".role-legend-label text")
        assert names.all_text_contents() == [
            f"{rank}  …/attention/family_of_{letter}_scaling" for rank, letter in enumerate("abcdef", start=1)
        ]
        right = "element => element.getBoundingClientRect().right"
        width = page.locator("svg").first.evaluate(right)
        assert max(name.evaluate(right) for name in names.all()) <= width


def test_printed_and_narrow_tables_keep_ranks_dates_and_words_readable(browser: Any, many: str) -> None:
    text_box = """cell => {
      const range = document.createRange();
      range.selectNodeContents(cell.firstChild);
      return range.getBoundingClientRect().right;
    }"""
    with opened(browser, many, width=718) as (page, problems):
        page.goto("tracks/fineweb-edu.html")
        page.emulate_media(media="print")
        ranks = page.locator("#board tbody tr.frontier td.c-rank")
        assert ranks.count() > 1
        for rank in ranks.all():
            assert rank.evaluate(text_box) < rank.locator(".dot").evaluate("dot => dot.getBoundingClientRect().left")
        assert problems == []
    with opened(browser, many, width=375) as (page, problems):
        page.goto("tracks/fineweb-edu.html")
        lines = "element => element.getClientRects().length"
        assert {day.evaluate(lines) for day in page.locator("#board .day").all()} == {1}
        # A line of a name ends after a slash, a dash or an underscore.
        broken = """name => {
          const found = [];
          const text = document.createTreeWalker(name, NodeFilter.SHOW_TEXT);
          for (let node = text.nextNode(); node; node = text.nextNode()) {
            for (let at = 1; at < node.length; at += 1) {
              const [before, after] = [at - 1, at].map((start) => {
                const range = document.createRange();
                range.setStart(node, start);
                range.setEnd(node, start + 1);
                return range.getBoundingClientRect().top;
              });
              if (after > before + 4 && !"/_-".includes(node.data[at - 1])) found.push(node.data.slice(0, at));
            }
          }
          return found;
        }"""
        assert [name.evaluate(broken) for name in page.locator("#board .c-name a").all() if name.evaluate(broken)] == []
        assert problems == []


def test_records_fit_a_phone(browser: Any, many: str) -> None:
    with opened(browser, many, width=375) as (page, problems):
        page.goto("tracks/fineweb-edu.html")
        box = page.get_by_role("group", name="Records by date")
        assert box.locator("tbody tr").count() > 0
        assert box.evaluate("box => box.scrollWidth <= box.clientWidth")
        assert problems == []


def test_steps_at_a_curve_are_written_whole() -> None:
    curve = curves.draw_curve("Loss", [(step, 3 - step / 3000) for step in range(2350)])
    assert [tick.text for tick in curve.x_ticks] == ["0", "500", "1,000", "1,500", "2,000"]
    few = curves.draw_curve("Loss", [(step, 3 - step / 3) for step in range(3)])
    assert [tick.text for tick in few.x_ticks] == ["0", "1", "2"]


def test_curves_of_an_entry_of_several_runs_say_of_which_they_are(tmp_path: pathlib.Path) -> None:
    write_submission(tmp_path / "results" / "one", [Plan(seed=3)], random.Random(5))
    write_submission(tmp_path / "results" / "two", [Plan(seed=4), Plan(seed=5)], random.Random(6))
    build_site([tmp_path / "results"], [], tmp_path / "site")
    said = {
        name: (tmp_path / "site/entries" / f"{_key(tmp_path / 'site', name)}.html").read_text()
        for name in ("one", "two")
    }
    assert all("Curves</h2>" in page for page in said.values())
    assert "Of the first of its 2 runs, with seed 4." in said["two"] and "Of the first of its" not in said["one"]
