"""The figures that tables and charts can show: how each is called, written, and which way is better.

`static/format.js` writes the same figures where scripts run; a test holds the two together.
"""

import dataclasses
from collections.abc import Callable

from marin.site import wording
from marin.speedrun.tracks import METRICS, Track


@dataclasses.dataclass(frozen=True)
class Measure:
    """One figure of an entry. `unit` names the way it is written: "flops", "seconds", "hours", "count", "percent" or "plain"."""

    key: str
    title: str
    unit: str
    higher_is_better: bool = False
    logarithmic: bool = True

    def text(self, value: float | None) -> str | None:
        return _WRITTEN[self.unit](value)

    @property
    def axis_title(self) -> str:
        return f"{self.title} ({'higher' if self.higher_is_better else 'lower'} is better)"


_WRITTEN: dict[str, Callable[[float | None], str | None]] = {
    "flops": wording.flops, "seconds": wording.duration, "hours": wording.hours, "count": wording.count, "percent": wording.percent, "plain": wording.bits,
}  # fmt: skip

COSTS = (
    Measure("training_hardware_flops", "Hardware FLOPs", "flops"),
    Measure("model_flops", "Model FLOPs", "flops"),
    Measure("training_time", "Training time", "seconds"),
    Measure("total_tokens", "Tokens", "count"),
)
OTHERS = (Measure("mfu", "MFU", "percent", higher_is_better=True), Measure("model_size", "Parameters", "count"))
QUALITIES = tuple(
    Measure(key, info.name, "plain", higher_is_better=info.higher_is_better, logarithmic=key == "bits_per_byte")
    for key, info in METRICS.items()
)
MEASURES = {measure.key: measure for measure in (*QUALITIES, *COSTS, *OTHERS)}


def measures_of(track: Track) -> dict[str, Measure]:
    """The figures as a track's page writes them."""
    if not track.in_hours:
        return MEASURES
    return MEASURES | {"training_time": dataclasses.replace(MEASURES["training_time"], unit="hours")}
