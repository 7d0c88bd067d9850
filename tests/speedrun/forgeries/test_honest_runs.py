"""Honest runs pass: none of a hundred submissions that the engine's own code writes is held or refused."""

import pathlib
import random

import pytest
from forgeries.editing import edit_log, edit_run, edit_run_json, log_events
from forgeries.honest import Plan, honest_plans, write_submission

from marin.speedrun.verification import verify_submission

CONTEST = pathlib.Path(__file__).parents[3] / "experiments" / "speedrun"
PLANS = honest_plans(110)


@pytest.mark.parametrize("group", range(11))
def test_verify_honest_submissions_finds_nothing_wrong(group: int, tmp_path: pathlib.Path) -> None:
    for number in range(group, len(PLANS), 11):
        plans = PLANS[number]
        directory = write_submission(tmp_path / str(number), plans, random.Random(number))
        for plan, (_, verdict) in zip(plans, verify_submission(directory), strict=True):
            wrong = [f for rung in verdict.rungs for f in rung.findings if f.severity in ("error", "warning")]
            assert not wrong, (number, plan, wrong)
            assert verdict.sound and verdict.counts
            assert verdict["log"].outcome == "passed", verdict["log"]
            assert verdict.level == "log"
            own = not plan.model_class.startswith("marin.")
            assert verdict["arithmetic"].outcome == ("open" if own else "passed"), verdict["arithmetic"]


@pytest.mark.parametrize("with_link", [False, True])
def test_results_from_before_the_evaluation_link_keep_their_rung(with_link: bool, tmp_path: pathlib.Path) -> None:
    """Of a run whose `run.json` does not promise the link; results that are made of it later carry one all the same."""
    directory = write_submission(tmp_path / "old", [Plan(steps=12)], random.Random(3))
    edit_run_json(directory, lambda info: info.pop("evaluation_link"), careful=True)
    if not with_link:
        edit_run(directory, lambda info: info["digests"].pop("evaluation_link"))
    ((_, verdict),) = verify_submission(directory)
    assert (verdict.level, verdict["log"].outcome) == ("log", "passed")
    notes = [
        finding.message for finding in verdict["log"].findings if "do not bind their evaluation" in finding.message
    ]
    assert len(notes) == (not with_link)


def test_a_peak_that_was_given_is_a_warning(tmp_path: pathlib.Path) -> None:
    directory = write_submission(tmp_path / "given", [Plan(steps=12, device="cpu", step_time=0.5)], random.Random(5))
    edit_run_json(directory, lambda info: info.update(peak_is_given=True), careful=True)
    ((_, verdict),) = verify_submission(directory)
    (warning,) = [f for rung in verdict.rungs for f in rung.findings if f.severity not in ("note", "unchecked")]
    assert (warning.severity, warning.field, verdict["log"].outcome) == ("warning", "device_flops", "passed")
    assert "given by MARIN_CPU_PEAK_FLOPS and not measured" in warning.message


@pytest.mark.parametrize("name", ["hello_world", "hello_world_adamw", "hello_world_gelu", "hello_world_small_vocab"])
def test_results_of_this_repository_keep_their_rung(name: str) -> None:
    ((info, verdict),) = verify_submission(CONTEST / name)
    assert info.digests is not None and info.digests.evaluation_link is None
    assert (verdict.level, verdict["log"].outcome, verdict.counts) == ("arithmetic", "open", True)


@pytest.mark.parametrize(("noise", "outcome"), [(5e-4, "passed"), (2e-5, "failed")])
def test_seeds_of_one_author_on_one_order_of_batches_may_come_close(
    noise: float, outcome: str, tmp_path: pathlib.Path
) -> None:
    """As they do at GPU scale, where the loss of a large batch is mostly the batch's; with noise laid over one they come closer."""
    directory = write_submission(tmp_path / "seeds", [Plan(steps=60, seed=seed) for seed in (0, 1)], random.Random(4))
    losses = [event["loss"] for event in log_events(directory) if event["event"] == "step"]
    rng = random.Random(9)

    def close(events: list[dict[str, object]]) -> list[dict[str, object]]:
        steps = [event for event in events if event["event"] == "step"]
        for event, loss in zip(steps, losses, strict=True):
            event["loss"] = loss * (1 + rng.gauss(0, noise))
        return events

    edit_log(directory, close, 1, careful=True)
    verdict = verify_submission(directory)[1][1]
    assert verdict["log"].outcome == outcome
    assert any("another seed" in finding.message for finding in verdict["log"].findings)
