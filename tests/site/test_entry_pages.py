"""What pages say of entries that have more to them than one run: seeds, doubts, withdrawals, parents and other depths."""

import json
import pathlib
import re
from typing import Any

import pytest

from marin.data.core_tasks import CORE_TASKS
from marin.site.leaderboard.build import build_site
from marin.speedrun.arithmetic.core_counts import core_of
from marin.speedrun.importers.nanochat import LEADERBOARD
from marin.speedrun.results import Author, Core, CoreCounts, Evaluation, RunInfo, write_results

HALF = Core(  # every second item of each task is right
    tasks={
        label: CoreCounts(num_items=task.num_items, num_correct=task.num_items // 2)
        for label, task in CORE_TASKS.items()
    }
)
DEPTH = {12: 0.19, 20: 0.24, 24: core_of(HALF, "v1")}


def _info(**changes: Any) -> RunInfo:
    values: dict[str, Any] = {
        "author": Author(name="Ada", affiliation="Independent"),
        "description": "A run.",
        "evaluation": Evaluation(name="python_docs", digest="ab" * 32, bits_per_byte=1.6, bytes=1000, tokens=300, documents=3),
        "training_time": 100.0,
        "training_hardware_flops": 1e13,
        "run_completion_timestamp": "2026-01-01 00:00:00 UTC",
    }  # fmt: skip
    return RunInfo(**values | changes)


def _scored(value: float, **changes: Any) -> RunInfo:
    score = Evaluation(name="python_docs", digest="ab" * 32, bits_per_byte=value, bytes=1000, tokens=300, documents=3)
    return _info(evaluation=score, **changes)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root, site = tmp_path_factory.mktemp("entries"), tmp_path_factory.mktemp("site")
    model, training = {"hidden_dim": 128, "num_layers": 2}, {"learning_rate": 0.01}
    for seed, value in enumerate((1.58, 1.60, 1.62)):
        info = _scored(value, seed=seed, train_config=training, model=model, model_size=10**6)
        write_results(root / "three" / f"seed_{seed}" / "speedrun_results.json", info)
    for name, notice in (("doubted", "challenge.json"), ("taken_back", "withdrawn.json")):
        write_results(root / name / "speedrun_results.json", _scored(1.7, description=name))
        (root / name / notice).write_text(json.dumps({"reason": f"why {name}", "by": "Grace", "date": "2026-02-02"}))
    me = Author(name="Eve", affiliation="", url="example.org/eve")
    write_results(root / "bare_link" / "speedrun_results.json", _scored(1.8, author=me))
    later = _scored(
        1.55,
        train_config={"learning_rate": 0.02},
        model=model,
        model_size=10**6,
        run_completion_timestamp="2026-01-03 00:00:00 UTC",
    )
    write_results(root / "three" / "faster_rate" / "speedrun_results.json", later)
    for depth, core in DEPTH.items():
        info = _info(
            evaluation=None, core_metric=core, core_version="v1", core=HALF if depth == 24 else None, device_name="H100", platform="gpu", num_devices=8, num_chips=8,
            training_time=36.0 * depth, model={"num_layers": depth},
        )  # fmt: skip
        write_results(root / "deep" / f"d{depth}" / "speedrun_results.json", info)
    second = _info(evaluation=None, core_metric=core_of(HALF, "v2"), core_version="v2", core=HALF)
    write_results(root / "second_table" / "speedrun_results.json", second)
    build_site([root], [], site)
    return site


def _words(site: pathlib.Path, start: str) -> str:
    (path,) = [
        path for path in (site / "entries").iterdir() if re.fullmatch(rf"{start}-[0-9a-f]{{16}}.html", path.name)
    ]
    return " ".join(re.sub(r"<[^>]+>", " ", path.read_text().replace("<wbr>", "")).split())


def test_entry_of_three_seeds_shows_mean_interval_and_each_run(pages: pathlib.Path) -> None:
    words = _words(pages, "three")
    assert "3 runs that differ in their seeds alone: mean 1.6, standard deviation 0.02, 95 % interval" in words
    for value in ("1.5800", "1.6000", "1.6200"):
        assert value in words


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("doubted", "Challenged: somebody doubts it, and it keeps its rank"),
        ("taken-back", "Withdrawn by its author"),
    ],
)
def test_entry_with_a_notice_shows_what_it_says_and_by_whom(pages: pathlib.Path, entry: str, words: str) -> None:
    text = _words(pages, entry)
    assert words in text
    assert f"why {entry.replace('-', '_')} (Grace, 2026-02-02)" in text
    (document,) = (pages / "data" / "entries").glob(f"{entry}-*.json")
    assert (json.loads(document.read_text())["entry"]["rank"] is None) == (entry == "taken-back")


def test_entry_shows_the_settings_in_which_it_differs_from_the_nearest_earlier_one(pages: pathlib.Path) -> None:
    words = _words(pages, "three-faster-rate")
    assert "What differs from three" in words
    assert "The nearest earlier entry by its settings" in words
    assert re.search(r"train_config\.learning_rate 0\.01 0\.02", words)
    assert "hidden_dim 128 128" not in words


def test_entry_of_the_gpt2_track_shows_what_its_change_does_at_other_depths(pages: pathlib.Path) -> None:
    words = _words(pages, "deep-d24")
    assert "At other depths Depth Runs CORE Training time" in words
    assert f"12 1 0.1900 7.20 min 20 1 0.2400 12.0 min 24 1 {DEPTH[24]:.4f} 14.4 min" in words
    assert "CORE by task CORE is the mean" in words
    assert "copa 100 0.5000 0.0000" in words and "boolq 3,270 0.5000 −0.3158" in words
    assert "CORE by task" not in _words(pages, "deep-d20")


def test_entry_whose_authors_page_is_no_web_address_says_that_this_is_to_mend(pages: pathlib.Path) -> None:
    words = _words(pages, "bare-link")
    assert "parsed to mend error author.url" in words and "write https://example.org/eve" in words


def test_long_name_of_a_setting_breaks_between_its_words(pages: pathlib.Path) -> None:
    (path,) = [path for path in (pages / "entries").iterdir() if path.name.startswith("three-faster-rate")]
    assert "learning_<wbr>rate" in path.read_text()


def test_row_of_a_list_says_that_its_runs_and_its_code_are_elsewhere(tmp_path: pathlib.Path) -> None:
    build_site([], [LEADERBOARD], tmp_path / "site")
    words = _words(tmp_path / "site", "nanochat-5")
    assert "says that this is the mean of 5 runs, which are not given one by one: mean 0.269" in words
    assert "It is a row of a list" in words
    assert "the hardware is not stated but for a name" in words
    assert "Bits per byte 0.7181" in words
    assert "Training time 1.80 h" in words


@pytest.mark.parametrize(("entry", "version"), [("deep-d24", "v1"), ("second-table", "v2")])
def test_tasks_of_core_are_centered_on_the_baselines_of_the_figure_above_them(
    pages: pathlib.Path, entry: str, version: str
) -> None:
    words = _words(pages, entry)
    assert f"by {version} baselines" in words
    shares = [float(share.replace("−", "-")) for share in re.findall(r"[\d,]+ 0\.\d{4} (−?0\.\d{4})", words)]
    assert len(shares) == len(CORE_TASKS)
    assert sum(shares) / len(shares) == pytest.approx(core_of(HALF, version), abs=1e-4)
