import pytest

from marin.data.mixture import Mixture
from marin.errors import ConfigError
from marin.execution.graph import Graph
from marin.execution.step import ExecutorStep, inputs_of, resolve

PATHS = {"web": "/data/web", "docs": "/data/docs"}
WEIGHTS = {"web": 1, "docs": 3}
STEP = ExecutorStep("tokenized/web", print, "config")


def test_mixture_of_steps_is_a_config_whose_steps_become_paths():
    mixture = Mixture({"web": STEP, "docs": STEP / "train"}, {"web": 1, "docs": 3})
    assert [reference.step for reference in inputs_of(mixture)] == [STEP, STEP]
    resolved = resolve(mixture, "/out", "/prefix", lambda step: "/prefix/" + step.name)
    assert resolved.components == {"web": "/prefix/tokenized/web", "docs": "/prefix/tokenized/web/train"}
    assert resolved.weights == mixture.weights


def test_mixture_stages_begin_with_the_samples_of_their_steps():
    mixture = Mixture(PATHS, [(0, {"web": 1}), (10, {"docs": 2, "web": 0.5})])
    stages = mixture.stages(lambda step: step * 8)
    assert [(stage.start, stage.weights) for stage in stages] == [(0, (1.0, 0.0)), (80, (0.5, 2.0))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"components": {}}, "token caches by name"),
        ({"components": {"web": 3}}, "give a step or a path"),
        ({"weights": {"web": 1}}, "leave out \\['docs'\\]"),
        ({"weights": {"web": 1, "docs": 1, "code": 1}}, "'code', which is no component"),
        ({"weights": {"web": 1, "docs": -1}}, "'docs' from step 0 is -1"),
        ({"weights": {"web": 1, "docs": float("nan")}}, "finite number"),
        ({"weights": {"web": 0, "docs": 0}}, "all 0"),
        ({"weights": 3}, "list of \\(first step"),
        ({"weights": [(5, {"web": 1})]}, "begin with step 0"),
        ({"weights": [(0, {"web": 1}), (0, {"docs": 1})]}, "rising order"),
        ({"weights": [(0, {"web": 1}, 3)]}, "first step"),
        ({"max_epochs": {"web": 0}}, "number above 0"),
        ({"max_epochs": {"code": 1}}, "no component"),
        ({"packing": "tetris"}, "best_fit"),
    ],
)
def test_mixture_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Mixture(**{"components": PATHS, "weights": {"web": 1, "docs": 1}, **options})


def test_mixture_whose_components_come_in_another_order_is_another_one_since_its_rows_are():
    by_name, turned = Mixture({"docs": "d", "web": "w"}, WEIGHTS), Mixture({"web": "w", "docs": "d"}, WEIGHTS)
    assert by_name.stages(int) != turned.stages(int)
    one, other = (Graph([ExecutorStep("train", print, mixture)], "/prefix").nodes[0] for mixture in (by_name, turned))
    assert one.fingerprint != other.fingerprint
    assert not any("order" in place for place in one.parts)  # what was made before keeps its place
    resolved = resolve(turned, "/out", "/prefix", lambda step: step.name)
    assert resolved == turned and list(resolved.components) == ["web", "docs"]
