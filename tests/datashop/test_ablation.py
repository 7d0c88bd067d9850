"""The ablation: its arithmetic against SciPy's paired test, and two tiny arms through the executor."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from marin.data.cache import tokenize_step
from marin.data.documents import Document, write_documents
from marin.data.tokenizer import train_tokenizer_step
from marin.datashop.ablation import (
    AblationModel,
    CompareArmsConfig,
    ablation_step,
    compare_arms,
    paired_difference,
)
from marin.errors import ConfigError, DataError
from marin.execution.executor import Executor
from marin.execution.flags import ExecutorMainConfig
from marin.execution.step import inputs_of

TINY = AblationModel(seq_len=32, hidden_dim=32, num_layers=1, num_heads=1, sequences=8)


def test_difference_and_interval_are_those_of_the_paired_t_test() -> None:
    generator = np.random.default_rng(0)
    for seeds in (2, 3, 8):
        control = generator.normal(1.2, 0.05, seeds)
        filtered = control - 0.03 + generator.normal(0, 0.01, seeds)
        found = paired_difference(filtered.tolist(), control.tolist(), 0.9)
        expected = stats.ttest_rel(filtered, control)
        interval = expected.confidence_interval(0.9)
        assert math.isclose(found["difference"], (filtered - control).mean(), rel_tol=1e-9)
        assert np.allclose(found["interval"], [interval.low, interval.high])
        assert math.isclose(found["p_value"], expected.pvalue, rel_tol=1e-9)


def test_one_seed_has_a_difference_and_no_interval() -> None:
    found = paired_difference([1.0], [1.25])
    assert found["difference"] == -0.25 and found["interval"] is None and "one seed" in found["why_no_interval"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A pool in which a third of the documents count, and held-out documents that count."""
    folder = tmp_path_factory.mktemp("texts")
    generator = np.random.default_rng(0)

    def counting(index: int) -> Document:
        start = int(generator.integers(0, 50))
        return Document(f"count-{index}", " ".join(str(start + step) for step in range(40)), "counting")

    def noise(index: int) -> Document:
        letters = generator.choice(list("abcdefghij "), 150)
        return Document(f"noise-{index}", "".join(letters), "noise")

    wanted = [counting(index) for index in range(60)]
    sets = {"kept": wanted, "pool": wanted + [noise(index) for index in range(120)]}
    sets["heldout"] = [counting(1000 + index) for index in range(10)]
    paths = {name: str(folder / f"{name}.jsonl.zst") for name in sets}
    for name, documents in sets.items():
        write_documents(paths[name], documents)
    return paths


def test_arms_with_equal_tokens_tell_what_filtering_is_worth(
    texts: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = train_tokenizer_step(texts["pool"], 300)
    step = ablation_step(
        "counting",
        tokenize_step("kept", texts["kept"], tokenizer),
        texts["pool"],
        tokenizer=tokenizer,
        tokens=1300,
        seeds=(0, 1),
        eval_set={"counting": texts["heldout"], "pool": texts["pool"]},
        recipe=TINY,
    )
    Executor(ExecutorMainConfig(prefix=str(tmp_path))).run([step])
    (path,) = tmp_path.glob("datashop/counting/ablation-*/ablation.json")
    found = json.loads(path.read_text())
    assert found["tokens"] == 1280 == 5 * 8 * 32  # whole steps
    assert [len(values) for values in found["arms"].values()] == [2, 2]
    assert found["eval_set"] == "counting" and set(found["eval_sets"]) == {"counting", "pool"}
    assert found["difference"] < 0  # counting is learned from counting
    assert found["interval"][0] < found["difference"] < found["interval"][1]
    pairs = np.subtract(*found["arms"].values())
    assert math.isclose(found["difference"], pairs.mean(), abs_tol=1e-9)
    assert found["eval_sets"]["pool"]["difference"] > found["difference"]
    assert "difference" in capsys.readouterr().out


def test_arms_differ_in_nothing_but_their_data(texts: dict[str, str]) -> None:
    step = ablation_step(
        "made", texts["kept"], texts["pool"], tokenizer="tokenizer", tokens=1280, seeds=(3, 4),
        eval_set=texts["heldout"], kept_weight=0.3, recipe=TINY,
    )  # fmt: skip
    runs = {each.step.name: each.step.config for each in inputs_of(step.config) if "ablation-" in each.step.name}
    assert len(runs) == 4
    for seed in (3, 4):
        filtered, control = (runs[f"datashop/made/ablation-{arm}-seed{seed}"] for arm in ("filtered", "control"))
        assert (filtered.tokens, filtered.seed, filtered.recipe) == (control.tokens, control.seed, control.recipe)
        assert filtered.weights == {"kept": 0.3, "pool": 0.7} and control.weights == {"pool": 1.0}
        assert filtered.data["pool"] is control.data["pool"]


def test_arms_of_different_tokens_or_documents_are_not_compared(tmp_path: Path) -> None:
    def write(name: str, tokens: int, digest: str) -> str:
        folder = tmp_path / name
        folder.mkdir()
        content = {"tokens": tokens, "bits_per_byte": {"a": 1.0}, "eval_digests": {"a": digest}, "epochs": 1.0}
        (folder / "evaluation.json").write_text(json.dumps({**content, "model": {}, "parameters": 1}))
        return str(folder)

    first = write("first", 100, "x")
    for other, named in (
        (write("longer", 120, "x"), "100, 120"),
        (write("elsewhere", 100, "y"), "different documents"),
    ):
        config = CompareArmsConfig((first,), (other,), (0,), 100, output_path=str(tmp_path))
        with pytest.raises(DataError, match=named):
            compare_arms(config)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"seeds": ()}, "seeds"),
        ({"seeds": (1, 1)}, "seeds"),
        ({"kept_weight": 0.0}, "kept_weight"),
        ({"eval_set": {}}, "eval_set"),
        ({"confidence": 95}, "`confidence` is 95: use a share between 0 and 1"),
    ],
)
def test_ablation_that_cannot_work_is_refused(options: dict, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        ablation_step("made", "kept", "pool", **{"tokenizer": "t", "tokens": 1000, "eval_set": "heldout", **options})
