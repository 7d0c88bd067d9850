"""The record timeline of a track: when each record came, and the best figure so far."""

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

from marin.site import wording
from marin.site.leaderboard.drawing import LABEL_SIZE, LIGHT, WIDE, Shape, finish, in_every_shape, says
from marin.site.leaderboard.measures import Measure


@dataclasses.dataclass(frozen=True)
class Record:
    name: str
    date: str
    value: float
    key: str = ""


def day_of(date: str | None) -> str | None:
    """The day of a date as results files write it, or None where it is no date."""
    try:
        return datetime.date.fromisoformat((date or "")[:10]).isoformat()
    except ValueError:
        return None


def best_so_far(records: Sequence[Record], measure: Measure) -> list[Record]:
    """The records that beat all before them in the one figure, oldest first."""
    best: list[Record] = []
    for one in sorted(records, key=lambda one: one.date):
        if not best or (one.value > best[-1].value if measure.higher_is_better else one.value < best[-1].value):
            best.append(one)
    return best


def draw(records: Sequence[Record], measure: Measure, until: str) -> dict[str, str]:
    """SVG text by shape and scheme; the records' dates are days, and so is the last day of which anything is known."""
    return in_every_shape(lambda shape: _specification(records, measure, until, shape))


def describe(records: Sequence[Record], measure: Measure, until: str) -> str:
    best = best_so_far(records, measure)
    if not best:
        return "No record yet."
    first, last = best[0], best[-1]
    stood = f" No later entry, up to {until}, is a record." if until > last.date else ""
    return (
        f"Line chart of {len(records)} records over time. {measure.title}: {measure.text(first.value)} on {first.date}, "
        f"{measure.text(last.value)} on {last.date} ({wording.clean(last.name, 80)}).{stood} The table below lists all."
    )


def _specification(records: Sequence[Record], measure: Measure, until: str, shape: Shape) -> dict[str, Any]:
    import altair as alt

    best = best_so_far(records, measure)
    days = [datetime.date.fromisoformat(one.date) for one in records]
    end = max(datetime.date.fromisoformat(until), *days)
    margin = max(datetime.timedelta(days=3), (end - min(days)) * 0.06)
    low, high = ((min(days) - margin).isoformat(), (end + margin).isoformat())
    scale = measure.unit in ("seconds", "flops") and min(one.value for one in records) > 0
    x = alt.X("x:T", title=None, scale=alt.Scale(domain=[low, high], nice=False, type="utc"),
              axis=alt.Axis(format="%d %b %Y", tickCount=6 if shape is WIDE else 2, labelAngle=0, labelFlush=False))  # fmt: skip
    divisor, unit = (
        (3600.0, " in hours") if measure.unit == "seconds" and max(one.value for one in records) > 7200 else (1.0, "")
    )
    y = alt.Y("y:Q", title=measure.axis_title.replace(" (", f"{unit} (", 1), scale=alt.Scale(type="log" if scale else "linear", zero=False, padding=24),
              axis=alt.Axis(format="~g", tickCount=6))  # fmt: skip

    def chart(group: Sequence[Record]) -> Any:
        values = [
            {"x": one.date, "y": one.value / divisor, "text": wording.short_name(one.name, 30),
             "says": says(one.key, one.name, f"{measure.text(one.value)} · {one.date}")}
            for one in group
        ]  # fmt: skip
        return alt.Chart(alt.InlineData(values=values)).encode(x=x, y=y)

    edge = dataclasses.replace(best[-1], date=high)
    labelled = _apart(best, (end - min(days)).days, shape)
    layers = [
        chart([*best, edge]).mark_line(interpolate="step-after", color=LIGHT.accent, strokeWidth=1.75, opacity=0.9),
        chart([one for one in records if one not in best])
        .mark_point(filled=True, size=shape.point_size, color=LIGHT.point, opacity=0.6)
        .encode(description="says:N"),
        chart(best)
        .mark_point(filled=True, size=shape.point_size + 16, color=LIGHT.accent, stroke=LIGHT.halo, opacity=1)
        .encode(description="says:N"),
    ]
    # The line comes from one side and leaves on the other: the last name has room where it never was.
    beyond = "bottom" if measure.higher_is_better else "top"
    for group, align, dx, baseline, dy in (
        (labelled[:-1], "left", 8, "bottom", -6), (labelled[-1:], "right", 6, beyond, -9 if measure.higher_is_better else 9)
    ):  # fmt: skip
        layers.append(
            chart(group)
            .mark_text(align=align, baseline=baseline, dx=dx, dy=dy, color=LIGHT.text, fontSize=LABEL_SIZE)
            .encode(text="text:N")
        )
    return finish(alt.layer(*layers), shape)


def _apart(best: Sequence[Record], span: int, shape: Shape) -> list[Record]:
    """Those whose names fit beside each other: the last one always, the others where a share of the width is free."""
    if shape is not WIDE:
        return list(best[-1:])
    days = [datetime.date.fromisoformat(one.date) for one in best]
    kept = [best[-1]]
    right = (days[-1] - days[0]).days - 0.45 * span
    for one, day in reversed(list(zip(best[:-1], days[:-1], strict=True))):
        if (day - days[0]).days <= right:
            kept.insert(0, one)
            right = (day - days[0]).days - 0.25 * span
    return kept
