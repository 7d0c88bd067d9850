"""Speedruns on mixtures and with batch sizes that change: what belongs to the data, and the figures that follow."""

import dataclasses

import pytest
from example_runs import LENGTH, STEPS, run_info

from experiments.python_docs import python_docs_tokenized
from experiments.speedrun.hello_world.main import speedrun_config
from marin.data.cache import tokenize_step
from marin.data.mixture import Mixture
from marin.data.tokenizer import train_tokenizer_step
from marin.errors import ConfigError
from marin.execution.graph import Graph
from marin.execution.step import InputName
from marin.speedrun.arithmetic.consistency import check
from marin.speedrun.dataset import describe_cache, describe_dataset
from marin.speedrun.speedrun import chosen_names, chosen_seeds, chosen_switch, default_speedrun

TOKENIZER = describe_dataset(python_docs_tokenized).tokenizer
MORE = tokenize_step("more", InputName.hardcoded("more.jsonl.zst"), TOKENIZER)
MIXTURE = Mixture({"docs": python_docs_tokenized, "more": MORE}, {"docs": 3, "more": 1})


def test_mixture_takes_tokenizer_and_evaluation_from_the_component_that_has_them():
    alone = describe_dataset(python_docs_tokenized)
    for components in (MIXTURE.components, dict(reversed(MIXTURE.components.items()))):
        mixture = dataclasses.replace(MIXTURE, components=components)
        assert describe_dataset(mixture) == dataclasses.replace(alone, cache=mixture)


def test_speedrun_on_a_mixture_depends_on_all_its_caches():
    config = dataclasses.replace(speedrun_config, tokenized_dataset=MIXTURE)
    steps = default_speedrun("mixed", config)
    names = {node.name for node in Graph(steps, "/prefix").nodes}
    assert {"tokenized/more", python_docs_tokenized.name} <= names
    assert list(config.as_json()["tokenized_dataset"]["components"]) == ["docs", "more"]
    assert '"weights"' in config.run_info()


@pytest.mark.parametrize(
    ("components", "message"),
    [
        ({"docs": python_docs_tokenized, "more": "/data/more"}, "`more` of the mixture is the path"),
        (
            {
                "docs": python_docs_tokenized,
                "held": tokenize_step("held", describe_dataset(python_docs_tokenized).evaluation_documents, TOKENIZER),
            },
            "`held` of the mixture is made from heldout.jsonl.zst",
        ),
        ({"more": MORE}, "no component of the mixture has evaluation documents"),
        (
            {
                "docs": python_docs_tokenized,
                "other": tokenize_step(
                    "other",
                    InputName.hardcoded("o"),
                    train_tokenizer_step(InputName.hardcoded("o"), 999, "tokenizers/o"),
                ),
            },
            "`other` of the mixture is tokenized with 'tokenizers/o'",
        ),
    ],
)
def test_mixture_that_cannot_be_scored_is_refused(components, message):
    with pytest.raises(ConfigError, match=message):
        describe_dataset(Mixture(components, dict.fromkeys(components, 1)))


def test_results_name_the_caches_of_a_mixture_with_their_weights():
    paths = {"docs": "/prefix/tokenized/docs-1234", "more": "/elsewhere/more"}
    staged = Mixture(paths, [(0, {"docs": 0.75, "more": 0.25}), (9, {"docs": 1})])
    assert describe_cache(staged, "/prefix") == "0.75 then 1 x tokenized/docs-1234 + 0.25 then 0 x /elsewhere/more"
    assert describe_cache("/prefix/tokenized/docs-1234", "/prefix/") == "tokenized/docs-1234"


def test_speedrun_with_a_batch_schedule_counts_the_tokens_of_every_step():
    config = dataclasses.replace(
        speedrun_config,
        train_config=speedrun_config.train_config.replace(train_batch_size=[(0, 4), (100, 8)], num_train_steps=460),
    )
    assert config.total_tokens == (100 * 4 + 360 * 8) * 256
    assert config.compute_model_flops() == pytest.approx(3 * config.flops_per_token * config.total_tokens)


def findings_on_tokens(sizes, total_tokens):
    run = run_info(train_config={"train_batch_size": sizes, "num_train_steps": STEPS}, total_tokens=total_tokens)
    return [finding for finding in check(run) if finding.field == "total_tokens"]


def test_check_of_results_with_a_batch_schedule_computes_their_tokens_again():
    sizes, tokens = [[0, 4], [1, 8]], (4 + 8 * (STEPS - 1)) * LENGTH
    assert findings_on_tokens(sizes, tokens) == []
    (found,) = findings_on_tokens(sizes, tokens + 1)
    assert (found.severity, found.corrected) == ("error", tokens)


@pytest.mark.parametrize("sizes", [[[0, 4], [0, 8]], [[0, "4"]], [], {"0": 4}, [[0, 4, 5]], "8", None])
def test_check_of_results_with_a_batch_size_that_is_none_claims_nothing(sizes):
    (found,) = findings_on_tokens(sizes, 1000)
    assert found.severity == "unchecked"


def test_sizes_and_seeds_of_the_environment_are_those_that_are_there(monkeypatch):
    monkeypatch.delenv("SR_SIZES", raising=False)
    assert chosen_names("SR_SIZES", "130m", ["130m", "cpu"]) == ["130m"]
    monkeypatch.setenv("SR_SIZES", "cpu, 130m")
    assert chosen_names("SR_SIZES", "130m", ["130m", "cpu"]) == ["cpu", "130m"]
    for text in ("nosuch", "cpu,", ""):
        monkeypatch.setenv("SR_SIZES", text)
        with pytest.raises(ConfigError, match="`SR_SIZES` names .*: use one or more of 130m, cpu"):
            chosen_names("SR_SIZES", "130m", ["130m", "cpu"])
    monkeypatch.setenv("SR_SEEDS", "0, 12")
    assert chosen_seeds("SR_SEEDS", "0") == [0, 12]
    for text in ("a", "1,", "-1", "1.5", ""):
        monkeypatch.setenv("SR_SEEDS", text)
        with pytest.raises(ConfigError, match="`SR_SEEDS` is .*: use whole numbers"):
            chosen_seeds("SR_SEEDS", "0")


def test_switch_of_the_environment_that_is_neither_on_nor_off_is_refused(monkeypatch):
    monkeypatch.delenv("SR_USE_TPU", raising=False)
    assert not chosen_switch("SR_USE_TPU")
    for text, on in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv("SR_USE_TPU", text)
        assert chosen_switch("SR_USE_TPU") is on
    for text in ("maybe", "true", "yes", " 1"):
        monkeypatch.setenv("SR_USE_TPU", text)
        with pytest.raises(ConfigError, match="`SR_USE_TPU` is .*: set it to 1 or 0"):
            chosen_switch("SR_USE_TPU")
