"""The encoding: equal for equal configs, different for different ones, and blind to placement."""

import collections
import copy
import dataclasses
import enum
import functools
import hashlib
import json
import math
import os
import pathlib
import random
import shutil
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from marin.errors import FingerprintError
from marin.execution import ExecutorStep, InputName, added_later, placement, this_output_path, versioned
from marin.execution.fingerprint import _encode_step, _Encoder, first_difference, identify
from marin.execution.graph import Graph
from marin.resources import CpuOnlyConfig, Resources


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class OtherColour(enum.Enum):
    RED = 1


class Number(enum.IntEnum):
    ONE = 1


Pair = collections.namedtuple("Pair", "a b")
OtherPair = collections.namedtuple("OtherPair", "a b")


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


hashables = (
    st.none()
    | st.booleans()
    | st.integers(0, 1)
    | st.sampled_from(["", "a", "1", b"a", 0.5, 2.0, Colour.RED, (1,), (1.0,)])
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(width=16)
    | st.text("01aNTn", max_size=2)
    | st.sampled_from(["None", "True", "nan", "1.0", "-0.0", "[]", "str 1:1"])
    | st.binary(max_size=2)
    | st.sampled_from([0.0, -0.0, math.nan, math.inf, 1.0, Colour.RED, Colour.BLUE, Number.ONE, OtherColour.RED])
    | st.sampled_from(
        [pathlib.PurePosixPath("a"), np.float32(1), np.int64(1), np.int32(1), np.float64(1), np.bool_(True)]
    )
)
values = st.recursive(
    scalars,
    lambda inner: (
        (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.builds(Pair, inner, inner)
            | st.builds(OtherPair, inner, inner)
            | st.dictionaries(st.text("ab1", max_size=1) | st.integers(0, 1), inner, max_size=2)
            | st.builds(Point, inner, inner)
            | st.builds(OtherPoint, inner)
            | st.builds(functools.partial, st.sampled_from([work, other_work]), inner)
        )
        | st.sets(hashables, max_size=3)
        | st.frozensets(hashables, max_size=3)
    ),
    max_leaves=5,
)


def typed(value: Any) -> Any:
    """A second, independent form of identity: nested tuples with type names."""
    kind = type(value).__module__, type(value).__name__  # numpy calls its own `bool` too
    if isinstance(value, functools.partial):
        return kind, value.func.__name__, typed(value.args), typed(value.keywords)
    if dataclasses.is_dataclass(value):
        return kind, typed(value.x), typed(value.y)  # type: ignore[attr-defined]
    if isinstance(value, list | tuple):
        return kind, tuple(typed(item) for item in value)
    if isinstance(value, dict):
        return kind, frozenset((typed(key), typed(item)) for key, item in value.items())
    if isinstance(value, set | frozenset):
        return kind, frozenset(typed(item) for item in value)
    if isinstance(value, float) and math.isnan(value):
        return kind, "not a number"
    if isinstance(value, float):
        return kind, float(value), math.copysign(1, value)
    return kind, str(value)


@settings(max_examples=60)
@given(st.lists(values, min_size=2, max_size=12))
@example(
    [0.0, -0.0, [0.0], [-0.0], (0.0,), 0, False, "0", 1, 1.0, True, "1", b"1", math.nan, "nan", None, "None", [None]]
)
@example(
    [
        {"a": 1, "b": 2},
        {"b": 2, "a": 1},
        {"a": 2, "b": 1},
        {1: 1},
        {"1": 1},
        {1},
        frozenset({1}),
        [1],
        Point(1),
        OtherPoint(1),
    ]
)
def test_fingerprints_are_equal_exactly_for_equal_values_of_one_type(configs: list[Any]) -> None:
    by_value: dict[Any, str] = {}
    for config in configs:
        found = fingerprint(config)
        assert by_value.setdefault(typed(config), found) == found
    assert len(set(by_value.values())) == len(by_value)


@settings(max_examples=30)
@given(values, values)
def test_fingerprint_of_text_that_imitates_the_encoding_of_values_differs(one: Any, two: Any) -> None:
    def encode(value: Any) -> str:
        return _Encoder("s", lambda _: "", None).encode(value, "").decode("latin-1")

    whole, parts = encode([one, two]), [encode(one), encode(two)]
    imitations = ["".join(parts), [parts[0] + parts[1]], ["a", "b" + parts[0]], ["a" + encode("b"), one], parts, whole]
    originals = [[one, two], ["a", "b", one]]
    assert len({fingerprint(value) for value in [*imitations, *originals]}) == len(imitations) + len(originals)


@settings(max_examples=40)
@given(values, st.integers(0, 1_000_000))
def test_fingerprint_of_a_copy_is_the_same_whatever_the_order_of_sets_and_dicts(config: Any, seed: int) -> None:
    assert fingerprint(rebuilt(config, random.Random(seed))) == fingerprint(config)


def rebuilt(value: Any, order: random.Random) -> Any:
    """An equal value of new objects, whose sets and dicts were filled in another order."""
    if isinstance(value, dict | set | frozenset):
        items = list(value.items() if isinstance(value, dict) else value)
        order.shuffle(items)
        return (
            type(value)((key, rebuilt(item, order)) for key, item in items)
            if isinstance(value, dict)
            else type(value)(items)
        )
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(rebuilt(item, order) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(rebuilt(item, order) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, x=rebuilt(value.x, order), y=rebuilt(value.y, order))  # type: ignore[type-var]
    return copy.copy(value)


@given(st.dictionaries(st.text(max_size=3) | st.integers(), scalars, max_size=5))
def test_fingerprint_of_a_dict_does_not_depend_on_order(value: dict[Any, Any]) -> None:
    assert fingerprint(value) == fingerprint(dict(reversed(list(value.items()))))


@given(st.integers(), st.integers(1, 99), st.integers(1, 8) | st.none())
def test_fingerprint_ignores_placement(value: int, num_workers: int, cpus: int | None) -> None:
    moved = Placed(value, num_workers, CpuOnlyConfig(cpus) if cpus else None)
    assert fingerprint(moved) == fingerprint(Placed(value))


def test_fingerprint_is_that_of_before_a_field_came_while_the_field_has_its_default() -> None:
    def config(**fields: Any) -> Any:
        later = [(name, Any, field) for name, field in fields.items()]
        made = dataclasses.make_dataclass("Config", [("value", int), *later])
        made.__module__ = "marin.config"  # a class of ours, which counts by its name
        return made

    fields: dict[str, Any] = {"more": (1,), "flag": False, "rate": 0.0}
    before, after = config(), config(**{name: added_later(default=default) for name, default in fields.items()})
    assert fingerprint(after(1)) == fingerprint(before(1)) == fingerprint(after(1, more=(1,), rate=0.0))
    others: list[Any] = [("x",), [1], (True,), (1.0,), True, 0, -0.0]
    names = ["more"] * 4 + ["flag"] * 2 + ["rate"]
    changed = [fingerprint(after(1, **{name: other})) for name, other in zip(names, others, strict=True)]
    assert len({fingerprint(before(1)), *changed}) == len(others) + 1


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


def one_of_two(first: bool) -> Any:
    if first:

        def run(config: Any) -> int:
            return 1

    else:

        def run(config: Any) -> int:
            return 2

    return run


def class_with(value: int) -> Any:
    class Config:
        number = value

    return Config


def dataclass_with(value: int) -> Any:
    @dataclasses.dataclass
    class Config:
        def number(self) -> int:
            return value

    return Config()


def class_with_property(value: int) -> Any:
    class Config:
        @property
        def number(self) -> int:
            return value

    return Config


def decorated_with(value: int) -> Any:
    @functools.lru_cache(value)
    def run(config: Any) -> None:
        pass

    return run


def independent() -> Any:
    @dataclasses.dataclass
    class Config:
        x: int = 1

    return Config()


@pytest.mark.parametrize(
    "value", [one_of_two(True), class_with(1), class_with_property(1), dataclass_with(1), decorated_with(1)]
)
def test_fingerprint_of_what_depends_on_the_call_that_defined_it_is_refused(value: Any) -> None:
    with pytest.raises(FingerprintError, match=r"step `s`: `config\.x.*depends on the call"):
        fingerprint(Point(value))


def test_fingerprint_of_what_a_function_defines_alike_in_each_call_is_one() -> None:
    assert fingerprint(Point(independent())) == fingerprint(Point(independent()))


def test_fingerprint_of_a_config_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(FingerprintError, match="contains itself"):
        fingerprint(Point(loop))


PINNED = {
    "scalars": "cf6ad19b13bf8a9a62d4dcd419cdab4efc99695506db253d44c11c9d3b51870e",
    "paths": "a1076ed6b146f42015f67462b48a1ded0cd2f993c3be6aabec62fad6071c023f",
    "containers": "8dbcb60a0eb39835849cf116cad14d3d325e0cde252074f10a01a2a1ced31b02",
    "dataclasses": "6fae07bab82fb465222eda4a91cdacf7ace239dc65a534441f836d1c4db6a263",
    "placed": "aebc24e321d91cf92975d90f229f639714a39c574198a926f8f447bc460962b6",
    "enums": "fea6e02ba315be0729b469c93f121791aabf2811c092734959deee54d57a84dc",
    "named": "0e3e38eaaa81ff1f8b912d55582788cd22e1214242df90d1331d17e4ec7c9cef",
    "references": "f1deb5dc888da84338f8bb1b87766297818bf3769bb80103bd0f3d6ec7b92f5c",
    "resources": "f1575416bb82b0fb8eca168dbf5634a4cd6bb91212be0582143d4b664ea309fb",
    "deep": "ded739ca11256dbd33561de88a0136bbd37721ab927ce89f99562d4dfb32772c",
}
PINNED_CONFIGS = pathlib.Path(__file__).with_name("pinned_configs.py")


def other_pythons() -> list[Any]:
    """Each other version of Python from 3.11 on that this machine has, on the path or under pyenv."""
    root = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"), "versions")
    found = {}
    for minor in {11, 12, 13, 14} - {sys.version_info.minor}:
        name = f"python3.{minor}"
        paths = [*sorted(root.glob(f"3.{minor}.*/bin/{name}")), shutil.which(name)]
        path = next((str(path) for path in paths if path and runs_as(str(path), minor)), None)
        if path is not None:
            found[name] = path
    return [pytest.param(path, id=name) for name, path in found.items()]


def runs_as(python: str, minor: int) -> bool:
    program = f"import sys; sys.exit(sys.version_info[:2] != (3, {minor}))"
    return subprocess.run([python, "-c", program], capture_output=True).returncode == 0


def pinned(python: str, seed: str) -> dict[str, str]:
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": ""}
    done = subprocess.run([python, str(PINNED_CONFIGS)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_fingerprints_are_the_pinned_ones_in_every_process_and_hash_seed(seed: str) -> None:
    assert pinned(sys.executable, seed) == PINNED


@pytest.mark.parametrize(
    "python", other_pythons() or [pytest.param("", marks=pytest.mark.skip("no other Python is here"))]
)
def test_fingerprints_are_the_pinned_ones_on_every_version_of_python(python: str) -> None:
    assert pinned(python, "7") == PINNED


def test_fingerprints_of_numpy_values_are_the_pinned_ones() -> None:
    config = [np.float32(1.5), np.int64(3), np.bool_(True), np.dtype("float32"), np.float32, np.array(2)]
    assert fingerprint(config, json.dumps) == "65d136e12cb8cca50377678c3a3d76047a12ab82c091093b487ae3a40f36e0bf"


def test_fingerprint_is_the_same_whether_parts_are_noted_or_not() -> None:
    """The graph encodes without places; `explain` and the records with them."""
    for config in [Point([1, {"k": (Pair(1, 2.0), {"s"}, Colour.RED)}], functools.partial(work, [None])), [], {}, ()]:
        step = ExecutorStep("s", work, config)
        identity = identify(step, lambda _: "")
        assert identity.parts == dict(identity.parts)
        assert next(iter(identity.parts)) == "fn"
        noted = hashlib.sha256(_encode_step(step, lambda _: "", {})).hexdigest()
        assert noted == identity.fingerprint


def test_first_difference_names_the_place_and_both_values() -> None:
    steps = [ExecutorStep("s", work, Point(Point(1, "a"), value)) for value in (0.1, 0.2)]
    old, new = (identify(step, lambda _: "").parts for step in steps)
    assert first_difference(old, new) == ("config.y", "0.1", "0.2")
    assert first_difference(old, old) is None
    assert json.dumps(old)
