"""Bad input: one message that says what, where and what next; status 2; no traceback; nothing lost, nothing half done."""

import dataclasses
import importlib.metadata
import json
import math
from pathlib import Path
from typing import Any

import pytest

from experiments.llama import llama_nano
from experiments.python_docs import python_docs_tokenized
from marin.data.corpora.python_docs import PACKAGES, extract_python_docs
from marin.errors import ConfigError, CorpusError, HardwareError
from marin.models.gpt import GptConfig
from marin.optim import AdamConfig, MuonConfig
from marin.resources import CpuOnlyConfig, GpuConfig, TpuPodConfig
from marin.speedrun.speedrun import Author, HardwareConfig, SpeedrunConfig, default_speedrun
from marin.training import SimpleTrainConfig, WatchConfig


def _assert_refused(done: Any, *said: str) -> None:
    """Status 2 and one error, in which each of `said` stands."""
    assert done.status == 2, done.out + done.err
    assert "Traceback" not in done.out + done.err
    assert done.err.count("error: ") == 1
    assert done.err.startswith("error: ")
    flat = " ".join(done.err.split())
    assert [text for text in said if text not in flat] == []


# --- the command line ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--dry_rum", "true"], ["--dry_rum", "--help lists the flags"]),
        (["--dry_run", "maybe"], ["--dry_run", "'maybe' is neither true nor false"]),
        (["--force_run_failed", "2"], ["--force_run_failed", "'2' is neither true nor false"]),
        (["--prefix", " "], ["`--prefix` is blank"]),
    ],
)
def test_wrong_flag_is_refused(flags: list[str], said: list[str], shell: Any) -> None:
    script = "from marin.execution import executor_main; executor_main(steps=[])"
    _assert_refused(shell.run("-c", script, *flags), *said)


@pytest.mark.parametrize("flags", [[], ["--dry_run", "true"], ["--check", "true"]], ids=" ".join)
@pytest.mark.parametrize("steps", ["[]", "()"])
def test_experiment_without_steps_is_told_that_there_is_nothing_to_run(
    steps: str, flags: list[str], shell: Any, tmp_path: Path
) -> None:
    script = f"from marin.execution import executor_main; executor_main(steps={steps})"
    done = shell.run("-c", script, "--prefix", str(tmp_path / "store"), *flags)
    _assert_refused(done, "there is nothing to run: `steps` is empty", "executor_main(steps=[step])")
    assert done.out == ""
    assert not (tmp_path / "store").exists()


def test_prefix_with_a_file_in_the_way_is_refused(shell: Any, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    done = shell.run("-m", "experiments.speedrun.hello_world.main", "--prefix", str(file / "store"))
    _assert_refused(done, str(file / "store"), "choose another --prefix")
    assert file.read_text() == "mine"
    assert "RUN " not in done.out


# --- configs in a file that a person runs -------------------------------------------------------------------------


UNKNOWN_DEVICE = """
from marin.execution import executor_main
from marin.resources import GpuConfig
RESOURCES = GpuConfig(1, "B9000")
"""


def test_file_whose_config_is_wrong_is_refused_without_a_traceback(shell: Any, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(UNKNOWN_DEVICE + "executor_main(steps=[])\n")
    done = shell.run(str(tmp_path / "main.py"), "--dry_run", "true")
    _assert_refused(done, "unknown device 'B9000'", "B200", "`device_flops_override`")


def test_placeholder_author_is_refused_before_anything_runs(shell: Any, tmp_path: Path) -> None:
    template = "experiments.hackable_transformer_starter_template"
    done = shell.run("-m", template, "--prefix", str(tmp_path / "store"))
    _assert_refused(done, "`author.name` is still the placeholder __SUBMISSION_AUTHOR_NAME__", "`marin init NAME`")
    assert not list(tmp_path.glob("store/*"))


def test_gpus_that_the_machine_does_not_have_are_refused_before_anything_runs(create_miniature: Any) -> None:
    resources = '__import__("marin.resources").resources.GpuConfig(64, "A100-80G")'
    miniature = create_miniature(RESOURCES=resources, BATCH_SIZE="64")
    _assert_refused(miniature.run(), "asks for 64 GPU(s) (A100-80G)", "--dry_run true")
    assert not list(miniature.store.glob("*"))


def test_loss_that_is_not_finite_stops_the_run_and_names_the_step(create_miniature: Any) -> None:
    miniature = create_miniature(LEARNING_RATE="1e30")
    done = miniature.run()
    steps = miniature.events("step")
    bad = [step["step"] for step in steps if "nan" in (step["loss"], step["grad_norm"]) or "inf" in (step["loss"], step["grad_norm"])]  # fmt: skip
    assert bad[:1] == [step["step"] for step in steps[-1:]]
    _assert_refused(done, f"at step {bad[0]} the loss is", "lower the learning rate", "`skip_bad_steps=True`")
    assert not list(miniature.store.glob("speedrun_results.json"))
    kept = [path.name for path in miniature.run_directory.glob("checkpoints/step-*")]
    assert kept == [f"step-{bad[0]:08d}"]  # the state before the step whose update was refused


# --- configs, field by field --------------------------------------------------------------------------------------


def _train_config(**changes: Any) -> SimpleTrainConfig:
    fields = {"train_batch_size": 4, "num_train_steps": 30, "learning_rate": 0.01, "resources": CpuOnlyConfig()}
    return SimpleTrainConfig(**(fields | changes))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("train_batch_size", "4"), ("train_batch_size", 4.0), ("train_batch_size", True), ("train_batch_size", 0),
        ("num_train_steps", 1e4), ("num_train_steps", None), ("learning_rate", "1e-3"), ("learning_rate", 0),
        ("learning_rate", math.nan), ("learning_rate", math.inf), ("learning_rate", [1]), ("resources", None),
        ("resources", "A100"), ("data_seed", -1), ("data_seed", 1.5), ("seed", "x"), ("seed", None), ("seed", 2**32), ("num_train_steps", 2**31),
        ("weight_decay", "0.1"), ("weight_decay", -1), ("beta1", "x"), ("beta1", 1.5), ("beta2", 2),
        ("epsilon", "a"), ("epsilon", -1), ("max_grad_norm", "x"), ("max_grad_norm", -1), ("warmup", "many"),
        ("warmup", -1), ("decay", "x"), ("decay", -0.5), ("rewarmup", "x"), ("lr_schedule", "cosin"),
        ("lr_schedule", 3), ("min_lr_ratio", "x"), ("min_lr_ratio", 2), ("cycle_length", "x"), ("cycle_length", 0),
        ("z_loss_weight", "x"), ("z_loss_weight", -1), ("ema_beta", 2), ("skip_bad_steps", "yes"),
        ("steps_per_eval", 0), ("steps_per_eval", "x"), ("steps_per_export", None), ("steps_per_export", 0),
        ("per_device_eval_parallelism", -1), ("max_eval_batches", "x"), ("initialize_from_checkpoint_path", 3),
        ("initialize_from_hf", 3), ("initialize_from_hf", ""), ("steps_per_hf_export", 0), ("steps_per_hf_export", "x"),
        ("reset_data_loader_on_init", None), ("allow_partial_checkpoint", True), ("optimizer_config", {"lr": 1}),
        ("watch", None), ("watch", {"interval": 3}), ("profiler", "x"), ("profiler_start_step", -1),
        ("profiler_num_steps", 0), ("train_seq_len", 0), ("train_seq_len", 1.5), ("precision", "fp8"), ("checkpoint_interval", 0), ("checkpoint_interval", "x"),
        ("checkpoint_interval", float("nan")), ("z_loss_weight", float("nan")), ("ema_beta", float("nan")),
    ],
)  # fmt: skip
def test_train_config_field_of_a_wrong_type_or_value_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        _train_config(**{field: value})
    assert f"`{field}`" in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"resources": GpuConfig(3, "A100")},
            "`train_batch_size` is 4, which 3 devices cannot divide: use a multiple of 3",
        ),
        (
            {"reset_data_loader_on_init": False},
            "`reset_data_loader_on_init` is False without `initialize_from_checkpoint_path` or `initialize_from_hf`: set",
        ),
        ({"steps_per_task_eval": 100}, "`steps_per_task_eval` is set without `task_eval_names`: name the tasks"),
        ({"task_eval_names": "piqa"}, "`task_eval_names` is 'piqa': use a list of names, such as ['piqa']"),
        ({"task_eval_names": None}, "`task_eval_names` is None: use a list of names, such as ['piqa']"),
        ({"task_eval_names": 3}, "`task_eval_names` is 3: use a list of names, such as ['piqa']"),
        ({"task_eval_names": ["piqa", " "]}, "`task_eval_names` is ['piqa', ' ']: use a list of names"),
        (
            {"initialize_from_hf": "a/b", "initialize_from_checkpoint_path": "c"},
            "`initialize_from_checkpoint_path` and `initialize_from_hf` are both set",
        ),
    ],
)
def test_train_config_value_that_the_engine_cannot_honour_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        _train_config(**changes)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"learning_rate": 0.02}, "learning_rate"),
        ({"weight_decay": 0.2}, "weight_decay"),
        ({"beta1": 0.5}, "beta1"),
        ({"lr_schedule": "linear"}, "lr_schedule"),
        ({"max_grad_norm": 2.0}, "max_grad_norm"),
    ],
)
def test_train_config_that_contradicts_its_optimizer_is_refused_with_both_values(
    changes: dict[str, Any], field: str
) -> None:
    optimizer = AdamConfig(learning_rate=0.01, weight_decay=0.1)
    with pytest.raises(ConfigError) as refused:
        _train_config(optimizer_config=optimizer, **changes)
    message = str(refused.value)
    assert f"`{field}` is {changes[field]}" in message
    assert f"`optimizer_config.{field}` is {getattr(optimizer, field)}" in message
    agreeing = _train_config(optimizer_config=optimizer, weight_decay=0.1)
    assert agreeing.build_optimizer() == optimizer


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("author", "Ada"), ("author", {"name": "Ada"}), ("description", None), ("model_config", {"hidden_dim": 32}),
        ("model_config", llama_nano.build), ("train_config", {"learning_rate": 0.1}), ("train_config", None),
        ("tokenized_dataset", "tokenized/fineweb-edu"), ("tokenized_dataset", None), ("hardware_config", {"num": 1}),
    ],
)  # fmt: skip
def test_speedrun_config_field_of_a_wrong_type_is_refused_by_name(field: str, value: Any) -> None:
    fields: dict[str, Any] = {
        "author": Author("Ada", "Independent"),
        "description": "A test.",
        "model_config": llama_nano,
        "train_config": _train_config(),
        "tokenized_dataset": python_docs_tokenized,
    }
    with pytest.raises(ConfigError) as refused:
        SpeedrunConfig(**(fields | {field: value}))
    assert f"`{field}`" in str(refused.value)


def test_author_whose_page_is_no_web_address_is_told_before_anything_is_trained() -> None:
    config = SpeedrunConfig(
        author=Author("Ada", "Independent", url="example.org/ada"),
        description="A test.",
        model_config=llama_nano,
        train_config=_train_config(),
        tokenized_dataset=python_docs_tokenized,
    )
    with pytest.raises(ConfigError, match="`author.url` 'example.org/ada' .* write https://example.org/ada, or None"):
        config.check_before_run()
    config = dataclasses.replace(config, author=Author("Ada", "Independent", url="https://example.org/ada"))
    config.check_before_run()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (lambda config: (config, "mine"), "`name` of default_speedrun is a SpeedrunConfig: use a string"),
        (lambda config: (None, config), "`name` of default_speedrun is None: use a string"),
        (lambda config: ("mine", "other"), "`config` of default_speedrun is 'other': use a SpeedrunConfig"),
        (lambda config: ("mine", config.train_config), "`config` of default_speedrun is a SimpleTrainConfig: use a"),
        (lambda config: ("mine", config, "idea"), "`tags` of default_speedrun is 'idea': use a list of strings"),
        (lambda config: ("mine", config, None), "`tags` of default_speedrun is None: use a list of strings"),
        (lambda config: ("mine", config, [3]), "`tags` of default_speedrun is [3]: use a list of strings"),
        (
            lambda config: ("mine", config, (), Path("there")),
            "`override_output_path` of default_speedrun is a PosixPath",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_default_speedrun_with_arguments_of_wrong_types_names_the_argument(arguments: Any, said: str) -> None:
    config = SpeedrunConfig(
        model_config=llama_nano, train_config=_train_config(), tokenized_dataset=python_docs_tokenized
    )
    with pytest.raises(ConfigError) as refused:
        default_speedrun(*arguments(config))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: GpuConfig(0, "A100"), "`GpuConfig.gpu_count` is 0"),
        (lambda: GpuConfig("1", "A100"), "`GpuConfig.gpu_count` is '1'"),
        (lambda: TpuPodConfig("v4"), "`TpuPodConfig.tpu_type` is 'v4'"),
        (lambda: CpuOnlyConfig(num_cpus=2.5), "`CpuOnlyConfig.num_cpus` is 2.5"),
        (lambda: Author("", "Independent"), "`author.name` is ''"),
        (lambda: HardwareConfig("v4-128", 0, 275e12), "`hardware_config.num_devices` is 0"),
        (lambda: WatchConfig(interval=0), "`watch.interval` is 0"),
        (lambda: WatchConfig(watch_targets=["weights"]), "`watch.watch_targets` names ['weights']"),
        (lambda: WatchConfig(watch_targets="grads"), "`watch.watch_targets` is 'grads': use a list"),
        (lambda: WatchConfig(include_histograms="no"), "`watch.include_histograms` is 'no': use True or False"),
        (lambda: WatchConfig(interval=True), "`watch.interval` is True"),
        (lambda: MuonConfig(learning_rate=0.02, nesterov="no"), "config field `nesterov` is 'no': use True or False"),
        (lambda: GptConfig(smear=1), "`smear` is 1: use True or False"),
    ],
)
def test_small_config_with_a_wrong_value_is_refused_by_name(make: Any, said: str) -> None:
    with pytest.raises((ConfigError, HardwareError)) as refused:
        make()
    assert said in str(refused.value)


def test_hardware_that_contradicts_the_resources_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"`hardware_config.num_devices` is 8.*make them agree"):
        SpeedrunConfig(
            model_config=llama_nano,
            train_config=_train_config(resources=TpuPodConfig("v4-128"), train_batch_size=512),
            tokenized_dataset=python_docs_tokenized,
            hardware_config=HardwareConfig("v4-128", 8, 275e12),
        )


# --- files and packages -------------------------------------------------------------------------------------------


def test_leaderboard_lists_unreadable_results_beside_the_whole_one(finished: Any, shell: Any, tmp_path: Path) -> None:
    whole = (finished.miniature.store / "speedrun_results.json").read_text()
    damaged = {
        "cut": whole[: len(whole) // 2],
        "nan": whole.replace('"mfu": ', '"mfu": NaN, "was": ', 1),
        "empty": "",
        "list": "[]",
        "type": json.dumps({"runs": [{"run_info": {**finished.miniature.results(), "model_size": "large"}}]}),
    }
    for name, text in {"whole": whole, **damaged}.items():
        (tmp_path / "results" / name).mkdir(parents=True)
        (tmp_path / "results" / name / "speedrun_results.json").write_text(text)
    page = tmp_path / "page"
    done = shell.run("-m", "marin", "leaderboard", "--results-dir", str(tmp_path / "results"), "--output", str(page))
    assert (done.status, done.err) == (0, "")
    assert "1 run on Other runs: miniature/heldout" in done.out
    assert "5 could not be read: listed in unreadable.html with the reasons" in done.out
    html = (page / "index.html").read_text()
    assert [name for name in damaged if f"{name}/speedrun_results.json" not in html] == []
    assert "Ada Example" in html
    assert (tmp_path / "results" / "cut" / "speedrun_results.json").read_text() == damaged["cut"]


def test_leaderboard_of_a_directory_that_is_not_there_is_refused(shell: Any, tmp_path: Path) -> None:
    done = shell.run("-m", "marin", "leaderboard", "--results-dir", str(tmp_path / "no"), "--output", str(tmp_path))
    _assert_refused(done, str(tmp_path / "no"))


def test_corpus_without_its_packages_names_the_next_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> importlib.metadata.Distribution:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    with pytest.raises(CorpusError) as refused:
        extract_python_docs()
    first = PACKAGES[0]
    assert f"needs the package {first.name}=={first.version}, which is not installed" in str(refused.value)
    assert "run `make venv`" in str(refused.value)
