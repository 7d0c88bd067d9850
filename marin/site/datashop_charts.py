"""The pictures of a datashop report: labels, calibration, scores of kept and dropped documents, ROC and precision, ablation.

Each is an Altair specification that `marin.site.leaderboard.drawing` turns into SVG, in a wide and a narrow shape and in both
colour schemes, with a sentence that says what it shows.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from marin.site import wording
from marin.site.leaderboard.drawing import LIGHT, Shape, finish, in_every_shape

_SHAPES = (Shape("wide", 500, 250, 0, (), 40), Shape("narrow", 270, 210, 0, (), 30))


@dataclasses.dataclass(frozen=True)
class Picture:
    """A chart: `drawn` is SVG text by "{shape}-{scheme}", such as "wide-dark"."""

    name: str
    title: str
    text: str
    drawn: Mapping[str, str]


def label_histogram(histogram: Mapping[str, int], threshold: float) -> Picture:
    """How often each label was given, those that count as wanted in the accent's colour."""
    import altair as alt

    values = [
        {"label": name, "count": count, "colour": LIGHT.accent if float(name) >= threshold else LIGHT.point}
        for name, count in histogram.items()
    ]

    def specify(shape: Shape) -> Any:
        bars = alt.Chart(alt.InlineData(values=values)).encode(
            x=alt.X("label:N", title="label", sort=None, axis=alt.Axis(labelAngle=0)),
            y=alt.Y("count:Q", title="documents", axis=alt.Axis(tickCount=5)),
        )
        return alt.layer(
            bars.mark_bar().encode(color=alt.Color("colour:N", scale=None)),
            bars.mark_text(dy=-7, color=LIGHT.text).encode(text=alt.Text("count:Q", format=",d")),
        )

    told = ", ".join(f"{count:,} times {name}" for name, count in histogram.items())
    return _picture("labels", "Labels", f"Bar chart of the labels: {told}.", specify)


def calibration(bins: Sequence[Mapping[str, Any]], scale: Sequence[float]) -> Picture:
    """The mean label of documents with like scores, with its interval; on the diagonal a score means what it says."""
    import altair as alt

    values = [dict(entry) for entry in bins]
    ends = [{"score": end, "label": end} for end in scale]

    def specify(shape: Shape) -> Any:
        domain = alt.Scale(domain=list(scale), nice=False, clamp=True)
        x = alt.X("score:Q", title="mean score", scale=domain)
        points = alt.Chart(alt.InlineData(values=values)).encode(
            x=x, y=alt.Y("label:Q", title="mean label", scale=domain)
        )
        line = alt.Chart(alt.InlineData(values=ends)).mark_line(color=LIGHT.muted, strokeDash=[4, 4], strokeWidth=1)
        return alt.layer(
            line.encode(x=x, y=alt.Y("label:Q", scale=domain)),
            alt.Chart(alt.InlineData(values=values)).mark_rule(color=LIGHT.accent, strokeWidth=1.5)
            .encode(x=x, y=alt.Y("low:Q", scale=domain), y2="high:Q"),
            points.mark_line(color=LIGHT.accent, strokeWidth=1, opacity=0.5),
            points.mark_point(filled=True, size=shape.point_size, color=LIGHT.accent, opacity=1),
        )  # fmt: skip

    told = ", ".join(f"{entry['score']:.2f} with {entry['label']:.2f}" for entry in values)
    return _picture(
        "calibration", "Calibration", f"Mean score with mean label of like-scored documents: {told}.", specify
    )


def score_distribution(selection: Mapping[str, Any]) -> Picture:
    """How many documents have which score, kept and dropped, and the limit between them."""
    import altair as alt

    edges, limit = selection["edges"], float(selection["limit"])
    values = [
        {"from": low, "to": high, "count": count, "side": side}
        for side in ("dropped", "kept")
        for low, high, count in zip(edges[:-1], edges[1:], selection[side], strict=True)
        if count
    ]
    values.sort(key=lambda bar: -bar["count"])  # where a bin has both, the shorter bar stands in front
    powers = [0, *(10**power for power in range(len(str(max((bar["count"] for bar in values), default=1)))))]

    def specify(shape: Shape) -> Any:
        colours = alt.Scale(domain=["dropped", "kept"], range=[LIGHT.point, LIGHT.accent])
        bars = alt.Chart(alt.InlineData(values=values)).mark_bar(binSpacing=1).encode(
            x=alt.X("from:Q", bin="binned", title="score", scale=alt.Scale(domain=[edges[0], edges[-1]], nice=False)),
            x2="to:Q",
            y=alt.Y("count:Q", title="documents", stack=False, scale=alt.Scale(type="symlog"), axis=alt.Axis(values=powers)),
            color=alt.Color("side:N", scale=colours, legend=_legend("square")),
        )  # fmt: skip
        rule = alt.Chart(alt.InlineData(values=[{"limit": limit}])).mark_rule(
            color=LIGHT.text, strokeDash=[3, 3], clip=True
        )
        return alt.layer(bars, rule.encode(x="limit:Q"))

    text = (
        f"Histogram of the scores of {selection['num_documents']:,} documents: the {selection['num_kept']:,} kept ones score "
        f"{wording.score(limit)} or more. The vertical scale is logarithmic above 1."
    )
    return _picture("scores", "Scores of the pool", text, specify)


def curves(name: str, title: str, axes: tuple[str, str], lines: Mapping[str, Sequence[Sequence[float]]]) -> Picture:
    """Curves in the unit square by name, such as ROC curves."""
    import altair as alt

    names = list(lines)
    values = [
        {"x": x, "y": y, "line": line, "order": order}
        for line, points in lines.items()
        for order, (x, y) in enumerate(points)
    ]

    def specify(shape: Shape) -> Any:
        unit = alt.Scale(domain=[0, 1], nice=False)
        chart = alt.Chart(alt.InlineData(values=values)).mark_line(strokeWidth=1.75).encode(
            x=alt.X("x:Q", title=axes[0], scale=unit),
            y=alt.Y("y:Q", title=axes[1], scale=unit),
            order="order:Q",
            color=alt.Color(
                "line:N", legend=_legend("stroke") if len(names) > 1 else None,
                scale=alt.Scale(domain=names, range=[LIGHT.accent, LIGHT.families[1]][: len(names)]),
            ),
        )  # fmt: skip
        return alt.layer(chart)

    return _picture(name, title, f"{axes[1].capitalize()} against {axes[0]}, for {' and '.join(names)}.", specify)


def ablation(arms: Mapping[str, Sequence[float]], names: Mapping[str, str]) -> Picture:
    """Bits per byte of both arms, a line a seed."""
    import altair as alt

    values = [
        {"arm": names[arm], "bpb": value, "seed": str(seed)}
        for arm, figures in arms.items()
        for seed, value in enumerate(figures)
    ]

    def specify(shape: Shape) -> Any:
        chart = alt.Chart(alt.InlineData(values=values)).encode(
            x=alt.X("arm:N", title=None, sort=list(names.values()), axis=alt.Axis(labelAngle=0), scale=alt.Scale(padding=0.6)),
            y=alt.Y("bpb:Q", title="bits per byte", scale=alt.Scale(zero=False, padding=16), axis=alt.Axis(tickCount=5)),
            detail="seed:N",
        )  # fmt: skip
        return alt.layer(
            chart.mark_line(color=LIGHT.earlier, strokeWidth=1.5),
            chart.mark_point(filled=True, size=shape.point_size + 20, color=LIGHT.accent, opacity=1),
        )

    told = "; ".join(f"{names[arm]}: {', '.join(f'{value:.4f}' for value in figures)}" for arm, figures in arms.items())
    return _picture(
        "ablation", "Bits per byte of both arms", f"{told}. A line joins the two models of a seed.", specify
    )


def _legend(symbol: str) -> Any:
    import altair as alt

    # Letters are wider where the page is read than in the font that an entry's place is measured with.
    return alt.Legend(
        title=None, orient="top", labelColor=LIGHT.text, symbolType=symbol, labelFontSize=12, columnPadding=28
    )


def _picture(name: str, title: str, text: str, specify: Any) -> Picture:
    return Picture(name, title, text, in_every_shape(lambda shape: finish(specify(shape), shape), _SHAPES))
