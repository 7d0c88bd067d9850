"""What a verdict says of runs whose scoring took what their training did not."""

from typing import Any

import pytest
from example_runs import LENGTH, run_info, run_json

from marin.speedrun.arithmetic import consistency

EVALUATION = {"name": "books", "bits_per_byte": 1.5, "context_length": LENGTH, "flops_per_token": 1e6}


def _found(evaluation: dict[str, Any], **changes: Any) -> list[tuple[str, str]]:
    changes = {"traced_flops_per_token": 1e6} | changes
    findings = consistency.check(run_info(evaluation=EVALUATION | evaluation, **changes))
    return [(finding.field, finding.severity) for finding in findings if finding.field.startswith("evaluation")]


def test_scoring_as_in_training_leaves_nothing_to_say() -> None:
    assert _found({}) == []
    assert _found({"flops_per_token": 0.9e6}) == []  # losses of training alone are left out when a model is scored


@pytest.mark.parametrize("stated", [LENGTH, None])
def test_scoring_on_longer_rows_than_were_trained_is_noted(stated: int | None) -> None:
    train = run_json()["train_config"] | {"train_seq_len": LENGTH // 2}
    changes = {"train_config": train, "total_tokens": run_json()["total_tokens"] // 2}
    assert _found({"context_length": stated}, **changes) == [("evaluation.context_length", "note")]
    assert _found({"context_length": LENGTH // 2}, **changes) == []


def test_scoring_that_computes_more_than_training_is_a_warning() -> None:
    assert _found({"flops_per_token": 2e6}) == [("evaluation.flops_per_token", "warning")]
    assert _found({"flops_per_token": 2e6}, traced_flops_per_token=None) == []  # older runs have no count


def test_scoring_by_what_no_count_has_is_a_warning() -> None:
    assert _found({"uncounted": []}) == []
    assert _found({"uncounted": ["while"]}) == [("evaluation.uncounted", "warning")]


def test_scoring_by_a_program_that_holds_as_much_as_passages_of_the_set_leaves_the_rung_open() -> None:
    assert _found({"held_bytes": 2048}) == []
    assert _found({"held_bytes": 2049}) == [("evaluation.held_bytes", "unchecked")]


def test_scoring_by_a_process_with_replaced_code_leaves_the_rung_open() -> None:
    assert _found({"replaced": []}) == []
    assert _found({"replaced": ["time.perf_counter"]}) == [("evaluation.replaced", "unchecked")]


@pytest.mark.parametrize("field", ["context_length", "flops_per_token"])
def test_scoring_of_nothing_is_an_error(field: str) -> None:
    assert _found({field: -1}) == [(f"evaluation.{field}", "error")]
