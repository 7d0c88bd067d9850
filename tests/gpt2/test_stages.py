"""Stages: done once, continued, refused under other settings, and their section of the report."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from marin.errors import ConfigError, DataError, StepFailedError
from marin.execution.step import ExecutorStep, placement, this_output_path
from marin.gpt2.places import Places
from marin.gpt2.sections import report_section, section_markdown
from marin.gpt2.stages import run_stage, stage


@dataclasses.dataclass(frozen=True)
class _Config:
    marin_resumable = True

    rate: float
    fails: bool = placement(default=False)
    output_path: str = this_output_path()


def _write(config: _Config) -> None:
    path = Path(config.output_path, "steps")
    before = path.read_text() if path.exists() else ""
    path.write_text(f"{before}{config.rate} ")
    if config.fails:
        raise ValueError("the power went")


def _stage(places: Places, **fields):
    return stage("test", _write, _Config(**fields), places, places.checkpoints("base", "d2"))


def test_stage_is_done_once_and_other_settings_are_refused_with_both(tmp_path, capsys):
    places = Places.of(str(tmp_path))
    output = run_stage(places, _stage(places, rate=0.5))
    assert output == tmp_path / "base_checkpoints" / "d2" and (output / "steps").read_text() == "0.5 "
    assert run_stage(places, _stage(places, rate=0.5)) == output
    assert "nothing to do" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"(?s)a finished `gpt2/test`.*rate: was 0\.5, is 0\.25.*use those again, or"):
        run_stage(places, _stage(places, rate=0.25))
    assert (output / "steps").read_text() == "0.5 "


@pytest.mark.parametrize(
    ("name", "folder", "way"),
    [
        ("tok_train", "tokenizer", "choose another `--base-dir`, or move that directory away"),
        ("base_train", "base_checkpoints/d2", "choose another `--model-tag`, or move that directory away"),
        (
            "chat_sft",
            "chatsft_checkpoints/d2",
            "rename that directory, such as to d2_1, which is then its `--model-tag`",
        ),
        ("chat_rl", "chatrl_checkpoints/d2", "rename that directory, such as to d2_1, which is then its `--model-tag`"),
    ],
)
def test_who_is_refused_is_told_a_way_that_is_open_to_that_stage(tmp_path, name, folder, way):
    places = Places.of(str(tmp_path))
    first, other = (stage(name, _write, _Config(rate), places, tmp_path / folder) for rate in (0.5, 0.25))
    output = run_stage(places, first)
    with pytest.raises(ConfigError) as refused:
        run_stage(places, other)
    assert str(refused.value).endswith(f"\nuse those again, or {way}")
    output.rename(tmp_path / "away")
    assert run_stage(places, other) == output and (output / "steps").read_text() == "0.25 "


def test_finished_stage_without_the_file_that_it_leaves_is_not_called_done(tmp_path):
    places = Places.of(str(tmp_path))
    output = run_stage(places, _stage(places, rate=0.5), "steps")
    assert output is not None
    (output / "steps").unlink()
    with pytest.raises(
        DataError, match=r"d2 was finished before, and its steps is not there any more: restore it, or move"
    ):
        run_stage(places, _stage(places, rate=0.5), "steps")
    output.rename(tmp_path / "away")
    assert run_stage(places, _stage(places, rate=0.5), "steps") == output and (output / "steps").is_file()


@dataclasses.dataclass(frozen=True)
class _Above:
    data: ExecutorStep
    output_path: str = this_output_path()


def _write_above(config: _Above) -> None:
    Path(config.output_path, "steps").write_text("some")


def test_other_settings_of_what_a_stage_depends_on_are_named_and_not_by_digests(tmp_path):
    places = Places.of(str(tmp_path))

    def above(rate: float) -> ExecutorStep:
        data = ExecutorStep("data", _write, _Config(rate=rate))
        return stage("above", _write_above, _Above(data), places, places.checkpoints("sft", "d2"))

    run_stage(places, above(0.5))
    with pytest.raises(ConfigError, match=r"other settings:\n  config\.data: config\.rate: was 0\.5, is 0\.25\nuse"):
        run_stage(places, above(0.25))
    for data in tmp_path.glob("data-*"):  # what is not there any more cannot be compared
        shutil.rmtree(data)
    with pytest.raises(ConfigError, match=r"config\.data: was step data-\w+/, is step data-"):
        run_stage(places, above(0.25))


def test_failed_stage_continues_and_keeps_its_work_from_other_settings(tmp_path):
    places = Places.of(str(tmp_path))
    with pytest.raises(StepFailedError, match="the power went"):
        run_stage(places, _stage(places, rate=0.5, fails=True))
    with pytest.raises(ConfigError, match="an unfinished"):
        run_stage(places, _stage(places, rate=0.25))
    output = run_stage(places, _stage(places, rate=0.5))
    assert output is not None and (output / "steps").read_text() == "0.5 0.5 "


@pytest.mark.parametrize(
    ("flag", "environment", "expected"),
    [
        ("/a", {"MARIN_BASE_DIR": "/b"}, "/a"),
        (None, {"MARIN_BASE_DIR": "/b", "NANOCHAT_BASE_DIR": "/c"}, "/b"),
        (None, {"MARIN_BASE_DIR": "", "NANOCHAT_BASE_DIR": "/c"}, "/c"),
        (None, {}, str(Path("~/.cache/marin/gpt2").expanduser())),
    ],
)
def test_base_directory_is_the_flag_then_the_environment(flag, environment, expected):
    assert Places.of(flag, environment).base == expected


@pytest.mark.parametrize("value", [" ", "gs://bucket/x"])
def test_base_directory_that_cannot_be_is_refused(value):
    with pytest.raises(ConfigError, match="--base-dir"):
        Places.of(value, {})


@pytest.mark.parametrize("tag", ["", "../x", ".hidden", "a/b", "a b"])
def test_tag_that_is_no_name_is_refused(tmp_path, tag):
    with pytest.raises(ConfigError, match="--model-tag"):
        Places.of(str(tmp_path)).checkpoints("base", tag)


def test_deepest_run_is_found_and_an_absent_one_names_its_command(tmp_path):
    places = Places.of(str(tmp_path))
    with pytest.raises(DataError, match=r"there is none yet\): make one with `python -m scripts.chat_sft`"):
        places.find_run("sft")
    for tag in ("d6", "d12", "other"):
        run = places.checkpoints("base", tag)
        (run / "checkpoints" / "step-00000001").mkdir(parents=True)
        (run / "run.json").write_text("{}")
        (run / "metrics.jsonl").write_text("")
    (tmp_path / "base_checkpoints" / "d20" / "checkpoints").mkdir(parents=True)
    assert places.find_run("base").name == "d12"
    assert places.find_run("base", "other").name == "other"
    (tmp_path / "base_checkpoints" / "d20" / "run.json").write_text("{}")
    (tmp_path / "base_checkpoints" / ".attempts").mkdir()
    lacks = r"d20 has no metrics.jsonl and no checkpoint\)"
    with pytest.raises(DataError, match=rf"there are d12, d6, other; {lacks}.*scripts.base_train --model-tag d20"):
        places.find_run("base", "d20")


def test_model_that_runcpu_made_is_found_by_the_message_of_a_command_that_looks_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    run = tmp_path / ".cache" / "marin" / "runcpu" / "chatsft_checkpoints" / "d4"
    (run / "checkpoints" / "step-00000001").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    (run / "metrics.jsonl").write_text("")
    with pytest.raises(DataError, match=r"scripts.chat_sft`, or look with `--base-dir ~/.cache/marin/runcpu`"):
        Places.of(None, {}).find_run("sft")
    with pytest.raises(DataError, match=r"scripts.chat_rl`$"):
        Places.of(None, {}).find_run("rl")
    assert Places.of("~/.cache/marin/runcpu").find_run("sft") == run


def test_report_section_is_readable_markdown_and_json(tmp_path):
    places = Places.of(str(tmp_path))
    figures = {
        "val bpb": 0.7184,
        "tokens": 1234567,
        "CORE": None,
        "tasks": {"a|b": {"acc": 0.5, "n": 10}, "c": {"acc": 1.0}},
    }
    path = report_section(places, "Base model (d2)", figures, "sample: <script>")
    assert path.name == "base-model-d2.md"
    lines = path.read_text().splitlines()
    assert lines[0] == "## Base model (d2)"
    assert {"- val bpb: 0.7184", "- tokens: 1,234,567", "- CORE: not measured"} <= set(lines)
    assert "| a\\|b | 0.5 | 10 |" in lines and "| c | 1 | not measured |" in lines
    assert json.loads(path.with_suffix(".json").read_text())["figures"]["tokens"] == 1234567
    assert section_markdown("x", {"y": "a\nb"}) == "## x\n\n- y: a b\n\n"
