"""The 22 tasks of CORE (Li et al., 2024, DCLM, arXiv:2406.11794): what each is, where its data comes from, its baselines.

A task's accuracy is centered on what guessing scores, `(accuracy - baseline) / (1 - baseline)`, and CORE is the plain mean of
the 22. Two sets of baselines are in use. "v1" is that of DCLM's first release, which the public `eval_bundle` carries and every
published Time-to-GPT-2 figure uses; "v2" is that of DCLM's later table, in which three tasks differ. They give two scores,
which must not be mixed.
"""

import dataclasses
from types import MappingProxyType

MULTIPLE_CHOICE, SCHEMA, LANGUAGE_MODELING = "multiple_choice", "schema", "language_modeling"
KINDS = (MULTIPLE_CHOICE, SCHEMA, LANGUAGE_MODELING)

# Where the data of all tasks comes from, and the archive that holds them in the layout that `bundle` reads.
_ORIGIN = "mosaicml/llm-foundry, scripts/eval/local_data"
ARCHIVE = "the public eval_bundle.zip of nanochat"
PUBLIC_ARCHIVE = "https://karpathy-public.s3.us-west-2.amazonaws.com/eval_bundle.zip"


@dataclasses.dataclass(frozen=True)
class CoreTask:
    """What CORE says of a task.

    Args:
        label: what the bundle calls it.
        kind: one of `KINDS`, which says what is scored (see `prompts`).
        num_shots: solved items that stand before each.
        num_items: the size of its data file.
        baseline: percent of items that guessing gets right, by v1.
        later_baseline: the same by v2, where it differs.
        uri: the data file below `eval_data`.
    """

    label: str
    kind: str
    num_shots: int
    num_items: int
    baseline: float
    uri: str
    later_baseline: float | None = None

    @property
    def baseline_v2(self) -> float:
        return self.baseline if self.later_baseline is None else self.later_baseline

    @property
    def source(self) -> str:
        """Where a person finds the data file."""
        return f"{_ORIGIN}/{self.uri}, or {ARCHIVE}"


def _tasks() -> tuple[CoreTask, ...]:
    knowledge, sense, language = "world_knowledge", "commonsense_reasoning", "language_understanding"
    symbols, reading = "symbolic_problem_solving", "reading_comprehension"
    choice, schema, model = MULTIPLE_CHOICE, SCHEMA, LANGUAGE_MODELING
    return (
        CoreTask("hellaswag_zeroshot", choice, 0, 10042, 25, f"{language}/hellaswag.jsonl"),
        CoreTask("jeopardy", model, 10, 2117, 0, f"{knowledge}/jeopardy_all.jsonl"),
        CoreTask("bigbench_qa_wikidata", model, 10, 20321, 0, f"{knowledge}/bigbench_qa_wikidata.jsonl"),
        CoreTask("arc_easy", choice, 10, 2376, 25, f"{knowledge}/arc_easy.jsonl"),
        CoreTask("arc_challenge", choice, 10, 1172, 25, f"{knowledge}/arc_challenge.jsonl"),
        CoreTask("copa", choice, 0, 100, 50, f"{sense}/copa.jsonl"),
        CoreTask("commonsense_qa", choice, 10, 1221, 20, f"{sense}/commonsense_qa.jsonl", 40.3),
        CoreTask("piqa", choice, 10, 1838, 50, f"{sense}/piqa.jsonl"),
        CoreTask("openbook_qa", choice, 0, 500, 25, f"{sense}/openbook_qa.jsonl"),
        CoreTask("lambada_openai", model, 0, 5153, 0, f"{language}/lambada_openai.jsonl"),
        CoreTask("hellaswag", choice, 10, 10042, 25, f"{language}/hellaswag.jsonl"),
        CoreTask("winograd", schema, 0, 273, 50, f"{language}/winograd_wsc.jsonl"),
        CoreTask("winogrande", schema, 0, 1267, 50, f"{language}/winogrande.jsonl"),
        CoreTask("bigbench_dyck_languages", model, 10, 1000, 0, f"{symbols}/bigbench_dyck_languages.jsonl"),
        CoreTask("agi_eval_lsat_ar", choice, 3, 230, 20, f"{symbols}/agi_eval_lsat_ar.jsonl", 25),
        CoreTask("bigbench_cs_algorithms", model, 10, 1320, 0, f"{symbols}/bigbench_cs_algorithms.jsonl"),
        CoreTask("bigbench_operators", model, 10, 210, 0, f"{symbols}/bigbench_operators.jsonl"),
        CoreTask("bigbench_repeat_copy_logic", model, 10, 32, 0, f"{symbols}/bigbench_repeat_copy_logic.jsonl"),
        CoreTask("squad", model, 10, 10570, 0, f"{reading}/squad.jsonl"),
        CoreTask("coqa", model, 0, 7983, 0, f"{reading}/coqa.jsonl"),
        CoreTask("boolq", choice, 10, 3270, 62, f"{reading}/boolq.jsonl"),
        CoreTask(
            "bigbench_language_identification",
            choice,
            10,
            10000,
            9.1,
            f"{language}/bigbench_language_identification.jsonl",
            25,
        ),
    )


CORE_TASKS = MappingProxyType({task.label: task for task in _tasks()})
"""By label, in the order in which they are shown."""


def centered(accuracy: float, baseline: float) -> float:
    """How far above guessing an accuracy is, as a share of what there is above it; `baseline` is in percent."""
    guess = 0.01 * baseline
    return (accuracy - guess) / (1.0 - guess)
