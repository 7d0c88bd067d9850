"""Steps, references and what they become."""

import dataclasses
import functools
from collections import namedtuple
from typing import Any

import pytest

from marin.errors import ConfigError
from marin.execution import ExecutorStep, InputName, output_path_of, this_output_path, versioned
from marin.execution.step import inputs_of, resolve
from marin.resources import CpuOnlyConfig


@dataclasses.dataclass(frozen=True)
class Config:
    source: Any = None
    output_path: str = this_output_path()
    derived: str = dataclasses.field(init=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "derived", f"from {self.output_path}")


def work(config: Any) -> None:
    pass


Pair = namedtuple("Pair", "a b")
SOURCE = ExecutorStep("data/source", work, None)


def resolved(config: Any) -> Any:
    return resolve(config, "/p/out", "/p", lambda step: f"/p/{step.name}-0")


def test_step_repr_shows_the_six_fields_that_the_reference_shows() -> None:
    step = ExecutorStep("a", work, {"x": versioned(1), "y": this_output_path()}, resources=CpuOnlyConfig())
    assert repr(step) == (
        f"ExecutorStep(name='a', fn={work!r}, config={{'x': VersionedValue(value=1), 'y': OutputName(name=None)}}, "
        "description=None, override_output_path=None, pip_dependency_groups=None)"
    )


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        (SOURCE, "/p/data/source-0"),
        (SOURCE / "a" / "b", "/p/data/source-0/a/b"),
        (SOURCE.cd("a").cd("b"), "/p/data/source-0/a/b"),
        (SOURCE.nonblocking() / "a", "/p/data/source-0/a"),
        (output_path_of(SOURCE), "/p/data/source-0"),
        (output_path_of(SOURCE, "a"), "/p/data/source-0/a"),
        (InputName.hardcoded("x/y"), "/p/x/y"),
        (InputName.hardcoded("gs://x") / "y", "gs://x/y"),
        (this_output_path(), "/p/out"),
        (this_output_path("a"), "/p/out/a"),
        (versioned(SOURCE), "/p/data/source-0"),
    ],
)
def test_reference_resolves_to_a_path_wherever_it_stands(reference: Any, expected: str) -> None:
    assert resolved(reference) == expected
    assert resolved(Config([(reference,), {"k": {"l": reference}}])).source == [(expected,), {"k": {"l": expected}}]
    assert resolved(Pair(reference, 1)) == Pair(expected, 1)
    assert resolved({reference}) == {expected}
    partial = resolved(functools.partial(work, reference, k=reference))
    assert (partial.args, partial.keywords) == ((expected,), {"k": expected})


@pytest.mark.parametrize("override", ["../x", "a/../../x", ".."])
def test_relative_output_path_outside_the_prefix_is_refused(override: str) -> None:
    with pytest.raises(ConfigError, match=r"step `a`: `override_output_path` is '.*', outside the prefix"):
        ExecutorStep("a", work, None, override_output_path=override)
    assert ExecutorStep("a", work, None, override_output_path="/p/../x").override_output_path == "/p/../x"


@pytest.mark.parametrize(
    "arguments", [{"name": "a/.attempts/b"}, {"name": "a", "override_output_path": "/x/.attempts/b"}]
)
def test_output_where_attempts_are_kept_is_refused(arguments: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="has a part '.attempts', where attempts at steps are kept"):
        ExecutorStep(fn=work, config=None, **arguments)


def test_resolve_recomputes_derived_fields_and_keeps_parts_without_references() -> None:
    part = {"x": object()}
    config = resolved(Config(part))
    assert config.source is part
    assert config.derived == "from /p/out"


def test_inputs_are_found_in_order_and_hardcoded_ones_are_none() -> None:
    other = ExecutorStep("other", work, SOURCE / "not seen from outside")
    config = Config([SOURCE / "a", (other,), {"k": InputName.hardcoded("x")}, versioned(SOURCE.nonblocking())])
    assert [(ref.step.name, ref.name, ref.block_on_step) for ref in inputs_of(config) if ref.step] == [
        ("data/source", "a", True),
        ("other", None, True),
        ("data/source", None, False),
    ]


@pytest.mark.parametrize("name", ["", "/a", "a//b", "../a", "a/../b", "gs://a", "a/", "a\nb", "a\0b", "a\ud800", 3])
def test_step_with_a_name_that_is_no_relative_path_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match="step name"):
        ExecutorStep(name, work, None)


def test_step_with_a_function_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(ConfigError, match="`fn`"):
        ExecutorStep("a", "work", None)  # type: ignore[arg-type]


@pytest.mark.parametrize("held", [ExecutorStep("a", print, 1), ExecutorStep("a", print, 1) / "x", this_output_path()])
def test_step_whose_function_holds_a_reference_is_refused_as_nothing_would_replace_it(held: Any) -> None:
    with pytest.raises(ConfigError, match="step `b`: `fn` is a functools.partial that holds a step"):
        ExecutorStep("b", functools.partial(print, sep={"x": [held]}), 1)
    ExecutorStep("b", functools.partial(print, sep=" "), 1)


@dataclasses.dataclass(frozen=True)
class WithArgument:
    data: Any
    length: dataclasses.InitVar[int]


def test_config_that_cannot_be_made_again_with_paths_is_refused_with_what_it_is() -> None:
    step = ExecutorStep("a", print, 1)
    with pytest.raises(
        ConfigError, match="a WithArgument in a config cannot be made again.*'length' must be specified"
    ):
        resolve({"x": WithArgument(step, 3)}, "/out", "/p", lambda step: "/p/a")
