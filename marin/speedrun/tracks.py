"""The contest's tracks: what a run must be to stand on one, what it is ranked by, and what a record must show.

A track is one declarative object; adding a track is adding an object to `TRACKS`. Everything that a reader of a track
needs is in it: objective, gates, data, hardware, fewest runs, noise and the text of its page.

`why_not` says whether a run is of the track at all: its metric, its data, its hardware. Gates are about the whole entry, so
that an entry that misses one stays on the track's page, without a rank and with the reason, and a gate is never met by leaving out
the one run of five that missed it.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from marin.speedrun.statistics.means import Noise

if TYPE_CHECKING:
    from marin.speedrun.board.rows import Row

Metric = Literal["bits_per_byte", "core", "loss"]
Cost = Literal["training_hardware_flops", "model_flops", "training_time", "total_tokens"]
Objective = Literal["pareto", "least cost", "best quality"]

C4_EN = "paloma/c4_en"
PYTHON_DOCS = "python_docs/heldout"
FINEWEB_VALIDATION = "fineweb/validation"
FINEWEB_VALIDATION_TOKENS = 10_485_760  # of GPT-2's tokenizer
NOT_EVALUATED = "not evaluated"
_NO_SLUG = re.compile("[^a-z0-9]+")


@dataclasses.dataclass(frozen=True)
class MetricInfo:
    """How a metric is called and which way is better."""

    name: str
    unit: str
    higher_is_better: bool


METRICS: dict[Metric, MetricInfo] = {
    "bits_per_byte": MetricInfo("Bits per byte", "bits per byte", higher_is_better=False),
    "core": MetricInfo("CORE", "", higher_is_better=True),
    "loss": MetricInfo("Validation loss", "nats per token", higher_is_better=False),
}
COST_NAMES: dict[Cost, str] = {
    "training_hardware_flops": "hardware FLOPs",
    "model_flops": "model FLOPs",
    "training_time": "training time",
    "total_tokens": "tokens",
}
"""As they stand within a sentence."""


@dataclasses.dataclass(frozen=True)
class Gate:
    """A bound that every entry must keep.

    `of` is "mean" where the mean of the runs counts, and a record must show it by the track's test; "every run" where each run
    must keep it by itself.
    """

    field: Metric | Cost
    relation: Literal[">", "<", ">=", "<="]
    bound: float
    of: Literal["mean", "every run"] = "mean"

    def holds(self, value: float) -> bool:
        match self.relation:
            case ">":
                return value > self.bound
            case ">=":
                return value >= self.bound
            case "<":
                return value < self.bound
            case "<=":
                return value <= self.bound

    def missed_by(self, value: float | None) -> str:
        """A figure that does not keep the bound, with as many digits as show that."""
        if value is None:
            return "not stated"
        texts = (f"{value:.{digits}g}" for digits in range(6, 18))
        return next(text for text in texts if not self.holds(float(text)))

    def __str__(self) -> str:
        is_metric = self.field in METRICS
        name = METRICS[self.field].name if is_metric else COST_NAMES[self.field]  # type: ignore[index]
        return f"{name} {self.relation} {self.bound:g}{' s' if self.field == 'training_time' else ''}"


@dataclasses.dataclass(frozen=True)
class Hardware:
    """What a run must have been made on; `None` leaves it open. `devices` are parts of names that the catalogue uses."""

    text: str
    platform: Literal["cpu", "gpu", "tpu"] | None = None
    devices: tuple[str, ...] | None = None
    chips: int | None = None

    def why_not(self, row: "Row") -> str | None:
        if self.platform is not None and row.platform != self.platform:
            return f"the platform is {row.platform or 'not stated'}, the track's is {self.platform}"
        if self.chips is not None and row.num_chips != self.chips:
            chips = f"{row.num_chips} chip{'' if row.num_chips == 1 else 's'}"
            return f"{'the chips are not stated' if row.num_chips is None else chips}, the track has {self.chips}"
        name = "" if row.platform == "cpu" else (row.hardware or "").lower()  # a processor's is its author's word
        if self.devices is not None and not any(device.lower() in name for device in self.devices):
            return f"the hardware is {row.hardware or 'not stated'}, the track's is {self.text}"
        return None


@dataclasses.dataclass(frozen=True)
class Data:
    """What a run must have been scored on, and trained on: `training` are words of which each of its caches has one in its path."""

    text: str
    evaluation_set: str | None = None
    evaluation_digest: str | None = None
    training: tuple[str, ...] | None = None

    def why_not(self, row: "Row") -> str | None:
        if self.evaluation_set is not None and row.evaluation_set != self.evaluation_set:
            return f"the evaluation set is {row.evaluation_set}, the track's is {self.evaluation_set}"
        if self.evaluation_digest is not None and row.evaluation_digest != self.evaluation_digest:
            return "the evaluation set has another digest than the track's"
        # Old results do not say. A mixture is of the track if all of its parts are: one other part may be of any text.
        caches = row.training_data.lower().split(" + ") if row.training_data else []
        if self.training is not None and not all(any(name in cache for name in self.training) for cache in caches):
            return f"the training data is {row.training_data}, the track's is {self.text}"
        return None


@dataclasses.dataclass(frozen=True)
class Track:
    """One contest. `text` is paragraphs of plain text for its page."""

    key: str
    title: str
    text: tuple[str, ...]
    metric: Metric
    cost: Cost
    objective: Objective
    data: Data
    hardware: Hardware
    gates: tuple[Gate, ...] = ()
    metric_version: str | None = None
    min_runs: int = 1
    noise: Noise | None = None
    p_value: float = 0.01
    other_depths: bool = False  # whether an entry shows what its change does at other depths
    columns: tuple[str, ...] = ()  # of its table, beside those of every track: metrics, "description", "git_commit"
    in_hours: bool = False  # whether all of its times are written in hours, as its rules are
    begin: str = "marin init NAME"  # the command that begins an entry

    @property
    def higher_is_better(self) -> bool:
        return METRICS[self.metric].higher_is_better

    def standing(self, values: Mapping[str, float | None]) -> tuple[float, float]:
        """What entries are ranked by, and what decides between equals, by their figures; less is better, and unknown last."""
        cost, quality = values[self.cost], values[self.metric]
        paid = float("inf") if cost is None else cost
        missed = float("inf") if quality is None else -quality if self.higher_is_better else quality
        return (paid, missed) if self.objective == "least cost" else (missed, paid)

    def why_not(self, row: "Row") -> str | None:
        """Why the run is not of this track, or None if it is."""
        if row.value(self.metric) is None:
            return f"no {METRICS[self.metric].name} is stated"
        if self.metric_version is not None and row.core_version != self.metric_version:
            return f"the version of {METRICS[self.metric].name} is {row.core_version or 'not stated'}, the track's is {self.metric_version}"
        return self.data.why_not(row) or self.hardware.why_not(row)


CORE_NOISE = Noise(
    sd=0.0052, runs=7, source="seven identical runs of nanochat's fourth leaderboard row (nanochat pull requests 638 and 655)"
)  # fmt: skip
BITS_NOISE = Noise(
    sd=5e-5, runs=None, source="repeated d24 runs on 8xH100 (nanochat pull requests 638, 655 and 830), not of this track's models"
)  # fmt: skip
CPU_NOISE = Noise(
    sd=0.0023, runs=10, source="ten seeds of hello world (experiments/speedrun/hello_world_seeds, 2026-11-22): 1.6784 to 1.6851"
)  # fmt: skip

FINEWEB_EDU = Track(
    key="fineweb-edu",
    title="FineWeb-Edu",
    text=(
        "Train on FineWeb-Edu and predict C4-EN: fewest bits per byte for the hardware FLOPs that the training took. Any size, any "
        "budget, any hardware. A run is on the frontier when no other is at least as cheap and at least as good.",
        "Cost is training time x chips x their peak FLOP/s, so that a low utilization is paid for.",
    ),
    metric="bits_per_byte",
    cost="training_hardware_flops",
    objective="pareto",
    data=Data("FineWeb-Edu, scored on Paloma's C4-EN", evaluation_set=C4_EN, training=("fineweb-edu", "fineweb_edu")),
    hardware=Hardware("any"),
    noise=BITS_NOISE,
)

TIME_TO_GPT2 = Track(
    key="time-to-gpt2",
    title="Time to GPT-2",
    text=(
        "The shortest training on one node of eight H100 to a CORE score above that of GPT-2 (1.5 billion parameters, 2019). CORE is "
        "version 1, with the baselines that GPT-2's 0.256525 was computed with.",
        "One run says little: identical runs differ by a standard deviation of about 0.005 in CORE. The change must be principled and "
        "hold at other depths (d12 to d26), and the evidence for that is shown with the row.",
    ),
    metric="core",
    cost="training_time",
    objective="least cost",
    data=Data("any; CORE version 1"),
    hardware=Hardware("8 x H100", devices=("h100",), chips=8),
    gates=(Gate("core", ">", 0.256525),),
    metric_version="v1",
    min_runs=5,
    noise=CORE_NOISE,
    other_depths=True,
    columns=("bits_per_byte", "description", "git_commit"),
    in_hours=True,
    begin="bash runs/speedrun.sh",
)

LOSS_3_28 = Track(
    key="loss-3.28",
    title="3.28 loss",
    text=(
        "The shortest training on one node of eight H100 to a mean cross-entropy of 3.28 nats per token on the first 10,485,760 tokens of "
        "FineWeb's validation part.",
        "The clock stops during validation. The mean over the runs must be at most 3.28 with p < 0.01.",
    ),
    metric="loss",
    cost="training_time",
    objective="least cost",
    data=Data("FineWeb", evaluation_set=FINEWEB_VALIDATION),
    hardware=Hardware("8 x H100", devices=("h100",), chips=8),
    gates=(Gate("loss", "<=", 3.28),),
    min_runs=4,
    noise=Noise(sd=0.0013, runs=None, source="the rule of modded-nanogpt's third track"),
)

SINGLE_GPU = Track(
    key="single-gpu",
    title="Single GPU",
    text=(
        "The FineWeb-Edu contest for those who have one GPU: fewest bits per byte on C4-EN for the time it took, whatever the GPU.",
    ),
    metric="bits_per_byte",
    cost="training_time",
    objective="pareto",
    data=Data("FineWeb-Edu, scored on Paloma's C4-EN", evaluation_set=C4_EN, training=("fineweb-edu", "fineweb_edu")),
    hardware=Hardware("one GPU", platform="gpu", chips=1),
    noise=BITS_NOISE,
)

CPU_10_MINUTES = Track(
    key="cpu-10-minutes",
    title="CPU, 10 minutes",
    text=(
        "Lowest bits per byte on the embedded corpus after at most 600 seconds of training time on the processor at hand. The number of "
        "steps is fixed before the run, so that it fits; nothing stops at the clock.",
        "Processors differ: the hardware stands beside each row, and a record on a faster machine is a record of the track all the same.",
    ),
    metric="bits_per_byte",
    cost="training_time",
    objective="best quality",
    data=Data("the embedded corpus python_docs", evaluation_set=PYTHON_DOCS, training=("python_docs",)),
    hardware=Hardware("a processor, without accelerators", platform="cpu", chips=1),
    gates=(Gate("training_time", "<=", 600.0, of="every run"),),
    min_runs=3,
    noise=CPU_NOISE,
)

TRACKS: tuple[Track, ...] = (FINEWEB_EDU, TIME_TO_GPT2, LOSS_3_28, SINGLE_GPU, CPU_10_MINUTES)


@functools.lru_cache(maxsize=1024)
def other_track(
    evaluation_set: str, evaluation_digest: str | None, metric: Metric, metric_version: str | None = None
) -> Track:
    """Where rows stand that are of no track: those of one evaluation set, since only they can be compared.

    Args:
        metric_version: where it is not the first, whose figures stand apart from it.
    """
    suffix = "" if evaluation_digest is None else f"-{slug(evaluation_digest[:8], 'unnamed')}"
    is_scored = evaluation_set != NOT_EVALUATED or metric == "bits_per_byte"
    title = f"Other runs: {evaluation_set if is_scored else 'no evaluation set'}"
    measured = [METRICS[metric].name] if metric_version is None else [METRICS[metric].name, metric_version]
    # What tells tracks apart is in their titles: pages and their readers know them by these.
    apart = [] if metric == "bits_per_byte" else [" ".join(measured)]
    apart += [] if evaluation_digest is None else [f"set {evaluation_digest[:8]}"]
    own = "" if metric == "bits_per_byte" else f"-{metric}" if metric_version is None else f"-{metric}-{metric_version}"
    return Track(
        key=f"other-{slug(evaluation_set, 'unnamed')}{suffix}{own}",
        title=f"{title} ({', '.join(apart)})" if apart else title,
        text=("Runs that are of no track: other data, other hardware, or figures that are not stated.",),
        metric=metric,
        cost="training_hardware_flops",
        objective="pareto",
        data=Data("any", evaluation_set=evaluation_set, evaluation_digest=evaluation_digest),
        hardware=Hardware("any"),
        metric_version=metric_version,
    )


def slug(text: str, otherwise: str) -> str:
    """Letters, digits and hyphens of a text, for an address; `otherwise` where it has none."""
    return _NO_SLUG.sub("-", text.lower()).strip("-")[:60].strip("-") or otherwise
