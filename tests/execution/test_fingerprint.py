"""The encoding: equal for equal configs, different for different ones, and blind to placement."""

import dataclasses
import enum
import functools
import json
import math
import os
import pathlib
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin.errors import FingerprintError
from marin.execution import ExecutorStep, InputName, placement, this_output_path, versioned
from marin.execution.fingerprint import first_difference, identify
from marin.execution.graph import Graph
from marin.resources import CpuOnlyConfig, Resources


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Number(enum.IntEnum):
    ONE = 1


@dataclasses.dataclass(frozen=True)
class Point:
    x: Any = None
    y: Any = None


@dataclasses.dataclass(frozen=True)
class OtherPoint:
    x: Any = None
    y: Any = None


@dataclasses.dataclass(frozen=True)
class Placed:
    value: int
    num_workers: int = placement(default=4)
    resources: Resources | None = None


def work(config: Any) -> None:
    pass


def other_work(config: Any) -> None:
    pass


def fingerprint(config: Any, fn: Any = work, name: str = "s", prefix: str = "/p") -> str:
    step = ExecutorStep(name, fn, config)
    return Graph([step], prefix).node(step).fingerprint


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(width=16, allow_nan=False)
    | st.text("01aNT", max_size=2)
    | st.binary(max_size=2)
    | st.sampled_from([Colour.RED, Colour.BLUE, Number.ONE, pathlib.PurePosixPath("a"), np.float32(1), np.int64(1)])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(st.text("ab", max_size=1) | st.integers(0, 1), inner, max_size=2)
        | st.builds(Point, inner, inner)
        | st.builds(OtherPoint, inner)
    ),
    max_leaves=4,
)


def typed(value: Any) -> Any:
    """A second, independent form of identity: nested tuples with type names."""
    if dataclasses.is_dataclass(value):
        return type(value).__name__, typed(value.x), typed(value.y)  # type: ignore[attr-defined]
    if isinstance(value, list | tuple):
        return type(value).__name__, tuple(typed(item) for item in value)
    if isinstance(value, dict):
        return "dict", frozenset((typed(key), typed(item)) for key, item in value.items())
    if isinstance(value, float):
        return type(value).__name__, value, math.copysign(1, value)
    return type(value).__name__, str(value)


@given(values, values)
def test_fingerprint_is_equal_exactly_for_equal_typed_values(one: Any, two: Any) -> None:
    assert (fingerprint(one) == fingerprint(two)) == (typed(one) == typed(two))


@given(st.dictionaries(st.text(max_size=3) | st.integers(), scalars, max_size=5))
def test_fingerprint_of_a_dict_does_not_depend_on_order(value: dict[Any, Any]) -> None:
    assert fingerprint(value) == fingerprint(dict(reversed(list(value.items()))))


@given(st.integers(), st.integers(1, 99), st.integers(1, 8) | st.none())
def test_fingerprint_ignores_placement(value: int, num_workers: int, cpus: int | None) -> None:
    moved = Placed(value, num_workers, CpuOnlyConfig(cpus) if cpus else None)
    assert fingerprint(moved) == fingerprint(Placed(value))


@given(values, st.sampled_from(["/a", "/a/b", "gs://bucket/x"]))
def test_fingerprint_does_not_depend_on_the_prefix(config: Any, prefix: str) -> None:
    source = ExecutorStep("source", work, config)
    step = ExecutorStep("step", work, Point([source / "x", this_output_path()], config))
    moved = Graph([step], prefix).node(step)
    assert moved.fingerprint == Graph([step], "/elsewhere").node(step).fingerprint
    assert moved.output_path == f"{prefix}/step-{moved.fingerprint[:8]}"


def test_fingerprint_of_look_alikes_differ() -> None:
    alike: list[Any] = [1, 1.0, True, "1", b"1", Number.ONE, np.int64(1), np.int32(1), np.float32(1), (1,), [1], {1}]
    alike += [0.0, -0.0, 0, False, None, "None", math.nan, math.inf, -math.inf, "nan", {1: 1}, {"1": 1}, frozenset({1})]
    alike += [np.dtype("float32"), np.float32, Point, OtherPoint, Point(), OtherPoint(), work, other_work, os.getcwd]
    alike += [
        Point(x=1),
        Point(y=1),
        [[1], 2],
        [1, [2]],
        [1, 2],
        ["ab", "c"],
        ["a", "bc"],
        pathlib.PurePath("1"),
        [],
        (),
    ]
    alike += [functools.partial(work), functools.partial(work, 1), functools.partial(work, config=1), {}, "", [None]]
    assert len({fingerprint(value) for value in alike}) == len(alike)


def test_fingerprint_of_every_nan_is_one() -> None:
    assert fingerprint(math.nan) == fingerprint(-math.nan) == fingerprint(float("nan"))


def test_fingerprint_sees_through_versioned() -> None:
    assert fingerprint(Point(versioned(1), [versioned((2, 3))])) == fingerprint(Point(1, [(2, 3)]))


def test_fingerprint_leaves_out_name_description_and_resources() -> None:
    plain = ExecutorStep("a", work, Point(1))
    dressed = ExecutorStep("b", work, Point(1), "words", "/elsewhere", ["extra"], CpuOnlyConfig())
    graph = Graph([plain, dressed], "/p")
    assert graph.node(plain).fingerprint == graph.node(dressed).fingerprint
    assert fingerprint(Point(1), other_work) != fingerprint(Point(1))


def test_fingerprint_covers_dependencies_transitively_also_those_that_do_not_block() -> None:
    def chain(value: int, blocking: bool) -> str:
        first = ExecutorStep("first", work, Point(value))
        second = ExecutorStep("second", work, {"in": (first / "x",) if blocking else (first.nonblocking() / "x",)})
        return fingerprint([second])

    assert chain(1, True) == chain(1, True)
    assert len({chain(1, True), chain(2, True), chain(1, False), chain(2, False)}) == 4
    assert fingerprint(InputName.hardcoded("a")) != fingerprint(InputName.hardcoded("b"))


class Opaque:
    pass


def closure(value: int) -> Any:
    def inner(config: Any) -> int:
        return value

    return inner


@pytest.mark.parametrize(
    "value",
    [lambda: 1, Opaque(), sys.stdout, threading.Lock(), closure(1), Opaque().__init__, iter([]), {(1,): 1}, object()],
)
def test_fingerprint_of_an_unstable_value_is_refused_with_its_place(value: Any) -> None:
    with pytest.raises(FingerprintError, match=r"step `s`: `config\.x\[1\]\['k'\]"):
        fingerprint(Point([0, {"k": value}]))


def test_fingerprint_of_a_config_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(FingerprintError, match="contains itself"):
        fingerprint(Point(loop))


def test_fingerprint_is_the_same_in_every_process_hash_seed_and_version() -> None:
    program = (
        "import json, pathlib; from marin.execution import *; from marin.execution.graph import Graph\n"
        "from marin.resources import GpuConfig\n"
        "step = ExecutorStep('a', json.dumps, {'b': [1, 2.5, {'x', 'y', 'z'}], 'a': frozenset('pqr'), 'n': GpuConfig(),"
        " 'p': pathlib.PurePath('a/b'), 'i': InputName.hardcoded('h'), 'o': this_output_path('z')})\n"
        "print(Graph([step], '/p').node(step).fingerprint)"
    )
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == "e3beb10929ea6e96863f9472392de2ce97c872fd5f78886f8946f9c93dc8782e"


def test_first_difference_names_the_place_and_both_values() -> None:
    steps = [ExecutorStep("s", work, Point(Point(1, "a"), value)) for value in (0.1, 0.2)]
    old, new = (identify(step, lambda _: "").parts for step in steps)
    assert first_difference(old, new) == ("config.y", "0.1", "0.2")
    assert first_difference(old, old) is None
    assert json.dumps(old)
