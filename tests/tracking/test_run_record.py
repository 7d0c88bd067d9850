"""The run record: append-only, torn lines, resumed runs, and damage that is named."""

import json
import os

import pytest

from marin.errors import ResultsError, StorageError
from marin.tracking import RunRecord, RunWriter, run_record
from marin.tracking.log_chain import check_links, head_of


def _write(directory, events):
    writer = RunWriter(directory)
    writer.write_info({"a": 1})
    for event, fields in events:
        writer.append(event, **fields)
    writer.close()


def test_run_record_of_an_unbroken_run_has_its_steps_in_order(tmp_path):
    _write(
        tmp_path,
        [("start", {"from_step": 0}), *[("step", {"step": i, "loss": 1.0}) for i in range(3)], ("end", {"steps": 3})],
    )
    record = RunRecord.open(tmp_path)
    assert [step["step"] for step in record.steps()] == [0, 1, 2]
    assert record.superseded() == []
    assert record.is_complete


def test_run_record_of_a_resumed_run_replaces_the_steps_after_the_checkpoint(tmp_path):
    first = [("start", {"from_step": 0}), *[("step", {"step": i, "turn": 1}) for i in range(5)]]
    second = [("start", {"from_step": 3}), *[("step", {"step": i, "turn": 2}) for i in range(3, 6)]]
    _write(tmp_path, first)
    _write(tmp_path, second)
    record = RunRecord.open(tmp_path)
    assert [(s["step"], s["turn"]) for s in record.steps()] == [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2), (5, 2)]
    assert [s["step"] for s in record.superseded()] == [3, 4]
    assert not record.is_complete


def test_run_writer_cuts_off_a_torn_last_line_and_goes_on(tmp_path):
    _write(tmp_path, [("step", {"step": 0})])
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"event":"step","ste')
    _write(tmp_path, [("step", {"step": 1})])
    assert [step["step"] for step in RunRecord.open(tmp_path).steps()] == [0, 1]


def test_run_writer_on_a_full_disk_names_the_file_and_what_to_do(tmp_path):
    writer = RunWriter(tmp_path)
    descriptor = writer._file.fileno()
    with open("/dev/full", "ab") as full, open(tmp_path / "metrics.jsonl", "ab") as own:
        os.dup2(full.fileno(), descriptor)
        with pytest.raises(StorageError, match=r"metrics.jsonl cannot be written: the disk is full: free some space"):
            writer.append("step", step=0)
        os.dup2(own.fileno(), descriptor)
    writer.close()


def test_run_writer_keeps_the_first_run_info(tmp_path):
    writer = RunWriter(tmp_path)
    writer.write_info({"a": 1})
    writer.write_info({"a": 2})
    writer.close()
    assert RunRecord.open(tmp_path).info == {"a": 1}


def test_run_writer_writes_values_that_json_lacks_as_text(tmp_path):
    _write(tmp_path, [("step", {"step": 0, "loss": float("nan"), "norms": {"x": float("inf")}})])
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    entry = json.loads(lines[0], parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert entry["loss"] == "nan"
    assert entry["norms"] == {"x": "inf"}


def test_run_record_with_a_damaged_line_names_it(tmp_path):
    _write(tmp_path, [("step", {"step": 0}), ("step", {"step": 1})])
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes().replace(b'{"event":"step","step":0', b'{"event":"step","step":'))
    with pytest.raises(ResultsError, match=r"metrics\.jsonl:1"):
        RunRecord.open(tmp_path)


def test_run_record_of_a_folder_that_is_no_run_says_what_to_give(tmp_path):
    with pytest.raises(ResultsError, match="output directory of a training run"):
        RunRecord.open(tmp_path)


def _links(directory):
    lines = (directory / "metrics.jsonl").read_bytes().split(b"\n")[:-1]
    run = directory / "run.json"
    return check_links(
        run.read_bytes() if run.exists() else b"", lines, [json.loads(line).get("chain") for line in lines]
    )


def _rewrite(directory, change):
    path = directory / "metrics.jsonl"
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl"])
def test_run_record_with_a_file_that_cannot_be_read_names_it(name, tmp_path):
    _write(tmp_path, [("start", {"from_step": 0})])
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to(name)  # root may read what has no permissions
    with pytest.raises(ResultsError, match=rf"{name} cannot be read \(Too many levels of symbolic links\)"):
        RunRecord.open(tmp_path)


def test_run_writer_chains_every_line_over_torn_lines_and_processes(tmp_path):
    _write(tmp_path, [("start", {"from_step": 0}), ("step", {"step": 0}), ("step", {"step": 1})])
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"event":"step","ste')
    _write(tmp_path, [("start", {"from_step": 1}), ("step", {"step": 1}), ("end", {"steps": 2})])
    links = _links(tmp_path)
    assert (links.first_linked, links.broken) == (1, None)
    assert links.head == head_of((tmp_path / "run.json").read_bytes(), (tmp_path / "metrics.jsonl").read_bytes())
    assert "chain" not in RunRecord.open(tmp_path).events[0]


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        (lambda lines: [lines[0], lines[1].replace(b"1.5", b"1.4"), *lines[2:]], 3),
        (lambda lines: [lines[0], *lines[2:]], 2),
        (lambda lines: [lines[0], lines[2], lines[1], lines[3]], 2),
        (lambda lines: [*lines[:2], lines[1], *lines[2:]], 3),
        (lambda lines: lines[1:], 1),
    ],
    ids=["changed", "dropped", "moved", "repeated", "first dropped"],
)
def test_chain_of_a_log_that_was_changed_names_the_line(tmp_path, change, broken):
    _write(tmp_path, [("start", {}), *[("step", {"step": i, "loss": 1.5}) for i in range(3)]])
    _rewrite(tmp_path, change)
    assert _links(tmp_path).broken == broken


def test_chain_of_a_log_whose_run_json_was_changed_breaks_at_the_first_line(tmp_path):
    _write(tmp_path, [("start", {}), ("step", {"step": 0})])
    (tmp_path / "run.json").write_text('{"a": 2}')
    assert _links(tmp_path).broken == 1


def test_run_writer_goes_on_from_a_log_without_a_chain(tmp_path):
    _write(tmp_path, [("start", {})])
    (tmp_path / "metrics.jsonl").write_text('{"event":"start","time":1.0}\n')
    _write(tmp_path, [("step", {"step": 0})])
    links = _links(tmp_path)
    assert (links.first_linked, links.broken) == (2, None)


def test_lines_are_as_far_apart_as_steps_where_the_time_of_day_is_set_between(tmp_path, monkeypatch):
    day, counter = 1_760_000_000.0, 50.0
    monkeypatch.setattr(run_record.time, "time", lambda: day)
    monkeypatch.setattr(run_record.time, "perf_counter", lambda: counter)
    writer = RunWriter(tmp_path)
    writer.write_info({})
    writer.append("clock")
    for moved in (3600.0, -2.0):
        day, counter = day + moved, counter + 1.5
        writer.append("step", step=0)
    writer.close()
    assert [event["time"] - 1_760_000_000.0 for event in RunRecord.open(tmp_path).events] == [0.0, 1.5, 3.0]
