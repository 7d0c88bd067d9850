"""How high a verdict stands, and whether its row may be ranked."""

import pathlib
import random
import shutil
from typing import Any

import pytest
from forgeries.editing import bind, edit_evaluation, edit_run, edit_run_json
from forgeries.honest import Plan, write_submission

from marin.speedrun.verdict import RungVerdict, Verdict
from marin.speedrun.verification import Context, known_runs_of, verify_submission


def verdict(withdrawn: str | None = None, **outcomes: str) -> Verdict:
    return Verdict(
        rungs=tuple(RungVerdict(rung=rung.replace("_", "-"), outcome=outcome) for rung, outcome in outcomes.items()),
        withdrawn=withdrawn,
    )


@pytest.mark.parametrize(
    ("outcomes", "level", "counts"),
    [
        ({}, None, True),
        ({"parsed": "failed"}, None, False),
        ({"parsed": "passed", "arithmetic": "failed", "log": "passed"}, "parsed", False),
        ({"parsed": "passed", "arithmetic": "open", "log": "passed"}, "log", True),
        ({"parsed": "passed", "arithmetic": "passed", "log": "open"}, "arithmetic", True),
        ({"parsed": "passed", "arithmetic": "passed", "log": "passed", "statistics": "passed"}, "log", True),
        ({"parsed": "passed", "arithmetic": "passed", "log": "passed", "statistics": "failed"}, "log", True),
        ({"parsed": "passed", "log": "passed", "re_evaluated": "failed", "re_run": "passed"}, "log", False),
        ({"parsed": "passed", "log": "passed", "re_evaluated": "passed", "re_run": "passed"}, "re-run", True),
    ],
)
def test_level_is_the_highest_rung_below_the_first_that_failed(outcomes, level, counts):
    found = verdict(**outcomes)
    assert (found.level, found.counts) == (level, counts)


def test_withdrawn_row_keeps_its_level_and_takes_no_rank():
    found = verdict("the clock was stopped by mistake", parsed="passed", arithmetic="passed")
    assert (found.level, found.counts) == ("arithmetic", False)
    assert found["re-run"].outcome == "open"


def test_verdict_names_the_rungs_below_its_level_that_stayed_open():
    whole = Verdict(rungs=tuple(RungVerdict(rung=rung, outcome="passed") for rung in ("parsed", "arithmetic", "log")))
    assert whole.level == "log" and whole.passed_over == ()
    partly = Verdict(rungs=(*whole.rungs[:1], RungVerdict(rung="arithmetic", outcome="open"), *whole.rungs[2:]))
    assert partly.level == "log" and partly.passed_over == ("arithmetic",)


def test_copy_of_a_verdict_with_another_outcome_is_judged_anew() -> None:
    passed = Verdict(rungs=(RungVerdict(rung="parsed", outcome="passed"),))
    assert (passed.level, passed.counts) == ("parsed", True)
    failed = passed.model_copy(update={"rungs": (RungVerdict(rung="parsed", outcome="failed"),)})
    assert (failed.level, failed.counts) == (None, False)
    assert passed.model_copy() == passed
    assert hash(passed.model_copy()) == hash(passed)
    assert not passed.model_copy(update={"withdrawn": "a reason"}).counts


def test_evaluation_set_of_other_documents_than_known_runs_have_is_warned_of(tmp_path: pathlib.Path) -> None:
    known = known_runs_of(write_submission(tmp_path / "known", [Plan(author="Grace Other")], random.Random(1)), "known")
    directory = write_submission(tmp_path / "mine", [Plan(seed=1)], random.Random(2))

    def warned() -> list[str]:
        ((_, verdict),) = verify_submission(directory, Context(known=known))
        return [f.message for f in verdict["arithmetic"].findings if f.severity == "warning"]

    assert warned() == []
    edit_evaluation(directory, lambda content: content["evaluation"].update(digest="ab" * 32))
    edit_run(directory, lambda info: info["digests"].update(evaluation_set="ab" * 32))
    bind(directory)
    (message,) = warned()
    assert message.startswith("the documents of 'books/heldout' have another digest than in known")


@pytest.mark.parametrize("has_log", [True, False])
def test_custom_architecture_is_called_not_recomputable_once(tmp_path: pathlib.Path, has_log: bool) -> None:
    directory = write_submission(tmp_path / "mine", [Plan()], random.Random(0))

    def change(run: dict[str, Any]) -> None:
        run["model_class"] = "__main__:IdeaConfig"
        run["config"]["model"] |= {"num_buckets": 4096, "num_heads": None}

    edit_run_json(directory, change, careful=True)
    if not has_log:
        shutil.rmtree(directory / "logs")
    ((_, verdict),) = verify_submission(directory)
    (said,) = [f.message for f in verdict["arithmetic"].findings if "not recomputable" in f.message]
    assert ("the submission's own '__main__:IdeaConfig'" if has_log else "settings of its own ('num_buckets')") in said
    assert verdict["arithmetic"].outcome == "open"
