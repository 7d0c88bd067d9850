"""What is part of a training run's identity and what is placement, field by field, for a real run.

A field that is added to one of these configs must be put into one of the two tables: does a change of it change what the
run makes (IDENTITY), or only where, how fast or how well documented it is made (PLACEMENT)? The second kind is declared
with `placement()` in the config, or is a `Resources` value.
"""

import copy
import dataclasses
import enum
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from experiments.speedrun.hello_world.main import speedrun_config
from marin.execution.fingerprint import identify
from marin.execution.graph import Graph
from marin.execution.step import ExecutorStep, InputName, OutputName, placement
from marin.nn.precision import Precision
from marin.optim import AdamConfig
from marin.resources import CpuOnlyConfig, GpuConfig, Resources, TpuPodConfig
from marin.site.leaderboard_step import leaderboard_step
from marin.speedrun.speedrun import default_speedrun

IDENTITY = {
    "PythonDocsConfig": "output_path digest",
    "TrainTokenizerConfig": "documents vocab_size output_path special_tokens split_pattern max_bytes",
    "TokenizeConfig": "documents tokenizer output_path",
    "SpeedrunTrainConfig": "train evaluation_set evaluation_documents",
    "TrainLmConfig": "model train data tokenizer vocab_size output_path",
    "LlamaConfig": (
        "cross_entropy_block_size seq_len hidden_dim intermediate_dim num_layers num_heads num_kv_heads "
        "head_dim activation_function use_bias use_layer_norm_weight layer_norm_epsilon tie_word_embeddings "
        "input_embedding_norm use_attention_sink upcast_attn attn_backend flash_attention_block_size rope "
        "qk_norm gradient_checkpointing initializer_range reference_checkpoint tokenizer"
    ),
    "RotaryConfig": "theta factor",
    "RmsNormConfig": "epsilon use_weight",
    "Precision": "compute products",
    "SimpleTrainConfig": (
        "train_batch_size num_train_steps learning_rate data_seed weight_decay beta1 beta2 epsilon "
        "max_grad_norm warmup decay rewarmup lr_schedule min_lr_ratio cycle_length z_loss_weight ema_beta "
        "skip_bad_steps steps_per_eval steps_per_export steps_per_task_eval steps_per_hf_export "
        "per_device_eval_parallelism max_eval_batches initialize_from_checkpoint_path initialize_from_hf initialize_optimizer "
        "reset_data_loader_on_init allow_partial_checkpoint int8 optimizer_config watch profiler "
        "profiler_start_step profiler_num_steps precision seed budget task_eval_names train_seq_len"
    ),
    "MuonConfig": (
        "learning_rate weight_decay min_lr_ratio warmup decay rewarmup weight_decay_modules "
        "default_weight_decay_mask lr_schedule cycles cycle_length lr adam_lr momentum nesterov backend_steps "
        "adam_weight_decay beta1 beta2 epsilon muon_epsilon max_grad_norm use_kimi_scaling"
    ),
    "WatchConfig": (
        "watch_targets include_norms include_per_parameter_norms include_histograms split_scan_layers interval"
    ),
    "EvaluateConfig": (
        "run model vocab_size tokenizer evaluation_set evaluation_documents ema batch_size "
        "num_bytes_compressed output_path"
    ),
    "ResultsConfig": "run evaluation submission tokenized_dataset prefix output_path",
    "SubmissionInfo": "author description model_flops_per_token counted_flops_per_token",
    "LeaderboardConfig": "results prefix output_path",
}
PLACEMENT = {
    "TokenizeConfig": "num_workers",
    "SimpleTrainConfig": "resources per_device_parallelism parallelism checkpoint_interval",
    "TrainLmConfig": "run_name tags",
    "SpeedrunTrainConfig": "run_info check",
    "LeaderboardConfig": "submissions",
}

STEPS = default_speedrun("hello_world", speedrun_config)
GRAPH = Graph([*STEPS, leaderboard_step(STEPS[-1])], "/prefix")
OTHER_STEP = ExecutorStep("another", default_speedrun, "config")


def is_config(value: object) -> bool:
    references = ExecutorStep | InputName | OutputName | Resources
    return dataclasses.is_dataclass(value) and not isinstance(value, type | references)


def fields_of(config: Any, rebuild: Callable[[Any], Any]) -> Iterator[tuple[str, Any, Callable[[Any], Any]]]:
    """Every field at any depth as `Class.field`, with its value and a function that gives the whole config with another."""
    if is_config(config):
        for field in dataclasses.fields(config):

            def replaced(value: Any, name: str = field.name) -> Any:
                # Around the constructor: some fields must agree with others, and here one changes at a time.
                changed = copy.copy(config)
                object.__setattr__(changed, name, value)
                return rebuild(changed)

            value = getattr(config, field.name)
            yield f"{type(config).__name__}.{field.name}", value, replaced
            yield from fields_of(value, replaced)
    elif isinstance(config, list | tuple):
        for index, item in enumerate(config):
            yield from fields_of(item, lambda new, index=index: rebuild([*config[:index], new, *config[index + 1 :]]))


# Where a value by type would say nothing of what people change the field to.
SPECIAL: dict[str, list[Any]] = {
    "SimpleTrainConfig.precision": [Precision("bf16"), Precision("f32", "int8"), None],
    "SimpleTrainConfig.resources": [CpuOnlyConfig(), CpuOnlyConfig(7), GpuConfig(), TpuPodConfig("v4-8"), None],
    "SimpleTrainConfig.optimizer_config": [AdamConfig(), None],
    "SimpleTrainConfig.learning_rate": [0.0160000001, 1, "0.016"],
    "SimpleTrainConfig.seed": [1, -1, False, 0.0, "0"],
}


def changed_values(place: str, value: Any) -> list[Any]:
    """Values of the same type where there are any, and others, none equal to `value`."""
    if place in SPECIAL:
        return SPECIAL[place]
    if isinstance(value, enum.Enum):
        return [other for other in type(value) if other is not value]
    if isinstance(value, bool):
        return [not value, int(value)]
    if isinstance(value, int):
        return [value + 1, float(value)]
    if isinstance(value, float):
        return [value * 2 + 1, -value]
    if isinstance(value, str):
        return [f"{value}x", ""] if value else ["x"]
    if isinstance(value, list | tuple):
        return [type(value)([*value, "x"]), [*value] if isinstance(value, tuple) else (*value,)]
    if isinstance(value, dict):
        return [{**value, "another": 1}, {}]
    if isinstance(value, ExecutorStep | InputName):
        return [OTHER_STEP, OTHER_STEP / "x", InputName.hardcoded("elsewhere")]
    if isinstance(value, OutputName):
        return [OutputName("below")]
    if value is None:
        return [1, "x", False]
    return [None, "x"]


def fingerprint(step: ExecutorStep) -> str:
    def of(other: ExecutorStep) -> str:
        return "another" if other is OTHER_STEP else GRAPH.node(other).fingerprint

    return identify(step, of).fingerprint


CHANGES = {
    f"{node.name}: {number} {place}": (node, place, value, replaced)
    for node in GRAPH.nodes
    for number, (place, value, replaced) in enumerate(fields_of(node.step.config, lambda config: config))
}


def listed(table: dict[str, str]) -> set[str]:
    return {f"{kind}.{field}" for kind, fields in table.items() for field in fields.split()}


def test_every_field_of_the_configs_is_in_exactly_one_of_the_two_tables() -> None:
    found = {place for _, place, _, _ in CHANGES.values()}
    assert found - listed(IDENTITY) - listed(PLACEMENT) == set(), "put these fields into IDENTITY or PLACEMENT"
    assert listed(IDENTITY) | listed(PLACEMENT) == found, "these fields are gone"
    assert listed(IDENTITY) & listed(PLACEMENT) == set()


@pytest.mark.parametrize("step", GRAPH.nodes, ids=lambda node: node.name)
def test_changing_one_field_changes_the_fingerprint_exactly_if_the_field_is_identity(step: Any) -> None:
    identity, placed = listed(IDENTITY), listed(PLACEMENT)
    wrong = []
    for node, place, value, replaced in CHANGES.values():
        if node is not step:
            continue
        for other in changed_values(place, value):
            after = fingerprint(dataclasses.replace(node.step, config=replaced(other)))
            if (after != node.fingerprint) != (place in identity) or (after == node.fingerprint) != (place in placed):
                wrong.append(f"{place}: {value!r} -> {other!r}")
    assert wrong == []


def test_a_changed_field_of_a_training_config_changes_what_reads_the_run() -> None:
    train, evaluate, results = STEPS
    changed = speedrun_config.train_config.replace(seed=1)
    moved = default_speedrun("hello_world", dataclasses.replace(speedrun_config, train_config=changed))
    after = Graph(moved, "/prefix")
    for old, new in zip((train, evaluate, results), moved, strict=True):
        assert GRAPH.node(old).fingerprint != after.node(new).fingerprint


def test_name_description_prefix_resources_and_pip_groups_are_no_part_of_the_identity() -> None:
    for step in STEPS:
        moved = dataclasses.replace(
            step,
            name="elsewhere/entirely",
            description="words",
            resources=TpuPodConfig("v5litepod-16"),
            pip_dependency_groups=["tpu", "extra"],
            override_output_path="another/path",
        )
        assert fingerprint(moved) == GRAPH.node(step).fingerprint
    for prefix in ("/elsewhere", "gs://bucket/marin-us-central2", "gs://bucket/marin-eu-west4"):
        graph = Graph(STEPS, prefix)
        assert [graph.node(step).fingerprint for step in STEPS] == [GRAPH.node(step).fingerprint for step in STEPS]


@pytest.mark.parametrize("resources", [CpuOnlyConfig(), CpuOnlyConfig(8), GpuConfig(), TpuPodConfig("v4-8")])
def test_a_speedrun_moved_to_other_resources_keeps_its_outputs(resources: Resources) -> None:
    train_config = speedrun_config.train_config.replace(resources=resources)
    moved = default_speedrun("hello_world", dataclasses.replace(speedrun_config, train_config=train_config))
    graph = Graph(moved, "/prefix")
    assert [graph.node(new).output_path for new in moved] == [GRAPH.node(old).output_path for old in STEPS]


def test_a_renamed_speedrun_has_another_path_and_takes_up_the_earlier_run_where_it_is_given_its_path() -> None:
    train = GRAPH.node(STEPS[0])
    moved = default_speedrun("renamed", speedrun_config)
    assert Graph(moved, "/prefix").node(moved[0]).output_path == train.output_path.replace("hello_world", "renamed")
    earlier = train.output_path.removeprefix("/prefix/")
    moved = default_speedrun("renamed", speedrun_config, override_output_path=earlier)
    found = Graph(moved, "/prefix").node(moved[0])
    assert (found.output_path, found.fingerprint) == (train.output_path, train.fingerprint)


@dataclasses.dataclass(frozen=True)
class UsersConfig:
    rate: float = 0.1
    num_workers: int = placement(default=4)
    region: str = placement(default="us-central2")


def test_fields_that_users_declare_as_placement_never_change_the_fingerprint() -> None:
    step = ExecutorStep("s", default_speedrun, UsersConfig())
    for num_workers, region in ((1, "us-central2"), (64, "eu-west4")):
        assert fingerprint(dataclasses.replace(step, config=UsersConfig(0.1, num_workers, region))) == fingerprint(step)
    assert fingerprint(dataclasses.replace(step, config=UsersConfig(0.2))) != fingerprint(step)
