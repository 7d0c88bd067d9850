"""What a config says becomes steps: three ways to say what is wanted, the reference's fields, and clear refusals."""

import dataclasses
from typing import Any

import pytest

from marin.datashop.annotate_config import AnnotateConfig
from marin.datashop.config import AblationConfig, DatashopRunnerConfig
from marin.datashop.ngrams import NgramConfig
from marin.datashop.pipeline import datashop_steps, document_stages, last_documents
from marin.errors import ConfigError
from marin.execution.executor import Executor, ExecutorMainConfig
from marin.execution.graph import Graph
from marin.execution.step import ExecutorStep
from marin.resources import TpuPodConfig

PROMPT = "Grade this from 0 to 5.\n\n{example}\n\nFinal Score:"


def configured(**fields: Any) -> DatashopRunnerConfig:
    given: dict[str, Any] = {"experiment_name": "x", "pretraining_data_path": "pool.jsonl"}
    if not fields.keys() & {"data_filter_prompt", "corpus_content_paths", "positives"}:
        given["positives"] = ("wanted.jsonl",)
    return DatashopRunnerConfig(**given | fields)


def fingerprints(steps: dict[str, ExecutorStep], prefix: str = "/nowhere") -> dict[str, str]:
    graph = Graph(list(steps.values()), prefix)
    return {name: graph.node(step).fingerprint for name, step in steps.items()}


def test_examples_give_the_stages_in_order() -> None:
    steps = datashop_steps(configured(eval_sets={"exam": "exam.jsonl"}, ablation=AblationConfig("held.jsonl")))
    stages = [
        "pool",
        "sample",
        "labels",
        "classifier",
        "scores",
        "filtered",
        "selection",
        "deduplicated",
        "decontaminated",
    ]
    assert list(steps) == [*stages, "tokenizer", "tokenized", "card", "ablation"]
    assert list(document_stages(steps)) == ["pool", "filtered", "deduplicated", "decontaminated"]
    assert last_documents(steps) is steps["decontaminated"]


def test_stages_that_are_not_asked_for_are_not_there() -> None:
    steps = datashop_steps(configured(deduplicate="none", tokenizer="tokenizer.json"))
    assert not {"deduplicated", "decontaminated", "tokenizer", "ablation", "prompt"} & set(steps)
    assert last_documents(steps) is steps["filtered"]


def test_prompt_goes_to_the_annotation_with_the_references_fields() -> None:
    config = configured(
        data_filter_prompt=PROMPT,
        annotator_model_name="meta-llama/Llama-3.1-8B-Instruct",
        annotator_data_path="other.jsonl",
        dataset_output_processor_config_kwargs={"processor_type": "finalscore0-5"},
        text_generation_inference_config_kwargs={"temperature": 0.3, "budget_tokens": 1000},
        filter_config_kwargs={"keep_fraction": 0.05},
        hf_training_config_kwargs={"max_chars": 500},
        sample_size=77,
    )
    steps = datashop_steps(config)
    labels = steps["labels"].config
    assert isinstance(labels, AnnotateConfig)
    assert (labels.model, labels.prompt, labels.temperature, labels.budget_tokens) == (
        "meta-llama/Llama-3.1-8B-Instruct", PROMPT, 0.3, 1000
    )  # fmt: skip
    assert steps["sample"].config.documents is steps["annotator_data"] and steps["sample"].config.size == 77
    assert steps["filtered"].config.keep_fraction == 0.05 and steps["classifier"].config.max_chars == 500


def test_target_corpus_has_its_prompt_written_first() -> None:
    steps = datashop_steps(
        configured(corpus_content_paths=("exam.jsonl",), text_generation_inference_config_kwargs={"max_tokens": 99})
    )
    labels, prompt = steps["labels"].config, steps["prompt"].config
    assert labels.processor_type == "medu" and labels.prompt is None and labels.prompt_path.step is steps["prompt"]
    assert labels.max_tokens == 99 and prompt.max_tokens > 99 and prompt.corpus == ("exam.jsonl",)


def test_second_annotator_grades_the_same_sample_and_is_compared() -> None:
    steps = datashop_steps(configured(data_filter_prompt=PROMPT, second_annotator_model_name="other"))
    first, second = steps["labels"].config, steps["second_labels"].config
    assert (second.model, second.sample, second.prompt) == ("other", first.sample, first.prompt)
    assert steps["agreement"].config.second is steps["second_labels"]
    with pytest.raises(ConfigError, match="second_annotator_model_name"):
        configured(second_annotator_model_name="other")


def test_where_it_runs_changes_no_identity_and_what_is_wanted_does() -> None:
    plain = fingerprints(datashop_steps(configured(data_filter_prompt=PROMPT)))
    elsewhere = configured(
        data_filter_prompt=PROMPT,
        endpoint="http://127.0.0.1:1/v1",
        concurrency=3,
        num_workers=7,
        api_key_env="K",
    )
    assert fingerprints(datashop_steps(elsewhere)) == plain
    reworded = fingerprints(datashop_steps(configured(data_filter_prompt=PROMPT + " ")))
    assert reworded["sample"] == plain["sample"] and reworded["labels"] != plain["labels"]
    other = fingerprints(datashop_steps(configured(data_filter_prompt=PROMPT, keep_fraction=0.3)))
    assert other["scores"] == plain["scores"] and other["filtered"] != plain["filtered"]


def test_step_as_pool_is_used_as_it_is() -> None:
    pool = datashop_steps(configured())["pool"]
    steps = datashop_steps(configured(pretraining_data_path=pool))
    assert steps["pool"] is pool and steps["scores"].config.documents is pool


def test_ablation_takes_its_fields_and_the_tpu() -> None:
    config = configured(
        ablation=AblationConfig("held.jsonl", tokens=1000, seeds=(1, 2)),
        quality_train_config_kwargs={"tokens": 2000},
        training_tpu_type="v6e-8",
    )
    step = datashop_steps(config)["ablation"]
    (run, *_) = step.config.filtered
    arm = getattr(run, "step", run)
    assert (arm.config.tokens, step.config.seeds, len(step.config.control)) == (2000, (1, 2), 2)
    assert isinstance(arm.resources or arm.config.resources, TpuPodConfig)


def test_best_tenth_is_kept_where_nothing_is_said() -> None:
    assert configured().limits == (None, 0.1)
    assert configured(threshold=0.7).limits == (0.7, None)
    graded = configured(data_filter_prompt=PROMPT, filter_config_kwargs={"threshold": 2.0})
    assert graded.limits == (2.0, None)


@pytest.mark.parametrize(
    ("wish", "low", "high"),
    [
        ({}, 0, 1),
        ({"data_filter_prompt": PROMPT}, 0, 5),
        ({"data_filter_prompt": PROMPT, "dataset_output_processor_config_kwargs": {"processor_type": "medu"}}, 1, 5),
        ({"corpus_content_paths": ("target.txt",)}, 1, 5),
    ],
)
def test_threshold_off_the_scale_of_the_labels_is_refused(wish: dict[str, Any], low: float, high: float) -> None:
    for inside in (low + 0.01, high):
        assert configured(threshold=inside, **wish).limits == (inside, None)
    for outside in (low, low - 1, high + 0.01, float("nan")):
        with pytest.raises(ConfigError, match=f"above {low} and at most {high}"):
            configured(threshold=outside, **wish)
        with pytest.raises(ConfigError, match="labels' scale"):
            configured(filter_config_kwargs={"threshold": outside}, **wish)


@pytest.mark.parametrize("field", ["threshold", "keep_fraction"])
@pytest.mark.parametrize("limit", ["3", [3]])
def test_limit_that_is_no_number_is_refused(field: str, limit: Any) -> None:
    with pytest.raises(ConfigError, match=f"`{field}` is .*use a number"):
        configured(**{field: limit})
    with pytest.raises(ConfigError, match=f"`{field}` is .*use a number"):
        configured(filter_config_kwargs={field: limit})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"positives": "wanted.jsonl"}, "`positives` is 'wanted.jsonl': give a list"),
        ({"positives": ()}, "exactly one of the three ways"),
        ({"data_filter_prompt": PROMPT, "positives": ("a",)}, "positives and data_filter_prompt are all set"),
        ({"data_filter_prompt": "no place"}, "has no {example}"),
        ({"negatives": ("b",), "data_filter_prompt": PROMPT}, "`negatives` is set without `positives`"),
        ({"keep_fraction": 0.1, "threshold": 0.5}, "at most one"),
        ({"filter_config_kwargs": {"type": "classify"}}, "has 'type'"),
        ({"deduplicate": "twice"}, "`deduplicate` is 'twice'"),
        ({"sample_size": 0}, "`sample_size` is 0"),
        ({"vocab_size": 256}, "`vocab_size` is 256: use a whole number of at least 257"),
        ({"vocab_size": "300"}, "`vocab_size` is '300'"),
        ({"seed": -1}, "`seed` is -1"),
        ({"negatives_per_positive": 0.0}, "`negatives_per_positive`"),
        ({"annotator_data_path": "other.jsonl"}, "`annotator_data_path` is set, but `positives` are labels"),
        (
            {"text_generation_inference_config_kwargs": {"budget_tokens": 9}},
            "`text_generation_inference_config_kwargs`",
        ),
        ({"dataset_output_processor_config_kwargs": {"processor_type": "medu"}}, "`dataset_output_processor_config_kw"),
        ({"quality_train_config_kwargs": {"tokens": 2000}}, "changes fields of `ablation`, which is not set"),
    ],
)
def test_contradictions_are_refused_by_field(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        configured(**fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"hf_training_config_kwargs": {"epochs": 3}}, "NgramConfig has no field 'epochs'"),
        (
            {"data_filter_prompt": PROMPT, "text_generation_inference_config_kwargs": {"engine": {}}},
            "AnnotateConfig has no field 'engine'",
        ),
        ({"keep_fraction": 2.0}, "`keep_fraction` is 2.0"),
        (
            {"ablation": AblationConfig("h"), "quality_train_config_kwargs": {"lr": 1}},
            "AblationConfig has no field 'lr'",
        ),
    ],
)
def test_fields_that_a_stage_does_not_have_are_refused_with_its_name(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        datashop_steps(configured(**fields))


def test_dry_run_needs_no_files(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    executor = Executor(ExecutorMainConfig(prefix=str(tmp_path / "store")))
    executor.dry_run(list(datashop_steps(configured()).values()))
    assert "datashop/x/tokenized" in capsys.readouterr().out and not (tmp_path / "store").exists()


def test_every_field_is_documented() -> None:
    for kind in (DatashopRunnerConfig, AblationConfig, NgramConfig):
        for field in dataclasses.fields(kind):
            documented = "".join(base.__doc__ or "" for base in kind.__mro__)
            assert field.name in documented or field.name == "output_path", field.name
