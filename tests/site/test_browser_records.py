"""The data browser over a real server: experiments, steps, their states, provenance and curves."""

import datetime
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from browser_pages import CACHE, CORPUS, TOKENIZER, links_of, open_page, words_of

from marin.site.browser import charts, graph, metrics

# --- experiments, steps, provenance -------------------------------------------------------------------------------


def test_front_page_has_experiments_newest_first_and_steps_by_state(client: Any) -> None:
    page = open_page(client, "/")
    words = words_of(page)
    assert words.index("main-abc123") < words.index("older-abc456")
    assert "The main one" in words and "3 success" in words and "1 not run" in words
    assert {"/steps?state=success", "/steps?state=running", "/steps?state=failed"} <= set(links_of(page))
    running = words_of(open_page(client, "/steps?state=running"))
    assert "1 step" in running and "checkpoints/run" in running and "tokenizers/bpe" not in running
    assert "tokenizers/bpe" in words_of(open_page(client, "/steps?q=BPE"))


def test_experiment_page_draws_every_step_with_its_state_and_link(client: Any, browser_prefix: Any) -> None:
    page = open_page(client, "/experiment/0/main-abc123.json")
    (drawing,) = re.findall(r'<svg class="graph".*?</svg>', page, re.DOTALL)
    outputs = [browser_prefix.corpus, browser_prefix.tokenizer, browser_prefix.cache, browser_prefix.run,
               browser_prefix.report, browser_prefix.failed]  # fmt: skip
    assert links_of(drawing) == [f"/step/0/{output}" for output in outputs]
    states = re.findall(r'class="node ([a-z-]+)"', drawing)
    assert states == ["success", "success", "success", "running", "not-run", "failed"]
    assert drawing.count("<path") == 7  # the edges, but for the one that leads out of the prefix
    assert client.get("/experiment/0/none.json").status == 404


def test_step_page_has_config_provenance_log_error_and_attempts(client: Any, browser_prefix: Any) -> None:
    failed = words_of(open_page(client, f"/step/0/{browser_prefix.failed}"))
    assert "ValueError: the reason <b>why</b>" in failed
    assert "the end of bad-66666666" in failed and "line 0 of" not in failed
    assert "/elsewhere/data-1" in failed and "Attempt 2 failed" in failed
    corpus = words_of(open_page(client, f"/step/0/{browser_prefix.corpus}"))
    assert "learning_rate : 0.01" in corpus and "1.23 MB in 4 files" in corpus and "12.5 s" in corpus
    for key in json.loads((browser_prefix.path / browser_prefix.corpus / ".executor_info").read_text()):
        assert key in corpus or key in ("config", "version", "dependencies"), key
    waiting = words_of(open_page(client, f"/step/0/{browser_prefix.report}"))
    assert "not run" in waiting and "the step has not begun" in waiting and "learning_rate : 0.01" in waiting


def test_every_file_links_to_its_maker_and_its_readers(client: Any, browser_prefix: Any) -> None:
    page = open_page(client, f"{CORPUS}/train.jsonl.zst")
    made, read = page.split("Made by")[1].split("Read by")
    assert f"/step/0/{browser_prefix.corpus}" in links_of(made)
    assert {
        f"/step/0/{reader}" for reader in (browser_prefix.tokenizer, browser_prefix.cache, browser_prefix.failed)
    } <= set(links_of(read))
    inner = open_page(client, f"{CACHE}/train/input_ids/data/zarr.json")
    assert f"/step/0/{browser_prefix.run}" in links_of(inner.split("Read by")[1])
    assert "Made by" not in open_page(client, "/files/0/experiments/main-abc123.json")


def test_prefix_that_was_copied_elsewhere_keeps_its_provenance(
    make_prefix: Callable[[], Any], tmp_path: pathlib.Path, serve: Callable[..., Any]
) -> None:
    prefix = make_prefix()
    prefix.path.rename(tmp_path / "moved")
    with serve(tmp_path / "moved") as client:
        page = open_page(client, f"{TOKENIZER}/tokenizer.json")
        assert f"/step/0/{prefix.tokenizer}" in links_of(page) and f"/step/0/{prefix.run}" in links_of(page)
        assert f"/step/0/{prefix.report}" in links_of(open_page(client, "/experiment/0/main-abc123.json"))
        assert "Documents 1 to 20" in words_of(open_page(client, f"{CACHE}?view=tokens"))


def test_index_follows_what_happens_to_the_prefix(make_prefix: Callable[[], Any], serve: Callable[..., Any]) -> None:
    prefix = make_prefix()
    with serve(prefix.path) as client:
        address = f"/live/step/0/{prefix.run}"
        assert "9 of 50" not in open_page(client, address) and "8 of 50" in open_page(client, address)
        prefix.add_training_step(8, loss=1.234)
        assert "9 of 50" in open_page(client, address) and "1.234" in open_page(client, address)
        assert 'data-running="yes"' in open_page(client, address)
        for beat in (prefix.path / "checkpoints" / ".attempts").rglob("*.json"):
            os.utime(beat, (1, 1))
        assert "interrupted" in words_of(open_page(client, address))
        prefix.finish()
        assert 'data-running="no"' in open_page(client, address)
        done = prefix.path / prefix.report
        done.mkdir(parents=True)
        record = json.loads((prefix.path / "experiments" / "main-abc123.json").read_text())
        (done / ".executor_info").write_text(json.dumps(record["steps"][4]))
        (done / ".executor_status").write_text('{"status": "WAITING"}\n{"status": "SUCCESS"}\n')  # the older form
        (prefix.path / "experiments" / "broken-000000.json").write_text("{")
        time.sleep(1.1)
        assert "5 success" in words_of(open_page(client, "/"))
        assert "It is no readable experiment record" in words_of(open_page(client, "/"))


def test_experiment_is_followed_before_its_first_step_and_between_two_of_them(
    make_prefix: Callable[[], Any], serve: Callable[..., Any]
) -> None:
    prefix = make_prefix()
    record = json.loads((prefix.path / "experiments" / "main-abc123.json").read_text())
    now = datetime.datetime.now(datetime.UTC).isoformat()
    begun = record | {"created_date": now, "steps": record["steps"][4:5]}  # of which nothing is there yet
    (prefix.path / "experiments" / "begun-abc123.json").write_text(json.dumps(begun))
    prefix.finish()
    statuses = list(prefix.path.rglob(".executor_status"))
    with serve(prefix.path) as client:
        address = "/live/experiment/0/main-abc123.json"
        page = open_page(client, address)
        assert "running" not in words_of(page) and "1 not run" in words_of(page)
        assert 'data-running="yes"' in page  # the last step, which reads what was finished a moment ago, may begin
        assert 'data-running="yes"' in open_page(client, "/live/experiment/0/begun-abc123.json")
        assert 'data-running="no"' in open_page(client, "/live/experiment/0/older-abc456.json")  # all of it is done
        for status in statuses:
            os.utime(status, (time.time() - 100, time.time() - 100))
        assert 'data-running="no"' in open_page(client, address)  # nobody went on with it


def test_step_whose_process_was_killed_is_interrupted_at_once(
    tmp_path: pathlib.Path, serve: Callable[..., Any]
) -> None:
    script = f"""
import time
from marin.execution import Executor, ExecutorMainConfig, ExecutorStep, this_output_path
def train(config):
    open(config["path"] + "/works", "w").close()
    time.sleep(60)
step = ExecutorStep("train", train, {{"path": this_output_path()}})
Executor(ExecutorMainConfig(prefix={str(tmp_path / "store")!r})).run([step])
"""
    (tmp_path / "main.py").write_text(script)
    environment = os.environ | {"PYTHONPATH": str(pathlib.Path.cwd())}
    run = subprocess.Popen([sys.executable, str(tmp_path / "main.py")], env=environment)
    try:
        while not (works := list(tmp_path.glob("store/train-*/works"))):
            assert run.poll() is None
            time.sleep(0.02)
        with serve(tmp_path / "store") as client:
            address = f"/step/0/{works[0].parent.name}"
            assert "a process is at work" in words_of(open_page(client, address))
            run.kill()
            run.wait()
            assert "its process has ended" in words_of(open_page(client, address))
    finally:
        run.kill()
        run.wait()


def test_output_of_the_reference_with_a_lock_is_running_while_the_lock_is_renewed(
    tmp_path: pathlib.Path, serve: Callable[..., Any]
) -> None:
    output = tmp_path / "train-12345678"
    output.mkdir()
    (output / ".executor_info").write_text(
        json.dumps({"name": "train", "output_path": str(output), "dependencies": []})
    )
    (output / ".executor_status").write_text("RUNNING")
    (output / ".executor_status.lock").write_text("{}")
    with serve(tmp_path) as client:
        assert "a process is at work" in words_of(open_page(client, "/step/0/train-12345678"))
        os.utime(output / ".executor_status.lock", (1, 1))
        assert "interrupted" in words_of(open_page(client, "/step/0/train-12345678"))


def test_curves_leave_out_superseded_steps_and_draw_odd_values(
    tmp_path: pathlib.Path, serve: Callable[..., Any]
) -> None:
    def step(number: int, loss: object) -> dict[str, object]:
        return {"event": "step", "step": number, "tokens": 10, "step_time": 0.1, "loss": loss}

    events = [{"event": "start", "from_step": 0}, *(step(n, 5.0) for n in range(100)),
              {"event": "start", "from_step": 50}, step(50, "nan"), step(51, 1e308), step(52, 4.5),
              {"event": "evaluation", "step": 52, "bits_per_byte": 1.5}]  # fmt: skip
    lines = "".join(json.dumps(event) + "\n" for event in events)
    (tmp_path / "metrics.jsonl").write_text(lines + 'not json\n[1]\n{"event": "step", "step": 53, "lo')
    (tmp_path / ".executor_info").write_text("{}")
    with serve(tmp_path) as client:
        words = words_of(open_page(client, "/step/0"))
        assert "Steps 53" in words and "Tokens 530" in words and "Loss 4.5" in words
        assert "2 line(s) of the metrics could not be read" in words
        assert "1 value not finite" in words and "bits_per_byte, evaluated 1.5" in words


def test_records_with_figures_that_cannot_be_are_shown_without_them(
    tmp_path: pathlib.Path, serve: Callable[..., Any]
) -> None:
    for name, figure in {"whole": 10**400, "real": 1e308, "nan": float("nan")}.items():
        output = tmp_path / name
        output.mkdir()
        (output / ".executor_info").write_text(
            json.dumps({"seconds": figure, "output_bytes": figure, "output_files": 1})
        )
        (output / "metrics.jsonl").write_text(
            '{"event": "step", "step": 3, "loss": 2.5}\n{"event": "step", "step": "nan", "loss": 1}\n'
            '{"event": "step", "step": 1e999, "loss": 1}\n'
        )
    with serve(tmp_path) as client:
        for name in ("whole", "real", "nan"):
            words = words_of(open_page(client, f"/step/0/{name}"))
            assert "Steps 4 Loss 2.5" in words and "2 line(s) of the metrics could not be read" in words
            assert "Took" not in words and "Output" not in words


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 1), (3.9, 9.1), (-5, 5), (1e-9, 2e-9), (0, 1e15), (2, 2), (-1e-300, 1e-300), (0.999999, 1.000001)],
)
def test_axis_marks_are_few_round_and_cover_the_values(low: float, high: float) -> None:
    marks = charts.ticks(low, high, 5)
    assert (marks[0] <= low and marks[-1] >= high) or low == high
    assert len(marks) <= 8 and marks == sorted(set(marks))


def test_long_series_keep_their_extremes_when_thinned() -> None:
    points = [(float(n), 1.0) for n in range(100_000)]
    points[54_321] = (54_321.0, 99.0)
    points[77_777] = (77_777.0, -99.0)
    kept = charts.thinned(points, 400)
    assert len(kept) <= 400 and kept == sorted(kept)
    assert {(54_321.0, 99.0), (77_777.0, -99.0)} <= set(kept)
    series = metrics.Series()
    for x, y in points:
        series.steps.append(x)
        series.values.append(y)
    assert len(charts.draw("loss", series).svg) < 60_000


@pytest.mark.parametrize("values", [
    [1e308, 1.7e308], [-1.7e308, 1.7e308], [0.0, 1.7e308], [1e-323, 2e-323, 3e-323] * 30, [5e-324, 1e308], [1e-300, 1e300] * 40,
])  # fmt: skip
def test_chart_of_figures_at_the_limits_of_floats_has_only_finite_places(values: list[float]) -> None:
    series = metrics.Series()
    for step, value in enumerate(values):
        series.steps.append(step if step else -1.7e308)  # the first has no place
        series.values.append(value)
    chart = charts.draw("loss", series)
    places = re.findall(r' (?:x|y|x1|y1|cx|cy|points)="([^"]*)"', str(chart.svg))
    assert places and all(math.isfinite(float(place)) for part in places for place in re.split("[ ,]", part))
    assert float(chart.latest) == pytest.approx(values[-1], rel=1e-3)
    assert "1 value not finite" in chart.note


def test_graph_puts_each_step_after_what_it_reads_and_survives_circles() -> None:
    assert graph.layers_of([(), (0,), (0, 1), (2,), ()]) == [0, 1, 2, 3, 0]
    circle = [graph.Node(f"n{n}", f"/{n}", "failed", "failed", ((n + 1) % 3,)) for n in range(3)]
    assert graph.draw(circle).count("<rect") == 6
    wide = [
        graph.Node("a", "/", "success", "success", ()),
        *(graph.Node("b", "/", "success", "success", (0,)) for _ in range(300)),
    ]
    assert graph.draw(wide).count("<path") == 300
