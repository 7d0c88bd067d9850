"""The leaderboard's speed: building a site of many entries, cold and after one change, and sorting and filtering its table.

    python -m benchmarks.leaderboard                          # 10,000 entries; some minutes on a slow machine
    python -m benchmarks.leaderboard --entries 1000 --only table
    python -m benchmarks.leaderboard --only folders           # from a folder an entry instead of a list of rows
    python -m benchmarks.leaderboard --screenshot docs/images/leaderboard.png

Prints one JSON line a figure: name, value, unit, n (repetitions), context. The entries are made here as rows of a list, with figures
along a made-up curve: nothing of them is a result. `build_*` and `folders_*` are the whole command with its cache, from its start to
its end. The table is measured in Chromium with its processor slowed four times (`Emulation.setCPUThrottlingRate`):
`table_*_median` is from the click or the key to the layout of what is in sight, `table_*_whole_page_median` until every row of the page
and the chart are there. `loop_seconds` in the context is what ten million additions in a Python loop take (0.5 s on a usual machine of
2025).

`--screenshot` makes the picture of the README: the page of the FineWeb-Edu track, from the real rows in `../shared/data/leaderboard`;
where they are absent it says so and makes nothing.
"""

import argparse
import contextlib
import gzip
import json
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_REAL = _ROOT.parent / "shared" / "data" / "leaderboard"
_SEED = 7


def make_rows(count: int) -> list[dict[str, Any]]:
    """Rows of a public list, on a curve with noise, by 200 authors in 500 families."""
    chance = random.Random(_SEED)
    rows = []
    for number in range(count):
        cost = 10 ** chance.uniform(16, 21)
        family = f"family_{chance.randrange(500)}"
        rows.append({
            "run_name": f"{family}/size_{number}",
            "author": {"name": f"Author {chance.randrange(200)}", "affiliation": "Made for a benchmark", "url": "https://example.org"},
            "description": f"Entry {number} of a benchmark, trained with {chance.choice(['AdamW', 'Muon', 'Lion', 'SOAP'])}.",
            "model_size": int(cost**0.45),
            "training_hardware_flops": cost,
            "training_time": cost / 1e15,
            "model_flops": 0.4 * cost,
            "eval_paloma_c4_en_bpb": round(0.7 + 2.2 * (cost / 1e16) ** -0.17 * chance.uniform(1, 1.3), 6),
            "run_completion_timestamp": f"2025-{chance.randrange(1, 13):02d}-{chance.randrange(1, 29):02d} 00:00:00 UTC",
            "wandb_link": f"https://example.org/runs/{number}",
        })  # fmt: skip
    return rows


def report(name: str, value: float, unit: str, n: int, **context: Any) -> None:
    line = {"name": name, "value": round(value, 4), "unit": unit, "n": n, "context": context}
    print(json.dumps(line), flush=True)


def loop_seconds() -> float:
    started = time.perf_counter()
    total = 0
    for number in range(10_000_000):
        total += number
    return round(time.perf_counter() - started, 2)


# --- building -----------------------------------------------------------------------------------------------------


class Builds:
    """Times `marin leaderboard build --cache`, a process of its own, from its start to its end."""

    def __init__(self, folder: pathlib.Path, source: list[str], context: dict[str, Any]) -> None:
        self.site, self._context = folder / "site", context
        options = [*source, "--output", str(self.site), "--cache", str(folder / "cache")]
        self._command = [sys.executable, "-m", "marin", "leaderboard", "build", *options]

    def once(self) -> tuple[float, list[str]]:
        """The seconds that a build took, and what it said."""
        started = time.perf_counter()
        done = subprocess.run(self._command, cwd=_ROOT, capture_output=True, text=True, check=True)
        return time.perf_counter() - started, done.stdout.splitlines()

    def timed(self, name: str, change: Callable[[int], None], repetitions: int) -> None:
        """Reports the median over builds, each after a change."""
        took = []
        for repetition in range(repetitions):
            change(repetition)
            seconds, said = self.once()
            took.append(seconds)
        span = [round(min(took), 2), round(max(took), 2)]
        report(name, statistics.median(took), "s", repetitions, range=span, said=said[:-1], **self._context)


def measure_builds(folder: pathlib.Path, count: int, repetitions: int, machine: dict[str, Any]) -> pathlib.Path:
    rows, made = folder / "runs.json", make_rows(count)
    builds = Builds(folder, ["--rows", str(rows)], {"entries": count, **machine})
    middle = sorted(range(count), key=lambda k: made[k]["eval_paloma_c4_en_bpb"])[count // 2]

    def change(**fields: Any) -> None:
        made[middle] |= fields
        rows.write_text(json.dumps(made))

    builds.timed("build_cold", lambda _: change(), 1)
    builds.timed("build_nothing_changed", lambda _: None, repetitions)
    builds.timed("build_one_description_changed", lambda number: change(description=f"another, {number}"), repetitions)
    worse = "build_one_figure_changed_that_moves_ranks"
    builds.timed(worse, lambda number: change(eval_paloma_c4_en_bpb=1.9 + number / 100), repetitions)
    return builds.site


def make_folders(root: pathlib.Path, count: int) -> list[pathlib.Path]:
    """A folder with a results file for each entry: one small Llama on an A100, whose figures fit together, under many names."""
    chance = random.Random(_SEED)
    hidden, layers, heads, length, vocabulary, tokens = 64, 2, 4, 128, 1000, 51_200
    block = 6 * hidden * 192 + 8 * hidden**2 * 3 // 4 + 4 * length * hidden + 3 * length * heads
    per_token = layers * block + 2 * hidden * vocabulary
    parameters = layers * (3 * hidden**2 + 3 * hidden * 192 + 2 * hidden) + hidden + 2 * vocabulary * hidden
    paths = []
    for number in range(count):
        seconds = round(chance.uniform(10, 1000), 2)
        path = root / f"family_{chance.randrange(500)}" / f"size_{number}" / "speedrun_results.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({
            "schema_version": 1,
            "author": {"name": f"Author {chance.randrange(200)}", "affiliation": "Made for a benchmark", "url": "https://example.org"},
            "description": f"Entry {number} of a benchmark, trained with Muon.",
            "model_config": {
                "hidden_dim": hidden, "intermediate_dim": 192, "num_layers": layers, "num_heads": heads, "num_kv_heads": 2,
                "max_seq_len": length, "tie_word_embeddings": False,
            },
            "train_config": {"train_batch_size": 8, "num_train_steps": 50},
            "tokenized_dataset": "tokenized/example",
            "resources": {"accelerator_type": "A100", "gpu_count": 1, "device_flops_override": None},
            "model_size": parameters, "total_tokens": tokens, "model_flops": 3.0 * per_token * tokens,
            "model_flops_per_token": float(per_token), "num_devices": 1, "num_chips": 1, "device_flops": 312e12,
            "training_time": seconds, "training_hardware_flops": seconds * 312e12,
            "eval/paloma/c4_en/bpb": round(chance.uniform(1.0, 2.5), 6),
            "run_completion_timestamp": f"2025-{chance.randrange(1, 13):02d}-{chance.randrange(1, 29):02d} 00:00:00 UTC",
            "wandb_run_link": None,
        }))  # fmt: skip
        paths.append(path)
    return paths


def measure_folders(folder: pathlib.Path, count: int, repetitions: int, machine: dict[str, Any]) -> None:
    paths = make_folders(folder / "runs", count)
    builds = Builds(folder, ["--results-dir", str(folder / "runs")], {"entries": count, **machine})

    def reword(repetition: int) -> None:
        path = paths[count // 2 + repetition]
        path.write_text(path.read_text().replace("of a benchmark", "with another description"))

    builds.timed("folders_cold", lambda _: None, 1)
    builds.timed("folders_nothing_changed", lambda _: None, repetitions)
    builds.timed("folders_one_description_changed", reword, repetitions)


# --- the table ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(site: pathlib.Path) -> Iterator[str]:
    from marin.site.leaderboard.serve import make_app
    from marin.web.listen import bind, make_server, port_of

    listener = bind(0)
    server = make_server(make_app(site, port_of(listener)))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    found = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    if found is None:
        sys.exit("no chromium on this machine (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()


# The script's own work and the layout that follows, which is forced, so that both are in the figure.
_TIMED = """
([kind, argument]) => {
  const started = performance.now();
  if (kind === "sort") document.querySelector(`#board thead [data-column="${argument}"] button`).click();
  else {
    const input = document.querySelector("#tools input[type=search]");
    input.value = argument;
    input.dispatchEvent(new Event("input", { bubbles: true }));
  }
  document.getElementById("board").getBoundingClientRect();
  return performance.now() - started;
}
"""

_REST = """
async () => {
  const { table } = marin;
  const started = performance.now();
  const rows = Math.min(table.pageSize, table.shown.length - (table.page - 1) * table.pageSize);
  do await new Promise((done) => requestAnimationFrame(done)); while (table.body.rows.length < rows);
  table.body.getBoundingClientRect();
  return performance.now() - started;
}
"""


def measure_table(site: pathlib.Path, count: int, machine: dict[str, Any]) -> None:
    with serving(site) as base, browser() as launched:
        page = launched.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"{base}tracks/fineweb-edu.html")
        page.locator("#board[data-ready]").wait_for()
        page.locator("#entries").evaluate("(section) => section.scrollIntoView()")
        session = page.context.new_cdp_session(page)
        session.send("Emulation.setCPUThrottlingRate", {"rate": 4})
        columns = ("quality", "training_hardware_flops", "name", "author", "date", "model_size")
        texts = ("muon", "author 17", "family_33", "2025-03", "", "size_1 author", "")
        for name, asked in (("sort", (*columns, *columns)), ("filter", texts)):
            times = [(page.evaluate(_TIMED, [name, one]), page.evaluate(_REST)) for one in asked]
            for title, found in (
                (name, [now for now, _ in times]),
                (f"{name}_whole_page", [sum(both) for both in times]),
            ):
                context = {"entries": count, "largest": round(max(found), 1), "throttled": 4, **machine}
                report(f"table_{title}_median", statistics.median(found), "ms", len(found), **context)
        session.send("Emulation.setCPUThrottlingRate", {"rate": 1})


def measure_first_load(site: pathlib.Path, count: int) -> None:
    page = site / "tracks" / "fineweb-edu.html"
    first = [
        page,
        *site.glob("assets/leaderboard-*"),
        site / "assets" / "icon.svg",
        site / "charts" / "fineweb-edu-frontier-wide-light.svg",
    ]
    sizes = {part.name: len(gzip.compress(part.read_bytes(), 6, mtime=0)) for part in first}
    rows = len(gzip.compress((site / "assets" / "rows-fineweb-edu.js").read_bytes(), 6, mtime=0))
    report("first_load_compressed", sum(sizes.values()), "bytes", 1, entries=count, rows_loaded_after=rows, **sizes)


# --- the picture --------------------------------------------------------------------------------------------------


def screenshot(target: pathlib.Path) -> None:
    if not (_REAL / "runs.json").is_file():
        print(f"no real rows at {_REAL}: no picture was made")
        return
    from marin.site.leaderboard.build import build_site

    with tempfile.TemporaryDirectory() as folder:
        site = pathlib.Path(folder, "site")
        build_site([_REAL / "results", _ROOT / "experiments" / "speedrun"], [_REAL / "runs.json"], site)
        with serving(site) as base, browser() as launched:
            page = launched.new_page(
                viewport={"width": 1280, "height": 1240}, color_scheme="light", reduced_motion="reduce"
            )
            page.goto(f"{base}tracks/fineweb-edu.html")
            page.locator("#board[data-ready]").wait_for()
            target.parent.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=str(target))
    print(f"wrote {target}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--only", choices=("build", "folders", "table"))
    parser.add_argument("--repetitions", type=int, default=3, help="of a build again")
    parser.add_argument("--screenshot", type=pathlib.Path, metavar="PATH")
    args = parser.parse_args()
    if args.screenshot:
        screenshot(args.screenshot)
        return
    machine = {"loop_seconds": loop_seconds()}
    with tempfile.TemporaryDirectory() as folder:
        if args.only == "folders":
            measure_folders(pathlib.Path(folder), args.entries, args.repetitions, machine)
            return
        if args.only == "table":
            rows = pathlib.Path(folder, "runs.json")
            rows.write_text(json.dumps(make_rows(args.entries)))
            builds = Builds(pathlib.Path(folder), ["--rows", str(rows)], {})
            builds.once()
            site = builds.site
        else:
            site = measure_builds(pathlib.Path(folder), args.entries, args.repetitions, machine)
        measure_first_load(site, args.entries)
        if args.only != "build":
            measure_table(site, args.entries, machine)


if __name__ == "__main__":
    main()
