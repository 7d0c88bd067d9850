"""Every forgery of the corpus is caught or held, with the right reason; what fits in everything never rises above `log`."""

import pathlib

import pytest
from forgeries.families import FAMILIES, Bases, Expected

from marin.errors import ResultsError
from marin.speedrun.verdict import DOES_NOT_PROVE
from marin.speedrun.verification import verify_submission


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    return Bases.make(tmp_path_factory.mktemp("honest"))


def test_corpus_has_at_least_300_forgeries_in_25_families() -> None:
    assert len(FAMILIES) >= 25
    assert sum(count for _, count in FAMILIES.values()) >= 300


@pytest.mark.parametrize("name", FAMILIES)
def test_verify_of_a_forgery_gives_the_reason(name: str, bases: Bases, tmp_path: pathlib.Path) -> None:
    make, count = FAMILIES[name]
    for variant in range(count):
        directory = tmp_path / str(variant)
        expected = make(bases, directory, variant)
        _check(directory, expected, f"{name} {variant}")


def _check(directory: pathlib.Path, expected: Expected, name: str) -> None:
    if expected.rung is None:
        with pytest.raises(ResultsError) as raised:
            verify_submission(directory, expected.context)
        assert all(word in str(raised.value) for word in expected.words), (name, str(raised.value))
        return
    _, verdict = verify_submission(directory, expected.context)[expected.run]
    if expected.rung == "RAISED":
        assert verdict.level == "log"
        assert "made up" in DOES_NOT_PROVE["log"]
        return
    findings = [finding for rung in verdict.rungs for finding in rung.findings]
    matching = [f for f in findings if f.rung == expected.rung and all(word in f.message for word in expected.words)]
    assert matching, (name, expected.words, [(f.rung, f.severity, f.message) for f in findings if f.severity != "note"])
    finding = matching[0]
    if finding.severity == "warning":  # asked for: what was left out cannot be seen, and a model may write anything
        assert finding.rung == "statistics" or finding.field == "sample", name
    else:
        assert finding.severity in ("error", "unchecked"), name
    if finding.severity == "error" and finding.rung != "submission":
        assert not verdict.counts and not verdict.sound, name
    if finding.severity == "unchecked":
        assert verdict[finding.rung].outcome != "passed", name
    if finding.severity == "error" and finding.rung == "submission":
        assert verdict["parsed"].outcome == "open" and not verdict.sound, name
