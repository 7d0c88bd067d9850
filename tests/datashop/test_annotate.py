"""Labels from a scripted endpoint: one for each document, through every fault, paid for once, within the budget."""

import os
import pathlib
import signal
import time
from collections.abc import Iterator

import pytest
from scripted_endpoint import Received, Reply, error, grader, serving

from marin.data.documents import Document
from marin.data.shards import write_shards
from marin.datashop.annotate import annotate, estimate_cost, try_prompt
from marin.datashop.answer_cache import open_cache
from marin.datashop.asking import Standing, ask
from marin.datashop.question import Answer, Question, grading_question
from marin.errors import BudgetError, DataError, EndpointError, StorageError
from marin.storage import files

from .annotated import PROMPT, check_one_right_label_each, config_for, document, rows_of, summary_of


def test_every_document_gets_its_label_in_the_order_of_the_sample(sample: str, tmp_path: pathlib.Path) -> None:
    with serving() as endpoint:
        config = config_for(endpoint, sample, tmp_path)
        annotate(config)
    check_one_right_label_each(config)
    assert set(endpoint.charged.values()) == {1} and len(endpoint.received) == 60
    assert endpoint.most_in_flight <= 8
    body = endpoint.received[0].body
    assert {name: body[name] for name in ("model", "temperature", "max_tokens")} == {
        "model": "grader",
        "temperature": 0.1,
        "max_tokens": 256,
    }
    assert PROMPT.replace("{example}", document(0).text) in [received.message for received in endpoint.received]
    summary = summary_of(config)
    assert summary["histogram"] == {str(value): 10 for value in range(6)}
    assert (summary["num_documents"], summary["num_labelled"], summary["num_unparsed"]) == (60, 60, 0)
    assert summary["tokens"]["output"] == 60 * 8 and summary["cost_dollars"] is None
    assert summary["perhaps_paid"]["requests"] == 0


def faults(received: Received) -> Reply:
    """Each document's first tries meet one fault each, then it is graded."""
    kind = int(received.key[:8], 16) % 10
    if received.try_number >= (0 if kind > 7 else 1 if kind in (3, 7) else 2):
        return grader(received)
    good = grader(received)
    return [
        error(429, retry_after="0.05"),
        error(500),
        error(503),
        Reply(good.text, fault="hang"),
        Reply(good.text, fault="reset"),
        Reply(good.text, fault="cut"),
        Reply(
            raw=[b"<html>", b'{"choices": []}', b'{"choices": [{"message": {"content": 5}}]}', b"\xff\0"][
                received.number % 4
            ]
        ),
        Reply(good.text, fault="drip"),
    ][kind]


def test_one_label_each_through_every_fault(
    sample: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marin.datashop.throttle._FIRST_WAIT", 0.01)
    with serving(faults) as endpoint:
        config = config_for(endpoint, sample, tmp_path, timeout=2.0, concurrency=32)
        annotate(config)
    check_one_right_label_each(config)
    # What may have been charged beside the answers that were kept is counted, none left out.
    lost = sum(endpoint.charged.values()) - 60
    assert 0 < lost <= summary_of(config)["perhaps_paid"]["requests"]


def test_answers_without_a_score_are_counted_and_not_guessed(sample: str, tmp_path: pathlib.Path) -> None:
    def script(received: Received) -> Reply:
        index = int(received.message.split("Text ")[1].split()[0])
        return {0: Reply("It is fine."), 1: Reply("Final", finish_reason="length"), 2: Reply("")}.get(
            index % 4, grader(received)
        )

    with serving(script) as endpoint:
        config = config_for(endpoint, sample, tmp_path)
        annotate(config)
    rows = rows_of(config)
    assert [row["label"] is None for row in rows] == [index % 4 < 3 for index in range(60)]
    assert rows[0]["answer"] == "It is fine."
    summary = summary_of(config)
    assert (summary["num_labelled"], summary["num_unparsed"]) == (15, 45)
    assert set(summary["unparsed"].values()) == {15}
    assert "cut off" in rows[1]["why_null"] and "empty" in rows[2]["why_null"]


def test_second_run_and_larger_sample_pay_only_for_what_is_new(sample: str, tmp_path: pathlib.Path) -> None:
    write_shards(str(tmp_path / "larger"), [document(i) for i in range(70)], stage="test", settings={})
    with serving() as endpoint:
        annotate(config_for(endpoint, sample, tmp_path))
        annotate(config_for(endpoint, sample, tmp_path, processor_type="medu"))  # only read in another way
        assert len(endpoint.received) == 60
        config = config_for(endpoint, str(tmp_path / "larger"), tmp_path)
        annotate(config)
        assert len(endpoint.received) == 70
        check_one_right_label_each(config, 70)
        annotate(config_for(endpoint, sample, tmp_path, temperature=0.0))  # another question
        assert len(endpoint.received) == 130


def test_documents_with_the_same_text_are_paid_for_once(tmp_path: pathlib.Path) -> None:
    twins = [Document(f"t{i}", f"quality={i % 3}", "test") for i in range(12)]
    write_shards(str(tmp_path / "sample"), twins, stage="test", settings={})
    with serving() as endpoint:
        config = config_for(endpoint, str(tmp_path / "sample"), tmp_path)
        annotate(config)
    assert [row["label"] for row in rows_of(config)] == [float(i % 3) for i in range(12)]
    assert len(endpoint.received) == summary_of(config)["tokens"]["requests"] == 3


def test_budget_in_tokens_is_never_passed_and_a_larger_one_goes_on(sample: str, tmp_path: pathlib.Path) -> None:
    with serving() as endpoint:
        config = config_for(endpoint, sample, tmp_path, budget_tokens=2000)
        with pytest.raises(BudgetError, match=r"stopped at the budget: \d+ of 60 .* of `budget_tokens` 2,000"):
            annotate(config)
        spent = sum(len(received.message.split()) + 8 for received in endpoint.received)
        first = len(endpoint.received)
        assert spent <= 2000 and 0 < first < 60
        assert 2000 - spent < 900  # no more is left than one question at its worst
        assert not os.path.exists(config.output_path + "/labels.jsonl")
        progress = files.read_json(config.output_path + "/progress.json")
        assert (progress["state"], progress["num_done"], progress["budget_tokens"]) == ("stopped", first, 2000)
        assert sum(progress["tokens_paid"].values()) == spent and progress["in_flight"] == 0
        annotate(config_for(endpoint, sample, tmp_path, budget_tokens=100_000))
    check_one_right_label_each(config)
    assert len(endpoint.received) == 60


def test_budget_in_dollars_counts_requests_that_may_have_been_paid(sample: str, tmp_path: pathlib.Path) -> None:
    prices = {"dollars_per_million_input": 1000.0, "dollars_per_million_output": 5000.0, "timeout": 1.0}
    with serving(lambda received: Reply("x", fault="hang") if received.number < 3 else grader(received)) as endpoint:
        config = config_for(endpoint, sample, tmp_path, budget_dollars=10.0, concurrency=3, **prices)
        with pytest.raises(BudgetError, match=r"[3-9] requests without an answer may have been paid"):
            annotate(config)
        answered = [received for received in endpoint.received if endpoint.delivered[received.key]]
        paid = sum(len(received.message.split()) * 1000 + 8 * 5000 for received in answered) / 1e6
        lost = 3 * (256 * 5000 + 100 * 1000) / 1e6
        assert paid + lost < 10.0


def test_budget_too_small_for_one_question_sends_none(sample: str, tmp_path: pathlib.Path) -> None:
    with serving() as endpoint:
        with pytest.raises(BudgetError, match="0 of 60 documents"):
            annotate(config_for(endpoint, sample, tmp_path, budget_tokens=100))
        assert not endpoint.received


def test_usage_that_the_endpoint_does_not_state_counts_as_the_worst_case(sample: str, tmp_path: pathlib.Path) -> None:
    with serving(lambda received: Reply("Final Score: 1", has_usage=False)) as endpoint:
        config = config_for(endpoint, sample, tmp_path)
        annotate(config)
    tokens = summary_of(config)["tokens"]
    assert tokens["requests_without_usage"] == 60 and tokens["output"] == 60 * 256
    assert tokens["input"] >= sum(len(received.message) for received in endpoint.received)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (
            error(401, "Incorrect API key provided: sekret-key-1"),
            r"HTTP 401 X: Incorrect API key provided: <hidden>: the key",
        ),
        (error(404, "model `grader` does not exist"), r"model `grader` does not exist: there is no such model"),
        (error(429, "You exceeded your quota", code="insufficient_quota"), "no credit"),
        (Reply(status=307, headers=(("location", "http://127.0.0.1:1/v1"),)), "answers elsewhere"),
    ],
)
def test_endpoint_that_will_never_answer_ends_the_run_at_once(
    reply: Reply, said: str, sample: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADER_KEY", "sekret-key-1")
    with serving(lambda received: reply) as endpoint:
        with pytest.raises(EndpointError, match=said) as raised:
            annotate(config_for(endpoint, sample, tmp_path, api_key_env="GRADER_KEY"))
        assert "sekret" not in str(raised.value)
        assert len(endpoint.received) <= 8
        assert endpoint.received[0].headers["authorization"] == "Bearer sekret-key-1"


def test_credit_that_ends_loses_nothing_of_what_is_under_way(sample: str, tmp_path: pathlib.Path) -> None:
    def script(received: Received) -> Reply:
        return error(402, "no credit") if received.number == 20 else Reply(grader(received).text, wait=0.3)

    with serving(script) as endpoint:
        with pytest.raises(EndpointError, match="no credit.*top it up.* of 60 documents"):
            annotate(config_for(endpoint, sample, tmp_path))
        assert len(endpoint.received) < 40
        config = config_for(endpoint, sample, tmp_path)
        annotate(config)
        assert len(endpoint.received) == 61 and set(endpoint.charged.values()) == {1}
    check_one_right_label_each(config)


@pytest.mark.parametrize("fault", ["questions", "answer", "every second"])
def test_fault_of_this_side_loses_nothing_of_what_is_under_way(fault: str, sample: str, tmp_path: pathlib.Path) -> None:
    looks: list[None] = []

    def questions() -> Iterator[Question]:
        yield from (grading_question(config, PROMPT, document(index).text) for index in range(5))
        if fault == "questions":
            raise DataError("the second shard is damaged")

    def on_answer(question: Question, answer: Answer) -> None:
        if fault == "answer":
            raise StorageError("the disk is full")

    def every_second() -> None:
        looks.append(None)
        if fault == "every second" and len(looks) == 2:
            raise StorageError("the disk is full")

    def slow(received: Received) -> Reply:
        # The first answers may come only after the second look, however late that is.
        held = lambda: fault == "every second" and len(looks) < 2  # noqa: E731
        return Reply(grader(received).text, wait=0.1 + 0.1 * received.number, held=held)

    with serving(slow) as endpoint:
        config = config_for(endpoint, sample, tmp_path)
        with open_cache(config, PROMPT) as cache:
            with pytest.raises((DataError, StorageError), match="damaged|full"):
                ask(config, questions(), cache, Standing(), on_answer, every_second)
            assert (cache.paid.requests, cache.perhaps_paid.requests) == (5, 0)


def test_resumed_run_can_be_stopped_while_it_passes_what_is_known(sample: str, tmp_path: pathlib.Path) -> None:
    def questions() -> Iterator[Question]:
        for index in range(20_000):
            if index == 10:
                signal.raise_signal(signal.SIGINT)
            yield known

    standing = Standing()
    with serving() as endpoint:
        config = config_for(endpoint, sample, tmp_path)
        known = grading_question(config, PROMPT, document(0).text)
        with open_cache(config, PROMPT) as cache, pytest.raises(KeyboardInterrupt):
            ask(config, questions(), cache, standing)
    assert standing.known < 10_000


def test_endpoint_that_is_not_there_is_given_up_after_the_patience(
    sample: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as endpoint:
        pass
    with pytest.raises((EndpointError, DataError), match=r"no connection to http://127.0.0.1:\d+/v1 \(Connect"):
        annotate(config_for(endpoint, sample, tmp_path, patience=1.0, max_tries=100))


def test_long_row_of_known_questions_is_no_silence_of_the_endpoint(sample: str, tmp_path: pathlib.Path) -> None:
    def script(received: Received) -> Reply:
        return error(400, "too long") if "Text 7 " in received.message else grader(received)

    standing = Standing()
    with serving(script) as endpoint:
        config = config_for(endpoint, sample, tmp_path, patience=1.0, concurrency=1)
        known, refused, new = (grading_question(config, PROMPT, document(i).text) for i in (0, 7, 1))

        def questions() -> Iterator[Question]:
            yield known
            yield refused
            for _ in range(100):
                time.sleep(0.03)  # as a tokenizer over long documents takes
                yield known
            yield new

        with open_cache(config, PROMPT) as cache:
            ask(config, questions(), cache, standing)
            assert new.digest in cache
    assert (standing.known, standing.answered, list(standing.unanswered)) == (100, 2, [refused.digest])


def test_few_documents_without_an_answer_are_told_and_many_are_an_error(sample: str, tmp_path: pathlib.Path) -> None:
    def script(received: Received) -> Reply:
        return error(400, "too long") if "Text 7 " in received.message else grader(received)

    with serving(script) as endpoint:
        with pytest.raises(DataError, match=r"1 of 60 documents have no answer \(1 x HTTP 400 X: too long\)"):
            annotate(config_for(endpoint, sample, tmp_path))
        config = config_for(endpoint, sample, tmp_path, max_unanswered_fraction=0.05)
        annotate(config)
        assert len(endpoint.received) == 61  # the refused one is asked again, as it cost nothing
    row = rows_of(config)[7]
    assert row["label"] is None and row["why_null"] == "no answer: HTTP 400 X: too long"


def test_documents_without_an_answer_are_counted_where_several_are_one_question(tmp_path: pathlib.Path) -> None:
    alike = [Document(f"d{i}", f"One head for all. Text {i}", "test") for i in range(8)]
    others = [document(i) for i in range(8, 60)]
    write_shards(str(tmp_path / "sample"), alike + others, stage="test", settings={})

    def script(received: Received) -> Reply:
        return error(400, "no") if "One head" in received.message else grader(received)

    with serving(script) as endpoint:
        config = config_for(
            endpoint, str(tmp_path / "sample"), tmp_path, max_example_chars=17, max_unanswered_fraction=0.1
        )
        with pytest.raises(DataError, match=r"^8 of 60 documents have no answer \(8 x HTTP 400"):
            annotate(config)


def test_endpoint_that_limits_its_rate_is_obeyed(sample: str, tmp_path: pathlib.Path) -> None:
    turned_away = []

    def script(received: Received) -> Reply:
        if received.number in (5, 6, 7, 8, 9):
            turned_away.append(received)
            return error(429, "slow down", retry_after="1")
        return grader(received)

    with serving(script) as endpoint:
        config = config_for(endpoint, sample, tmp_path, max_tries=1)  # being put off is no failure
        annotate(config)
    check_one_right_label_each(config)
    assert len(turned_away) == 5 and len(endpoint.received) == 65
    assert summary_of(config)["perhaps_paid"]["requests"] == 0


@pytest.mark.parametrize("status", [429, 500])
def test_retry_after_of_no_seconds_is_not_taken_for_leave_to_ask_without_end(
    status: int, sample: str, tmp_path: pathlib.Path
) -> None:
    first: list[float] = []

    def script(received: Received) -> Reply:
        first.append(time.monotonic())
        return error(status, retry_after="0") if first[-1] < first[0] + 1.0 else grader(received)

    with serving(script) as endpoint:
        config = config_for(endpoint, sample, tmp_path)
        annotate(config)
        assert len(endpoint.received) < 60 + 60
    check_one_right_label_each(config)


def test_endpoint_that_is_always_busy_is_named_while_it_is_waited_for(sample: str, tmp_path: pathlib.Path) -> None:
    with serving(lambda received: error(429, "slow down", retry_after="0.2")) as endpoint:
        config = config_for(endpoint, sample, tmp_path, patience=0.5)
        with pytest.raises(EndpointError, match="slow down"):
            annotate(config)
    assert files.read_json(config.output_path + "/progress.json")["why_silent"] == "HTTP 429 X: slow down"


def test_trial_shows_answers_and_costs_and_is_not_paid_for_again(sample: str, tmp_path: pathlib.Path) -> None:
    prices = {"dollars_per_million_input": 2.0, "dollars_per_million_output": 4.0}
    with serving() as endpoint:
        config = config_for(endpoint, sample, tmp_path, max_example_chars=24, **prices)
        trials = try_prompt(config, (document(i) for i in range(100)))
        assert [trial.label for trial in trials] == [float(i % 6) for i in range(10)]
        again = try_prompt(config, [document(i) for i in range(10)])
        assert len(endpoint.received) == 10
    assert trials[3].example == document(3).text[:24] and "Final Score: 3" in str(trials[3].answer)
    assert trials[0].seconds > 0 and again[0].seconds == 0
    cost = sum(trial.input_tokens * 2.0 + trial.output_tokens * 4.0 for trial in trials) / 1e6
    assert sum(trial.cost_dollars or 0.0 for trial in trials) == pytest.approx(cost)
    estimate = estimate_cost(config, 1000, trials)
    assert estimate.dollars is not None
    expected, low, high = estimate.dollars
    assert expected == pytest.approx(cost * 100) and low <= expected <= high
