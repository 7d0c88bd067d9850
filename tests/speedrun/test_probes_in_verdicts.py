"""What a verdict says of validity probes: passed, failed, absent, and claimed against their own figures."""

from typing import Any

import pytest
from example_runs import run_info

from marin.speedrun.arithmetic import consistency
from marin.speedrun.verdict import Finding

PASSED = {"passed": True, "measured": 0.0, "limit": 0.0, "message": "fine"}


def _validity(passed: bool = True, **changes: Any) -> dict[str, Any]:
    probes = {name: dict(PASSED) for name in ("normalization", "causality", "one_pass", "byte_count")}
    for name, change in changes.items():
        probes[name] |= change
    return {"passed": passed, "seed": 1, "num_cuts": 64, "num_positions": 64, "seconds": 1.0, **probes}


def _found(validity: Any) -> list[Finding]:
    return [
        finding for finding in consistency.check(run_info(validity=validity)) if finding.field.startswith("validity")
    ]


def test_passed_probes_leave_nothing_to_say():
    assert _found(_validity(causality={"measured": 1e-4, "limit": 1e-3})) == []


def test_a_set_that_was_trained_on_is_an_error_and_older_files_have_no_such_probe():
    probe = {"passed": True, "measured": 0.02, "limit": 0.25, "message": "fine"}
    assert _found(_validity() | {"held_out": probe}) == []
    for change in ({"passed": False, "measured": 0.9}, {"measured": 0.9, "limit": 1.0}):
        (finding, *_) = _found(_validity() | {"held_out": probe | change})
        assert (finding.severity, finding.field) == ("error", "validity.held_out")
    (asked,) = _found(_validity() | {"held_out": probe | {"measured": 0.2}})
    assert asked.severity == "warning" and "20% of the evaluation set's passages" in asked.message


def test_training_data_that_was_not_at_hand_leaves_the_rung_open():
    """Who trained on the evaluation set could take the data away before it is scored."""
    evaluation = {"name": "books", "bits_per_byte": 1.5, "held_bytes": 0}

    def found(validity: Any) -> list[tuple[str, str]]:
        info = run_info(validity=validity, evaluation=evaluation)
        return [(f.field, f.severity) for f in consistency.check(info) if f.field.startswith("validity")]

    assert found(_validity()) == [("validity.held_out", "unchecked")]
    assert found(_validity() | {"held_out": {"passed": True, "measured": 0.02, "limit": 0.25, "message": "fine"}}) == []


def test_absent_probes_are_noted_and_hold_nothing_back():
    (finding,) = _found(None)
    assert finding.severity == "note" and "not probed" in finding.message
    assert consistency.status(consistency.check(run_info(validity=None))) != "does not add up"


@pytest.mark.parametrize(
    ("validity", "field"),
    [
        (_validity(False, causality={"passed": False, "measured": 2.0}), "validity.causality"),
        (_validity(normalization={"measured": 276.0, "limit": 1e-4}), "validity.normalization"),
        (_validity(normalization={"measured": 276.0, "limit": 300.0}), "validity.normalization"),
        (_validity(one_pass={"measured": -1.0}), "validity.one_pass"),
        (_validity(byte_count={"measured": None}), "validity.byte_count"),
        (_validity(False), "validity.passed"),
    ],
)
def test_failed_and_prettified_probes_are_errors_that_take_the_rank(validity: dict[str, Any], field: str):
    findings = _found(validity)
    assert field in {finding.field for finding in findings if finding.severity == "error"}
    assert consistency.status(consistency.check(run_info(validity=validity))) == "does not add up"
