"""Honest runs pass: none of a hundred submissions that the engine's own code writes is held or refused."""

import pathlib
import random

import pytest
from forgeries.honest import honest_plans, write_submission

from marin.speedrun.verification import verify_submission

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
