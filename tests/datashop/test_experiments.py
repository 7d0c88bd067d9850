"""The shipped experiments of the datashop describe their steps, alone and through `marin datashop run`."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from marin.datashop.config import DatashopRunnerConfig
from marin.execution.graph import Graph
from marin.site.datashop_report import run_steps

FOLDER = Path(__file__).parents[2] / "experiments" / "datashop"
RUNS = ["graph_docs", "rust_docs", "math_cascade"]


@pytest.mark.parametrize("name", RUNS)
def test_experiment_has_steps_up_to_a_report(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MARIN_ENCODER", raising=False)
    config = importlib.import_module(f"experiments.datashop.{name}").config
    assert isinstance(config, DatashopRunnerConfig)
    names = {node.name for node in Graph(list(run_steps(config).values()), str(tmp_path)).nodes}
    assert {f"datashop/{config.experiment_name}/{stage}" for stage in ("scores", "card", "report")} <= names


@pytest.mark.parametrize("how", ["file", "module", "python -m"])
def test_dry_run_is_the_same_however_the_experiment_is_named(
    how: str, repository: Path, tmp_path: Path, plain_environment: dict[str, str]
) -> None:
    command = {
        "file": ["marin", "datashop", "run", "experiments/datashop/graph_docs.py"],
        "module": ["marin", "datashop", "run", "experiments.datashop.graph_docs"],
        "python -m": ["experiments.datashop.graph_docs"],
    }[how]
    done = subprocess.run(
        [sys.executable, "-m", *command, "--dry_run", "--prefix", str(tmp_path)],
        cwd=repository,
        env=plain_environment,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    from experiments.datashop.graph_docs import config

    graph = Graph(list(run_steps(config).values()), str(tmp_path))
    assert all(node.output_path in done.stdout for node in graph.nodes)
    assert list(tmp_path.iterdir()) == []


def test_rust_docs_is_about_graphs_where_its_text_is_not(tmp_path: Path, plain_environment: dict[str, str]) -> None:
    program = "from experiments.datashop import graph_docs, rust_docs; assert rust_docs.config is graph_docs.config"
    environment = plain_environment | {"MARIN_SHARED_DATA": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, cwd=FOLDER.parents[1])
