"""The graph: order, merging, and outputs that would meet."""

import dataclasses
from typing import Any

import pytest

from marin.errors import ConfigError, ExecutionError, FingerprintCollisionError, FingerprintError
from marin.execution import ExecutorStep
from marin.execution.graph import Graph
from marin.execution.task import make_task


def work(config: Any) -> None:
    pass


def names(graph: Graph) -> list[str]:
    return [node.name for node in graph.nodes]


def test_graph_has_each_step_after_what_it_depends_on_and_once() -> None:
    a = ExecutorStep("a", work, 1)
    b = ExecutorStep("b", work, a / "x")
    c = ExecutorStep("c", work, [b, a])
    assert names(Graph([c, a], "/p")) == ["a", "b", "c"]


def test_graph_merges_equal_steps() -> None:
    twins = [ExecutorStep("a", work, {"x": 1, "y": 2}), ExecutorStep("a", work, {"y": 2, "x": 1})]
    graph = Graph([ExecutorStep("b", work, twins)], "/p")
    assert names(graph) == ["a", "b"]
    assert graph.node(twins[0]) is graph.node(twins[1])


def test_graph_leaves_out_inputs_that_do_not_block() -> None:
    a = ExecutorStep("a", work, 1)
    b = ExecutorStep("b", work, a.nonblocking() / "x")
    graph = Graph([b], "/p")
    assert names(graph) == ["b"]
    assert make_task(graph.node(b), graph).config_for("/p/b") == f"{graph.node(a).output_path}/x"
    assert names(Graph([b, a], "/p")) == ["a", "b"]


def test_graph_of_a_long_chain_is_built() -> None:
    step = ExecutorStep("s0", work, 0)
    for index in range(3000):
        step = ExecutorStep(f"s{index + 1}", work, step)
    assert len(Graph([step], "/p").nodes) == 3001


def test_graph_with_two_different_steps_at_one_path_is_refused() -> None:
    steps = [ExecutorStep("a", work, {"lr": rate}, override_output_path="same") for rate in (0.1, 0.2)]
    with pytest.raises(FingerprintCollisionError, match=r"/p/same .*`config\['lr'\]` was 0.1 and is 0.2"):
        Graph(steps, "/p")


def test_graph_with_two_different_steps_at_two_spellings_of_one_path_is_refused() -> None:
    for spellings in (("x/y", "x//y"), ("y", "x/../y"), ("/p/y", "./y/")):
        steps = [ExecutorStep("a", work, path, override_output_path=path) for path in spellings]
        with pytest.raises(FingerprintCollisionError, match="two different steps"):
            Graph(steps, "/p")


@pytest.mark.parametrize("place", ["x", "/x", "gs://b"])
def test_graph_with_one_output_inside_another_is_refused(place: str) -> None:
    outer = ExecutorStep("a", work, 1, override_output_path=place)
    inner = ExecutorStep("b", work, outer, override_output_path=f"{place}/y/z")
    with pytest.raises(ExecutionError, match="inside the output of step `a`"):
        Graph([inner], "/prefix/that/is/long")


@dataclasses.dataclass(frozen=True)
class Derived:
    size: int
    source: Any = dataclasses.field(init=False, default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", ExecutorStep("hidden", work, self.size))


def test_graph_with_a_reference_where_no_path_can_be_put_is_refused() -> None:
    with pytest.raises(FingerprintError, match="refers to step `hidden` in a field that its `__init__` does not take"):
        Graph([ExecutorStep("a", work, Derived(1))], "/p")


def test_graph_with_a_circle_is_refused() -> None:
    config: list[Any] = []
    step = ExecutorStep("a", work, config)
    config.append(ExecutorStep("b", work, step))
    with pytest.raises(ExecutionError, match="depends on itself"):
        Graph([step], "/p")


def test_graph_of_something_else_than_steps_is_refused() -> None:
    with pytest.raises(ConfigError, match="no ExecutorStep"):
        Graph(["a"], "/p")  # type: ignore[list-item]
    with pytest.raises(ConfigError, match=r"^a list stands among the steps.*steps=\[\*first, \*second\]$"):
        Graph([[ExecutorStep("a", work, 1)]], "/p")  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="int is no list of steps: pass a list"):
        Graph(1, "/p")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"one step, `a`: pass a list"):
        Graph(ExecutorStep("a", work, 1), "/p")  # type: ignore[arg-type]


def test_override_output_path_is_below_the_prefix_unless_absolute() -> None:
    for override, expected in [("x/y", "/p/x/y"), ("/x", "/x"), ("gs://b/x/", "gs://b/x")]:
        step = ExecutorStep("a", work, 1, override_output_path=override)
        assert Graph([step], "/p").node(step).output_path == expected
