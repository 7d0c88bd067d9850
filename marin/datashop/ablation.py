"""The ablation: does a model trained on what was kept beat one trained on the pool, with as many tokens?

    ablation_step("rust", kept, pool, tokenizer=tokenizer, tokens=2_000_000, seeds=(0, 1, 2), eval_set=wanted_heldout)

For each seed two runs of the training engine, alike in model, optimizer, number of tokens, initial weights and order of
places, that differ in what they read: the documents that were kept, or the pool as it was. Both are scored in bits per
byte on the same documents. Runs are steps of their own, so they resume, and several machines can share them. What comes
out is the difference with its interval over seeds, by the t distribution of the paired differences; with one seed there
is a difference and no interval.

Nothing here imports JAX; `marin.datashop.ablation_run` does, when a run starts.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from marin.data.cache import TokenizeConfig, tokenize_step
from marin.errors import ConfigError, DataError
from marin.execution.step import ExecutorStep, Input, placement, this_output_path
from marin.resources import CpuOnlyConfig, Resources
from marin.storage import files

FILTERED, CONTROL = "filtered", "control"
ABLATION_FILE, EVALUATION_FILE = "ablation.json", "evaluation.json"


@dataclasses.dataclass(frozen=True)
class AblationModel:
    """What both arms train; the defaults are the smallest model whose bits per byte say something on two CPU cores.

    Args:
        model: an `LmConfig`; None for a Llama of the sizes below.
        sequences: rows a step.
        learning_rate: peak of Muon's rate; embeddings, head and norms take `adam_lr`.
    """

    model: Any = None
    seq_len: int = 256
    hidden_dim: int = 128
    num_layers: int = 2
    num_heads: int = 2
    sequences: int = 8
    learning_rate: float = 0.016
    adam_lr: float = 0.05
    optimizer: Any = None


@dataclasses.dataclass(frozen=True)
class AblationRunConfig:
    """One arm with one seed.

    Args:
        data: token caches by name, with their weights.
        eval_sets: documents to score, by name.
    """

    marin_resumable: ClassVar[bool] = True
    marin_together: ClassVar[bool] = True

    data: Mapping[str, Any]
    weights: Mapping[str, float]
    tokenizer: Any
    tokens: int
    seed: int
    eval_sets: Mapping[str, Any]
    recipe: AblationModel = AblationModel()
    resources: Resources = placement(default=CpuOnlyConfig())
    checkpoint_interval: float = placement(default=60.0)
    run_name: str = placement(default="ablation")
    output_path: str = this_output_path()


@dataclasses.dataclass(frozen=True)
class CompareArmsConfig:
    """What the comparison reads: the outputs of the runs, in the order of `seeds`."""

    filtered: tuple[Any, ...]
    control: tuple[Any, ...]
    seeds: tuple[int, ...]
    tokens: int
    confidence: float = 0.95
    output_path: str = this_output_path()


def ablation_step(
    name: str,
    kept: Input,
    pool: Input,
    *,
    tokenizer: Input,
    tokens: int,
    seeds: Sequence[int] = (0, 1, 2),
    eval_set: Input | Mapping[str, Input],
    kept_weight: float = 1.0,
    recipe: AblationModel | None = None,
    resources: Resources | None = None,
    confidence: float = 0.95,
) -> ExecutorStep:
    """The step `datashop/NAME/ablation`, which writes `ablation.json`; its runs come along as its dependencies.

    Args:
        kept, pool: document sets, or steps that make token caches of them with `tokenizer` (`tokenize_step`).
        tokenizer: a step that trains one, or where a `tokenizer.json` lies.
        tokens: that each arm is trained on, cut down to whole steps.
        seeds: of initial weights and of the order of the data; each is one pair of runs.
        eval_set: held-out documents, or several such sets by name, of which the first is the headline.
        kept_weight: the share of the filtered arm's tokens that comes from `kept`; the rest comes from the pool, as when a
            published recipe anneals on 70 % web text and 30 % candidate.
        recipe: the model and its optimizer.
        resources: what each run trains on; None for this machine's processor.
        confidence: of the intervals, as a share.
    Raises:
        ConfigError: the arms would have nothing to train on, or seeds are missing or repeated.
    """
    seeds, recipe = tuple(seeds), recipe or AblationModel()
    if not seeds or len(set(seeds)) != len(seeds):
        raise ConfigError(
            f"`seeds` of the ablation are {seeds}: give different whole numbers, at least one, better three"
        )
    if not 0 < kept_weight <= 1:
        raise ConfigError(f"`kept_weight` is {kept_weight!r}: use a share above 0 and at most 1")
    if not 0 < confidence < 1:
        raise ConfigError(f"`confidence` is {confidence!r}: use a share between 0 and 1, such as 0.95")
    eval_sets = dict(eval_set) if isinstance(eval_set, Mapping) else {"heldout": eval_set}
    if not eval_sets:
        raise ConfigError("`eval_set` is empty: give held-out documents to score both arms on")
    caches = {
        "kept": _token_cache(f"datashop/{name}-kept", kept, tokenizer),
        "pool": _token_cache(f"datashop/{name}-pool", pool, tokenizer),
    }
    shares = {"kept": kept_weight, "pool": 1.0 - kept_weight}
    mixed = {part: share for part, share in shares.items() if share > 0}
    arms = {FILTERED: mixed, CONTROL: {"pool": 1.0}}
    runs = {
        arm: tuple(
            _run_step(
                f"datashop/{name}/ablation-{arm}-seed{seed}",
                AblationRunConfig(
                    data={part: caches[part] for part in weights},
                    weights=weights,
                    tokenizer=tokenizer,
                    tokens=tokens,
                    seed=seed,
                    eval_sets=eval_sets,
                    recipe=recipe,
                    resources=resources or CpuOnlyConfig(),
                    run_name=f"{name}-{arm}-seed{seed}",
                ),
            )
            for seed in seeds
        )
        for arm, weights in arms.items()
    }
    return ExecutorStep(
        name=f"datashop/{name}/ablation",
        fn=compare_arms,
        config=CompareArmsConfig(runs[FILTERED], runs[CONTROL], seeds, tokens, confidence),
        description=f"what filtering is worth in bits per byte, {len(seeds)} seeds of {tokens:,} tokens an arm",
    )


def train_ablation_arm(config: AblationRunConfig) -> None:
    """Trains and scores one arm with one seed; what a run's step runs.

    Raises:
        TrainingError, DataError: see `train_arm`.
    """
    from marin.datashop.ablation_run import train_arm  # needs JAX, which making the steps does not

    train_arm(config)


def compare_arms(config: CompareArmsConfig) -> None:
    """Writes `ablation.json`: both arms by seed, their difference and its interval, for each evaluation set.

    Raises:
        DataError: the arms were trained on different numbers of tokens or scored on different documents.
    """
    arms = {
        arm: [files.read_json(files.join(str(run), EVALUATION_FILE)) for run in runs]
        for arm, runs in ((FILTERED, config.filtered), (CONTROL, config.control))
    }
    every = [run for runs in arms.values() for run in runs]
    trained = {run["tokens"] for run in every}
    if len(trained) != 1:
        raise DataError(
            f"the arms were trained on {', '.join(f'{tokens:,}' for tokens in sorted(trained))} tokens, which should be one"
            " number: remove their outputs and run the same command again"
        )
    names = list(every[0]["bits_per_byte"])
    for name in names:
        if len({run["eval_digests"][name] for run in every}) != 1:
            raise DataError(f"the arms were scored on different documents of `{name}`: run the same command again")
    sets = {
        name: paired_difference(
            [run["bits_per_byte"][name] for run in arms[FILTERED]],
            [run["bits_per_byte"][name] for run in arms[CONTROL]],
            config.confidence,
        )
        for name in names
    }
    content = {
        **sets[names[0]],
        "tokens": trained.pop(),
        "seeds": list(config.seeds),
        "confidence": config.confidence,
        "eval_set": names[0],
        "eval_sets": sets,
        "epochs": {arm: [run["epochs"] for run in runs] for arm, runs in arms.items()},
        "model": every[0]["model"],
        "parameters": every[0]["parameters"],
    }
    files.write_json(files.join(config.output_path, ABLATION_FILE), content)
    print(summary(content))


def paired_difference(filtered: Sequence[float], control: Sequence[float], confidence: float = 0.95) -> dict[str, Any]:
    """Mean of filtered minus control, in bits per byte, and its interval by the t distribution over pairs.

    Below zero the filtered data is better. With one pair `interval` is None and `why_no_interval` says so.
    """
    pairs = [ours - theirs for ours, theirs in zip(filtered, control, strict=True)]
    mean = math.fsum(pairs) / len(pairs)
    result: dict[str, Any] = {
        "arms": {FILTERED: list(filtered), CONTROL: list(control)},
        "difference": mean,
        "interval": None,
        "p_value": None,
    }
    if len(pairs) < 2:
        return {**result, "why_no_interval": "one seed has no spread: give at least two, better three"}
    from scipy import stats

    error = math.sqrt(math.fsum((pair - mean) ** 2 for pair in pairs) / (len(pairs) - 1) / len(pairs))
    if error == 0.0:
        return {**result, "interval": [mean, mean]}
    half = float(stats.t.ppf((1 + confidence) / 2, len(pairs) - 1)) * error
    p_value = 2 * float(stats.t.sf(abs(mean / error), len(pairs) - 1))
    return {**result, "interval": [mean - half, mean + half], "p_value": p_value}


def summary(content: Mapping[str, Any]) -> str:
    """What a person wants to know of an ablation."""
    tokens, seeds = content["tokens"], ", ".join(map(str, content["seeds"]))
    lines = [f"ablation: {tokens:,} tokens an arm, seeds {seeds}; with a difference below 0 the filter helps"]
    for name, found in content["eval_sets"].items():
        means = {arm: math.fsum(values) / len(values) for arm, values in found["arms"].items()}
        interval = found["interval"]
        spread = (
            found.get("why_no_interval", "")
            if interval is None
            else f"{content['confidence']:.0%} interval {interval[0]:+.4f} to {interval[1]:+.4f}"
        )
        lines.append(
            f"  {name:<20} filtered {means[FILTERED]:.4f}   control {means[CONTROL]:.4f}   difference"
            f" {found['difference']:+.4f} bits per byte ({spread})"
        )
    if max(max(epochs) for epochs in content["epochs"].values()) > 1:
        most = {arm: max(epochs) for arm, epochs in content["epochs"].items()}
        lines.append("  passes over the data: " + ", ".join(f"{arm} {epochs:.1f}" for arm, epochs in most.items()))
    return "\n".join(lines)


def _token_cache(name: str, documents: Input, tokenizer: Input) -> Input:
    if isinstance(documents, ExecutorStep) and isinstance(documents.config, TokenizeConfig):
        return documents
    return tokenize_step(name, documents, tokenizer)


def _run_step(name: str, config: AblationRunConfig) -> ExecutorStep:
    return ExecutorStep(name=name, fn=train_ablation_arm, config=config, resources=config.resources)
