"""What a run's optimizer and hardware are called by, from what it states."""

import json

import pytest

from marin.optim import AdamConfig, GroupsConfig, MuonConfig, ParameterGroup
from marin.optim.ademamix import AdemamixConfig
from marin.optim.adopt import AdoptConfig
from marin.optim.gpt_muon import GptMuonConfig
from marin.optim.hyperball import AdamHConfig, MuonHConfig
from marin.optim.mars import MarsConfig
from marin.optim.normuon import NorMuonConfig
from marin.optim.soap import SoapConfig
from marin.optim.sophia import SophiaConfig
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


@pytest.mark.parametrize(
    ("config", "by_fields", "by_class"),
    [
        (SoapConfig(), "SOAP", "SOAP"),
        (SophiaConfig(), "Sophia", "Sophia"),
        (AdemamixConfig(), "AdEMAMix", "AdEMAMix"),
        (MarsConfig(), "MARS", "MARS"),
        (AdamHConfig(), "AdamH", "AdamH"),
        (AdoptConfig(), "AdamW", "ADOPT"),  # it has Adam's fields and no others
        (MuonHConfig(), "Muon", "MuonH"),
        (NorMuonConfig(), "Muon", "NorMuon"),
        (GptMuonConfig(), "Muon", "Muon"),
        (AdamConfig(), "AdamW", "AdamW"),
    ],
)
def test_optimizers_that_share_fields_are_told_apart(info, config, by_fields, by_class):
    run = info.model_copy(update={"train_config": {"optimizer_config": config_to_json(config)}, "description": "x"})
    assert optimizer_name(run, "run") == by_fields
    named = type(config).__qualname__
    assert optimizer_name(run, "run", f"marin.optim.x:{named}") == by_class
    assert optimizer_name(run, "run", f"marin.optim.groups:GroupsConfig of {named}, LionConfig") == by_class


def test_optimizer_of_an_unknown_class_is_not_named_by_the_fields_that_it_shares(info):
    configured = {"train_config": {"optimizer_config": config_to_json(AdamConfig())}, "description": "x"}
    assert optimizer_name(info.model_copy(update=configured), "run", "experiments.mine:MineConfig") is None


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
