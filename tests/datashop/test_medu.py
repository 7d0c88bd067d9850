"""A prompt from corpora: described, merged in pairs in a seeded order, and written for people to read."""

import json
import pathlib
from typing import Any

import pytest
from scripted_endpoint import Received, Reply, ScriptedEndpoint, serving

from marin.data.documents import Document
from marin.data.shards import write_shards
from marin.datashop.annotate_config import AnnotateConfig
from marin.datashop.medu import (
    DESCRIPTIONS,
    PROMPT_FILE,
    MeduConfig,
    corpus_beginning,
    medu_prompt_step,
    write_medu_prompt,
)
from marin.datashop.question import read_prompt
from marin.errors import ConfigError, DataError


def describer(received: Received) -> Reply:
    """Names the corpora in what it reads; a merge joins the names."""
    names = [word.strip("[]") for word in received.message.split() if word.startswith("[")]
    return Reply(f"<think>[no]</think> [{'+'.join(names)}]")


def config_for(endpoint: ScriptedEndpoint, tmp_path: pathlib.Path, corpora: int, **fields: Any) -> MeduConfig:
    paths = []
    for number in range(corpora):
        path = tmp_path / f"corpus{number}.txt"
        path.write_text(f"[c{number}] and {{example}} and text. " * 3)
        paths.append(str(path))
    given = {"corpus": paths, "model": "describer", "endpoint": endpoint.url, "cache": str(tmp_path / "cache")}
    return MeduConfig(**given | {"output_path": str(tmp_path / "prompt")} | fields)


@pytest.mark.parametrize("corpora", [1, 2, 3, 5, 8])
def test_every_corpus_is_in_the_last_description_once_for_any_number(corpora: int, tmp_path: pathlib.Path) -> None:
    with serving(describer) as endpoint:
        config = config_for(endpoint, tmp_path, corpora)
        write_medu_prompt(config)
        assert len(endpoint.received) == 2 * corpora - 1
        write_medu_prompt(config)  # paid for
        assert len(endpoint.received) == 2 * corpora - 1
    record = json.loads((tmp_path / "prompt" / DESCRIPTIONS).read_text())
    named = record["final"].strip("[]").split("+")
    assert sorted(set(named)) == [f"c{i}" for i in range(corpora)]
    assert len(record["corpora"]) == corpora and len(record["merges"]) == corpora - 1
    assert "no" not in named


def test_prompt_has_one_place_for_the_document_and_is_ready_for_an_annotation(tmp_path: pathlib.Path) -> None:
    with serving(lambda received: Reply("Texts with {example} and {braces}.")) as endpoint:
        config = config_for(endpoint, tmp_path, 1)
        write_medu_prompt(config)
    path = tmp_path / "prompt" / PROMPT_FILE
    prompt = read_prompt(AnnotateConfig(model="m", prompt_path=str(path), processor_type="medu"))
    assert prompt.count("{example}") == 1 and "(example) and {braces}" in prompt
    for word in ("Great", "Good", "Okay", "Poor", "Useless", '"Final Score:"'):
        assert word in prompt


def test_corpus_is_read_up_to_its_tokens(tmp_path: pathlib.Path) -> None:
    write_shards(
        str(tmp_path / "set"), [Document(str(i), f"é{i} " * 50, "s") for i in range(30)], stage="t", settings={}
    )
    config = MeduConfig(corpus=[str(tmp_path / "set")], model="m", max_corpus_tokens=100, output_path="x")
    text = corpus_beginning(config, str(tmp_path / "set"))
    assert 395 <= len(text.encode()) <= 400 and text.startswith("é0 é0")
    (tmp_path / "empty.txt").write_text("  \n")
    with pytest.raises(DataError, match=r"empty\.txt holds no text"):
        corpus_beginning(config, str(tmp_path / "empty.txt"))


def test_description_that_was_cut_off_is_refused(tmp_path: pathlib.Path) -> None:
    with serving(lambda received: Reply("It is", finish_reason="length")) as endpoint:
        with pytest.raises(DataError, match="cut off .*larger `max_tokens`"):
            write_medu_prompt(config_for(endpoint, tmp_path, 1))


def test_step_takes_the_model_and_the_budget_of_the_annotation_and_not_its_length() -> None:
    settings = {"model": "m", "sample": "s", "max_tokens": 16, "budget_tokens": 5000, "processor_type": "medu"}
    config = medu_prompt_step("p", ["corpus.txt"], settings).config
    assert (config.model, config.budget_tokens, config.max_tokens) == ("m", 5000, 1024)
    with pytest.raises(ConfigError, match="`corpus` is"):
        medu_prompt_step("p", [], settings)
