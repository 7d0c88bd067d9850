"""The commands after pretraining: their flags and defaults, and what a person sees of mistakes."""

import dataclasses
import re
from types import SimpleNamespace

import pytest

from marin.errors import ConfigError, DataError
from marin.evaluation.chat import TaskScore, source_of
from marin.finetuning.chat_scores import ChatEvalOptions
from marin.finetuning.rl_tasks import RL_TASKS
from marin.gpt2.command import parse_flags, run_command
from marin.gpt2.places import Places
from marin.models import GptConfig
from scripts import chat_eval, chat_rl, chat_sft

# Flags and defaults of nanochat at HEAD (reference, section 1).
SFT = {
    "load_optimizer": 1,
    "num_iterations": -1,
    "max_seq_len": None,
    "device_batch_size": None,
    "total_batch_size": None,
    "embedding_lr": None,
    "unembedding_lr": None,
    "matrix_lr": None,
    "init_lr_frac": 0.8,
    "warmup_ratio": 0.0,
    "warmdown_ratio": 0.5,
    "final_lr_frac": 0.0,
    "eval_every": 200,
    "eval_tokens": 40 * 524288,
    "chatcore_every": 200,
    "chatcore_max_cat": -1,
    "chatcore_max_sample": 24,
    "mmlu_epochs": 3,
    "gsm8k_epochs": 4,
}
RL = {
    "num_epochs": 1,
    "device_batch_size": 8,
    "examples_per_step": 16,
    "num_samples": 16,
    "max_new_tokens": 256,
    "temperature": 1.0,
    "top_k": 50,
    "init_lr_frac": 0.05,
    "eval_every": 60,
    "save_every": 60,
    "eval_examples": 400,
}


@pytest.mark.parametrize(("script", "expected"), [(chat_sft, SFT), (chat_rl, RL)])
def test_flags_and_defaults_are_the_references(script, expected):
    found = dataclasses.asdict(parse_flags(script.Flags, None, []))
    assert {name: found[name] for name in expected} == expected
    others = {name: 0.25 if name.endswith(("_ratio", "_frac")) else 3 for name in expected}
    others |= {"load_optimizer": 0} if script is chat_sft else {"device_batch_size": 1}
    given = [f"--{name.replace('_', '-')}={value}" for name, value in others.items()]
    changed = dataclasses.asdict(parse_flags(script.Flags, None, given))
    assert {name: changed[name] for name in others} == others


def test_chat_eval_takes_the_short_flags_of_the_reference():
    given = [
        "-i",
        "rl",
        "-a",
        "GSM8K|MMLU",
        "-t",
        "0.5",
        "-m",
        "99",
        "-n",
        "3",
        "-k",
        "7",
        "-b",
        "4",
        "-g",
        "d12",
        "-s",
        "100",
        "-x",
        "50",
        "-d",
        "bfloat16",
    ]
    found = parse_flags(chat_eval.Flags, None, given)
    assert found == chat_eval.Flags("rl", "GSM8K|MMLU", "bfloat16", 0.5, 99, 3, 7, 4, "d12", 100, 50)
    default = chat_eval.Flags()
    assert (default.temperature, default.max_new_tokens, default.num_samples, default.top_k) == (0.0, 512, 1, 50)
    assert (default.source, default.batch_size, default.max_problems) == ("sft", 8, None)


def test_chat_eval_asks_what_is_named_or_what_is_there(tmp_path):
    assert chat_eval.task_names(chat_eval.Flags(), tmp_path) == ["Spelling", "SpellingBee", "Arithmetic", "Identity"]
    assert chat_eval.task_names(chat_eval.Flags(task_name="GSM8K| mmlu"), tmp_path) == ["GSM8K", "mmlu"]
    twice = chat_eval.Flags(task_name="GSM8K|MMLU|gsm8k|GSM8K")
    assert chat_eval.task_names(twice, tmp_path) == ["GSM8K", "MMLU"]


def test_task_that_was_not_asked_is_told_from_one_that_is_not_there(tmp_path, capsys):
    folder = source_of("GSM8K").folder(tmp_path)
    folder.mkdir(parents=True)
    (folder / "rows.jsonl").write_text("")
    asked = ChatEvalOptions(max_choices=10, max_replies=10)
    said = chat_eval.show({"MMLU": TaskScore("MMLU", 3, 10, 0.25)}, tmp_path, asked)
    assert said.startswith("partial ChatCORE (1 of 5 tasks), at most 10 questions a task: 0.0667")
    assert "GSM8K was not asked" in said and "ARC-Easy is not there: https://" in said


def test_scores_of_several_answers_are_marked_and_not_held_against_one_guess(tmp_path, capsys):
    asked = ChatEvalOptions(num_samples=4, temperature=1.0)
    scores = {"MMLU": TaskScore("MMLU", 3, 10, 0.25), "GSM8K, pass@4": TaskScore("GSM8K", 5, 10, 0.125)}
    assert re.match(r"partial ChatCORE \(2 of 5 tasks\), pass@4: 0\.\d+ \(", chat_eval.show(scores, tmp_path, asked))
    shown = capsys.readouterr().out
    assert "GSM8K, pass@4" in shown and "0.2500" in shown and "0.1250" not in shown


@pytest.mark.parametrize(
    ("script", "maker"), [(chat_sft, "base_train"), (chat_eval, "chat_sft"), (chat_rl, "chat_sft")]
)
def test_command_without_a_run_names_the_command_that_makes_one(tmp_path, monkeypatch, capsys, script, maker):
    monkeypatch.setattr("sys.argv", ["script", "--base-dir", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        run_command(script.main)
    assert ended.value.code == 2 and f"python -m scripts.{maker}" in capsys.readouterr().err


@pytest.mark.parametrize(("rank", "fetched"), [(None, 6), (0, 6), (1, 0)])
def test_public_data_is_fetched_by_the_first_process_alone(tmp_path, monkeypatch, rank, fetched):
    if rank is not None:
        variables = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 9}
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))
    sources = []
    monkeypatch.setattr("marin.evaluation.chat.datasets.download", lambda source, folder: sources.append(source))
    chat_sft.fetch_public(Places(str(tmp_path)))
    assert len(set(sources)) == fetched


def test_public_data_that_cannot_be_fetched_is_not_the_only_way_to_finetune(tmp_path, monkeypatch):
    def refused(source, folder):
        raise DataError("the hub cannot be reached")

    monkeypatch.setattr("marin.evaluation.chat.datasets.download", refused)
    with pytest.raises(DataError, match="the hub cannot be reached; or .* `--made 20000`"):
        chat_sft.fetch_public(Places(str(tmp_path)))


def test_conversations_that_are_not_there_are_refused_before_public_ones_are_fetched(tmp_path, monkeypatch):
    checkpoint = SimpleNamespace(path=tmp_path, step=1)
    origin = SimpleNamespace(model=GptConfig(), digest="digest", tokenizer="tokenizer", checkpoint=checkpoint)
    monkeypatch.setattr(chat_sft, "Tokenizer", SimpleNamespace(load=lambda path: SimpleNamespace(digest="digest")))
    monkeypatch.setattr("marin.finetuning.origin.Origin.open", lambda run, step: origin)
    monkeypatch.setattr(Places, "find_run", lambda *names: tmp_path / "d1")
    monkeypatch.setattr(
        "marin.evaluation.chat.datasets.download", lambda source, folder: pytest.fail("something was fetched")
    )
    given = ["--dataset", "nowhere.jsonl", "--public=True", "--device-type=cpu", "--base-dir", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["chat_sft", *given])
    with pytest.raises(ConfigError, match=r"`--dataset` nowhere\.jsonl is not there"):
        chat_sft.main()


@pytest.mark.parametrize("script", [chat_sft, chat_rl])
def test_seconds_between_checkpoints_reach_the_config_or_are_refused(script, tmp_path, monkeypatch):
    monkeypatch.setattr(chat_sft, "Tokenizer", SimpleNamespace(load=lambda path: SimpleNamespace(digest="digest")))
    checkpoint = SimpleNamespace(path=tmp_path, step=1)
    origin = SimpleNamespace(model=GptConfig(), digest="digest", tokenizer="tokenizer", checkpoint=checkpoint)

    def config_with(seconds):
        flags = parse_flags(script.Flags, None, [f"--checkpoint-interval={seconds}", "--device-type=cpu"])
        return script.make_config(flags, Places(str(tmp_path)), origin, "d1")

    assert config_with(7.5).checkpoint_interval == 7.5
    for wrong in (0, -1, "nan"):
        with pytest.raises(ConfigError, match="`--checkpoint-interval` is .* number above 0"):
            config_with(wrong)


def test_rl_flags_become_its_config(tmp_path):
    with pytest.raises(ConfigError, match="--top-k"):
        chat_rl.make_config(chat_rl.Flags(top_k=-1), None, None, "d1")
    for task in RL_TASKS:
        assert parse_flags(chat_rl.Flags, None, ["--task", task]).task == task
    with pytest.raises(ConfigError, match="--task: 'algebra'"):  # before a directory of the run is made
        parse_flags(chat_rl.Flags, None, ["--task", "algebra"])
