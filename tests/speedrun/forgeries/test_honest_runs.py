"""Honest runs pass: none of a hundred submissions that the engine's own code writes is held or refused."""

import pathlib
import random
import shutil
from typing import Any

import pytest
from forgeries.editing import edit_log, edit_run, edit_run_json, log_events
from forgeries.honest import Plan, honest_plans, write_submission

from marin.speedrun.board.rows import rows_of
from marin.speedrun.tracks import CPU_10_MINUTES
from marin.speedrun.verification import Context, known_runs_of, verify_submission

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


def _wrong(directory: pathlib.Path) -> list[str]:
    return [
        finding.message
        for _, verdict in verify_submission(directory)
        for rung in verdict.rungs
        for finding in rung.findings
        if finding.severity in ("error", "warning")
    ]


def test_processes_on_several_processors_count_as_machines(tmp_path: pathlib.Path) -> None:
    directory = write_submission(tmp_path / "two", [Plan(steps=12, device="cpu", step_time=0.5)], random.Random(5))
    edit_run_json(directory, lambda info: info.update(num_processes=2, num_chips=2, num_devices=2))

    def halve(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for event in events:
            if "mfu_model_flops" in event:
                event["mfu_model_flops"] = round(event["mfu_model_flops"] / 2, 5)
        return events

    edit_log(directory, halve, careful=True)
    assert _wrong(directory) == []
    ((info, verdict),) = verify_submission(directory)
    assert verdict.level == "log"
    (row,) = rows_of(info, "two", "two", verdict=verdict)
    assert CPU_10_MINUTES.hardware.why_not(row) == "2 chips, the track has 1"


def test_log_of_very_many_steps_is_not_checked_and_refuses_nothing(tmp_path: pathlib.Path) -> None:
    directory = write_submission(tmp_path / "long", [Plan(steps=12)], random.Random(5))
    path = directory / "logs" / "0" / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + b'{"event":"other"}\n' * 50_000)
    ((_, verdict),) = verify_submission(directory)
    assert (verdict.level, verdict["log"].outcome, verdict.counts, verdict.sound) == ("arithmetic", "open", True, True)


@pytest.mark.parametrize("where", [0, 5, -1])
def test_steps_that_were_skipped_have_no_loss(where: int, tmp_path: pathlib.Path) -> None:
    directory = write_submission(tmp_path / "skipped", [Plan(steps=12)], random.Random(5))
    edit_run_json(directory, lambda info: info["config"]["train"].update(skip_bad_steps=True))

    def skip(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        [event for event in events if event["event"] == "step"][where]["loss"] = "nan"
        return events

    edit_log(directory, skip, careful=True)
    assert _wrong(directory) == []


@pytest.mark.parametrize("budget", [{"training_time": 0.66}, {"hardware_flops": 0.66 * 312e12, "training_time": None}])
def test_run_that_stopped_at_its_budget_had_come_to_it(budget: dict[str, Any], tmp_path: pathlib.Path) -> None:
    directory = write_submission(tmp_path / "cut", [Plan(steps=12)], random.Random(5))
    edit_run_json(directory, lambda info: info["config"]["train"].update(budget=budget, num_train_steps=100))

    def stop(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        events[-1]["stopped_by"] = "budget"
        return events

    edit_log(directory, stop, careful=True)
    assert _wrong(directory) == []


@pytest.mark.parametrize(
    "author", ["\u0639\u0644\u06cc\u200c\u0631\u0636\u0627", "\u0dc1\u0dca\u200d\u0dbb\u0dd3 \u0dbd\u0dcf\u0dbd\u0dca"]
)
def test_name_that_is_written_with_a_joiner_is_read(author: str, tmp_path: pathlib.Path) -> None:
    assert _wrong(write_submission(tmp_path / "joined", [Plan(steps=12, author=author)], random.Random(5))) == []


@pytest.mark.parametrize(
    "author", ["Ada\u200cExample", "Ada \u200dExample", "\u0639\u0644\u06cc\u200c", "\u200c\u0639\u0644\u06cc"]
)
def test_name_with_a_joiner_that_shapes_nothing_is_not_read(author: str, tmp_path: pathlib.Path) -> None:
    (problem,) = _wrong(write_submission(tmp_path / "hidden", [Plan(steps=12, author=author)], random.Random(5)))
    assert "hides the character U+200" in problem


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("Team 北京", "Team 上海"),
        ("张伟 (Wei Zhang)", "章维 (Wei Zhang)"),
        ("Лидия Попова", "Юлия Попова"),
        ("김 AI", "박 AI"),
    ],
)
def test_authors_whose_names_share_latin_letters_alone_are_two(name: str, known: str, tmp_path: pathlib.Path) -> None:
    directory = write_submission(tmp_path / "named", [Plan(steps=12, author=name)], random.Random(5))
    other = write_submission(tmp_path / "known", [Plan(steps=13, author=known, hidden=128)], random.Random(6))
    ((_, verdict),) = verify_submission(directory, Context(known=known_runs_of(other)))
    assert verdict["parsed"].outcome == "passed", verdict["parsed"]


@pytest.mark.parametrize(
    "text", ["stops when the loss is < a threshold", "we keep x < b", "\u5f88\u957f\u7684\u63cf\u8ff0\u3002" * 3000]
)
def test_description_of_plain_words_is_no_program(text: str, tmp_path: pathlib.Path) -> None:
    assert _wrong(write_submission(tmp_path / "words", [Plan(steps=12, description=text)], random.Random(5))) == []


@pytest.mark.parametrize(
    ("link", "is_good"),
    [
        ("https://m\u00fcller.example/ada", True),
        ("HTTPS://example.org", True),
        ("https://example.org/\n", False),
        ("https://ex\u0430mple.org", False),  # a Cyrillic letter
        ("https://ada:x@example.org", False),
    ],
)
def test_link_is_a_web_address_in_any_one_script(link: str, is_good: bool, tmp_path: pathlib.Path) -> None:
    directory = write_submission(tmp_path / "linked", [Plan(steps=12)], random.Random(5))
    edit_run(directory, lambda info: info["author"].update(url=link))
    assert (_wrong(directory) == []) == is_good


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


def test_seeds_of_two_authors_on_one_order_of_batches_are_held_and_not_refused(tmp_path: pathlib.Path) -> None:
    """The contest's data seed is one for all, and who changes little of another's experiment has losses next to his."""
    first = write_submission(tmp_path / "first", [Plan(steps=60)], random.Random(4))
    second = write_submission(tmp_path / "second", [Plan(steps=60, seed=1, author="Bo Other")], random.Random(5))
    losses = [event["loss"] for event in log_events(first) if event["event"] == "step"]
    rng = random.Random(9)

    def close(events: list[dict[str, object]]) -> list[dict[str, object]]:
        for event, loss in zip((event for event in events if event["event"] == "step"), losses, strict=True):
            event["loss"] = loss * (1 + rng.gauss(0, 5e-4))
        return events

    edit_log(second, close, careful=True)
    ((_, verdict),) = verify_submission(second, Context(known=known_runs_of(first, "first")))
    assert (verdict["log"].outcome, verdict.counts, verdict.sound) == ("open", True, True)
    assert any("or the losses were copied" in finding.message for finding in verdict["log"].findings)


@pytest.mark.parametrize(
    ("page", "author", "counts"),
    [
        ("https://wandb.ai/ada/marin", "Ada Example", True),
        ("https://wandb.ai/ada/marin/runs/1", "Ada Example", False),
        ("https://wandb.ai/ada/marin", "Bo Other", False),
    ],
)
def test_page_that_shows_several_runs_of_an_author_is_no_runs_own(
    page: str, author: str, counts: bool, tmp_path: pathlib.Path
) -> None:
    first = write_submission(tmp_path / "first", [Plan(steps=12)], random.Random(4))
    second = write_submission(tmp_path / "second", [Plan(steps=40, hidden=128, author=author)], random.Random(5))
    for directory in (first, second):
        shutil.rmtree(directory / "logs")
        edit_run(directory, lambda info: info.update(wandb_run_link=page))
    ((_, verdict),) = verify_submission(second, Context(known=known_runs_of(first, "first")))
    assert verdict.counts is counts, verdict
