"""What a run trains on: mixtures, packing, batch sizes that change, and batches that come late."""

import dataclasses
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from marin.data.cache import TokenCache, TokenizeConfig, tokenize
from marin.data.documents import Document, write_documents
from marin.data.loader import BatchSource, open_batches
from marin.data.mixture import Mixture
from marin.errors import ConfigError, DataError
from marin.nn.trees import named_leaves
from marin.tracking import RunRecord
from marin.training import loop
from marin.training.loop import train_lm

CONTEXT = 32


@pytest.fixture(scope="session")
def other_tokens(data, tmp_path_factory) -> str:
    """A second token cache of the same tokenizer."""
    folder = tmp_path_factory.mktemp("other")
    choose = np.random.default_rng(1)
    texts = [" ".join(choose.choice(["the", "sum", "of", "a", "limit"], 50)) for _ in range(12)]
    write_documents(str(folder / "docs.jsonl.zst"), [Document(str(i), text, "t") for i, text in enumerate(texts)])
    tokenize(TokenizeConfig(str(folder / "docs.jsonl.zst"), str(data), str(folder / "tokens")))
    return str(folder / "tokens")


def losses(config):
    return [step["loss"] for step in RunRecord.open(config.output_path).steps()]


def test_training_on_a_mixture_of_one_cache_takes_the_steps_of_the_cache(make_config):
    alone = make_config("alone", num_train_steps=3)
    mixture = dataclasses.replace(
        make_config("mixture", num_train_steps=3), data=Mixture({"only": alone.data}, {"only": 0.4})
    )
    states = [named_leaves(train_lm(config)) for config in (alone, mixture)]
    for name, value in states[0].items():
        np.testing.assert_array_equal(value, states[1][name], err_msg=name)
    assert losses(alone) == losses(mixture)


def test_training_on_a_staged_mixture_resumes_to_the_bit(make_config, other_tokens):
    def config(name, steps):
        made = make_config(name, num_train_steps=6, steps_per_export=3)
        weights = [(0, {"one": 0.5, "two": 0.5}), (4, {"two": 1})]
        return dataclasses.replace(
            made, data=Mixture({"one": made.data, "two": other_tokens}, weights, packing="best_fit")
        )

    whole = train_lm(config("whole", 6))
    resumed = config("resumed", 6)
    train_lm(resumed)
    directory = Path(resumed.output_path)
    shutil.rmtree(directory / "checkpoints" / "step-00000006")
    lines = (directory / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    steps = [i for i, line in enumerate(lines) if b'"event":"step"' in line]
    (directory / "metrics.jsonl").write_bytes(b"".join(lines[: steps[4]]))
    again = named_leaves(train_lm(resumed))
    for name, value in named_leaves(whole).items():
        np.testing.assert_array_equal(value, again[name], err_msg=name)
    assert losses(resumed) == losses(config("whole", 6))
    record = RunRecord.open(directory)
    assert record.info["digests"]["data"] != TokenCache.open(other_tokens).digest
    assert record.info["config"]["data"]["packing"] == "best_fit"
    assert {entry["name"]: entry["num_lost_tokens"] for entry in record.info["data"]} == {"one": 0, "two": 0}
    assert sum(entry["epochs"] * entry["num_rows"] for entry in record.info["data"]) == pytest.approx(6 * 8, abs=0.01)


@pytest.mark.parametrize("resets", [True, False])
def test_epochs_of_a_run_are_its_own_wherever_its_data_begins_and_the_warning_counts_what_went_before(
    make_config, capsys, resets
):
    rows = open_batches(make_config("origin").data, 32, 0).components[0].rows.num_rows
    steps = -(-rows * 3 // 4 // 8)
    origin = make_config("origin", num_train_steps=steps)
    train_lm(origin)
    assert "times through" not in capsys.readouterr().err
    options = {"initialize_from_checkpoint_path": origin.output_path, "reset_data_loader_on_init": resets}
    config = make_config("goes on", num_train_steps=steps, **options)
    train_lm(config)
    (entry,) = RunRecord.open(config.output_path).info["data"]
    assert entry["epochs"] == pytest.approx(steps * 8 / rows, abs=1e-5) and entry["epochs"] < 1
    warned = capsys.readouterr().err
    assert ("training goes 1.5 times" in warned and "with what was trained before it" in warned) is not resets


def test_training_with_a_batch_schedule_counts_its_tokens_and_goes_through_the_data_without_a_gap(
    make_config, monkeypatch
):
    asked = []
    original = BatchSource.batch_from

    def batch_from(self, seed, first_sample, batch_size, host=(0, 1)):
        asked.append((first_sample, batch_size))
        return original(self, seed, first_sample, batch_size, host)

    monkeypatch.setattr(BatchSource, "batch_from", batch_from)
    config = make_config(num_train_steps=6, train_batch_size=[(0, 4), (2, 8), (5, 4)])
    train_lm(config)
    steps = RunRecord.open(config.output_path).steps()
    assert [step["tokens"] for step in steps] == [size * CONTEXT for size in (4, 4, 8, 8, 8, 4)]
    assert config.total_tokens == sum(step["tokens"] for step in steps)
    # Two sizes are compiled with the first batch before the clock starts; then come the batches of the steps.
    assert asked == [(0, 4), (0, 8), (0, 4), (4, 4), (8, 8), (16, 8), (24, 8), (32, 4)]


@pytest.mark.slow
def test_training_with_a_batch_schedule_interrupted_and_resumed_ends_with_the_same_bits(make_config):
    options = {"num_train_steps": 6, "train_batch_size": [(0, 4), (3, 8)], "steps_per_export": 2}
    whole = named_leaves(train_lm(make_config("whole", **options)))
    config = make_config("cut", **options)
    train_lm(config)
    shutil.rmtree(Path(config.output_path) / "checkpoints" / "step-00000006")
    for name, value in named_leaves(train_lm(config)).items():
        np.testing.assert_array_equal(value, whole[name], err_msg=name)


def test_training_with_a_batch_schedule_that_cannot_be_is_refused(make_config):
    with pytest.raises(ConfigError, match="leave the entry out"):
        make_config(num_train_steps=5, train_batch_size=[(0, 4), (5, 8)])
    with pytest.raises(ConfigError, match="rising order"):
        make_config(num_train_steps=5, train_batch_size=[(0, 4), (3, 8), (2, 4)])


def test_training_that_repeats_a_component_says_so_once_with_its_name(make_config, other_tokens, capsys):
    config = make_config(num_train_steps=5)
    weights = {"words": 0.01, "few": 0.99}
    mixture = Mixture({"words": config.data, "few": other_tokens}, weights)
    train_lm(dataclasses.replace(config, data=mixture))
    warnings = [line for line in capsys.readouterr().err.splitlines() if "times through" in line]
    assert len(warnings) == 1 and "`few`" in warnings[0]
    meant = dataclasses.replace(
        make_config("meant", num_train_steps=5), data=dataclasses.replace(mixture, max_epochs={"few": 9})
    )
    train_lm(meant)
    assert "times through" not in capsys.readouterr().err


def test_training_longer_than_the_epoch_limits_allow_is_refused_before_it_starts(make_config, other_tokens):
    config = make_config(num_train_steps=500)
    mixture = Mixture({"few": other_tokens}, {"few": 1}, max_epochs={"few": 2})
    with pytest.raises(ConfigError, match="max_epochs"):
        train_lm(dataclasses.replace(config, data=mixture))
    assert not (Path(config.output_path) / "metrics.jsonl").exists()


def test_training_on_slow_data_records_the_waiting_and_warns(make_config, monkeypatch, capsys):
    original, original_take = BatchSource.batch_from, loop.Prefetcher.take
    asked = threading.Semaphore(0)

    def take(self):
        asked.release()
        return original_take(self)

    def slow(self, *arguments):
        if threading.current_thread().name == "prefetch":  # not ahead, while a step takes its time on a busy machine
            asked.acquire(timeout=60)
        time.sleep(0.2)
        return original(self, *arguments)

    monkeypatch.setattr(loop.Prefetcher, "take", take)
    monkeypatch.setattr(BatchSource, "batch_from", slow)
    config = make_config(num_train_steps=22)
    train_lm(config)
    steps = RunRecord.open(config.output_path).steps()
    assert sum(step["data_wait"] for step in steps) > 0.2 * sum(step["step_time"] for step in steps)
    shown = capsys.readouterr().out
    assert "data is slower than the device" in shown
    assert "waits for data" in shown


def test_training_stops_with_the_error_of_a_batch_that_cannot_be_read(make_config, monkeypatch):
    original = BatchSource.batch_from

    def damaged(self, seed, first_sample, batch_size, host=(0, 1)):
        if first_sample == 24:
            raise DataError("chunk 7 is damaged")
        return original(self, seed, first_sample, batch_size, host)

    monkeypatch.setattr(BatchSource, "batch_from", damaged)
    config = make_config(num_train_steps=6)
    with pytest.raises(DataError, match="chunk 7 is damaged"):
        train_lm(config)
    assert len(RunRecord.open(config.output_path).steps()) >= 2
