"""The contest's front door: what a submission imports.

`default_speedrun` turns a `SpeedrunConfig` into executor steps: everything that the dataset needs, training, evaluation,
and `speedrun_results.json`.
"""

import os
import reprlib
from collections.abc import Collection, Sequence

from marin.errors import ConfigError
from marin.execution.step import ExecutorStep, InputName, this_output_path
from marin.speedrun.config import Author, HardwareConfig, SpeedrunConfig
from marin.speedrun.run_results import SubmissionInfo
from marin.speedrun.steps import (
    EvaluateConfig,
    ResultsConfig,
    SpeedrunTrainConfig,
    evaluate_speedrun,
    train_speedrun,
    write_speedrun_results,
)
from marin.training.config import SPEEDRUN_DATA_SEED, SPEEDRUN_STEPS_PER_EVAL, TrainLmConfig
from marin.training.config_json import config_to_json

__all__ = ["Author", "HardwareConfig", "SpeedrunConfig", "chosen_names", "chosen_seeds", "default_speedrun"]

# W&B cuts run names here; so do we, everywhere, that one name means one run.
_MAX_NAME = 64


def default_speedrun(
    name: str,
    config: SpeedrunConfig,
    tags: Sequence[str] = (),
    override_output_path: str | None = None,
) -> list[ExecutorStep]:
    """The steps of a speedrun, in order: training, evaluation, results. Steps of its dataset come along by themselves.

    Args:
        name: of the run; its output is `checkpoints/speedrun/{name}-{8 hex}` below the prefix.
        tags: labels for trackers, next to "speedrun".
        override_output_path: of the training step.
    Raises:
        ConfigError: an argument is of a wrong type, as where two have changed places.
    """
    _check_arguments(name, config, tags, override_output_path)
    dataset = config.dataset
    train_config = config.train_config.replace(
        data_seed=SPEEDRUN_DATA_SEED if config.train_config.data_seed is None else config.train_config.data_seed,
        steps_per_eval=config.train_config.steps_per_eval or SPEEDRUN_STEPS_PER_EVAL,
    )
    name = name[:_MAX_NAME]
    train = TrainLmConfig(
        model=config.model_config,
        train=train_config,
        data=dataset.cache,
        tokenizer=dataset.tokenizer,
        vocab_size=dataset.vocab_size,
        output_path=this_output_path(),
        run_name=name,
        tags=("speedrun", *tags),
    )
    train_step = ExecutorStep(
        name=f"checkpoints/speedrun/{name}",
        fn=train_speedrun,
        config=SpeedrunTrainConfig(
            train,
            dataset.evaluation_set,
            dataset.evaluation_documents,
            run_info=config.run_info,
            check=config.check_before_run,
        ),
        description=config.description,
        override_output_path=override_output_path,
        resources=config.resources,
    )
    evaluate_step = ExecutorStep(
        name=f"evaluation/speedrun/{name}",
        fn=evaluate_speedrun,
        config=EvaluateConfig(
            run=train_step,
            model=config.model_config,
            vocab_size=dataset.vocab_size,
            tokenizer=dataset.tokenizer,
            evaluation_set=dataset.evaluation_set,
            evaluation_documents=dataset.evaluation_documents,
            ema=train_config.ema_beta is not None,
            batch_size=train_config.per_device_eval_parallelism,
        ),
        description=f"bits per byte of {name}",
        resources=config.resources,
    )
    submission = SubmissionInfo(
        author=config_to_json(config.author),
        description=config.description,
        model_flops_per_token=config.flops_per_token,
        counted_flops_per_token=config.counted_flops.flops,
    )
    results_step = ExecutorStep(
        name=f"speedrun/{name}-speedrun_results",
        fn=write_speedrun_results,
        config=ResultsConfig(
            run=train_step,
            evaluation=evaluate_step,
            submission=submission,
            tokenized_dataset=dataset.cache,
            prefix=InputName.hardcoded(""),
        ),
        description=f"results of {name}",
    )
    return [train_step, evaluate_step, results_step]


def _check_arguments(name: object, config: object, tags: object, override_output_path: object) -> None:
    called = 'default_speedrun("my_run", SpeedrunConfig(...))'
    if not isinstance(name, str):
        raise ConfigError(f"`name` of default_speedrun is {_shown(name)}: use a string, as in {called}")
    if not isinstance(config, SpeedrunConfig):
        raise ConfigError(f"`config` of default_speedrun is {_shown(config)}: use a SpeedrunConfig, as in {called}")
    if not isinstance(tags, list | tuple) or not all(isinstance(tag, str) for tag in tags):
        raise ConfigError(f"`tags` of default_speedrun is {_shown(tags)}: use a list of strings, such as ['idea']")
    if override_output_path is not None and not isinstance(override_output_path, str):
        raise ConfigError(
            f"`override_output_path` of default_speedrun is {_shown(override_output_path)}: use a path as a string, or leave it out"
        )


def _shown(value: object) -> str:
    """A value of builtin types as it is written, any other by its type: configs are pages long."""
    kind = type(value)
    return reprlib.repr(value) if kind.__module__ == "builtins" and kind is not type else f"a {kind.__name__}"


def chosen_names(variable: str, default: str, known: Collection[str]) -> list[str]:
    """The names that an environment variable lists, separated by commas.

    Raises:
        ConfigError: one of them is not known, or there is none.
    """
    names = [name.strip() for name in os.environ.get(variable, default).split(",")]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(
            f"`{variable}` names {unknown[0]!r}: use one or more of {', '.join(known)}, separated by commas"
        )
    return names


def chosen_seeds(variable: str, default: str) -> list[int]:
    """The seeds that an environment variable lists, separated by commas.

    Raises:
        ConfigError: one of them is no seed, or there is none.
    """
    text = os.environ.get(variable, default)
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"`{variable}` is {text!r}: use whole numbers, separated by commas, as in 0,1,2")
    return [int(part) for part in parts]


def chosen_switch(variable: str) -> bool:
    """Whether an environment variable is "1"; "0", empty and not set are no.

    Raises:
        ConfigError: it is anything else, such as "true", which would pass for no.
    """
    text = os.environ.get(variable, "")
    if text not in ("", "0", "1"):
        raise ConfigError(f"`{variable}` is {text!r}: set it to 1 or 0, or leave it unset")
    return text == "1"
