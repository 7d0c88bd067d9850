"""What is asked: texts, draws and scored regions against the plain implementation, and bad bundles refused."""

import json
import shutil

import numpy as np
import pytest

from marin.data.tokenizer import Tokenizer
from marin.errors import ConfigError, DataError
from marin.evaluation.core import CORE_TASKS, Bundle
from marin.evaluation.core.prompts import items_in_order, prompts, questions, shots_of

from .conftest import made_items, write_bundle
from .plain_core import shuffled, texts_of


def whole(question) -> list[list[int]]:
    return [[*question.group.prefix.tolist(), *row.tolist()] for row in question.group.rows]


@pytest.mark.parametrize("limit", [-1, 9])
def test_prompts_are_those_of_the_plain_implementation(small_bundle, limit):
    for task in Bundle.open(small_bundle).tasks:
        items, plain = items_in_order(task, limit), shuffled(list(task.items), limit)
        assert items == plain
        for number, item in enumerate(items):
            shots = [items[i] for i in shots_of(number, len(items), task.num_shots)]
            expected = texts_of(task.kind, plain, number, task.num_shots, task.delimiter)
            assert prompts(task, item, shots) == expected


@pytest.mark.parametrize(("num_items", "num_shots"), [(11, 10), (80, 10), (90, 10), (3000, 10), (40, 3)])
def test_shots_are_drawn_as_from_a_list_of_the_other_items(num_items, num_shots):
    import random

    for number in (0, 1, num_items // 2, num_items - 1):
        others = [i for i in range(num_items) if i != number]
        assert shots_of(number, num_items, num_shots) == random.Random(1234 + number).sample(others, num_shots)


def test_fewer_items_than_shots_is_refused_with_the_least_number(small_bundle):
    task = next(task for task in Bundle.open(small_bundle).tasks if task.label == "arc_easy")
    with pytest.raises(ConfigError, match="at least 4 items"):
        items_in_order(task, 3)


def test_scored_tokens_are_what_differs_of_choices_and_what_agrees_of_contexts(small_bundle, small_tokenizer):
    for task in Bundle.open(small_bundle).tasks:
        for question in questions(task, small_tokenizer):
            sequences = whole(question)
            starts = [len(question.group.prefix) + start for start in question.group.starts]
            scored = [sequence[start:] for sequence, start in zip(sequences, starts, strict=True)]
            before = [sequence[:start] for sequence, start in zip(sequences, starts, strict=True)]
            assert all(sequence[0] == small_tokenizer.bos_id for sequence in sequences)
            if task.kind == "multiple_choice":
                assert all(tokens == before[0] for tokens in before)
                assert any(not tokens for tokens in scored) or len({tokens[0] for tokens in scored}) > 1
            elif task.kind == "schema":
                assert all(tokens == scored[0] for tokens in scored)
                assert len({tokens[-1] for tokens in before}) > 1
            else:
                item = items_in_order(task, -1)[question.number]
                assert small_tokenizer.decode(scored[0]).strip() == item["continuation"]


def test_long_prompts_lose_their_beginning_and_nothing_that_is_scored(small_bundle, small_tokenizer):
    task = next(task for task in Bundle.open(small_bundle).tasks if task.label == "arc_easy")
    for long, short in zip(
        questions(task, small_tokenizer), questions(task, small_tokenizer, max_tokens=70), strict=True
    ):
        for before, after in zip(whole(long), whole(short), strict=True):
            assert after == before[-70:]
        kept = [row[start:].tolist() for row, start in zip(short.group.rows, short.group.starts, strict=True)]
        assert kept == [row[start:].tolist() for row, start in zip(long.group.rows, long.group.starts, strict=True)]


def test_limit_that_cuts_into_the_answer_is_refused(small_bundle, small_tokenizer):
    task = next(task for task in Bundle.open(small_bundle).tasks if task.label == "lambada_openai")
    with pytest.raises(DataError, match=r"lambada_openai.jsonl: item \d+ .* within 2 tokens"):
        list(questions(task, small_tokenizer, max_tokens=2))


def test_tokenizer_whose_prompt_is_no_prefix_is_refused(tmp_path, small_tokenizer):
    bundle = write_bundle(tmp_path, {"lambada_openai": [{"context": "a cat", "continuation": "sits"}]})

    class Whole(Tokenizer):
        """One token for each text."""

        def __init__(self):
            self.bos_id = 0

        def encode_arrays(self, texts, num_threads=0):
            return [np.array([len(text)], np.int32) for text in texts]

    with pytest.raises(DataError, match="not the first ones"):
        list(questions(Bundle.open(bundle).tasks[0], Whole()))


def test_digest_is_of_the_text_alone(small_bundle, small_tokenizer):
    for task in Bundle.open(small_bundle).tasks:
        digests = [question.digest for question in questions(task, small_tokenizer)]
        assert len(set(digests)) == len(digests) and all(len(digest) == 16 for digest in digests)


def test_bundle_names_what_is_missing_with_its_source(small_bundle):
    bundle = Bundle.open(small_bundle)
    assert [task.label for task in bundle.tasks] == [
        "arc_easy",
        "copa",
        "lambada_openai",
        "winograd",
        "bigbench_operators",
    ]
    assert {task.label for task in bundle.missing} == CORE_TASKS.keys() - {task.label for task in bundle.tasks}
    told = {task.label: str(task) for task in bundle.missing}
    assert "eval_data/reading_comprehension/squad.jsonl is not there; its source is" in told["squad"]


def test_real_bundle_has_eighteen_whole_tasks(real_bundle):
    bundle = Bundle.open(real_bundle)
    assert {task.label for task in bundle.missing} == {"hellaswag", "hellaswag_zeroshot", "squad", "coqa"}
    for task in bundle.tasks:
        assert (task.kind, task.num_shots, task.baseline) == (
            task.known.kind,
            task.known.num_shots,
            task.known.baseline,
        )
        assert len(task.items) == task.known.num_items


def _spoil(folder, name, change):
    path = next(folder.rglob(name))
    path.write_text(change(path.read_text()))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("core.yaml", lambda text: "a: [", "is not YAML"),
        ("core.yaml", lambda text: "tasks: []", "no list `icl_tasks`"),
        ("core.yaml", lambda text: text.replace("label: copa", "label: copal"), "'copal', which is none of CORE's 22"),
        ("core.yaml", lambda text: text.replace("icl_task_type: schema", "icl_task_type: guess"), "is 'guess'"),
        ("core.yaml", lambda text: text.replace("commonsense_reasoning/copa", "../../copa"), "path below eval_data"),
        ("core.yaml", lambda text: text.replace("- 3", "- many"), "`num_fewshot`"),
        ("eval_meta_data.csv", lambda text: "x,y\n1,2\n", "Random baseline"),
        ("eval_meta_data.csv", lambda text: text.replace("copa,x,x,0,0,50", "copa,x,x,0,0,100"), "no baseline"),
        ("copa.jsonl", lambda text: text + "{\n", r"copa.jsonl:15 is not JSON"),
        ("copa.jsonl", lambda text: text.replace('"query"', '"ask"', 1), r"copa.jsonl:1: `query`"),
        ("copa.jsonl", lambda text: text.replace('"gold": 1', '"gold": 9', 1), r"`gold` is 9, expected the number"),
        ("winograd_wsc.jsonl", lambda text: text.replace('"continuation"', '"end"', 1), "`continuation`"),
    ],
)
def test_bad_bundle_is_refused_where_it_is_bad(small_bundle, tmp_path, name, change, message):
    folder = tmp_path / "bundle"
    shutil.copytree(small_bundle, folder)
    _spoil(folder, name, change)
    with pytest.raises(DataError, match=message):
        for task in Bundle.open(folder).tasks:
            assert task.items


def test_folder_that_is_no_bundle_is_refused(tmp_path):
    message = r"core.yaml is not there: give the folder of an unpacked eval bundle .* `python -m scripts.eval_bundle`"
    with pytest.raises(DataError, match=message):
        Bundle.open(tmp_path)


def test_text_with_unicode_line_ends_stays_one_item(tmp_path):
    items = made_items("language_modeling", 3)
    items[0]["context"] = "one\u2028two\x85three"
    bundle = write_bundle(tmp_path, {"lambada_openai": items})
    assert [json.loads(json.dumps(item)) for item in Bundle.open(bundle).tasks[0].items] == items
