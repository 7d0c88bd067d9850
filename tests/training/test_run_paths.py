"""Paths in a run's record: found again wherever the store is moved to, and silent about the machine."""

import pytest

from marin.training.run_paths import recorded_path, recorded_paths

RUN = "/disk/me/store/checkpoints/speedrun/mine-1a2b3c4d"
ATTEMPT = "/disk/me/store/checkpoints/speedrun/.attempts/mine-1a2b3c4d/3/mine-1a2b3c4d"


@pytest.mark.parametrize(
    ("path", "recorded"),
    [
        ("/disk/me/store/tokenizers/bpe-ce29008d", "../../../tokenizers/bpe-ce29008d"),
        (f"{RUN}/tokenizer", "./tokenizer"),
        ("/disk/me/store/checkpoints/speedrun", ".."),
        (RUN, "./."),
        ("/disk/me/elsewhere", "../../../../elsewhere"),
        ("/data/corpus", "/data/corpus"),
        ("gs://bucket/tokens", "gs://bucket/tokens"),
        ("a word/of text", "a word/of text"),
    ],
)
def test_path_is_told_from_the_run_and_found_again(path: str, recorded: str):
    assert recorded_paths(path, RUN) == recorded
    assert recorded_path(recorded, RUN) == path


def test_paths_are_told_inside_of_whatever_holds_them():
    config = {"data": {"a": "/disk/me/store/a"}, "names": ["x", "/disk/me/store/b"], "rate": 0.1, "none": None}
    told = recorded_paths(config, RUN)
    assert told == {"data": {"a": "../../../a"}, "names": ["x", "../../../b"], "rate": 0.1, "none": None}


def test_paths_are_told_from_the_usual_place_of_a_run_not_from_that_of_an_attempt():
    path = "/disk/me/store/tokenizers/bpe"
    assert recorded_paths(path, ATTEMPT) == recorded_paths(path, RUN)
    assert recorded_path("../../../tokenizers/bpe", ATTEMPT) == path


def test_records_of_other_stores_and_of_earlier_versions_are_taken_as_they_are():
    assert recorded_paths("/disk/me/tokens", "gs://bucket/run") == "/disk/me/tokens"
    for path in ("/disk/me/tokens", "local_store/tokens", "gs://bucket/tokens"):
        assert recorded_path(path, RUN) == path
