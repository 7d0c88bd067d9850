"""A run whose labels come from a language model: a scripted endpoint grades, and the rest of the pipeline follows."""

import json
import pathlib
import re
from typing import Any

import pytest
from scripted_endpoint import Received, Reply, serving

from marin.data.documents import read_documents
from marin.data.shards import write_shards
from marin.datashop.config import DatashopRunnerConfig
from marin.datashop.ngrams import NgramConfig
from marin.datashop.pipeline import datashop_steps
from marin.execution.executor import Executor, ExecutorMainConfig

from .conftest import WANTED_WORDS, made_documents

PROMPT = "How much is this about Rust?\n\n{example}\n\nEnd with Final Score: and 0 to 5."


def grade(received: Received) -> Reply:
    """One point for each wanted word, at most five; every tenth answer is none."""
    if "Final Score" not in received.message:
        return Reply("Kind: text about Rust. Needs: Rust. Training text: Rust.")
    points = min(len(re.findall(rf"\b({'|'.join(WANTED_WORDS)})\b", received.message)), 5)
    if int(received.key[:8], 16) % 10 == 0:
        return Reply("I cannot say.")
    words = ("Useless", "Poor", "Okay", "Good", "Great")
    return Reply(f"Final Score: {words[max(points - 1, 0)] if 'Useless' in received.message else points}")


@pytest.mark.parametrize("way", ["prompt", pytest.param("corpus", marks=pytest.mark.slow)])
def test_pool_is_filtered_by_what_a_model_says(way: str, tmp_path: pathlib.Path) -> None:
    write_shards(str(tmp_path / "pool"), made_documents(300), stage="made", settings={}, shard_bytes=40_000)
    (tmp_path / "target.txt").write_text("All about borrow checkers and lifetimes.")
    wish: dict[str, Any] = {"data_filter_prompt": PROMPT}
    if way == "corpus":
        wish = {"corpus_content_paths": (str(tmp_path / "target.txt"),)}
    with serving(grade) as endpoint:
        config = DatashopRunnerConfig(
            experiment_name="asked",
            pretraining_data_path=str(tmp_path / "pool"),
            annotator_model_name="grader",
            endpoint=endpoint.url,
            sample_size=200,
            classifier=NgramConfig(held_out_fraction=0.3, num_hashes=4096),
            keep_fraction=0.2,
            planted_sources=("rust",),
            vocab_size=300,
            num_workers=1,
            **wish,
        )
        steps = datashop_steps(config)
        executor = Executor(ExecutorMainConfig(prefix=str(tmp_path / "store")))
        executor.run(list(steps.values()))
        asked = len(endpoint.received)
        executor.run(list(steps.values()))
        assert len(endpoint.received) == asked == 200 + (way == "corpus")
    labels = json.loads(pathlib.Path(executor.output_path(steps["labels"]), "labels.json").read_text())
    assert labels["num_documents"] == 200 and labels["num_labelled"] + labels["num_unparsed"] == 200
    assert labels["num_unparsed"] >= 5
    selection = json.loads(pathlib.Path(executor.output_path(steps["selection"]), "selection.json").read_text())
    assert selection["num_kept"] == 60 and selection["planted"]["quality"]["auc"]["value"] > 0.95
    kept = list(read_documents(executor.output_path(steps["filtered"])))
    assert sum(document.source == "rust" for document in kept) > 50
    card = pathlib.Path(executor.output_path(steps["card"]), "README.md").read_text()
    assert "labelled by grader" in card and ("Rust" in card if way == "prompt" else "target.txt" in card)
