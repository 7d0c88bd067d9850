"""Annotation as steps of a graph: what is part of a step's identity, and going on after the budget has ended."""

import pathlib
import re
from typing import Any

import pytest
from scripted_endpoint import Received, Reply, serving

from marin.data.documents import Document, write_documents
from marin.data.shards import write_shards
from marin.data.tokenizer import Tokenizer, TrainTokenizerConfig, train_tokenizer
from marin.datashop.annotate import AnnotateConfig, annotate_step
from marin.datashop.question import shown_example
from marin.errors import ConfigError, StepFailedError
from marin.execution.executor import Executor, ExecutorMainConfig
from marin.execution.fingerprint import identify
from marin.storage import files

PROMPT = "Grade {example}"


def config_of(**fields: Any) -> AnnotateConfig:
    return AnnotateConfig(**{"sample": "s", "prompt": PROMPT, "model": "m"} | fields)


@pytest.mark.parametrize(
    ("changed", "is_identity"),
    [
        ({"sample": "t"}, True),
        ({"prompt": "Rate {example}"}, True),
        ({"model": "n"}, True),
        ({"processor_type": "medu"}, True),
        ({"temperature": 0.2}, True),
        ({"max_tokens": 100}, True),
        ({"max_example_chars": 100}, True),
        ({"max_example_tokens": 100, "tokenizer": "t"}, True),
        ({"request": {"top_p": 0.9}}, True),
        ({"max_unanswered_fraction": 0.5}, True),
        ({"endpoint": "http://127.0.0.1:1/v1"}, False),
        ({"api_key_env": "KEY"}, False),
        ({"concurrency": 3}, False),
        ({"timeout": 3.0}, False),
        ({"max_tries": 2}, False),
        ({"patience": 3.0}, False),
        ({"budget_tokens": 3}, False),
        ({"dollars_per_million_input": 1.0, "dollars_per_million_output": 1.0, "budget_dollars": 1.0}, False),
        ({"cache": "elsewhere"}, False),
    ],
)
def test_what_changes_labels_is_identity_and_nothing_else_is(changed: dict[str, Any], is_identity: bool) -> None:
    before, after = (
        identify(annotate_step("a", config_of(**fields)), lambda step: "").fingerprint for fields in ({}, changed)
    )
    assert (before != after) == is_identity


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"prompt": "no place"}, r"`prompt` has no \{example\}"),
        ({"prompt": None}, "`prompt` and `prompt_path`: give just one"),
        ({"prompt_path": "p.txt"}, "`prompt` and `prompt_path`: give just one"),
        ({"processor_type": "stars"}, "use 'finalscore0-5' or 'medu'"),
        ({"model": ""}, "`model` is empty"),
        ({"temperature": 3.0}, "`temperature` is 3.0: use 0 to 2"),
        ({"concurrency": 0}, "`concurrency` is 0: use more than 0"),
        ({"max_example_tokens": 5}, "`max_example_tokens` and `tokenizer`: give both"),
        ({"max_example_tokens": 0, "tokenizer": "t"}, "`max_example_tokens` is 0"),
        ({"max_example_chars": 0}, "`max_example_chars` is 0"),
        ({"budget_tokens": 0}, "`budget_tokens` is 0: use more than 0, or None for no limit"),
        ({"budget_dollars": 1.0}, "`budget_dollars` needs the prices"),
        ({"dollars_per_million_input": -1.0}, "`dollars_per_million_input` is -1.0"),
        ({"request": {"stream": True}}, "`request` has 'stream'"),
        ({"max_unanswered_fraction": 2.0}, "`max_unanswered_fraction` is 2.0"),
        ({"endpoint": "127.0.0.1:8000"}, "give a base URL such as"),
        ({"endpoint": "http://me:secret@host/v1"}, "holds a user or password"),
        ({"endpoint": "http://host:99999/v1"}, "give a base URL such as"),
    ],
)
def test_mistake_in_a_config_is_told_where_it_is_made(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        config_of(**fields)
    assert "secret" not in str(raised.value)


def test_example_is_cut_by_the_tokens_of_the_model(tmp_path: pathlib.Path) -> None:
    documents = str(tmp_path / "documents.jsonl.zst")
    write_documents(documents, [Document("a", "the cat sat on a mat. " * 20, "t")])
    train_tokenizer(TrainTokenizerConfig(documents, 270, str(tmp_path / "tokenizer")))
    config = config_of(max_example_tokens=4, tokenizer=str(tmp_path / "tokenizer"))
    tokenizer = Tokenizer.load(str(tmp_path / "tokenizer"))
    text = "the cat sat on a mat. " * 5
    shown = shown_example(config, text)
    assert shown and text.startswith(shown) and len(tokenizer.encode(shown)) == 4
    assert shown_example(config, "é" * 5) == "é" * 2 and shown_example(config, "a" * 4) == "a" * 4
    assert shown_example(config, "a\u20ac\u20ac") == "a\u20ac"  # 7 bytes, of which the fourth ends the first euro sign


def test_run_without_an_endpoint_is_refused_before_anything_runs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ConfigError, match="no endpoint is known: set config field `endpoint`, or OPENAI_BASE_URL"):
        Executor(ExecutorMainConfig(prefix=str(tmp_path))).run([annotate_step("a", config_of())])
    assert not (tmp_path / "labels").exists()


def test_step_that_stopped_at_its_budget_goes_on_with_a_larger_one_at_the_same_path(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_shards(
        str(tmp_path / "set"), [Document(str(i), f"page {i} " * 20, "s") for i in range(30)], stage="t", settings={}
    )
    executor = Executor(ExecutorMainConfig(prefix=str(tmp_path / "store")))

    def script(received: Received) -> Reply:
        return Reply("Final Score: 2", headers=(("x-nothing", "1"),))

    with serving(script) as endpoint:
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url + "/")
        for budget in (1000, 1_000_000):
            step = annotate_step("a", config_of(sample=str(tmp_path / "set"), budget_tokens=budget, concurrency=4))
            if budget == 1000:
                with pytest.raises(StepFailedError):
                    executor.run([step])
                asked = len(endpoint.received)
                assert 0 < asked < 30
            else:
                executor.run([step])
        assert len(endpoint.received) == 30
        executor.run([step])
        assert len(endpoint.received) == 30
    (folder,) = [path for path in (tmp_path / "store" / "labels").iterdir() if not path.name.startswith(".")]
    assert files.read_json(str(folder / "labels.json"))["num_labelled"] == 30
    assert sorted(path.name for path in (tmp_path / "store" / "datashop" / "answers").iterdir() if path.is_dir())
    assert not (folder / "progress.json").exists()
    printed = capsys.readouterr().out
    assert re.search(r"stopped at the budget: \d+ of 30 documents", printed)
    assert f"{asked} of them known before" in printed
