"""The scripts that talk to a model, as a person runs them, and `marin serve`."""

import contextlib
import dataclasses
import io
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent import futures
from typing import Any
from unittest import mock

import equinox as eqx
import jax
import pytest
from small_commands import run_script

from marin.data.conversation import SPECIAL_TOKENS, render, render_for_completion
from marin.data.documents import Document, write_documents
from marin.data.tokenizer import Tokenizer, TrainTokenizerConfig, train_tokenizer
from marin.errors import ConfigError
from marin.evaluation.chat import source_of
from marin.gpt2.command import parse_flags, run_command
from marin.gpt2.opening import ModelFlags
from marin.models import GptConfig
from marin.tracking import RunWriter
from marin.training.checkpoint_writer import CheckpointWriter
from marin.training.config_json import config_to_json
from scripts import chat_cli, chat_eval, chat_web, infer_bench

CONFIG = GptConfig(seq_len=64, hidden_dim=32, num_layers=2, num_heads=2)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A base directory with one SFT run, whose model is not trained."""
    folder = tmp_path_factory.mktemp("base")
    documents = str(folder / "documents.jsonl.zst")
    write_documents(documents, [Document(str(i), f"the cat number {i} sat on a mat. " * 9, "t") for i in range(3)])
    train_tokenizer(TrainTokenizerConfig(documents, 272, str(folder / "tokenizer"), special_tokens=SPECIAL_TOKENS))
    run = folder / "chatsft_checkpoints" / "d2"
    writer = RunWriter(run)
    described = {"model": config_to_json(CONFIG), "tokenizer": str(folder / "tokenizer"), "vocab_size": 272}
    writer.write_info(
        {"config": described, "model_class": "marin.models.gpt:GptConfig", "precision": "f32", "run_name": "d2"}
    )
    writer.append("start", from_step=0)
    writer.close()
    weights: Any = eqx.filter(CONFIG.build(272, key=jax.random.key(0)), eqx.is_array)
    with CheckpointWriter(run / "checkpoints", keep_every=1) as saver:
        saver.save({"model": weights, "average": None}, 5)
    return folder


def _script(environment: dict[str, str], repository: pathlib.Path, *arguments: Any, text: str = "") -> Any:
    command = [sys.executable, "-m", *map(str, arguments)]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, cwd=repository, env=environment, timeout=240
    )


def test_chat_cli_answers_a_prompt_and_holds_a_conversation(base, plain_environment, repository):
    options = ("-i", "sft", "-t", "0", "-k", "5", "--max-tokens", "8", "--base-dir", base)
    done = _script(plain_environment, repository, "scripts.chat_cli", *options, text="the cat\nclear\na mat\nquit\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Model: ") == 2 and "A new conversation." in done.stdout


def test_a_look_at_a_few_questions_keeps_the_replies_to_all(base, tmp_path):
    folder = shutil.copytree(base, tmp_path / "base")
    data = source_of("ARC-Easy").folder(folder / "task_data")
    data.mkdir(parents=True)
    choices = {"text": ["a cat", "a mat"], "label": ["A", "B"]}
    row = {"question": "Which one sat?", "choices": choices, "answerKey": "A"}
    (data / "rows.jsonl").write_text(3 * (json.dumps(row) + "\n"))
    asking = ["-i", "sft", "-a", "ARC-Easy", "--device-type=cpu", f"--base-dir={folder}"]
    run_script(chat_eval, *asking)
    run_script(chat_eval, *asking, "-x=2")
    run_script(chat_eval, *asking, "-n=2", "-t=1.0")
    kept = {path.parent.name: path for path in folder.glob("chat_eval/*/ARC-Easy.jsonl")}
    whole = "sft_d2_000005"
    assert set(kept) == {whole, f"{whole}_max_problems=2", f"{whole}_num_samples=2_temperature=1.0"}
    assert len(kept[whole].read_text().splitlines()) == 3
    written = kept[whole].stat().st_mtime_ns
    run_script(chat_eval, *asking)
    assert kept[whole].stat().st_mtime_ns == written  # not asked again


def test_chat_cli_says_which_command_makes_the_model_that_is_missing(base, plain_environment, repository):
    done = _script(plain_environment, repository, "scripts.chat_cli", "-i", "rl", "-p", "x", "--base-dir", base)
    assert done.returncode == 2 and "python -m scripts.chat_rl" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("given", "message"),
    [("-k=-1", "`--top-k` is -1"), ("-m=0", "`--max-tokens` is 0"), ("--seed=-1", "`--seed` is -1")],
)
def test_chat_cli_refuses_flags_before_it_opens_a_model(given, message, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["chat_cli", given, "--base-dir", "absent"])
    with pytest.raises(SystemExit) as ended:
        run_command(chat_cli.main)
    assert ended.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize("prompt", ["", " \n"])
def test_chat_cli_refuses_an_empty_prompt_and_begins_no_conversation(prompt, base, plain_environment, repository):
    given = ("scripts.chat_cli", "-i", "sft", "-p", prompt, "--base-dir", base)
    done = _script(plain_environment, repository, *given, text="the cat\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: `--prompt` is empty: say what to ask, or leave it out for a conversation\n"


class _Scripted:
    """Stands in for an engine: answers with what it is given, and keeps the prompts."""

    def __init__(self, tokenizer: Tokenizer, answers: list[list[int]]) -> None:
        self.tokenizer, self.prompts, self._answers = tokenizer, [], iter(answers)

    def stream(self, prompt, options):
        self.prompts.append(list(prompt))
        return iter(next(self._answers))


def test_chat_cli_goes_on_with_the_tokens_that_a_call_was_made_of(base, monkeypatch, capsys):
    tokenizer = Tokenizer.load(str(base / "tokenizer"))
    call = [
        {"type": "python", "text": "2+2"},
        {"type": "python_output", "text": "4"},
        {"type": "text", "text": "#### 4"},
    ]
    first = [{"role": "user", "content": "what is 2+2"}, {"role": "assistant", "content": call}]
    whole = render({"messages": first}, tokenizer)[0]
    asked = render_for_completion({"messages": first}, tokenizer)
    engine = _Scripted(tokenizer, [whole[len(asked) : -1], tokenizer.encode("yes")])
    monkeypatch.setattr(chat_cli, "open_model", lambda flags: (mock.MagicMock(), None))
    monkeypatch.setattr("marin.inference.Engine", lambda *args, **options: engine)
    monkeypatch.setattr("sys.argv", ["chat_cli"])
    monkeypatch.setattr("sys.stdin", io.StringIO("what is 2+2\nsure?\n"))
    chat_cli.main()
    assert "Model: `2+2` = 4 #### 4" in capsys.readouterr().out
    assert engine.prompts[0] == asked
    assert engine.prompts[1] == render_for_completion(
        {"messages": [*first, {"role": "user", "content": "sure?"}]}, tokenizer
    )
    assert engine.prompts[1][: len(whole)] == whole


def test_chat_cli_says_that_an_answer_is_empty_and_goes_on_without_its_question(base, monkeypatch, capsys):
    tokenizer = Tokenizer.load(str(base / "tokenizer"))
    engine = _Scripted(tokenizer, [[], tokenizer.encode("yes")])
    monkeypatch.setattr(chat_cli, "open_model", lambda flags: (mock.MagicMock(), None))
    monkeypatch.setattr("marin.inference.Engine", lambda *args, **options: engine)
    monkeypatch.setattr("sys.argv", ["chat_cli"])
    monkeypatch.setattr("sys.stdin", io.StringIO("hm\nsure?\n"))
    chat_cli.main()
    said = capsys.readouterr().out
    assert "Model: (nothing: ask in another way)\n" in said and "Model: yes\n" in said
    assert engine.prompts[1] == render_for_completion({"messages": [{"role": "user", "content": "sure?"}]}, tokenizer)


@pytest.mark.parametrize("flags", [[], ["-p", "hm"]])
def test_chat_cli_shows_control_characters_to_no_terminal_and_keeps_them_in_the_conversation(
    base, monkeypatch, capsys, flags
):
    tokenizer = Tokenizer.load(str(base / "tokenizer"))
    wild = "a\tb\x1b]0;title\x07\r\x7f\x9b31m caf\u00e9\nend"
    engine = _Scripted(tokenizer, [tokenizer.encode(wild), tokenizer.encode("yes")])
    monkeypatch.setattr(chat_cli, "open_model", lambda flags: (mock.MagicMock(), None))
    monkeypatch.setattr("marin.inference.Engine", lambda *args, **options: engine)
    monkeypatch.setattr("sys.argv", ["chat_cli", *flags])
    monkeypatch.setattr("sys.stdin", io.StringIO("hm\nsure?\n"))
    chat_cli.main()
    assert "a\tb\ufffd]0;title\ufffd\ufffd\ufffd\ufffd31m caf\u00e9\nend\n" in capsys.readouterr().out
    if not flags:
        turns = [("user", "hm"), ("assistant", wild), ("user", "sure?")]
        said = {"messages": [{"role": role, "content": text} for role, text in turns]}
        assert engine.prompts[1] == render_for_completion(said, tokenizer)


def test_line_typed_at_a_terminal_can_be_edited_and_is_of_any_length():
    pytest.importorskip("readline")
    terminal, inside = pty.openpty()
    code = "from scripts.chat_cli import typed; print('GOT', typed('You: ')[-3:], len(typed('You: ')))"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=inside, stdout=inside)
    os.close(inside)
    shown, said = b"", [b"ac\x1b[Db\n", b"z" * 6000 + b"\n"]
    with child, contextlib.suppress(OSError):  # which says that the other end is closed
        while piece := os.read(terminal, 65536):
            shown += piece
            if said and shown.count(b"You: ") == 3 - len(said):
                os.write(terminal, said.pop(0))
    os.close(terminal)
    assert b"GOT abc 6000" in shown


def test_chat_cli_takes_a_top_k_of_0_for_all_tokens():
    options = chat_cli.sampling_options(parse_flags(chat_cli.Flags, None, ["-k", "0"]))
    assert options.top_k is None


@pytest.mark.parametrize("flag", ["--batch-size", "--prompt-tokens", "--num-tokens", "--repetitions"])
def test_infer_bench_refuses_flags_by_name_before_it_opens_a_model(flag, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["infer_bench", f"{flag}=0", "--base-dir", "absent"])
    with pytest.raises(SystemExit) as ended:
        run_command(infer_bench.main)
    assert ended.value.code == 2 and f"`{flag}` is 0" in capsys.readouterr().err


@pytest.mark.parametrize("script", [chat_cli, chat_web, infer_bench])
def test_commands_that_open_a_model_share_the_flags_that_name_it(script, capsys):
    given = ["-i", "rl", "-g", "d4", "-s", "7", "-d", "bfloat16", "--checkpoint", "x", "--device-type", "cpu"]
    flags = parse_flags(script.Flags, None, given)
    shared = {field.name: getattr(flags, field.name) for field in dataclasses.fields(ModelFlags)}
    assert ModelFlags(**shared) == ModelFlags("rl", "d4", 7, "bfloat16", "x", "cpu")
    with pytest.raises(SystemExit):
        parse_flags(script.Flags, None, ["--help"])
    assert "the deepest by default" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("script", [chat_cli, infer_bench])
def test_a_model_is_named_by_a_path_or_by_a_tag_but_not_by_both(script, base):
    run = base / "chatsft_checkpoints" / "d2"
    with pytest.raises(ConfigError, match="`--checkpoint` names the model: leave out `--model-tag`"):
        run_script(script, "--checkpoint", str(run), "-g", "d99", "--device-type=cpu")


def test_infer_bench_ends_with_a_line_of_json(base, plain_environment, repository):
    sizes = ("-b", "2", "--prompt-tokens", "40", "-m", "30", "--repetitions", "1")
    done = _script(plain_environment, repository, "scripts.infer_bench", *sizes, "--base-dir", base)
    assert done.returncode == 0, done.stderr
    assert "6 more than the 64 that the model was trained with" in done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["batch_size"] == 2 and found["prompt_tokens"] == 40 and found["model"] == "d2-step-5"
    assert found["tokens_per_second"] == pytest.approx(2e3 / found["tpot_ms"], rel=0.01)
    assert found["ttft_ms"] > 0 and 0 < found["mbu"] and 0 < found["mfu"] < 1


@pytest.mark.parametrize("way", ["marin", "chat_web"])
def test_the_server_starts_answers_and_ends_on_sigterm(base, plain_environment, repository, way):
    run = base / "chatsft_checkpoints" / "d2"
    arguments = (
        ["marin", "serve", str(run)] if way == "marin" else ["scripts.chat_web", "-i", "sft", "--base-dir", str(base)]
    )
    command = [sys.executable, "-m", *arguments, "--port", "0", "--max-rows", "2", "--max-length", "8000"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=repository, env=plain_environment
    ) as server:
        assert server.stdout is not None and server.stderr is not None
        lines = []
        while not lines or "open http" not in lines[-1]:
            lines.append(server.stdout.readline())
            assert lines[-1], server.stderr.read()
        found = re.search(r"open (\S+)", lines[-1])
        assert found is not None
        body = json.dumps({"model": "d2-step-5", "messages": [{"role": "user", "content": "the"}], "max_tokens": 3})
        asked = urllib.request.Request(
            f"{found.group(1)}/v1/chat/completions", body.encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert json.load(answer)["choices"][0]["finish_reason"] in ("length", "stop")
        running = [_long_answer(found.group(1), stream=stream) for stream in (True, False)]
        server.send_signal(signal.SIGTERM)
        for answer in running:
            assert "the server is stopping" in answer.result(timeout=30)
        rest, errors = server.communicate(timeout=30)
        assert errors.count("note: `--max-length` is 8,000 tokens, ") == 1
        assert "Traceback" not in errors and "stopped" in rest


def _long_answer(url: str, *, stream: bool) -> "futures.Future[str]":
    """What comes of a long answer that has begun."""
    asked = {"model": "d2-step-5", "prompt": "the", "max_tokens": 7000, "n": 64, "temperature": 1, "stream": stream}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(asked).encode(), {"content-type": "application/json"}
    )

    def read() -> str:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return f"{error.code} {error.read().decode()}"

    found = futures.ThreadPoolExecutor(1).submit(read)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with urllib.request.urlopen(f"{url}/stats", timeout=30) as answer:
            stats = json.load(answer)
        if stats["requests"] >= (2 if stream else 3) and stats["running_samples"]:
            break
        time.sleep(0.01)
    return found


def test_output_that_nobody_reads_to_its_end_is_no_fault(base, plain_environment, repository):
    command = f"{sys.executable} -m scripts.chat_cli -i sft --base-dir {base} -p hello | true"
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, cwd=repository, env=plain_environment, timeout=120
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr


def test_serve_refuses_what_is_no_model(plain_environment, repository, tmp_path):
    done = _script(plain_environment, repository, "marin", "serve", tmp_path)
    assert done.returncode == 2 and "holds no checkpoint" in done.stderr and "Traceback" not in done.stderr
