"""`marin power`, as a person runs it."""

import pytest

from marin.cli.main import dispatch
from marin.errors import ConfigError


def test_power_of_a_track_says_the_runs_the_noise_and_the_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["power", "--track", "time-to-gpt2", "--effect", "0.02"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("5 runs: enough to show 0.02 in CORE against a fixed bound\n")
    assert "sd 0.0052" in said and "at least 5 runs" in said


def test_power_with_ones_own_noise_needs_more_runs_for_a_smaller_effect(capsys: pytest.CaptureFixture[str]) -> None:
    counts = []
    for effect in ("0.02", "0.01", "0.006"):
        assert dispatch(["power", "--sd", "0.003", "--effect", effect, "--against", "8"]) == 0
        counts.append(int(capsys.readouterr().out.split()[0]))
    assert counts == sorted(counts) and counts[0] < counts[-1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--effect", "0.01"], "no noise is given"),
        (["--effect", "0.01", "--track", "cpu-10-minute"], "no track is called"),
        (["--effect", "-1", "--sd", "0.1"], "effect"),
        (["--effect", "1", "--sd", "0.1", "--sd-runs", "0"], "at least 2"),
        (["--effect", "1", "--sd", "0.1", "--sd-runs", "1"], "one run shows no noise"),
        (["--effect", "1", "--track", "time-to-gpt2", "--sd-runs", "3"], "--sd-runs is of --sd"),
        (["--effect", "0.001", "--sd", "0.1", "--against", "2"], "record's own 2 runs"),
        (["--effect", "nan", "--sd", "0.1"], "positive number"),
    ],
)
def test_power_of_senseless_figures_says_what_to_give(arguments: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        dispatch(["power", *arguments])
