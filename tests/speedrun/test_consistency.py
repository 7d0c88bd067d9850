"""Figures that fit together pass; each figure changed alone is named."""

import copy
import dataclasses
import datetime
import os
import pathlib
from typing import Any

import pytest
from example_runs import A100, SECONDS, run_info, run_json
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.errors import ResultsError
from marin.models.gpt import GptConfig
from marin.models.llama import LlamaConfig
from marin.nn.norm import RmsNormConfig
from marin.speedrun.arithmetic.consistency import check, status
from marin.speedrun.arithmetic.form import parse_timestamp
from marin.speedrun.arithmetic.known_models import GPT, LLAMA, likest_model, model_of_class
from marin.speedrun.arithmetic.plain_llama import llama_parameters
from marin.speedrun.results import load_results, parse_results
from marin.speedrun.verdict import Finding

SPEEDRUNS = pathlib.Path(__file__).resolve().parents[2] / "experiments" / "speedrun"


def _errors(**changes: Any) -> dict[str, float | None]:
    return {finding.field: finding.corrected for finding in check(run_info(**changes)) if finding.severity == "error"}


def _problems(**changes: Any) -> list[Finding]:
    return [finding for finding in check(run_info(**changes)) if finding.severity != "note"]


def test_check_of_a_consistent_run_finds_nothing() -> None:
    assert _problems() == []
    assert status(check(run_info())) == "arithmetic checked"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"qk_norm": RmsNormConfig()},
        {"qk_norm": RmsNormConfig(use_weight=False)},
        {"head_dim": 24},
        {"use_attention_sink": True},
        {"use_bias": True},
        {"use_layer_norm_weight": False},
        {"input_embedding_norm": True, "tie_word_embeddings": True},
    ],
    ids=str,
)
def test_llama_parameters_are_those_of_the_model_that_is_built(options: dict[str, Any]) -> None:
    config = LlamaConfig(hidden_dim=64, intermediate_dim=96, num_layers=3, num_heads=4, num_kv_heads=2, **options)
    assert llama_parameters(dataclasses.asdict(config), 300) == config.total_trainable_params(300)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_kv_heads": 2, "window_pattern": "SL"},
        {"num_layers": 1},
        {"num_layers": 6, "window_pattern": "SSL", "short_window": 9},
        {"num_layers": 5, "value_gates": False},
        {"value_embeddings": False},
        {"smear": False},
        {"backout": False, "logit_softcap": None},
    ],
    ids=str,
)
@pytest.mark.parametrize("vocab_size", [64, 300])
def test_gpt_parameters_and_flops_are_those_of_the_model_that_is_built(
    options: dict[str, Any], vocab_size: int
) -> None:
    config = GptConfig(**{"seq_len": 48, "hidden_dim": 64, "num_layers": 4, "num_heads": 4, **options})
    stated = dataclasses.asdict(config)
    assert likest_model(stated) is GPT
    assert set(stated) == GPT.keys
    assert GPT.parameters(stated, vocab_size) == config.total_trainable_params(vocab_size)
    for length in (8, 48):
        assert GPT.flops_per_token(stated, vocab_size, length) == config.flops_per_token(vocab_size, length)
    assert GPT.vocabulary_of(stated, config.total_trainable_params(vocab_size)) == -(-vocab_size // 64) * 64
    assert GPT.vocabulary_of(stated, config.total_trainable_params(vocab_size) + 1) is None


@pytest.mark.parametrize(
    "change",
    [
        {"seq_len": None}, {"hidden_dim": 66}, {"num_layers": 2.0}, {"num_heads": 0}, {"num_kv_heads": 3}, {"num_kv_heads": "2"},
        {"short_window": -1}, {"window_pattern": ""}, {"window_pattern": "SX"}, {"window_pattern": 3}, {"smear": None}, {"backout": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_gpt_config_whose_sizes_do_not_fit_is_not_computed(change: dict[str, Any]) -> None:
    stated = dataclasses.asdict(GptConfig(seq_len=48, hidden_dim=64, num_layers=4, num_heads=4))
    assert GPT.has_sizes(stated)
    assert not GPT.has_sizes(stated | change)


@pytest.mark.parametrize("config_class", [LlamaConfig, GptConfig])
def test_models_are_known_by_the_class_that_run_json_names(config_class: type) -> None:
    known = model_of_class(f"{config_class.__module__}:{config_class.__qualname__}")
    assert known in (LLAMA, GPT)
    assert {field.name for field in dataclasses.fields(config_class)} <= known.keys
    assert model_of_class("__main__:LlamaConfig") is None
    assert model_of_class(None) is None


@pytest.mark.parametrize("path", sorted(SPEEDRUNS.glob("*/speedrun_results.json")), ids=lambda path: path.parent.name)
def test_results_in_the_repository_have_figures_that_were_all_computed_again(path: pathlib.Path) -> None:
    for info in load_results(str(path)):
        findings = check(info)
        open_fields = [finding.field for finding in findings if finding.severity != "note"]
        # A model of an experiment's own is built by its code alone, so its size is all that stays open.
        own_model = path.parent.name == "cpu_ngram_gpt"
        assert open_fields == (["model_size"] if own_model else [])
        assert status(findings) == ("claimed" if own_model else "arithmetic checked")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"total_tokens": 51_201}, "total_tokens"),
        ({"model_flops": 1e12}, "model_flops"),
        ({"training_hardware_flops": 0}, "training_hardware_flops"),
        ({"training_hardware_flops": -1.0}, "training_hardware_flops"),
        ({"training_hardware_flops": 2 * SECONDS * A100}, "training_hardware_flops"),
        ({"training_time": -20.0}, "training_time"),
        ({"num_chips": 4}, "num_chips"),
        ({"device_flops": 71e12}, "device_flops"),
        ({"resources": {"accelerator_type": "RTX 3090", "gpu_count": 1}}, "device_flops"),
        ({"mfu": 0.5}, "mfu"),
        ({"training_time": 1e-7, "training_hardware_flops": 1e-7 * A100}, "training_time"),
        ({"eval/paloma/c4_en/bpb": 0.0}, "eval/paloma/c4_en/bpb"),
        ({"num_train_steps": 51}, "num_train_steps"),
        ({"compile_time": -1.0}, "compile_time"),
        ({"evaluation": {"name": "x", "bits_per_byte": 1.0, "bytes": 0}}, "evaluation.bytes"),
        ({"run_completion_timestamp": "yesterday"}, "run_completion_timestamp"),
        ({"author": {"name": "__SUBMISSION_AUTHOR_NAME__", "affiliation": "x"}}, "author.name"),
        ({"description": "__SUBMISSION_DESCRIPTION__ (130m)"}, "description"),
        ({"author": {"name": " ", "affiliation": "x"}}, "author.name"),
        ({"author": {"name": "(none given)", "affiliation": "x"}}, "author.name"),
    ],
)
def test_check_of_one_changed_figure_names_its_field(changes: dict[str, Any], field: str) -> None:
    assert field in _errors(**changes)


def test_check_of_a_wrong_product_gives_the_corrected_value() -> None:
    assert _errors(training_hardware_flops=2 * SECONDS * A100) == {
        "training_hardware_flops": pytest.approx(SECONDS * A100)
    }


def test_check_of_tpu_cores_counted_as_chips_says_so() -> None:
    seconds, peak = 20.0, 459e12
    run = run_info(
        resources={"tpu_type": "v5p-32", "slice_count": 1}, num_chips=None, num_devices=32, device_flops=None,
        training_hardware_flops=seconds * 32 * peak,
    )  # fmt: skip
    (finding,) = [finding for finding in check(run) if finding.severity == "error"]
    assert "cores were counted as chips" in finding.message
    assert finding.corrected == pytest.approx(seconds * 16 * peak)


@pytest.mark.parametrize(
    "resources",
    [
        {"cpu": 1, "device": {"kind": "gpu", "variant": "A100", "count": 1}, "replicas": 1},
        {"accelerator_type": "A100-80G", "gpu_count": 1},
    ],
)
def test_check_reads_every_spelling_of_resources(resources: dict[str, Any]) -> None:
    assert _problems(resources=resources) == []


def test_check_of_an_auto_gpu_takes_the_stated_name_or_warns() -> None:
    auto = {"accelerator_type": "auto", "gpu_count": 1}
    assert _problems(resources=auto, device_name="A100-80G") == []
    assert "device_flops" in _errors(resources=auto)


def test_check_of_a_processor_takes_the_measured_peak_as_stated() -> None:
    found = check(run_info(
        resources={"num_cpus": 2}, platform="cpu", device_flops=1e11, training_hardware_flops=SECONDS * 1e11,
        training_time=SECONDS,
    ))  # fmt: skip
    assert {finding.severity for finding in found} == {"note"}


_ON_CPU = {"resources": {"num_cpus": 2}, "device_flops": 1e11, "training_hardware_flops": SECONDS * 1e11}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        # The peak is the same, the memory is 1.4 times as fast, and a track is of H100 alone.
        ({"device_name": "NVIDIA H200", "accelerator": "H100", "peak": 989.5e12}, "device_name is H200, the resources say H100"),
        ({"device_name": "Tesla T4", "accelerator": "V100", "peak": 112e12}, "device_name is T4, the resources say V100"),
        # An A100's two memories are one device to the cost, as a name without a size is.
        ({"device_name": "NVIDIA A100-SXM4-80GB", "accelerator": "A100", "peak": A100}, None),
    ],
)  # fmt: skip
def test_device_that_was_found_must_be_the_one_that_is_counted(changes: dict[str, Any], told: str | None) -> None:
    resources = {"accelerator_type": changes["accelerator"], "gpu_count": 1}
    if changes["accelerator"] == "V100":
        resources["device_flops_override"] = changes["peak"]
    found = check(run_info(
        resources=resources, device_name=changes["device_name"], device_flops=changes["peak"],
        training_hardware_flops=SECONDS * changes["peak"],
    ))  # fmt: skip
    errors = [finding.message for finding in found if finding.severity == "error"]
    assert errors == ([] if told is None else [told])


def test_accelerator_is_no_processor_whatever_the_resources_say() -> None:
    assert not [finding for finding in check(run_info(**_ON_CPU, device_name="cpu")) if finding.severity == "error"]
    assert "device_name" in _errors(**_ON_CPU, device_name="NVIDIA H100 80GB HBM3")


@pytest.mark.parametrize(("name", "cheap", "right"), [("V100", 14e12, 112e12), ("T4", 8.1e12, 65e12)])
def test_gpu_without_bfloat16_costs_its_matrix_units_and_not_its_float32(name: str, cheap: float, right: float) -> None:
    def errors(peak: float) -> dict[str, float | None]:
        resources = {"accelerator_type": name, "gpu_count": 1, "device_flops_override": peak}
        return _errors(resources=resources, device_flops=peak, training_hardware_flops=SECONDS * peak)

    assert errors(right) == {}
    assert errors(cheap) == {"device_flops": right}


def test_check_of_an_unknown_architecture_is_unchecked_not_consistent() -> None:
    found = check(run_info(model_config={"max_seq_len": 128, "num_experts": 8}))
    assert status(found) == "claimed"
    assert status(check(run_info(model_size=run_json()["model_size"] + 1))) == "claimed"


def test_check_of_missing_figures_claims_nothing() -> None:
    run = run_json()
    for key in ("training_hardware_flops", "model_config", "train_config", "resources", "total_tokens"):
        run[key] = None
    found = check(parse_results(run, "x")[0])
    assert status(found) == "claimed"
    assert not [finding for finding in found if finding.severity == "error"]


def test_check_of_counted_flops_that_disagree_warns() -> None:
    found = check(run_info(counted_flops_per_token=2 * run_json()["model_flops_per_token"]))
    assert [finding.field for finding in found if finding.severity == "warning"] == ["model_flops_per_token"]


_ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**39), 10**39), st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=6), st.sampled_from(["v5p-32", "v5p-3", "auto", "9" * 5000, "v5p-" + "9" * 5000]),
    st.lists(st.integers(), max_size=2),
)  # fmt: skip
_PLACES = [(key,) for key in run_json()] + [
    (key, inner) for key in ("author", "model_config", "train_config", "resources") for inner in run_json()[key]
] + [("resources", "tpu_type"), ("resources", "device"), ("counted_flops_per_token",), ("mfu",)]  # fmt: skip


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(_PLACES), _ODD), min_size=1, max_size=4))
def test_check_of_any_readable_file_never_raises(changes: list[tuple[tuple[str, ...], Any]]) -> None:
    run = copy.deepcopy(run_json())
    for place, value in changes:
        target = run if len(place) == 1 else run[place[0]]
        if isinstance(target, dict):
            target[place[-1]] = value
    try:
        infos = parse_results(run, "x")
    except ResultsError:
        return
    assert all(finding.message for finding in check(infos[0]))


def _shared_results() -> pathlib.Path:
    root = pathlib.Path(os.environ.get("MARIN_SHARED_DATA", pathlib.Path(__file__).parents[3] / "shared" / "data"))
    if not (root / "leaderboard").is_dir():
        pytest.skip("the shared data with real results files is not here (set MARIN_SHARED_DATA)")
    return root / "leaderboard" / "results"


def test_check_of_real_files_flags_the_two_known_bad_ones_and_no_other() -> None:
    root = _shared_results()
    found = {
        path.parent.relative_to(root).as_posix(): check(load_results(path)[0])
        for path in sorted(root.rglob("speedrun_results.json"))
    }
    bad = {name for name, findings in found.items() if status(findings) == "does not add up"}
    assert len(found) == 5
    assert bad == {"llama_50m_gpu", "adamw_llama_scaling/130m"}
    assert any("184.5%" in finding.message for finding in found["llama_50m_gpu"])
    assert all(status(found[name]) == "arithmetic checked" for name in set(found) - bad)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2025-06-28 17:29:21 UTC", (2025, 6, 28, 17, 29, 21)),
        ("2025-6-8 1:2:3 UTC", (2025, 6, 8, 1, 2, 3)),
        ("2025-02-30 00:00:00 UTC", None),
        ("2025-06-28 24:00:00 UTC", None),
        ("2025-06-28 17:29:60 UTC", None),
        ("0000-06-28 17:29:21 UTC", None),
        ("2025-06-28 17:29:21", None),
        ("2025-06-28T17:29:21 UTC", None),
        ("", None),
        (None, None),
    ],
)
def test_parse_timestamp_takes_the_schemas_form_alone(text, expected):
    found = parse_timestamp(text)
    assert found == (expected and datetime.datetime(*expected, tzinfo=datetime.UTC))
