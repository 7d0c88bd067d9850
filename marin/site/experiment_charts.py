"""The two pictures of an experiment's report, as SVG on a white ground that any page can show.

    curves   the metric on the way: for each arm the mean over its seeds, and from the least to the greatest of them
    arms     the metric at the end: a point for each run, and the mean of the arm with its 95 % interval

Both are drawn from the same data for the same bytes; arms are in the order of the sweep.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from marin.site.experiment_results import CurveOfRun
from marin.site.leaderboard import drawing
from marin.speedrun.statistics.means import spread_of

_WIDTH, _CURVE_HEIGHT, _ROW_HEIGHT = 640, 300, 34
_LETTER = 7.5  # pixels: DejaVu Sans takes 6.2 on average, capitals more
_MOST_ARMS = 8
_MORE_COLOURS = ("#6b7a8a", "#1c2126")


def curves_svg(curves: Sequence[CurveOfRun], metric: str) -> str | None:
    """None where there is nothing to draw, or more arms than can be told apart."""
    arms = list(dict.fromkeys(curve.arm for curve in curves))
    if not arms or len(arms) > _MOST_ARMS:
        return None
    rows = []
    for arm in arms:
        of_arm = [curve.values for curve in curves if curve.arm == arm]
        for step in sorted(set.intersection(*(set(values) for values in of_arm))):
            values = [each[step] for each in of_arm]
            mean = math.fsum(values) / len(values)
            rows.append({"arm": arm, "step": step, "mean": mean, "low": min(values), "high": max(values)})
    if not rows:
        return None
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("step:Q", title="step"), color=alt.Color("arm:N", scale=_colours(arms), legend=_legend(arms))
    )
    scale = alt.Scale(zero=False)
    band = base.mark_area(opacity=0.18).encode(y=alt.Y("low:Q", title=metric, scale=scale), y2="high:Q")
    line = base.mark_line(point=True).encode(y=alt.Y("mean:Q", title=metric, scale=scale))
    return _svg(alt.layer(band, line), _CURVE_HEIGHT)


def arms_svg(values: Mapping[str, Sequence[float]], metric: str) -> str | None:
    """The finished runs of each arm; None where there are none."""
    arms = [arm for arm, found in values.items() if found]
    if not arms:
        return None
    points = [{"arm": arm, "value": value} for arm in arms for value in values[arm]]
    means = []
    for arm in arms:
        found = spread_of(list(values[arm]), noise=None)
        means.append({"arm": arm, "mean": found.mean, "low": found.low or found.mean, "high": found.high or found.mean})
    # Letters are up to a quarter wider where the page is read than in the font that the room is measured with.
    room = min(280, _LETTER * max(map(len, arms)))
    y = alt.Y("arm:N", sort=arms, title=None, axis=alt.Axis(labelLimit=280, minExtent=room))
    scale, axis = alt.Scale(zero=False), alt.Axis(tickCount=8)
    rule = alt.Chart(alt.Data(values=means)).mark_rule(strokeWidth=2, color=drawing.LIGHT.accent)
    tick = alt.Chart(alt.Data(values=means)).mark_tick(thickness=3, size=18, color=drawing.LIGHT.accent)
    dots = alt.Chart(alt.Data(values=points)).mark_point(size=46, color=drawing.LIGHT.point, filled=True, opacity=0.8)
    layers = alt.layer(
        rule.encode(y=y, x=alt.X("low:Q", title=metric, scale=scale, axis=axis), x2="high:Q"),
        dots.encode(y=y, x=alt.X("value:Q", title=metric, scale=scale)),
        tick.encode(y=y, x=alt.X("mean:Q", title=metric, scale=scale)),
    )
    return _svg(layers, _ROW_HEIGHT * len(arms))


def _colours(arms: Sequence[str]) -> alt.Scale:
    return alt.Scale(domain=list(arms), range=[*drawing.LIGHT.families, *_MORE_COLOURS][: len(arms)])


def _legend(arms: Sequence[str]) -> alt.Legend:
    return alt.Legend(
        orient="bottom",
        title=None,
        columns=1 if max(map(len, arms)) > 34 else 2,
        labelLimit=600,
        symbolOpacity=1,
        columnPadding=40,
    )


def _svg(layered: Any, height: int) -> str:
    shape = drawing.Shape("report", _WIDTH, height, 0, (), 46)
    specification = drawing.finish(layered, shape) | {"background": "#ffffff"}
    return drawing.render(specification)["light"] + "\n"
