"""What is written down before an experiment runs, and the rule that decides its hypothesis afterwards.

A preregistration names the question, the hypothesis, the metric, and when to stop; its `Decision` names the two arms that are
compared and the effect that counts. The verdict follows from the runs by that rule alone: the 95 % interval of the difference
between the arms lies on one side of the bound, or nothing is decided.

    better   "the candidate is better by more than `effect`": supported where the whole interval is above it, refuted where
             the whole interval is at or below it
    same     "the arms differ by less than `effect`": supported where the whole interval lies between -effect and effect,
             refuted where all of it lies outside

Arms are compared seed by seed, so that what a seed does to both arms is no noise. Where an arm leaves parameters open, such as
its learning rate, their values are chosen by the mean over the seeds `choose_with`, and the arms are compared on the other
seeds, so that no run that chose also speaks for the choice.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from marin.errors import ConfigError
from marin.number_checks import is_whole
from marin.speedrun.statistics.means import spread_of

SEED = "seed"
SUPPORTED, REFUTED, NOT_DECIDED = "supported", "refuted", "not decided"
_SLUG = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_LONGEST_SLUG = 48


@dataclasses.dataclass(frozen=True)
class Metric:
    """What decides.

    Args:
        name: for people, with its unit, such as "bits per byte".
        source: FILE:KEY below the output of a point's steps (see `marin.execution.sweep`).
        curve: the key of the same figure in the `evaluation` lines of `metrics.jsonl`, for the curves; None for none.
    """

    name: str
    source: str
    lower_is_better: bool = True
    curve: str | None = None


@dataclasses.dataclass(frozen=True)
class Decision:
    """Which arms are compared, and which effect counts (see the module).

    Args:
        candidate, baseline: values of the sweep's parameters that define the arms; parameters that are left out are chosen.
        effect: in the metric's unit, at least 0.
        choose_with: seeds that choose the parameters that the arms leave open; they take no part in the comparison.
        level: of the interval.
    """

    candidate: Mapping[str, Any]
    baseline: Mapping[str, Any]
    claim: Literal["better", "same"] = "better"
    effect: float = 0.0
    choose_with: tuple[int, ...] = ()
    level: float = 0.95

    def __post_init__(self) -> None:
        if self.claim not in ("better", "same"):
            raise ConfigError(f"`claim` is {self.claim!r}: use 'better' or 'same'")
        if not (isinstance(self.effect, int | float) and math.isfinite(self.effect) and self.effect >= 0):
            raise ConfigError(f"`effect` is {self.effect!r}: give a number of at least 0, in the metric's unit")
        if self.claim == "same" and self.effect == 0:
            raise ConfigError("`effect` is 0 and `claim` is 'same': say which difference is too small to matter")
        if not 0.5 < self.level < 1:
            raise ConfigError(f"`level` is {self.level!r}: give a probability such as 0.95")
        if _texts(self.candidate) == _texts(self.baseline):
            raise ConfigError("`candidate` and `baseline` are the same arm: give them different values of a parameter")
        if SEED in self.candidate or SEED in self.baseline:
            raise ConfigError("an arm is defined by a seed: leave `seed` out, arms are compared over all seeds")


@dataclasses.dataclass(frozen=True)
class Preregistration:
    """Written before the first run; a part of the identity of the experiment's record, so that it cannot change unseen.

    Args:
        number, slug: those of the file, `experiments/exp{number}_{slug}.py`.
        stopping_rule: how many runs there are, and that no more follow when the result is not to one's liking.
        note: what does not follow from the experiment; shown with the verdict.
        command: what runs it; shown in the report.
        looked_before: what had been seen of such runs when this was written, if anything; shown under the claim, since the
            hypothesis is then no clean prediction.
    """

    number: int
    slug: str
    question: str
    hypothesis: str
    metric: Metric
    stopping_rule: str
    decision: Decision
    note: str = ""
    command: str = ""
    looked_before: str = dataclasses.field(default="", metadata={"marin.omit_default": True})

    def __post_init__(self) -> None:
        check_slug(self.slug)
        if not is_whole(self.number):
            raise ConfigError(f"`number` is {self.number!r}: give that of the file, at least 1")
        for field in ("question", "hypothesis", "stopping_rule"):
            if not str(getattr(self, field)).strip():
                raise ConfigError(f"`{field}` of the preregistration is empty: write it before the first run")

    @property
    def name(self) -> str:
        return f"exp{self.number}_{self.slug}"


@dataclasses.dataclass(frozen=True)
class Observation:
    """A run: its parameters as text, the metric, None where it has none yet."""

    parameters: Mapping[str, str]
    value: float | None


@dataclasses.dataclass(frozen=True)
class Arm:
    """An arm as it was compared: all its parameters, and the metric by seed."""

    parameters: Mapping[str, str]
    values: Mapping[int, float]

    @property
    def name(self) -> str:
        return arm_text(self.parameters)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """`effect` is by how much the candidate is better, `low` to `high` its interval, over `seeds`; None where none can be said."""

    outcome: str
    reason: str
    candidate: Arm | None = None
    baseline: Arm | None = None
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    seeds: tuple[int, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def arm_text(parameters: Mapping[str, Any]) -> str:
    """An arm in words, by the parameters that define it; its seed is none of them."""
    return ", ".join(f"{key} {value}" for key, value in parameters.items() if key != SEED)


def check_slug(slug: str) -> str:
    """Raises:
    ConfigError: it cannot be a part of a module's name.
    """
    if not _SLUG.fullmatch(slug) or len(slug) > _LONGEST_SLUG:
        raise ConfigError(
            f"the slug is {slug!r}: use at most {_LONGEST_SLUG} small letters, digits and single underscores, starting with a"
            " letter, such as tied_head"
        )
    return slug


# --- deciding -----------------------------------------------------------------------------------------------------


def decide(decision: Decision, metric: Metric, observations: Sequence[Observation]) -> Verdict:
    """The verdict on the hypothesis as the rule has it.

    Raises:
        ConfigError: the rule names a parameter or an arm that the sweep does not have.
    """
    check_decision(decision, [each.parameters for each in observations])
    wanted = [
        each for each in observations if any(_is_in(each, arm) for arm in (decision.candidate, decision.baseline))
    ]
    missing = sum(each.value is None for each in wanted)
    if missing:
        return Verdict(NOT_DECIDED, f"{missing} of the {len(wanted)} runs that the rule needs are not done")
    if any(not math.isfinite(each.value or 0.0) for each in wanted):
        return Verdict(NOT_DECIDED, "a run's metric is not finite, and the rule compares figures")
    candidate = _chosen(decision, metric, wanted, decision.candidate)
    baseline = _chosen(decision, metric, wanted, decision.baseline)
    seeds = tuple(sorted(candidate.values.keys() & baseline.values.keys()))
    if len(seeds) < 2:
        return Verdict(NOT_DECIDED, f"{len(seeds)} seeds are in both arms: an interval needs two", candidate, baseline)
    sign = 1.0 if metric.lower_is_better else -1.0
    differences = [sign * (baseline.values[seed] - candidate.values[seed]) for seed in seeds]
    found = spread_of(differences, noise=None, level=decision.level)
    if found.low is None or found.high is None:
        reason = f"the difference is the same for all {len(seeds)} seeds, which runs with different seeds are not"
        return Verdict(NOT_DECIDED, reason, candidate, baseline, found.mean, None, None, seeds)
    outcome, reason = _judge(decision, found.low, found.high)
    return Verdict(outcome, reason, candidate, baseline, found.mean, found.low, found.high, seeds)


def check_decision(decision: Decision, points: Iterable[Mapping[str, str]]) -> None:
    """Raises:
    ConfigError: the sweep has no such parameter, arm, or seed.
    """
    known = list(points)
    names = set(known[0]) if known else set()
    for label, arm in (("candidate", decision.candidate), ("baseline", decision.baseline)):
        strangers = [name for name in arm if name not in names]
        if strangers:
            raise ConfigError(f"`{label}` names {strangers}, but the sweep's parameters are {sorted(names)}")
        if not any(all(point[name] == text for name, text in _texts(arm).items()) for point in known):
            raise ConfigError(f"`{label}` is {dict(arm)}, and no point of the sweep has these values")
        has_open = names - {SEED} - set(arm)
        if has_open and not decision.choose_with:
            raise ConfigError(
                f"`{label}` leaves {sorted(has_open)} open: fix them, or name seeds in `choose_with` that choose them"
            )
    if SEED not in names:
        raise ConfigError(f"the sweep has no parameter `{SEED}`: chance shows only between runs that differ in it")
    for seed in decision.choose_with:
        if str(seed) not in {point[SEED] for point in known}:
            raise ConfigError(f"`choose_with` names the seed {seed}, which the sweep does not have")


def _judge(decision: Decision, low: float, high: float) -> tuple[str, str]:
    bound, interval = decision.effect, f"[{low:.4g}, {high:.4g}]"
    if decision.claim == "better":
        if low > bound:
            return SUPPORTED, f"the whole interval {interval} is above {bound:g}"
        if high <= bound:
            return REFUTED, f"the whole interval {interval} is at or below {bound:g}"
        return NOT_DECIDED, f"the interval {interval} has {bound:g} in it"
    if -bound < low and high < bound:
        return SUPPORTED, f"the whole interval {interval} lies between -{bound:g} and {bound:g}"
    if low >= bound or high <= -bound:
        return REFUTED, f"the whole interval {interval} lies outside of -{bound:g} to {bound:g}"
    return NOT_DECIDED, f"the interval {interval} reaches over -{bound:g} or {bound:g}"


def _chosen(decision: Decision, metric: Metric, wanted: Sequence[Observation], arm: Mapping[str, Any]) -> Arm:
    """The arm with its open parameters at their best, and its values on the seeds that did not choose."""
    groups: dict[tuple[tuple[str, str], ...], dict[int, float]] = {}
    for each in wanted:
        if _is_in(each, arm) and each.value is not None:
            key = tuple((name, text) for name, text in each.parameters.items() if name != SEED)
            groups.setdefault(key, {})[int(each.parameters[SEED])] = each.value
    sign = 1.0 if metric.lower_is_better else -1.0

    def score(values: Mapping[int, float]) -> float:
        chosen = [sign * values[seed] for seed in decision.choose_with if seed in values]
        return math.fsum(chosen) / len(chosen) if chosen else math.inf

    key = min(groups, key=lambda key: score(groups[key])) if len(groups) > 1 else next(iter(groups))
    kept = {seed: value for seed, value in groups[key].items() if seed not in decision.choose_with}
    return Arm(dict(key), kept)


def _is_in(observation: Observation, arm: Mapping[str, Any]) -> bool:
    return all(observation.parameters[name] == text for name, text in _texts(arm).items())


def _texts(arm: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in arm.items()}
