"""The experiment that compares two prompts, on a small sample and a scripted grader."""

import dataclasses
import pathlib

import pytest
from scripted_endpoint import Received, Reply, serving

from experiments.datashop import prompt_quality
from marin.data.documents import Document
from marin.data.shards import write_shards
from marin.datashop.agreement import AGREEMENT
from marin.execution.executor import Executor, ExecutorMainConfig
from marin.execution.step import ExecutorStep
from marin.storage import files


def grader(received: Received) -> Reply:
    """Counts a letter; the prompt that adds up points is one more generous, but never for a 0."""
    page = received.message.split("---\n")[1].split("\n---")[0]
    score = min(page.count("x"), 4)
    is_points = "Give one point" in received.message
    return Reply(f"Because. Final Score: {score + (is_points and score > 0)}")


def test_experiment_traces_without_an_endpoint(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    Executor(ExecutorMainConfig(prefix=str(tmp_path))).dry_run([prompt_quality.agreement, prompt_quality.balanced])
    assert "labels/prompt_quality/judgement" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_two_prompts_are_compared_by_their_labels(tmp_path: pathlib.Path) -> None:
    documents = [Document(f"d{i}", f"page {i}:" + " x" * (i % 5), "s") for i in range(40)]
    sample = str(tmp_path / "set")
    write_shards(sample, documents, stage="t", settings={})
    with serving(grader) as endpoint:

        def on_the_small_sample(step: ExecutorStep) -> ExecutorStep:
            config = dataclasses.replace(step.config, sample=sample, endpoint=endpoint.url)
            return dataclasses.replace(step, config=config)

        points, judgement = map(on_the_small_sample, (prompt_quality.points, prompt_quality.judgement))
        config = dataclasses.replace(prompt_quality.agreement.config, first=points, second=judgement)
        agreement = dataclasses.replace(prompt_quality.agreement, config=config)
        Executor(ExecutorMainConfig(prefix=str(tmp_path / "store"))).run([agreement])
    (folder,) = (tmp_path / "store" / "agreement").glob("prompt_quality-*")
    found = files.read_json(str(folder / AGREEMENT))
    assert found["num_documents"] == 40 and found["exact"]["value"] == pytest.approx(0.2)  # the zeros
    assert found["spearman"]["value"] == pytest.approx(1.0) and found["weighted_kappa"]["value"] > 0.7
    assert [found["table"][i][max(i - 1, 0)] for i in range(6)] == [8, 0, 8, 8, 8, 8]
