"""The batched evaluation against the plain one, item by item; records, interruptions, and bad use."""

import json

import pytest

from marin.errors import ConfigError
from marin.evaluation.core import Bundle, evaluate_core
from marin.evaluation.core.prompts import items_in_order
from marin.evaluation.likelihood import LikelihoodScorer, Scored
from marin.evaluation.records import RecordFolder
from marin.models import GptConfig

from .conftest import made_items, moved_from_its_start, write_bundle
from .plain_core import judge, shuffled

IDENTITY = {"run": "test", "step": 1}


def read(folder, label):
    return [json.loads(line) for line in (folder / f"{label}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("max_per_task", "max_tokens"), [(-1, None), (9, 60)])
def test_every_verdict_is_that_of_the_plain_implementation(
    small_bundle, small_model, small_tokenizer, tmp_path, max_per_task, max_tokens
):
    folder = RecordFolder(tmp_path, IDENTITY)
    result = evaluate_core(
        LikelihoodScorer(small_model),
        small_tokenizer,
        small_bundle,
        max_per_task=max_per_task,
        max_tokens=max_tokens,
        records=folder,
    )
    outcomes = set()
    for task, told in zip(Bundle.open(small_bundle).tasks, result.tasks, strict=True):
        items, records = shuffled(list(task.items), max_per_task), read(tmp_path, task.label)
        assert told.label == task.label and told.num_items == len(items) == len(records)
        for number, record in enumerate(records):
            correct, means = judge(
                small_model, small_tokenizer, task.kind, items, number, task.num_shots, task.delimiter, max_tokens
            )
            found = record["scores"] if "scores" in record else [record["nats"]]
            expected = [None if mean != mean else pytest.approx(mean, abs=2e-5) for mean in means]
            assert record["item"] == number and found == expected and record["correct"] == correct
            outcomes.add((task.kind, correct))
        assert told.num_correct == sum(record["correct"] for record in records)
    assert {(kind, verdict) for kind in ("multiple_choice", "schema") for verdict in (True, False)} <= outcomes


def test_model_that_continues_rightly_is_right(small_model, small_tokenizer, tmp_path):
    """A cloze whose continuation is what the model writes greedily; the plain implementation says so too."""
    import jax.numpy as jnp

    items = []
    for context in ("the cat sits on", "a small red bird", "near the old house the dog", "stone tree river"):
        ids = [small_tokenizer.bos_id, *small_tokenizer.encode(context)]
        x_1TD = small_model.activations(jnp.asarray([ids + [0] * (32 - len(ids))]), None)
        order = jnp.argsort(-(x_1TD[0, len(ids) - 1] @ small_model.lm_head_DV))
        word = small_tokenizer.decode([int(order[0])])
        if word.startswith(" ") and small_tokenizer.encode(context + word) == [*ids[1:], int(order[0])]:
            items.append({"context": context, "continuation": word[1:]})
    bundle = write_bundle(tmp_path / "bundle", {"lambada_openai": [*items, {"context": "the", "continuation": "zzzz"}]})
    result = evaluate_core(small_model, small_tokenizer, bundle)
    assert result.tasks[0].num_correct == len(items)


def test_choice_without_a_token_of_its_own_wins_where_it_stands_first():
    from types import SimpleNamespace

    import numpy as np

    from marin.evaluation.core.verdicts import is_undefined, verdict

    def scored(*losses):
        return [Scored(np.array(loss, np.float32), False) for loss in losses]

    for losses, answer in ((([], [1.0], [2.0]), 0), (([3.0], [], [2.0]), 2), (([3.0, 1.0], [2.0], [2.0]), 0)):
        question = SimpleNamespace(number=0, digest="d", gold=answer)
        record = verdict(question, scored(*losses))
        # What Python's own comparison says of NaN, as in the plain implementation.
        means = [float(np.mean(loss)) if loss else float("nan") for loss in losses]
        assert record["answer"] == answer == means.index(min(means)) and record["correct"]
        assert is_undefined(record) == any(not loss for loss in losses)
        json.dumps(record, allow_nan=False)


def test_interrupted_evaluation_goes_on_with_the_task_that_was_not_finished(
    small_bundle, small_model, small_tokenizer, tmp_path
):
    class Stop(Exception):
        pass

    def stop_in_the_third(line):
        if line.startswith("lambada_openai:"):
            raise Stop

    folder = RecordFolder(tmp_path, IDENTITY)
    scorer = LikelihoodScorer(small_model)
    whole = evaluate_core(scorer, small_tokenizer, small_bundle)
    with pytest.raises(Stop):
        evaluate_core(scorer, small_tokenizer, small_bundle, records=folder, progress=stop_in_the_third)
    # The third had been written when it was told; what a kill leaves of a write is not taken.
    (tmp_path / "lambada_openai.json").unlink()
    told = []
    result = evaluate_core(scorer, small_tokenizer, small_bundle, records=folder, progress=told.append)
    assert [task.reused for task in result.tasks] == [True, True, False, False, False]
    assert [task.num_correct for task in result.tasks] == [task.num_correct for task in whole.tasks]
    assert "as found before" in told[0] and "items/s" in told[2]
    assert result.partial_core_metric == whole.partial_core_metric


@pytest.mark.parametrize("what", ["model", "limit", "data", "lines"])
def test_records_of_something_else_are_not_taken_up(small_model, small_tokenizer, tmp_path, what):
    bundle = write_bundle(
        tmp_path / "bundle",
        {"copa": made_items("multiple_choice", 12), "winograd": made_items("schema", 12)},
    )
    scorer = LikelihoodScorer(small_model)
    folder = RecordFolder(tmp_path / "records", IDENTITY)
    evaluate_core(scorer, small_tokenizer, bundle, records=folder)
    limit = -1
    if what == "model":
        folder = RecordFolder(tmp_path / "records", {"run": "test", "step": 2})
    elif what == "limit":
        limit = 9
    elif what == "data":
        path = next(bundle.rglob("copa.jsonl"))
        path.write_text(path.read_text().replace("cat", "dog"))
    else:
        path = tmp_path / "records" / "copa.jsonl"
        path.write_text(path.read_text()[:-40])
    result = evaluate_core(scorer, small_tokenizer, bundle, records=folder, max_per_task=limit)
    again = {task.label for task in result.tasks if not task.reused}
    assert again == ({"copa"} if what in ("data", "lines") else {task.label for task in result.tasks})
    assert all(len(read(tmp_path / "records", task.label)) == task.num_items for task in result.tasks)


@pytest.mark.parametrize(("option", "value"), [("max_per_task", 0), ("max_per_task", -2), ("max_tokens", 1)])
def test_limits_that_cannot_work_are_refused(small_bundle, small_model, small_tokenizer, option, value):
    with pytest.raises(ConfigError, match=f"`{option}` is {value}"):
        evaluate_core(small_model, small_tokenizer, small_bundle, **{option: value})


def agree(model, tokenizer, bundle, tmp_path, per_task, batch_tokens=4096):
    """Compares `per_task` items of each task; returns (items, verdicts that differ, those where two scores nearly tie)."""
    records = RecordFolder(tmp_path, IDENTITY)
    evaluate_core(
        LikelihoodScorer(model, batch_tokens=batch_tokens), tokenizer, bundle, max_per_task=per_task, records=records
    )
    compared, differ, close = 0, [], []
    for task in Bundle.open(bundle).tasks:
        items = items_in_order(task, per_task)
        for record in read(tmp_path, task.label):
            correct, means = judge(model, tokenizer, task.kind, items, record["item"], task.num_shots, task.delimiter)
            compared += 1
            ordered = sorted(mean for mean in means if mean == mean)
            if len(ordered) > 1 and ordered[1] - ordered[0] < 1e-5:
                close.append((task.label, record["item"]))
            elif record["correct"] != correct:
                differ.append((task.label, record["item"], record, means))
    return compared, differ, close


@pytest.mark.slow
def test_verdicts_on_real_items_are_those_of_the_plain_implementation(
    real_bundle, small_model, small_tokenizer, tmp_path, capsys
):
    few = Bundle.open(real_bundle)
    labels = ("copa", "winograd", "openbook_qa", "bigbench_repeat_copy_logic", "lambada_openai")
    few = Bundle(few.path, tuple(task for task in few.tasks if task.label in labels), few.missing)
    tasks = {task.label: list(task.items)[:12] for task in few.tasks}
    bundle = write_bundle(tmp_path / "few", tasks)
    compared, differ, _ = agree(small_model, small_tokenizer, bundle, tmp_path / "records", 12)
    assert compared == 60 and not differ


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_verdicts_on_a_thousand_real_items_are_those_of_the_plain_implementation(real_bundle, real_tokenizer, tmp_path):
    config = GptConfig(seq_len=512, hidden_dim=32, num_layers=2, num_heads=2, num_kv_heads=1)
    model = moved_from_its_start(config, real_tokenizer.vocab_size)
    compared, differ, close = agree(model, real_tokenizer, real_bundle, tmp_path, 58)
    print(f"{compared} items compared; {len(close)} where two scores are within 1e-5: {close}")
    assert compared == 32 + 17 * 58 >= 1000 and not differ
    assert len(close) <= 10


def test_made_items_have_the_case_of_one_choice_inside_the_others():
    assert any(
        all(choice.startswith(item["choices"][0]) for choice in item["choices"])
        for item in made_items("multiple_choice", 14)
    )
