"""Parsers of submissions meet anything: they give a value or `ResultsError`, within a second and 256 MB."""

import json
import pathlib
import random
import subprocess
import sys
from typing import Any

import pytest
from forgeries.honest import Plan, _run_json, write_submission
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marin.errors import ResultsError
from marin.speedrun import results, strict_json
from marin.speedrun.results import parse_results
from marin.speedrun.verification import verify_submission
from marin.speedrun.verification.run_log import RunLog, parse_log
from marin.speedrun.verification.submission import LogFiles

RUN = json.dumps(_run_json(Plan())).encode()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=12), inner, max_size=5),
    max_leaves=25,
)
EVENT = st.fixed_dictionaries(
    {"event": st.sampled_from(["start", "step", "pause", "checkpoint", "evaluation", "mirror", "clock", "end", "x"]), "time": JSON | st.floats(0, 2e9)},
    optional={name: JSON | st.integers(0, 50) | st.floats(0, 10) for name in (
        "from_step", "compile_time", "step", "tokens", "step_time", "mfu_model_flops", "loss", "reason", "seconds", "steps", "peak_memory_bytes", "chain",
    )},
)  # fmt: skip


def _lines(events: list[Any]) -> bytes:
    return "".join(json.dumps(event) + "\n" for event in events).encode()


def _or_refused(call: Any, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except ResultsError:
        return None


@settings(max_examples=150)
@given(st.binary(max_size=300) | JSON.map(lambda value: json.dumps(value).encode()))
def test_parsers_of_any_bytes_raise_nothing_but_results_error(data: bytes) -> None:
    for parse, name in ((strict_json.parse_json, "x"), (strict_json.parse_line, "x:1")):
        found = _or_refused(parse, data, name)
        assert found is None or found == json.loads(data)
    for run in (data, RUN):
        log = _or_refused(parse_log, LogFiles("logs/0", run, data, None))
        assert log is None or isinstance(log, RunLog)


KEYS = st.text(alphabet='ab:\\"{', max_size=2)


@settings(max_examples=200)
@given(st.lists(st.tuples(KEYS, JSON | KEYS), max_size=5), st.sampled_from(["", " ", "\t"]), st.booleans())
def test_parse_line_refuses_a_key_that_is_there_twice_and_no_other_line(
    pairs: list[tuple[str, Any]], space: str, escaped: bool
) -> None:
    def key(text: str) -> str:
        return '"' + "".join(f"\\u{ord(c):04x}" for c in text) + '"' if escaped else json.dumps(text)

    text = "{" + ",".join(f"{key(name)}{space}:{space}{json.dumps(value)}" for name, value in pairs) + "}"
    finite = not any(word in json.dumps([value for _, value in pairs]) for word in ("NaN", "Infinity"))
    if finite and len({name for name, _ in pairs}) == len(pairs):
        assert strict_json.parse_line(text.encode(), "x:1") == dict(pairs)
    elif finite:
        with pytest.raises(ResultsError, match="appears twice"):
            strict_json.parse_line(text.encode(), "x:1")


@settings(max_examples=100)
@given(JSON, st.dictionaries(st.sampled_from(sorted(results.RunInfo.model_fields)), JSON, max_size=6))
def test_parse_results_of_any_value_raises_nothing_but_results_error(value: Any, fields: dict[str, Any]) -> None:
    _or_refused(parse_results, value, "x")
    run = {"author": {"name": "a", "affiliation": "b"}, "description": "c"} | fields
    _or_refused(parse_results, {"runs": [{"run_info": run}]}, "x")


@pytest.fixture(scope="module")
def submission(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return write_submission(tmp_path_factory.mktemp("s") / "s", [Plan(steps=12, eval_every=4)], random.Random(0))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_verify_of_any_change_to_results_and_log_gives_a_verdict_or_results_error(
    submission: pathlib.Path, data: st.DataObject
) -> None:
    value = json.loads((submission / "speedrun_results.json").read_text())
    events = [json.loads(line) for line in (submission / "logs" / "0" / "metrics.jsonl").read_text().splitlines()]
    info = json.loads(RUN)
    run = value["runs"][0]["run_info"]
    owners = [
        run,
        run["evaluation"],
        run["train_config"],
        run["model_config"],
        run["resources"],
        info,
        info["config"]["train"],
    ]
    for _ in range(data.draw(st.integers(0, 3))):
        owner = owners[data.draw(st.integers(0, len(owners) - 1))]
        owner[data.draw(st.sampled_from(sorted(owner)))] = data.draw(JSON | st.integers(-5, 10**20) | st.floats())
    for _ in range(data.draw(st.integers(0, 3))):
        events.insert(data.draw(st.integers(0, len(events))), data.draw(EVENT))
    for _ in range(data.draw(st.integers(0, 3))):
        del events[data.draw(st.integers(0, len(events) - 1))]
    folder = submission.parent / "changed"
    (folder / "logs" / "0").mkdir(parents=True, exist_ok=True)
    (folder / "speedrun_results.json").write_text(json.dumps(value))
    (folder / "logs" / "0" / "run.json").write_text(json.dumps(info))
    (folder / "logs" / "0" / "metrics.jsonl").write_bytes(_lines(events))
    found = _or_refused(verify_submission, folder)
    for _, verdict in found or ():
        assert [rung.rung for rung in verdict.rungs] == [
            "parsed",
            "arithmetic",
            "log",
            "statistics",
            "re-evaluated",
            "re-run",
        ]


# Each fills a file to its limits with what is the most work; run in a process of its own, whose memory is measured.
WORST = {
    "many small values": 'b"[" + b",".join([b"{}"] * 99_000) + b"]"',
    "many runs": "b'{\"runs\":[' + b','.join([b'{}'] * 90_000) + b']}'",
    "deep": 'b"[" * (2 * 2**20 - 1)',
    "long text": "b'{\"x\":\"' + b'{{ <' * 400_000 + b'\"}'",
    "duplicate keys": "b'{' + b','.join([b'\"x\":1'] * 90_000) + b'}'",
    "wrong wall times": "b'{\"wall_time\":{' + b','.join(b'\"%d\":\"x\"' % i for i in range(90_000)) + b'}}'",
    "long number": "b'[' + b'9' * 2_000_000 + b']'",
}
PROGRAM = """
import time
from marin.errors import ResultsError
from marin.speedrun import results, strict_json
data = {expression}
begin = time.process_time()
try:
    results.parse_results(strict_json.parse_json(data, "x", results.MAX_BYTES, results.MAX_VALUES), "x")
except ResultsError:
    pass
print(time.process_time() - begin)
"""
LOG = """
import time
from marin.errors import ResultsError
from marin.speedrun.verification.run_log import parse_log
from marin.speedrun.verification.submission import MAX_LINES
from marin.speedrun.verification.submission import LogFiles
line = b'{{"event":"step","step":1,"tokens":1024,"step_time":0.05,"data_wait":0.0,"mfu_model_flops":0.1,"loss":2.5,"grad_norm":1.0,"time":1.5}}\\n'
data = line * (MAX_LINES - 1)
begin = time.process_time()
try:
    parse_log(LogFiles("logs/0", {run!r}, data, None))
except ResultsError:
    pass
print(time.process_time() - begin)
"""


# The high-water mark of this program alone: `ru_maxrss` of a child begins with what its parent had.
MARK = """
import pathlib, re
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text()).group(1)) / 1024)
"""


def _measured(program: str) -> tuple[float, float]:
    """Seconds of processor time and MB at most; skips where the system does not say the latter."""
    if not pathlib.Path("/proc/self/status").exists():
        pytest.skip("the memory of a process is read from /proc")
    done = subprocess.run(
        [sys.executable, "-c", program + MARK], capture_output=True, text=True, timeout=120, check=True
    )
    seconds, megabytes = map(float, done.stdout.split())
    return seconds, megabytes


@pytest.mark.parametrize("name", WORST)
def test_parse_results_of_the_worst_file_takes_a_second_and_256_mb(name: str) -> None:
    seconds, megabytes = _measured(PROGRAM.format(expression=WORST[name]))
    assert seconds < 1.0
    assert megabytes < 256


def test_parse_log_of_the_longest_log_takes_256_mb() -> None:
    """Its time grows with its lines: a run of 50,000 steps is the longest that is read."""
    _, megabytes = _measured(LOG.format(run=RUN))
    assert megabytes < 256
