"""Centering, CORE and what may be called so, against published figures and by hand."""

import math
from pathlib import Path

import pytest

from marin.evaluation.core import CORE_TASKS, CoreResult, MissingTask, TaskResult, centered

# Accuracy and centered accuracy as a nanochat model's public evaluation printed them (the first three to four digits), and its CORE.
PUBLISHED = {
    "hellaswag_zeroshot": (0.3040, 0.0720),
    "jeopardy": (0.0099, 0.0099),
    "bigbench_qa_wikidata": (0.3204, 0.3204),
    "arc_easy": (0.510522, 0.347363),
    "arc_challenge": (0.258532, 0.011377),
    "copa": (0.600000, 0.200000),
    "commonsense_qa": (0.285012, 0.106265),
    "piqa": (0.620239, 0.240479),
    "openbook_qa": (0.296000, 0.061333),
    "lambada_openai": (0.252086, 0.252086),
    "hellaswag": (0.304621, 0.072827),
    "winograd": (0.553114, 0.106227),
    "winogrande": (0.516180, 0.032360),
    "bigbench_dyck_languages": (0.143000, 0.143000),
    "agi_eval_lsat_ar": (0.269565, 0.086956),
    "bigbench_cs_algorithms": (0.368939, 0.368939),
    "bigbench_operators": (0.109524, 0.109524),
    "bigbench_repeat_copy_logic": (0.000000, 0.000000),
    "squad": (0.035478, 0.035478),
    "coqa": (0.078542, 0.078542),
    "boolq": (0.542813, -0.203123),
    "bigbench_language_identification": (0.252300, 0.177448),
}
PUBLISHED_CORE = 0.119520

# Section 1 of the reference: items, kind, shots, percent by v1.
REFERENCE = """
hellaswag_zeroshot 10042 MC 0 25 | winograd 273 schema 0 50 | jeopardy 2117 LM 10 0 | winogrande 1267 schema 0 50
bigbench_qa_wikidata 20321 LM 10 0 | bigbench_dyck_languages 1000 LM 10 0 | arc_easy 2376 MC 10 25 | agi_eval_lsat_ar 230 MC 3 20
arc_challenge 1172 MC 10 25 | bigbench_cs_algorithms 1320 LM 10 0 | copa 100 MC 0 50 | bigbench_operators 210 LM 10 0
commonsense_qa 1221 MC 10 20 | bigbench_repeat_copy_logic 32 LM 10 0 | piqa 1838 MC 10 50 | squad 10570 LM 10 0
openbook_qa 500 MC 0 25 | coqa 7983 LM 0 0 | lambada_openai 5153 LM 0 0 | boolq 3270 MC 10 62 | hellaswag 10042 MC 10 25
bigbench_language_identification 10000 MC 10 9.1
"""
KINDS = {"MC": "multiple_choice", "LM": "language_modeling", "schema": "schema"}


def results(**changes) -> tuple[TaskResult, ...]:
    """All 22 tasks with the published accuracies."""
    return tuple(
        TaskResult(
            label=label,
            num_items=known.num_items,
            num_correct=round(PUBLISHED[label][0] * known.num_items),
            num_available=changes.get(label, known.num_items),
            num_undefined=0,
            baseline=known.baseline,
            seconds=1.0,
        )
        for label, known in CORE_TASKS.items()
    )


def test_tasks_are_those_of_the_reference():
    rows = [row.split() for row in REFERENCE.replace("|", "\n").strip().splitlines()]
    expected = {label: (int(n), KINDS[kind], int(shots), float(base)) for label, n, kind, shots, base in rows}
    ours = {t.label: (t.num_items, t.kind, t.num_shots, float(t.baseline)) for t in CORE_TASKS.values()}
    assert ours == expected and len(ours) == 22


@pytest.mark.parametrize("label", PUBLISHED)
def test_centering_gives_the_published_figure(label):
    accuracy, published = PUBLISHED[label]
    rounding = 6e-5 / (1 - CORE_TASKS[label].baseline / 100) if label == "hellaswag_zeroshot" else 2.5e-6
    assert centered(accuracy, CORE_TASKS[label].baseline) == pytest.approx(published, abs=rounding)


def test_core_of_the_published_accuracies_is_the_published_core():
    result = CoreResult(results(), ())
    assert result.core_metric == pytest.approx(PUBLISHED_CORE, abs=1e-5)
    assert result.name == "CORE"


def test_later_baselines_change_the_three_tasks_that_differ():
    result = CoreResult(results(), ())
    changed = {task.label for task in result.tasks if task.centered_v1 != task.centered_v2}
    assert changed == {"commonsense_qa", "agi_eval_lsat_ar", "bigbench_language_identification"}
    by_hand = {
        "commonsense_qa": (348 / 1221 - 0.403) / 0.597,
        "agi_eval_lsat_ar": (62 / 230 - 0.25) / 0.75,
        "bigbench_language_identification": (0.2523 - 0.25) / 0.75,
    }
    assert {task.label: task.centered_v2 for task in result.tasks if task.label in by_hand} == pytest.approx(by_hand)
    assert result.core_metric_v2 < result.core_metric


def test_mean_over_fewer_tasks_is_never_called_core():
    whole = results()
    missing = MissingTask("squad", Path("eval_data/squad.jsonl"), CORE_TASKS["squad"].source)
    result = CoreResult(tuple(task for task in whole if task.label != "squad"), (missing,))
    assert result.core_metric is None and result.core_metric_v2 is None
    assert result.partial_core_metric == pytest.approx((22 * PUBLISHED_CORE - 0.035478) / 21, abs=1e-5)
    assert result.name == "partial CORE (21 of 22 tasks)"
    assert result.to_json()["core_metric"] is None
    for shown in (result.to_text(), result.to_csv()):
        assert not any(line.startswith("CORE") for line in shown.splitlines())
    assert "llm-foundry" in result.to_text() and "eval_data/squad.jsonl" in result.to_text()


def test_table_fits_a_terminal_of_eighty_columns():
    *table, _ = CoreResult(results(hellaswag=10_042), ()).to_text().splitlines()
    assert len(table) == 23 and all(len(line) < 80 for line in table)


def test_task_whose_file_was_cut_short_makes_the_mean_partial():
    result = CoreResult(results(boolq=3000), ())
    assert result.core_metric is None
    assert "boolq: its data file has 3,000 items, CORE's has 3,270" in result.to_text()


def test_limited_evaluation_says_so():
    assert CoreResult(results(), (), max_per_task=500).name == "CORE, at most 500 items a task"


def test_csv_has_the_columns_and_the_last_row_of_nanochat():
    rows = [[cell.strip() for cell in line.split(",")] for line in CoreResult(results(), ()).to_csv().splitlines()]
    assert rows[0] == ["Task", "Accuracy", "Centered"]
    assert ["arc_easy", "0.510522", "0.347363"] in rows
    assert rows[-1][:2] == ["CORE", ""] and float(rows[-1][2]) == pytest.approx(PUBLISHED_CORE, abs=1e-5)


@pytest.mark.parametrize(("correct", "items"), [(0, 32), (32, 32), (5, 100), (1213, 2376)])
def test_interval_is_where_wilsons_test_does_not_reject(correct, items):
    task = TaskResult("copa", items, correct, items, 0, 50, 1.0)
    for bound in task.interval:
        if 0 < bound < 1:  # where |accuracy - bound| is 1.96 standard errors at the bound
            error = math.sqrt(bound * (1 - bound) / items)
            assert abs(task.accuracy - bound) / error == pytest.approx(1.959964, rel=1e-6)
    assert task.interval[0] <= task.accuracy <= task.interval[1]


def test_interval_of_the_mean_covers_as_often_as_it_says():
    import numpy as np

    truth = {label: min(0.9, max(0.05, PUBLISHED[label][0])) for label in CORE_TASKS}
    mean = sum(centered(truth[label], CORE_TASKS[label].baseline) for label in truth) / 22
    draw, covered = np.random.default_rng(0), 0
    for _ in range(400):
        tasks = tuple(
            TaskResult(label, 100, int(draw.binomial(100, truth[label])), 100, 0, known.baseline, 1.0)
            for label, known in CORE_TASKS.items()
        )
        low, high = CoreResult(tasks, ()).interval
        covered += low <= mean <= high
    assert 0.92 <= covered / 400 <= 0.99
