"""How every chart of the site is drawn: Altair's specification, turned into SVG by vl-convert while the site is built.

Each chart comes in a wide and a narrow shape and in a light and a dark scheme. A page shows it as an image, so that nothing in
it can run and no script is needed. Where scripts run, `chart.js` draws the frontier again, to point at, and `live.js` puts the other
drawings into the page, where the points that `says` described can be pointed at. The dark scheme is the
light one with other colours, so a chart is laid out twice and not four times.
"""

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from marin.site import wording

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
LABEL_SIZE = 11
CHARACTER_WIDTH = 0.56 * LABEL_SIZE  # of sans-serif fonts on the average; only collisions depend on it


@dataclasses.dataclass(frozen=True)
class Scheme:
    """Colours of one colour scheme; text has a contrast of at least 4.5 on the page's background."""

    name: str
    text: str
    muted: str
    grid: str
    point: str
    accent: str
    earlier: str
    held: str
    halo: str
    families: tuple[str, str, str, str, str, str]


# No colour stands twice, so that one scheme can be written over the other; each is written in six small digits.
LIGHT = Scheme("light", "#1c2126", "#59636e", "#e4e7eb", "#6b7a8a", "#0a58ca", "#9db9e6", "#b3382c", "#ffffff",
               ("#0b5ed7", "#b45309", "#0f766e", "#9d174d", "#6d28d9", "#4d7c0f"))  # fmt: skip
DARK = Scheme("dark", "#e6eaee", "#9aa6b2", "#2a323b", "#8b9aaa", "#7ab8ff", "#3c5f8c", "#ff9b8c", "#161b21",
              ("#7db9fe", "#fbbf24", "#5eead4", "#f9a8d4", "#c4b5fd", "#bef264"))  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    width: int
    height: int
    max_labels: int
    label_distances: tuple[int, ...]
    point_size: int


WIDE = Shape("wide", 1010, 420, 26, (9, 16, 26, 38), 46)
NARROW = Shape("narrow", 290, 300, 3, (9, 14), 30)
SHAPES = (WIDE, NARROW)


def finish(layered: Any, shape: Shape, width: int | None = None, right: int = 4) -> dict[str, Any]:
    """The specification of a layered chart with the size and look that all charts share; `right` is room beside it."""
    scheme = LIGHT
    made = dict(layered.to_dict(validate=False))
    # Here, as Altair copies the whole chart, each layer with its axes, for every property that it is given.
    return made | {
        "width": width or shape.width,
        "height": shape.height,
        "background": "transparent",
        "padding": {"left": 4, "top": 4, "bottom": 4, "right": right},
        "config": {
            "font": FONT,
            "view": made["config"]["view"] | {"stroke": None},
            "axis": {
                "labelColor": scheme.muted, "titleColor": scheme.text, "gridColor": scheme.grid, "domainColor": scheme.muted,
                "tickColor": scheme.muted, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": 500, "titlePadding": 10,
            },
        },
    }  # fmt: skip


def render(specification: dict[str, Any]) -> dict[str, str]:
    """The chart as SVG text for each scheme. Figures of the layout keep two decimals, which is a fiftieth of a pixel."""
    light = _drawn(json.dumps(specification, sort_keys=True))
    return {LIGHT.name: light, DARK.name: _recoloured(light)}


def in_every_shape(specify: Callable[[Shape], dict[str, Any]], shapes: Sequence[Shape] = SHAPES) -> dict[str, str]:
    """SVG text of a chart by shape and scheme, such as "wide-light"."""
    drawn = {shape.name: render(specify(shape)) for shape in shapes}
    return {f"{shape}-{scheme}": svg for shape, schemes in drawn.items() for scheme, svg in schemes.items()}


def start() -> None:
    """Does what comes before the first chart of a process, once."""
    import altair as alt
    import numpy  # noqa: F401 (places labels)

    _drawn(json.dumps(alt.layer(alt.Chart(alt.InlineData(values=[])).mark_point()).to_dict(validate=False)))


@functools.lru_cache(maxsize=64)
def _drawn(specification: str) -> str:
    import vl_convert

    return _shortened(str(vl_convert.vegalite_to_svg(specification)))


def says(number: str, name: str, text: str) -> str:
    """What a point of a chart is called, for `live.js`: the number of the entry among the page's, its name and its figures."""
    return "|".join((number, wording.clean(name, 120).replace("|", "/"), text))


_LONG_NUMBER = re.compile(r"(?<=[ ,(\"MLHVAhvml-])(\d+\.\d\d)\d+(?=[ ,)\"MLHVAZhvmlz-])")
_SPOKEN = re.compile(r' (?:(?:aria-roledescription|role|aria-hidden)="[^"]*"|aria-label="[^"|]*")')
_ATTRIBUTE = re.compile(r'(?<==")[^"<>]*\.\d{3}[^"<>]*(?=")')
_COLOUR = re.compile('"#[0-9a-f]{6}"')


def _shortened(svg: str) -> str:
    # An image says what its `alt` says, so what is in it for screen readers is never read; what `says` wrote stays.
    return _ATTRIBUTE.sub(lambda found: _with_short_numbers(found[0]), _SPOKEN.sub("", svg))


@functools.lru_cache(maxsize=4096)  # thousands of points have one shape
def _with_short_numbers(attribute: str) -> str:
    return _LONG_NUMBER.sub(r"\1", f' {attribute}"')[1:-1]


def _recoloured(svg: str) -> str:
    pairs = _dark_colours()
    return _COLOUR.sub(lambda found: pairs.get(found[0], found[0]), svg)


@functools.cache
def _dark_colours() -> dict[str, str]:
    """The dark scheme's colour for each of the light one's, as they stand in an attribute."""
    pairs: dict[str, str] = {}
    for field in dataclasses.fields(Scheme):
        light, dark = getattr(LIGHT, field.name), getattr(DARK, field.name)
        if field.name != "name":
            pairs.update(zip(light, dark, strict=True) if isinstance(light, tuple) else [(light, dark)])
    return {f'"{light}"': f'"{dark}"' for light, dark in pairs.items()}
