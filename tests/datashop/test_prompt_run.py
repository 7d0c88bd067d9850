"""A run whose labels come from a language model: a scripted endpoint grades, and the rest of the pipeline follows."""

import dataclasses
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


@pytest.mark.slow
def test_everything_at_once_ends_in_a_report_that_says_how_small_it_was(tmp_path: pathlib.Path) -> None:
    """Two annotators, a cascade of n-grams and an encoder that is pretrained on the pool, and an ablation of two seeds."""
    from marin.datashop.ablation import AblationModel
    from marin.datashop.cascade import CascadeConfig
    from marin.datashop.config import AblationConfig
    from marin.datashop.encoder import EncoderConfig
    from marin.datashop.masked import pretrain_encoder_step
    from marin.site.datashop_report import run_steps

    write_shards(str(tmp_path / "pool"), made_documents(300), stage="made", settings={}, shard_bytes=40_000)
    heldout = [dataclasses.replace(d, id=f"held-{d.id}") for d in made_documents(50, seed=9, wanted_every=1)]
    write_shards(str(tmp_path / "heldout"), heldout, stage="made", settings={})
    encoder = pretrain_encoder_step(
        "encoder", str(tmp_path / "pool"), vocab_size=300, hidden_dim=32, intermediate_dim=64, num_layers=2, num_heads=2,
        max_tokens=32, num_steps=20, batch_size=8, held_out_windows=8,
    )  # fmt: skip
    dear = EncoderConfig(encoder=encoder, max_tokens=32, batch_size=16, num_epochs=1, learning_rate=1e-3)
    with serving(grade) as endpoint:
        config = DatashopRunnerConfig(
            experiment_name="whole",
            pretraining_data_path=str(tmp_path / "pool"),
            data_filter_prompt=PROMPT,
            annotator_model_name="grader",
            second_annotator_model_name="other grader",
            endpoint=endpoint.url,
            sample_size=250,
            classifier=CascadeConfig(cheap=NgramConfig(num_hashes=4096), dear=dear, held_out_fraction=0.3),
            keep_fraction=0.3,
            vocab_size=300,
            ablation=AblationConfig(
                str(tmp_path / "heldout"), tokens=1280, seeds=(0, 1),
                recipe=AblationModel(seq_len=32, hidden_dim=32, num_layers=1, num_heads=1, sequences=8),
            ),
            num_workers=1,
        )  # fmt: skip
        steps = run_steps(config)
        executor = Executor(ExecutorMainConfig(prefix=str(tmp_path / "store")))
        executor.run(list(steps.values()))
    report = pathlib.Path(executor.output_path(steps["report"]))
    found = json.loads((report / "report.json").read_text())
    assert found["card"]["classifier"]["kind"] == "cascade" and len(found["ablation"]["arms"]["filtered"]) == 2
    assert found["agreement"]["num_documents"] > 150 and found["agreement"]["cost_dollars"] == [None, None]
    page = (report / "index.html").read_text()
    for said in ("CPU size, no evidence about BERT", "Weighted kappa", "Tokens of each arm", "ablation-wide-dark.svg"):
        assert said in page, said
    assert "CPU size" in pathlib.Path(executor.output_path(steps["card"]), "README.md").read_text()
