"""What a run's optimizer and hardware are called by, from what it states."""

import json

import pytest

from marin.optim import AdamConfig, GroupsConfig, MuonConfig, ParameterGroup
from marin.optim.gpt_muon import GptMuonConfig
from marin.speedrun.board.labels import describe_hardware, optimizer_name
from marin.speedrun.results import parse_results
from marin.training.config_json import config_to_json


@pytest.fixture
def info(repository):
    path = repository / "experiments/speedrun/cpu_ngram_gpt/speedrun_results.json"
    return parse_results(json.loads(path.read_text()), str(path))[0]


def groups(*optimizers):
    names = ("matrix", "embedding", "*")
    parts = [ParameterGroup(name, optimizer) for name, optimizer in zip(names, optimizers, strict=False)]
    return GroupsConfig(learning_rate=optimizers[0].learning_rate, groups=parts)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (MuonConfig(), "Muon"),
        (GptMuonConfig(), "Muon"),
        (AdamConfig(), "AdamW"),
        (groups(GptMuonConfig(), AdamConfig()), "Muon"),
        (groups(AdamConfig(), MuonConfig()), "AdamW"),
    ],
)
def test_config_names_its_optimizer_and_groups_that_of_the_first(info, config, name):
    run = info.model_copy(update={"train_config": {"optimizer_config": config_to_json(config)}, "description": "x"})
    assert optimizer_name(run, "run") == name


@pytest.mark.parametrize("config", [None, [], {"groups": []}, {"groups": ["x"]}, {"groups": [{"optimizer": 1}]}])
def test_config_that_says_nothing_has_no_optimizer(info, config):
    run = info.model_copy(update={"train_config": {"optimizer_config": config}, "description": "x"})
    assert optimizer_name(run, "run") is None


def test_own_words_come_first(info):
    assert optimizer_name(info, "run") == "Muon"
    assert optimizer_name(info, "with_lion") == "Lion"


def test_description_that_names_two_optimizers_means_the_configured_one(info):
    configured = {"train_config": {"optimizer_config": config_to_json(AdamConfig())}}
    run = info.model_copy(update=configured | {"description": "AdamW for every parameter in place of Muon"})
    assert optimizer_name(run, "run") == "AdamW"
    assert optimizer_name(run, "with_muon") == "Muon"  # its own name
    assert optimizer_name(run.model_copy(update={"description": "AdaMuon, not Lion"}), "run") == "AdaMuon"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "CPU (AMD EPYC)"),
        ({"processor": None}, "CPU"),
        ({"processor": "x" * 1_000}, f"CPU ({'x' * 64})"),
        ({"resources": {"accelerator_type": "A100", "gpu_count": 4}}, "4 x A100"),
    ],
)
def test_a_processor_is_shown_by_its_name(info, changes, name):
    assert describe_hardware(info.model_copy(update=changes)) == name
