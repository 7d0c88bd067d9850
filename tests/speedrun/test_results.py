"""Results files: what is read is what was written, and whatever is wrong has one clear error."""

import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from example_runs import run_info, run_json
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.errors import ResultsError
from marin.speedrun import strict_json
from marin.speedrun.results import (
    Author,
    Compressors,
    Digests,
    Evaluation,
    RunInfo,
    dump_results,
    json_schema,
    load_results,
    parse_results,
    write_results,
)

REFERENCE_KEYS = {
    "author", "description", "model_config", "train_config", "tokenized_dataset", "resources", "model_size", "total_tokens",
    "model_flops", "model_flops_per_token", "num_devices", "num_chips", "device_flops", "training_time",
    "training_hardware_flops", "eval/paloma/c4_en/bpb", "run_completion_timestamp", "wandb_run_link",
}  # fmt: skip


def _write(path: pathlib.Path, data: bytes) -> pathlib.Path:
    path.write_bytes(data)
    return path


def test_run_info_built_by_keywords_writes_every_key_and_reads_back_equal(tmp_path: pathlib.Path) -> None:
    info = RunInfo(
        author=Author(name="Ada", affiliation="Independent"),
        description="on the embedded corpus",
        model={"hidden_dim": 8},
        seed=7,
        git_commit="c0ffee",
        git_dirty=True,
        digests=Digests(config="1", data="2", tokenizer="3", evaluation_set="4", metrics_log="5"),
        evaluation=Evaluation(name="python_docs", digest="4", bits_per_byte=1.5, bytes=10, tokens=5, documents=1),
        compressors=Compressors(gzip_9=2.5, xz_9=2.2, zstd_19=2.3),
        resumed=False,
        training_time=3,
    )
    path = tmp_path / "deep" / "speedrun_results.json"
    write_results(path, info)
    text = path.read_text()
    written = json.loads(text)["runs"][0]["run_info"]
    assert REFERENCE_KEYS | {"schema_version", "seed", "git_commit", "git_dirty", "digests", "evaluation"} <= set(
        written
    )
    assert written["schema_version"] == 1
    assert written["training_hardware_flops"] is None
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"
    assert load_results(path) == [info]


def test_run_info_with_unknown_keys_keeps_them_through_a_round_trip(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "r.json"
    write_results(path, run_info(**{"eval/other/bpb": 2.0, "nested": {"a": [1, None, "x"]}}))
    again = json.loads(path.read_text())["runs"][0]["run_info"]
    assert again["eval/other/bpb"] == 2.0
    assert again["nested"] == {"a": [1, None, "x"]}


@pytest.mark.parametrize(
    "wrap", [lambda run: run, lambda run: {"run_info": run}, lambda run: {"runs": [{"run_info": run}]}]
)
def test_load_results_reads_bare_and_wrapped_runs_alike(wrap: Callable[[Any], Any], tmp_path: pathlib.Path) -> None:
    path = _write(tmp_path / "r.json", json.dumps(wrap(run_json())).encode())
    assert load_results(path) == [run_info()]


def test_load_results_of_an_old_file_leaves_schema_version_unknown(tmp_path: pathlib.Path) -> None:
    run = run_json()
    del run["schema_version"], run["num_chips"], run["device_flops"]
    info = load_results(_write(tmp_path / "r.json", json.dumps(run).encode()))[0]
    assert info.schema_version is None
    assert info.num_chips is None


BROKEN = {
    "empty": (b"", "empty"),
    "truncated": (json.dumps({"runs": [{"run_info": run_json()}]}).encode()[:300], "cut short"),
    "truncated in a literal list": (b'{"runs": [1, ', "cut short"),
    "not json": (b'{\n"a" 1}', "line 2"),
    "trailing data": (b"{} {}", "not valid JSON"),
    "nan": (b'{"runs": [{"run_info": {"training_time": NaN}}]}', "NaN is not a number"),
    "infinity": (b'{"a": -Infinity}', "-Infinity is not a number"),
    "overflowing number": (b'{"a":\n 1e999}', "line 2: 1e999 is too large"),
    "endless integer": (b'{"a": ' + b"9" * 6000 + b"}", "6000 digits"),
    "duplicate key": (b'{"author": 1,\n "author": 2}', "'author' appears twice"),
    "deep": (b"[" * 5000 + b"]" * 5000, "nested"),
    "deep but parsable": (b'{"a":' * 60 + b"1" + b"}" * 60, "nested"),
    "latin-1": ('{"a": "é"}'.encode("latin-1"), "UTF-8"),
    "byte order mark": (b"\xef\xbb\xbf{}", "line 1"),
    "lone surrogate": (b'{"a": "\\ud800"}', "surrogate"),
    "large": (b" " * (strict_json.MAX_BYTES + 1), "2 MiB"),
    "list": (b"[]", "expected an object"),
    "no runs": (b'{"runs": []}', "runs"),
    "runs is not a list": (b'{"runs": {}}', "runs"),
    "number as text": (json.dumps(run_json(training_time="20")).encode(), "runs[0].run_info.training_time"),
    "boolean as number": (json.dumps(run_json(model_size=True)).encode(), "runs[0].run_info.model_size"),
    "missing author": (b'{"description": "x"}', "`runs[0].run_info.author` is missing"),
    "author name": (json.dumps(run_json(author={"name": 3, "affiliation": ""})).encode(), "author.name"),
    "later schema": (json.dumps(run_json(schema_version=2)).encode(), "update Marin"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_load_results_of_a_broken_file_names_path_place_and_next_step(name: str, tmp_path: pathlib.Path) -> None:
    data, expected = BROKEN[name]
    path = _write(tmp_path / "speedrun_results.json", data)
    with pytest.raises(ResultsError) as caught:
        load_results(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert expected in message
    assert "copy" in message or "update" in message


def test_load_results_of_missing_directory_and_pipe_raises_without_hanging(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, expected in (
        (tmp_path / "none", "no such file"),
        (tmp_path, "directory"),
        (tmp_path / "pipe", "not a regular"),
    ):
        with pytest.raises(ResultsError, match=expected):
            load_results(path)


def test_write_results_of_a_config_with_nan_refuses_and_leaves_the_old_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "r.json"
    write_results(path, run_info())
    before = path.read_bytes()
    with pytest.raises(ResultsError, match="finite"):
        write_results(path, run_info().model_copy(update={"train_config": {"lr": float("nan")}}))
    assert path.read_bytes() == before


def test_run_info_with_a_non_finite_figure_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        RunInfo(author=Author(name="a", affiliation="b"), description="", training_time=float("inf"))


def test_json_schema_uses_the_names_of_the_file() -> None:
    properties = json_schema()["$defs"]["RunInfo"]["properties"]
    assert set(properties) >= REFERENCE_KEYS


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.sampled_from(list(run_json())), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=150)
@given(st.binary(max_size=200) | _VALUES.map(lambda value: json.dumps(value).encode()))
def test_parsing_any_bytes_raises_nothing_but_results_error(data: bytes) -> None:
    try:
        infos = parse_results(strict_json.parse_json(data, "f"), "f")
    except ResultsError:
        return
    assert parse_results(json.loads(dump_results(infos)), "f") == infos
