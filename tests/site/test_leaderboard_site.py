"""The built site: complete, deterministic, incremental, self-contained, and inert whatever the files say."""

import csv
import hashlib
import html.parser
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pyarrow.parquet
import pytest
from documented_commands import ROOT, python_block
from example_runs import run_info, run_json
from leaderboard_pages import words_of
from pydantic import TypeAdapter

from marin.cli.main import dispatch
from marin.errors import ResultsError, StorageError
from marin.site.leaderboard import api, build, curves, downloads
from marin.site.leaderboard.build import build_site
from marin.site.leaderboard.output import SiteWriter
from marin.speedrun import tracks
from marin.speedrun.board.leaderboard import build_board, collect
from marin.speedrun.board.rows import rows_of
from marin.speedrun.results import Author, write_results
from marin.speedrun.tracks import TRACKS, Track

SCRIPTS = 3  # at most: the site's and the rows'; data never becomes one


class _Page(html.parser.HTMLParser):
    """Every tag with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def _pages(site: pathlib.Path) -> Iterator[tuple[pathlib.Path, _Page]]:
    for path in sorted(site.rglob("*.html")):
        yield path, _Page(path.read_text())


def _document(site: pathlib.Path, track: str) -> Any:
    return json.loads((site / "data" / "tracks" / f"{track}.json").read_text())


def test_site_shows_every_run_its_state_and_every_broken_file(site: pathlib.Path) -> None:
    words = words_of(site / "tracks" / "fineweb-edu.html")
    for expected in ("family/ size_0", "family/ worse", "too_good", "held", "Hardware FLOPs", "Best under a budget"):
        assert expected in words
    assert "broken/speedrun_results.json" in words_of(site / "index.html")
    assert "cut short" in words_of(site / "unreadable.html")
    about = words_of(site / "about.html")
    assert "figures that fit together can be made up" in about
    (hello,) = site.glob("entries/hello-*.html")
    for expected in ("Return the value.", "Does not prove", "no log is given"):
        assert expected in words_of(hello)
    gains = {path.stem for path in site.glob("entries/*.html") if "as good" in words_of(path)}
    entries = _document(site, "fineweb-edu")["entries"]
    assert {entry["key"] for entry in entries if entry["on_frontier"]} <= gains
    assert not {entry["key"] for entry in entries if entry["state"] == "held"} & gains
    # What the text that a track is scored on takes to compress stands on its page.
    assert "xz -9 needs" in words_of(next(site.glob("tracks/other-python-docs-*.html")))


def test_site_has_a_page_and_a_document_for_every_entry(site: pathlib.Path) -> None:
    index = json.loads((site / "data" / "index.json").read_text())
    keys = {entry["key"] for track in index["tracks"] for entry in _document(site, track["key"])["entries"]}
    assert len(keys) == 11
    assert {path.stem for path in site.glob("entries/*.html")} == keys
    assert {path.stem for path in site.glob("data/entries/*.json")} == keys
    assert [item["source"] for item in index["unreadable"]] == ["broken/speedrun_results.json"]


def test_site_documents_fit_their_published_schemas(site: pathlib.Path) -> None:
    index = TypeAdapter(api.IndexDocument).validate_json((site / "data" / "index.json").read_bytes(), strict=True)
    for track in index["tracks"]:
        TypeAdapter(api.TrackDocument).validate_json((site / track["document"]).read_bytes(), strict=True)
    for path in site.glob("data/entries/*.json"):
        TypeAdapter(api.EntryDocument).validate_json(path.read_bytes(), strict=True)
    for name, path in index["schemas"].items():
        schema = json.loads((site / path).read_text())
        assert schema["$schema"].endswith("2020-12/schema"), name
        assert "version" in schema["required"]


def test_site_downloads_hold_the_same_rows_in_every_format(site: pathlib.Path) -> None:
    entries = _document(site, "fineweb-edu")["entries"]
    folder = site / "data" / "tracks"
    table = list(csv.DictReader(io.StringIO((folder / "fineweb-edu.csv").read_text())))
    stored = pyarrow.parquet.read_table(folder / "fineweb-edu.parquet").to_pylist()
    assert [row["name"] for row in table] == [row["name"] for row in stored] == [entry["name"] for entry in entries]
    assert [row["bits_per_byte"] for row in stored] == [entry["values"]["bits_per_byte"] for entry in entries]
    held = next(row for row in table if row["name"] == "too_good")
    assert (held["rank"], held["on_frontier"], held["state"]) == ("", "false", "held")
    references = (folder / "fineweb-edu.bib").read_text()
    assert references.count("@misc{") == len(entries)
    atom = "{http://www.w3.org/2005/Atom}"
    feed = ElementTree.fromstring((folder / "fineweb-edu.atom").read_text())
    dates = [item.findtext(f"{atom}updated") or "" for item in feed.iter(f"{atom}entry")]
    assert len(dates) == len(entries)
    assert dates == sorted(dates, reverse=True)


@pytest.mark.parametrize(
    ("text", "written"),
    [("=1+1", "'=1+1"), ("+a", "'+a"), ("-a", "'-a"), ("@a", "'@a"), ("  =a", "'=a"), ("a\n=b", "a =b"), ("plain", "plain"), (True, "true"), (-1.5, -1.5)],
)  # fmt: skip
def test_cell_never_begins_a_formula(text: object, written: object) -> None:
    assert downloads.cell(text) == written


def test_site_charts_are_inert_svg_in_two_schemes_and_two_shapes(site: pathlib.Path) -> None:
    names = {path.name for path in site.glob("charts/fineweb-edu-frontier-*.svg")}
    assert names == {
        f"fineweb-edu-frontier-{shape}-{scheme}.svg" for shape in ("wide", "narrow") for scheme in ("light", "dark")
    }
    for chart in site.glob("charts/*.svg"):
        root = ElementTree.fromstring(chart.read_text())
        tags = {element.tag.rsplit("}", 1)[-1] for element in root.iter()}
        assert not tags & {"script", "foreignObject", "image", "a", "use", "style"}
    light, dark = (
        (site / "charts" / f"fineweb-edu-frontier-wide-{scheme}.svg").read_text() for scheme in ("light", "dark")
    )
    assert "Hardware FLOPs (log)" in light
    assert "#0a58ca" in light
    assert "#0a58ca" not in dark


def test_record_timeline_goes_on_to_the_newest_ranked_entry(tmp_path: pathlib.Path) -> None:
    dated = [("2026-01-01", 1.5), ("2026-01-05", 1.4), ("2026-06-30", 1.45)]
    rows = [
        {"run_name": f"row_{day}", "author": {"name": "Lists", "affiliation": ""}, "eval_paloma_c4_en_bpb": bits,
         "training_hardware_flops": 1e19, "run_completion_timestamp": f"{day} 00:00:00 UTC"}
        for day, bits in dated
    ]  # fmt: skip
    (tmp_path / "runs.json").write_text(json.dumps(rows))
    build_site([], [str(tmp_path / "runs.json")], tmp_path / "site")
    assert _document(tmp_path / "site", "fineweb-edu")["records"] != []
    page = (tmp_path / "site" / "tracks" / "fineweb-edu.html").read_text()
    assert "1.4000 on 2026-01-05 (row_2026-01-05). No later entry, up to 2026-06-30, is a record." in page
    assert "Jun 2026" in (tmp_path / "site" / "charts" / "fineweb-edu-records-wide-light.svg").read_text()


def _track_of_the_tutorial() -> Track:
    known = vars(tracks)
    found = dict(known)
    exec(compile(python_block("docs/tutorials/tracks.md", 0), "tracks.md", "exec"), found)
    (track,) = (value for name, value in found.items() if isinstance(value, Track) and value is not known.get(name))
    return track


def test_command_of_an_entry_names_only_a_module_that_can_be_one(tmp_path: pathlib.Path) -> None:
    folders = ("my_idea", "sweep/wide", "my_idea-speedrun_results-408c3005", "130m")
    for number, folder in enumerate(folders):
        author = Author(name=f"Author {number}", affiliation="Independent", url=None)
        info = run_info(run_name=f"run_{number}", author=author, git_commit="c" * 40)
        write_results(tmp_path / "results" / folder / "speedrun_results.json", info)
    build_site([tmp_path / "results"], [], tmp_path / "site")
    pages = "".join(page.read_text(encoding="utf-8") for page in (tmp_path / "site" / "entries").glob("*.html"))
    assert sorted(re.findall(r"python -m (\S+)", pages)) == [
        "experiments.speedrun.my_idea.main", "experiments.speedrun.sweep.wide.main",
    ]  # fmt: skip


def test_command_of_an_entry_names_the_file_that_lies_beside_its_results(tmp_path: pathlib.Path) -> None:
    for number, file in enumerate(("main.py", "llama_75m.py")):
        folder = tmp_path / "results" / f"run_{number}"
        write_results(
            folder / "speedrun_results.json", run_info(git_commit="c" * 40, seed=number, training_time=60.5 + number)
        )
        for name in ("__init__.py", file):
            (folder / name).touch()

    def commands() -> list[str]:
        build_site([tmp_path / "results"], [], tmp_path / "site")
        pages = sorted((tmp_path / "site" / "entries").glob("*.html"))
        return re.findall(r"python -m (\S+)", "".join(page.read_text(encoding="utf-8") for page in pages))

    assert commands() == ["experiments.speedrun.run_0.main", "experiments.speedrun.run_1.llama_75m"]
    (folder / "llama_75m.py").rename(folder / "main.py")
    assert commands() == ["experiments.speedrun.run_0.main", "experiments.speedrun.run_1.main"]


def test_page_of_an_entry_says_what_the_test_of_each_of_its_tracks_says(tmp_path: pathlib.Path) -> None:
    node = {
        "resources": {"accelerator_type": "H100", "gpu_count": 8},
        "num_chips": 8,
        "num_devices": 8,
        "device_flops": 989.5e12,
    }
    rows = []
    for day, (name, bits, more) in enumerate(
        (("node", 1.4, node), ("first", 1.5, {}), ("luckier", 1.49999, {})), start=1
    ):
        cost = (60.5 + day) * more.get("device_flops", 312e12) * more.get("num_chips", 1)
        stated = {
            "training_time": 60.5 + day,
            "training_hardware_flops": cost,
            "tokenized_dataset": "fineweb-edu",
            "eval/paloma/c4_en/bpb": bits,
        }
        run = run_info(description=name, run_completion_timestamp=f"2026-01-0{day} 00:00:00 UTC", **stated, **more)
        rows += rows_of(run, name, f"{name}/speedrun_results.json")
    contest = [track for track in TRACKS if track.key in ("fineweb-edu", "single-gpu")]
    build.write_site(build_board(rows, tracks=contest), SiteWriter(str(tmp_path)))
    (page,) = (tmp_path / "entries").glob("luckier-*.html")
    words = words_of(page)
    assert "statistics on FineWeb-Edu passed" in words
    assert re.search(r"statistics on Single GPU failed warning the mean is 1e-05 better than first", words)
    (path,) = (tmp_path / "data" / "entries").glob("luckier-*.json")
    statistics = json.loads(path.read_text())["statistics"]
    assert {key: found["outcome"] for key, found in statistics.items()} == {
        "fineweb-edu": "passed",
        "single-gpu": "failed",
    }
    (page,) = (tmp_path / "entries").glob("node-*.html")
    assert "statistics passed" in words_of(page)


def test_page_of_a_track_without_entries_says_how_one_is_begun_and_what_it_must_keep(tmp_path: pathlib.Path) -> None:
    build.write_site(build_board([]), SiteWriter(str(tmp_path)))
    commands = {}
    for key in ("fineweb-edu", "time-to-gpt2"):
        found = re.search("No entry yet (.*?) begins one", words_of(tmp_path / "tracks" / f"{key}.html"))
        commands[key] = found and found[1]
    assert commands == {"fineweb-edu": "marin init NAME", "time-to-gpt2": "bash runs/speedrun.sh"}
    assert "training time &lt;= 600 s" in words_of(tmp_path / "tracks" / "cpu-10-minutes.html")


def test_site_has_page_table_records_and_charts_of_the_track_that_the_tutorial_adds(tmp_path: pathlib.Path) -> None:
    added = _track_of_the_tutorial()
    others = tuple(track for track in TRACKS if track.key != added.key)
    rows = []
    for name, seed, bits, cost in (("mine", 0, 1.2, 1e18), ("mine", 1, 1.2008, 1.001e18), ("mine", 2, 1.1994, 1.002e18), ("dear", 0, 1.0, 2e19)):  # fmt: skip
        run = run_info(description=name, seed=seed, train_config=run_json()["train_config"] | {"seed": seed}, tokenized_dataset="fineweb-edu", training_hardware_flops=cost, training_time=cost / 312e12, **{"eval/paloma/c4_en/bpb": bits})  # fmt: skip
        rows += rows_of(run, f"{name}/seed_{seed}", f"{name}/seed_{seed}/speedrun_results.json")
    shared = {}
    for place, contest in (("without", others), ("with", (*others, added))):
        build.write_site(build_board(rows, tracks=contest), SiteWriter(str(tmp_path / place)))
        shared[place] = (tmp_path / place / "data" / "tracks" / "fineweb-edu.csv").read_bytes()
    assert shared["with"] == shared["without"]
    site = tmp_path / "with"
    page = words_of(site / "tracks" / f"{added.key}.html")
    for expected in (added.title, *added.text, "hardware FLOPs &lt;= 1e+19", "FineWeb-Edu, scored on C4-EN"):  # fmt: skip
        assert expected in page
    found = [(entry["name"], entry["rank"], entry["is_record"]) for entry in _document(site, added.key)["entries"]]
    assert found == [("mine", 1, True), ("dear/seed_0", None, False)]
    assert list(site.glob(f"charts/{added.key}-frontier-*.svg"))
    assert (site / "assets" / f"rows-{added.key}.js").exists()
    keys = [track["key"] for track in json.loads((site / "data" / "index.json").read_text())["tracks"]]
    assert keys == [track.key for track in (*others, added)]
    assert f'href="tracks/{added.key}.html"' in (site / "index.html").read_text()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_track_of_the_tutorial_at_the_end_of_the_contest_s_breaks_no_test_of_the_board_or_its_site() -> None:
    program = """
import sys
import pytest
from marin.speedrun import tracks
known = dict(vars(tracks))
exec(sys.argv[1], vars(tracks))
tracks.TRACKS += tuple(vars(tracks)[name] for name in vars(tracks).keys() - known.keys())
sys.exit(pytest.main(["-p", "no:cacheprovider", "-m", "not slow and not torture", *sys.argv[2:]]))
"""
    block = python_block("docs/tutorials/tracks.md", 0)
    tests = [ROOT / "tests" / name for name in ("speedrun/test_leaderboard.py", "speedrun/test_tracks.py", "site/test_leaderboard_site.py", "site/test_leaderboard_rebuilds.py")]  # fmt: skip
    done = subprocess.run([sys.executable, "-c", program, block, *tests], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_site_policy_allows_nothing_remote_and_no_inline_code(site: pathlib.Path) -> None:
    for path, page in _pages(site):
        policy = next(
            attrs["content"] for _, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy"
        )
        assert policy == build.POLICY
        assert "unsafe" not in policy and "http" not in policy
        for tag, attrs in page.tags:
            assert not [name for name in attrs if name.startswith("on") or name == "style"], path
            assert tag not in ("style", "iframe", "object", "base", "form")
            assert tag != "script" or (attrs.get("src") or "").startswith(("assets/", "../assets/"))
            for name in ("src", "srcset"):
                assert not re.match(r"[a-z]+:|//", attrs.get(name) or "")


def test_site_links_all_lead_to_files_that_are_there(site: pathlib.Path) -> None:
    for path, page in _pages(site):
        for _, attrs in page.tags:
            for name in ("href", "src", "srcset"):
                address = re.sub(r"[?#].*", "", attrs.get(name) or "")
                if address and not address.startswith("https://"):
                    assert (path.parent / address).resolve().is_file(), (path, address)


def test_site_first_load_of_a_track_is_small(site: pathlib.Path) -> None:
    import gzip

    page = site / "tracks" / "fineweb-edu.html"
    parts = [
        page,
        *site.glob("assets/leaderboard-*"),
        site / "charts" / "fineweb-edu-frontier-wide-light.svg",
        site / "assets" / "icon.svg",
    ]
    assert sum(len(gzip.compress(part.read_bytes(), mtime=0)) for part in parts) < 80_000


def test_site_of_hostile_files_contains_no_foreign_tag_attribute_or_link(hostile_site: pathlib.Path) -> None:
    for path, page in _pages(hostile_site):
        tags = [tag for tag, _ in page.tags]
        assert tags.count("script") <= SCRIPTS
        assert not set(tags) & {"b" if path.name == "index.html" else "marquee", "iframe", "object", "embed", "form"}
        for tag, attrs in page.tags:
            assert not [name for name in attrs if name.startswith("on")]
            assert tag != "img" or (attrs.get("src") or "").removeprefix("../").startswith("charts/")
            href = attrs.get("href") or ""
            assert not re.match(r"\s*(javascript|data|vbscript):|//", href, re.I), href
    for chart in hostile_site.glob("charts/*.svg"):
        elements = {element.tag.rsplit("}", 1)[-1] for element in ElementTree.fromstring(chart.read_text()).iter()}
        assert not elements & {"script", "img", "image", "foreignObject", "a"}
    for rows in hostile_site.glob("assets/rows-*.js"):
        text = rows.read_text()
        assert "<" not in text and text.isascii()
        json.loads(text.removeprefix("marin.addRows(").rstrip(";)\n"))
    for table in hostile_site.glob("data/tracks/*.csv"):
        texts = [cell for row in csv.reader(io.StringIO(table.read_text())) for cell in row]
        assert not [text for text in texts if text.startswith(("=", "+", "@"))]
    for feed in [*hostile_site.glob("data/tracks/*.atom"), hostile_site / "data" / "feed.atom"]:
        assert {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(feed.read_text()).iter()} <= {
            "feed", "id", "title", "updated", "link", "author", "name", "entry", "summary",
        }  # fmt: skip
    for names in (sorted(os.listdir(hostile_site / "entries")), sorted(os.listdir(hostile_site / "tracks"))):
        assert [name for name in names if not re.fullmatch(r"[a-z0-9.-]+", name)] == []


def test_site_entries_whose_keys_collide_keep_a_page_each(results_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    import dataclasses

    board = collect([results_dir / "family"])
    first, second, *rest = board.tracks[0].entries
    forged = dataclasses.replace(second, key=first.key)
    tracks = (dataclasses.replace(board.tracks[0], entries=(first, forged, *rest), records=()),)
    summary = build.write_site(dataclasses.replace(board, tracks=tracks), SiteWriter(str(tmp_path)))
    assert summary.num_entries == len(board.tracks[0].entries)
    assert first.name in json.loads((tmp_path / "data" / "entries" / f"{first.key}.json").read_text())["entry"]["name"]


def test_curves_of_a_strangers_log_are_bounded_and_keep_spikes(tmp_path: pathlib.Path) -> None:
    log = tmp_path / "metrics.jsonl"
    lines = [
        json.dumps({"event": "step", "step": step, "loss": 9.0 if step == 777 else 3 - step / 1000})
        for step in range(2000)
    ]
    odd = ["", "[]", "{", '{"event":"step","step":"5","loss":1}', '{"event":"step","step":5,"loss":"NaN"}', '{"event":"step","step":6,"loss":true}',
           '{"event":"step","step":7,"loss":1e999}', "[" * 100_000]  # fmt: skip
    log.write_text("\n".join([*odd, *lines]) + "\n" + '{"event":"step","st')
    (curve,) = curves.read_curves(log)
    assert curve.title == "Training loss"
    assert len(curve.series) <= 301
    assert (777, 9.0) in curve.series
    assert curve.series[0] == (0, 3.0) and curve.series[-1][0] == 1999
    assert "2000 steps" in curve.text


def test_curve_of_figures_that_differ_by_less_than_a_picture_shows_is_none(tmp_path: pathlib.Path) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text("".join(json.dumps({"event": "step", "step": k, "grad_norm": k * 5e-324}) + "\n" for k in range(3)))
    assert curves.read_curves(log) == []


def test_curves_of_runs_at_the_same_place_in_two_directories_are_each_of_its_own_log(tmp_path: pathlib.Path) -> None:
    for folder, loss in (("one", 5.0), ("two", 7.0), ("three", None)):
        place = tmp_path / folder / "mine"
        place.mkdir(parents=True)
        digests = None
        if loss is not None:
            lines = [json.dumps({"event": "step", "step": step, "loss": loss - step}) + "\n" for step in range(3)]
            (place / "metrics.jsonl").write_text("".join(lines))
            digests = {"metrics_log": hashlib.sha256((place / "metrics.jsonl").read_bytes()).hexdigest()}
        run = run_json(description=folder, author={"name": folder, "affiliation": "", "url": None}, digests=digests)
        (place / "speedrun_results.json").write_text(json.dumps(run))
    build_site([tmp_path / folder for folder in ("one", "two", "three")], [], tmp_path / "site")
    shown = {}
    for path in (tmp_path / "site" / "data" / "entries").glob("*.json"):
        entry = json.loads(path.read_text())
        shown[entry["entry"]["author"]] = [curve["values"][0] for curve in entry["curves"]]
    assert shown == {"one": [5.0], "two": [7.0], "three": []}


def test_site_shows_the_curves_of_a_log_beside_the_results(results_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:

    shutil.copytree(results_dir / "hello", tmp_path / "tree" / "hello")
    log = tmp_path / "tree" / "hello" / "logs" / "0" / "metrics.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text(
        "".join(json.dumps({"event": "step", "step": step, "loss": 5 - step / 50}) + "\n" for step in range(100))
    )
    build_site([tmp_path / "tree"], [], tmp_path / "site")
    (page,) = (tmp_path / "site" / "entries").glob("hello-*.html")
    assert "Training loss over 100 steps: from 5 at step 0" in page.read_text()
    (document,) = (tmp_path / "site" / "data" / "entries").glob("hello-*.json")
    assert json.loads(document.read_text())["curves"][0]["steps"][-1] == 99


def test_site_of_an_empty_directory_says_so(tmp_path: pathlib.Path) -> None:
    (tmp_path / "results").mkdir()
    build_site([tmp_path / "results"], [], tmp_path / "site")
    assert "No runs yet" in (tmp_path / "site" / "index.html").read_text()


def test_build_site_with_a_bad_path_raises(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ResultsError, match="no such directory"):
        build_site([tmp_path / "none"], [], tmp_path / "site")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="--output"):
        build_site([tmp_path], [], tmp_path / "file")


@pytest.mark.parametrize("verb", [[], ["build"]])
def test_leaderboard_command_builds_the_site_and_reports(
    verb: list[str], results_dir: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--results-dir", str(results_dir / "hello"), "--output", str(tmp_path / "site")]
    assert dispatch(["leaderboard", *verb, *arguments]) == 0
    printed = capsys.readouterr().out
    assert "1 run on Other runs: python_docs" in printed
    assert (tmp_path / "site" / "index.html").is_file()


def test_leaderboard_command_without_sources_is_one_clear_error(tmp_path: pathlib.Path) -> None:
    for verb, message in (("build", "nothing to show"), ("serve", "no built site here")):
        done = subprocess.run(
            [sys.executable, "-m", "marin", "leaderboard", verb, "--output", str(tmp_path / "site"), "--port", "0"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert done.stderr.startswith("error: ") and message in done.stderr
        assert "Traceback" not in done.stderr


def test_reading_and_ranking_import_neither_jax_nor_charts_nor_the_executor() -> None:
    code = (
        "import sys, marin.site.leaderboard.build, marin.cli.leaderboard;"
        "print(sorted({'jax', 'altair', 'vl_convert', 'equinox', 'fsspec', 'pyarrow', 'marin.execution'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
