"""What the executor records of its steps, without secrets, and what it does with records that it finds."""

import hashlib
import json
import os
import pathlib
import socket
import sys
from typing import Any

import pytest
from labelled_steps import FAILURES, Config, ResumableConfig, kinds, step, work

from marin.errors import ExecutionError
from marin.execution import ExecutorStep
from marin.execution.status import INFO_NAME, STATUS_NAME, Status, read_status, write_status


def test_record_of_a_finished_step_says_when_where_and_what_came_out(executor: Any) -> None:
    (node,) = executor().run([step("a")])
    output = pathlib.Path(node.output_path)
    info = json.loads((output / INFO_NAME).read_text())
    assert (info["attempt"], info["output_files"], info["output_bytes"]) == (1, 1, 2)
    content = hashlib.sha256(b"a\n").hexdigest()
    assert info["output_digest"] == hashlib.sha256(f"{content}  log.txt\n".encode()).hexdigest()
    assert info["start_date"] <= info["end_date"]
    assert info["seconds"] >= 0
    assert info["host"] == socket.gethostname()
    assert info["config"]["output_path"] == str(output)
    assert len(info["lock_digest"]) == 64


def test_log_holds_what_a_step_printed_without_the_terminals_control_codes(executor: Any, capsys: Any) -> None:
    (node,) = executor().run([ExecutorStep("chatty", chat, Config("x"))])
    info = json.loads(pathlib.Path(node.output_path, INFO_NAME).read_text())
    assert pathlib.Path(info["log_path"]).read_text() == "hello\nred\nand an error\n"
    assert "\x1b[31mred" in capsys.readouterr().out


def chat(config: Config) -> None:
    print("hello")
    print("\x1b[31mred\x1b[0m")
    print("and an error", file=sys.stderr)


def test_records_say_what_ran_and_hide_secrets(executor: Any, tmp_path: pathlib.Path) -> None:
    a = ExecutorStep("a", work, Config("a", hf_token="hf_abc"), "words")
    first, second = executor().run([step("b", a)])
    info = json.loads(pathlib.Path(second.output_path, INFO_NAME).read_text())
    assert info["dependencies"] == [first.output_path]
    assert info["config"]["inputs"] == [first.output_path]
    assert info["fingerprint"] == second.fingerprint
    assert info["version"]["config"]["config.rate"] == "0.1"
    (record_path,) = (tmp_path / "store" / "experiments").iterdir()
    record = json.loads(record_path.read_text())
    assert {"worker_id", "git_commit", "git_dirty", "caller_path", "created_date", "user", "prefix"} <= set(record)
    assert [item["name"] for item in record["steps"]] == ["a", "steps/b"]
    assert not any(b"hf_abc" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_records_hide_secrets_of_the_environment_and_what_looks_like_one(
    executor: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_STORE_PASSWORD", "correct horse")
    inputs = ("https://me:correct horse@host/data", {"header": "Bearer hf_" + "a" * 34}, "https://host/data")
    (node,) = executor().run([step("a", *inputs)])
    info = json.loads(pathlib.Path(node.output_path, INFO_NAME).read_text())
    assert info["config"]["inputs"] == [
        "https://me:<hidden>@host/data",
        {"header": "Bearer <hidden>"},
        "https://host/data",
    ]
    assert info["version"]["config"]["config.inputs[2]"] == "'https://host/data'"
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 3 and not any(b"correct horse" in text or b"a" * 34 in text for text in written)


def test_message_on_a_path_of_another_config_shows_no_secret_and_names_what_differs(executor: Any) -> None:
    def made(**fields: Any) -> ExecutorStep:
        return ExecutorStep("a", work, Config("a", **fields), override_output_path="fixed")

    executor().run([made(hf_token="hf_abc")])
    with pytest.raises(ExecutionError, match=r"`config\.rate` was 0\.1 and is 0\.2") as caught:
        executor().run([made(hf_token="hf_abc", rate=0.2)])
    assert "hf_abc" not in str(caught.value)
    with pytest.raises(ExecutionError, match="such as a token") as caught:
        executor().run([made(hf_token="hf_other")])
    assert "hf_other" not in str(caught.value)


def test_text_that_is_no_utf_8_is_recorded_by_its_escape(executor: Any, tmp_path: pathlib.Path) -> None:
    name = os.fsdecode(b"caf\xe9")  # of a file that was named under another encoding
    (result,) = executor().run([ExecutorStep("odd", chat, Config(name))]).values()
    assert result.kind == "ran"
    records = [*tmp_path.glob("store/odd-*/.executor_info"), *tmp_path.glob("store/experiments/*.json")]
    assert all("caf\\udce9" in record.read_text(encoding="utf-8") for record in records) and len(records) == 2


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("SUCCESS", Status.SUCCESS),
        ("DEP_FAILED\n", Status.DEP_FAILED),
        (
            '{"status": "WAITING"}\n{"date": "x", "status": "RUNNING"}\n{"status": "SUCCESS", "message": null}\n',
            Status.SUCCESS,
        ),
        ('{"status": "RUNNING"}\n{"status": "FAILED"}\n', Status.FAILED),
        ('{"status": "WAITING"}\n', None),
        ("", None),
    ],
)
def test_status_is_read_in_both_forms_of_the_reference(tmp_path: pathlib.Path, content: str, expected: Any) -> None:
    (tmp_path / STATUS_NAME).write_text(content)
    assert read_status(str(tmp_path)) is expected


@pytest.mark.parametrize("content", ["SUCCES", "{", '{"a": 1}', '["SUCCESS"]', "\x00"])
def test_status_that_is_none_is_refused(tmp_path: pathlib.Path, content: str) -> None:
    (tmp_path / STATUS_NAME).write_text(content)
    with pytest.raises(ExecutionError, match="is no status"):
        read_status(str(tmp_path))


def test_output_of_the_reference_without_fingerprint_is_served(executor: Any, tmp_path: pathlib.Path) -> None:
    output = tmp_path / "store" / "theirs"
    output.mkdir(parents=True)
    (output / "data").write_text("x")
    (output / INFO_NAME).write_text(json.dumps({"name": "theirs", "version": {"config": {}}}))
    write_status(str(output), Status.SUCCESS)
    assert kinds(executor().run([step("a", override_output_path="theirs")])) == {"a": "skipped"}


@pytest.mark.parametrize("empty", [[INFO_NAME], [STATUS_NAME], [INFO_NAME, STATUS_NAME]])
def test_attempt_whose_records_a_power_failure_emptied_starts_over(
    executor: Any, tmp_path: pathlib.Path, empty: list[str]
) -> None:
    """They are not flushed one by one: a rename can reach the disk before the content does."""
    FAILURES["a"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        executor().run([step("a")])
    FAILURES.clear()
    for name in empty:
        next(tmp_path.glob(f"store/steps/a-*/{name}")).write_bytes(b"")
    assert kinds(executor().run([step("a")])) == {"a": "ran"}
    assert next(tmp_path.glob("store/steps/a-*/log.txt")).read_text() == "a\n"


def test_resumable_attempt_whose_record_cannot_be_read_is_not_removed(executor: Any, tmp_path: pathlib.Path) -> None:
    FAILURES["a"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        executor().run([step("a", kind=ResumableConfig)])
    FAILURES.clear()
    info = next(tmp_path.glob(f"store/steps/a-*/{INFO_NAME}"))
    content = info.read_bytes()
    info.write_bytes(b"")
    with pytest.raises(ExecutionError, match="is not valid JSON"):
        executor().run([step("a", kind=ResumableConfig)])
    info.write_bytes(content)
    assert kinds(executor().run([step("a", kind=ResumableConfig)])) == {"a": "ran"}
    assert next(tmp_path.glob("store/steps/a-*/log.txt")).read_text() == "a\na\n"
