"""The encoder classifier from pretraining on the pool to scores, as a person runs it: configs in, folders out."""

import dataclasses
import itertools
import json
import shutil
import threading
import types
from pathlib import Path

import jax
import numpy as np
import pytest

from marin.data import pace
from marin.data.documents import Document, write_documents
from marin.data.shards import DocumentSet, write_shards
from marin.data.tokenizer.for_encoders import EncoderTokenizer
from marin.datashop import encoder_fit, fitting, masked_fit
from marin.datashop.classifier import load_classifier
from marin.datashop.config import DatashopRunnerConfig
from marin.datashop.encoder import CPU_SIZE, EncoderConfig
from marin.datashop.encoder_fit import FineTuner, fit_head
from marin.datashop.fitting import Fit, fit
from marin.datashop.masked import PretrainEncoderConfig, pretrain_encoder, pretrain_encoder_step
from marin.datashop.pipeline import datashop_steps
from marin.datashop.scoring import folder_digest, read_scores
from marin.errors import ConfigError, DataError, NonFiniteLossError
from marin.execution.executor import Executor
from marin.execution.flags import ExecutorMainConfig
from marin.execution.step import resolve, versioned

from .made_texts import documents_by_first_word, write_labelled

PRETRAINING = PretrainEncoderConfig(
    documents="", vocab_size=320, hidden_dim=32, intermediate_dim=64, num_layers=1, num_heads=2, max_tokens=32,
    rotary=False, num_steps=40, learning_rate=3e-3, held_out_windows=8,
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """`sample`, `labels` and `encoder` of a task that a frozen encoder does badly."""
    folder = tmp_path_factory.mktemp("made")
    fields = write_labelled(folder, *documents_by_first_word(700, 0))
    pretrain_encoder(dataclasses.replace(PRETRAINING, documents=fields["sample"], output_path=str(folder / "encoder")))
    return {**fields, "encoder": str(folder / "encoder")}


def config_of(made: dict[str, str], output: Path, **fields: object) -> EncoderConfig:
    options = {"pooling": "mean", "max_tokens": 24, "batch_size": 32, "num_epochs": 10, "learning_rate": 2e-3}
    options |= {"eval_every": 32, "held_out_fraction": 0.2, "output_path": str(output), **fields}
    return EncoderConfig(**made, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def trained(made: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) / "classifier" for name in ("frozen", "fine-tuned")}
    for name, folder in folders.items():
        config_of(made, folder, fine_tune=name == "fine-tuned").train()
    return folders


@pytest.fixture
def even_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes by looks: two a step, and one a line.

    So checkpoints come at the same steps however slow the machine is.
    """
    looks = itertools.count()
    clock = types.SimpleNamespace(monotonic=lambda: float(next(looks)))
    for module in (fitting, pace):
        monkeypatch.setattr(module, "time", clock)


def wait_for_saves() -> None:
    """A killed process leaves no thread that goes on saving; one that is only made to look killed does."""
    for thread in threading.enumerate():
        if thread.name == "checkpoint":
            thread.join()


def read(folder: Path, name: str) -> dict:
    return json.loads((folder / name).read_text())


def test_fine_tuning_improves_on_the_frozen_encoder(trained: dict[str, Path]) -> None:
    quality = {name: read(folder, "quality.json") for name, folder in trained.items()}
    assert quality["frozen"]["num_documents"] == quality["fine-tuned"]["num_documents"]
    assert quality["fine-tuned"]["auc"]["low"] > quality["frozen"]["auc"]["value"] + 0.05
    assert quality["fine-tuned"]["auc"]["value"] > 0.88
    kept = read(trained["fine-tuned"], "classifier.json")
    assert kept["kept_step"] > 0 and kept["selection_macro_f1"] > kept["frozen_selection_macro_f1"]


def test_classifier_of_a_pool_encoder_says_what_it_is_no_evidence_of(trained: dict[str, Path]) -> None:
    for folder in trained.values():
        record = read(folder, "classifier.json")
        assert record["note"] == CPU_SIZE == "CPU size, no evidence about BERT"
        assert record["pretraining"]["steps"] == PRETRAINING.num_steps


def test_folder_holds_no_leftovers_and_is_loaded_alone(trained: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(trained["fine-tuned"], tmp_path / "moved")
    assert {path.name for path in folder.iterdir()} == {
        "classifier.json", "quality.json", "training.json", "head.npz", "encoder",
    }  # fmt: skip
    texts = [document.text for document in documents_by_first_word(5, 1)[0]]
    first, second = (load_classifier(str(each)).scores(texts) for each in (folder, trained["fine-tuned"]))
    assert np.array_equal(first, second)


def test_scores_do_not_depend_on_what_is_scored_with_them(trained: dict[str, Path]) -> None:
    classifier = load_classifier(str(trained["fine-tuned"]))
    texts = [document.text for document in documents_by_first_word(60, 2)[0]]
    texts += ["", "river " * 500, "\x00\u200b 東京 " + "x" * 1000, texts[0]]
    together = classifier.scores(texts)
    assert np.isfinite(together).all() and len(set(together)) == len(texts) - 1
    assert np.array_equal(classifier.scores(texts[::-1])[::-1], together)
    for index in (0, 30, 60, 61, 62):
        assert classifier.scores([texts[index]])[0] == together[index]
    assert len(classifier.scores([])) == 0


@pytest.mark.slow
def test_interrupted_fine_tuning_ends_in_the_same_bits(
    made: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, even_clock: None
) -> None:
    class Killed(BaseException):
        pass

    looks = FineTuner._look

    def dies(self: FineTuner, state: object, done: int) -> object:
        if done == 32:
            raise Killed
        return looks(self, state, done)

    short = {"num_epochs": 3, "eval_every": 16, "checkpoint_interval": 16}
    config_of(made, tmp_path / "whole", **short).train()
    config = config_of(made, tmp_path / "again", **short)
    monkeypatch.setattr(FineTuner, "_look", dies)
    with pytest.raises(Killed):
        config.train()
    wait_for_saves()
    steps = [int(path.name[5:]) for path in (tmp_path / "again" / "checkpoints").glob("step-*")]
    assert steps and 0 < max(steps) < 32
    monkeypatch.setattr(FineTuner, "_look", looks)
    config.train()
    for name in ("training.json", "quality.json"):
        assert read(tmp_path / "again", name) == read(tmp_path / "whole", name)
    weights = "encoder/model.safetensors"
    assert (tmp_path / "again" / weights).read_bytes() == (tmp_path / "whole" / weights).read_bytes()


def test_run_with_an_encoder_keeps_the_asked_fraction(made: dict[str, str], tmp_path: Path) -> None:
    """As a person runs it: a pool, examples, an encoder; each document has one score, and the best of them are kept."""
    documents, labels = documents_by_first_word(300, 5)
    pool = write_shards(str(tmp_path / "pool"), documents, stage="made", settings={}, shard_bytes=8_000)
    wanted = [document for document, label in zip(documents, labels, strict=True) if label][:40]
    write_shards(str(tmp_path / "examples"), wanted, stage="made", settings={})
    config = DatashopRunnerConfig(
        experiment_name="made",
        pretraining_data_path=str(tmp_path / "pool"),
        positives=(str(tmp_path / "examples"),),
        negatives_per_positive=2.0,
        classifier=EncoderConfig(
            encoder=made["encoder"], fine_tune=False, pooling="mean", max_tokens=24, held_out_fraction=0.3
        ),
        keep_fraction=0.2,
    )
    steps = datashop_steps(config)
    Executor(ExecutorMainConfig(prefix=str(tmp_path / "out"))).run([steps["filtered"]])
    (kept,) = (tmp_path / "out" / "datashop" / "made").glob("filtered-*")
    assert DocumentSet.open(str(kept)).num_documents == 60
    (scores,) = (tmp_path / "out" / "datashop" / "made").glob("scores-*")
    (trained,) = (tmp_path / "out" / "datashop" / "made").glob("classifier-*")
    assert len(pool.shards) > 1
    found = [score for shard in pool.shards for score in read_scores(str(scores), shard)]
    expected = load_classifier(str(trained)).scores([document.text for document in documents])
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("kind", ["classifier", "encoder"])
def test_kill_after_the_last_file_leaves_nothing_behind(
    kind: str, made: dict[str, str], trained: dict[str, Path], tmp_path: Path
) -> None:
    source = trained["frozen"] if kind == "classifier" else Path(made["encoder"])
    folder = shutil.copytree(source, tmp_path / "copy")
    digest = folder_digest(str(folder))
    (folder / "checkpoints" / "step-00000010").mkdir(parents=True)
    (folder / "checkpoints" / "step-00000010" / "arrays").write_bytes(b"x")
    if kind == "classifier":
        (folder / "vectors").mkdir()
        (folder / "vectors" / "block-00000.npy").write_bytes(b"x")
        config_of(made, folder, fine_tune=False).train()
    else:
        (folder / "tokens.npy").write_bytes(b"x")
        pretrain_encoder(dataclasses.replace(PRETRAINING, documents=made["sample"], output_path=str(folder)))
    assert folder_digest(str(folder)) == digest and not (folder / "checkpoints").exists()


def test_look_that_is_named_is_the_one_whose_weights_are_kept() -> None:
    """0.1 is larger as float32 than as float64, so a comparison in float64 would name the later one of two equal looks."""
    later = float(np.float32(0.1))
    tried = [{"step": 0, "macro_f1": 0.1, "squared_error": 0.3}, {"step": 8, "macro_f1": later, "squared_error": 0.3}]
    assert encoder_fit.kept_look(tried)["step"] == 0
    better = {"step": 16, "macro_f1": later, "squared_error": 0.2}
    assert encoder_fit.kept_look([*tried, better, {**better, "step": 24}])["step"] == 16


def test_finished_folder_is_not_trained_again(made: dict[str, str], trained: dict[str, Path]) -> None:
    before = (trained["frozen"] / "head.npz").stat().st_mtime_ns
    config_of(made, trained["frozen"], fine_tune=False).train()
    assert (trained["frozen"] / "head.npz").stat().st_mtime_ns == before


def test_held_out_documents_decide_nothing(made: dict[str, str], trained: dict[str, Path], tmp_path: Path) -> None:
    """With other labels on the held-out documents the same weights come out."""
    from marin.datashop.labels import held_out

    documents, labels = documents_by_first_word(700, 0)
    is_out = held_out([document.id for document in documents], 0.2, 0)
    turned = [1 - label if out else label for label, out in zip(labels, is_out, strict=True)]
    fields = {**write_labelled(tmp_path, documents, turned), "encoder": made["encoder"]}
    config_of(fields, tmp_path / "turned", fine_tune=False).train()
    assert (tmp_path / "turned" / "head.npz").read_bytes() == (trained["frozen"] / "head.npz").read_bytes()
    ours, theirs = (read(folder, "quality.json")["auc"]["value"] for folder in (tmp_path / "turned", trained["frozen"]))
    assert abs(ours + theirs - 1) < 1e-9


def test_head_is_the_ridge_that_does_best_on_the_selection() -> None:
    generator = np.random.default_rng(0)
    weight = generator.normal(size=6)
    learn, select = (generator.normal(size=(count, 6)).astype(np.float32) * 10 + 3 for count in (400, 100))
    learn[:, 5] = select[:, 5] = 7.0  # says nothing
    labels, wanted = (vectors @ weight + 2 for vectors in (learn, select))
    head, strength = fit_head(learn, labels, select, wanted)
    assert np.abs(head(select) - wanted).max() < 1e-2 and strength == 0.01 and head.weight_D[5] == 0


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"pooling": "max"}, "pooling"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"selection_fraction": 1.0}, "selection_fraction"),
        ({"encoder": ""}, "encoder"),
    ],
)
def test_config_that_cannot_work_is_refused(fields: dict, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        EncoderConfig(**{"encoder": "folder", **fields})


def test_encoder_that_is_not_there_or_too_short_is_refused(made: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        config_of({**made, "encoder": str(tmp_path)}, tmp_path / "out").train()
    with pytest.raises(ConfigError, match="takes 32"):
        config_of(made, tmp_path / "out", max_tokens=33).train()
    with pytest.raises(ConfigError, match="marks take 2"):
        config_of(made, tmp_path / "out", max_tokens=2).train()


def test_damaged_classifier_is_refused(trained: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(trained["frozen"], tmp_path / "copy")
    whole = (folder / "head.npz").read_bytes()
    for damaged in (b"PK", b"", whole[:-30], whole[:100], np.random.default_rng(0).bytes(300)):
        (folder / "head.npz").write_bytes(damaged)
        with pytest.raises(DataError, match=r"head\.npz.*train the classifier again"):
            load_classifier(str(folder))


@pytest.mark.parametrize("content", ["{", "[1]", "\xff"])
def test_damaged_record_of_the_encoder_is_found_before_training(
    made: dict[str, str], tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = shutil.copytree(made["encoder"], tmp_path / "encoder")
    (copied / "encoder" / "pretraining.json").write_bytes(content.encode("latin-1"))
    monkeypatch.setattr(encoder_fit, "open_text_encoder", lambda *given: pytest.fail("it begins"))
    with pytest.raises(DataError, match=r"pretraining\.json is no record .*run the step"):
        config_of({**made, "encoder": str(copied)}, tmp_path / "out").train()


# --- masked prediction ------------------------------------------------------------------------------------------------


def test_interrupted_pretraining_ends_in_the_same_bits(
    made: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, even_clock: None
) -> None:
    class Killed(BaseException):
        pass

    rows = masked_fit.MaskedRows.rows

    def dies(self: masked_fit.MaskedRows, chosen: np.ndarray, *draw: int) -> tuple:
        if draw == (0, 25):
            raise Killed
        return rows(self, chosen, *draw)

    config = dataclasses.replace(
        PRETRAINING, documents=made["sample"], output_path=str(tmp_path), checkpoint_interval=10
    )
    monkeypatch.setattr(masked_fit.MaskedRows, "rows", dies)
    with pytest.raises(Killed):
        pretrain_encoder(config)
    wait_for_saves()
    assert list((tmp_path / "checkpoints").glob("step-*"))
    monkeypatch.setattr(masked_fit.MaskedRows, "rows", rows)
    pretrain_encoder(config)
    weights = "encoder/model.safetensors"
    assert (tmp_path / weights).read_bytes() == (Path(made["encoder"]) / weights).read_bytes()


@pytest.mark.slow
def test_pretraining_learns_what_the_text_around_says(tmp_path: Path) -> None:
    words = documents_by_first_word(150, 3)[0]
    repeated = [Document(each.id, " ".join([each.text.split()[0]] * 60), "made") for each in words]
    documents = str(tmp_path / "pool.jsonl.zst")
    write_documents(documents, repeated)
    config = dataclasses.replace(
        PRETRAINING,
        documents=documents,
        vocab_size=300,
        num_steps=150,
        learning_rate=1e-2,
        output_path=str(tmp_path / "out"),
    )
    pretrain_encoder(config)
    found = read(tmp_path / "out" / "encoder", "pretraining.json")
    assert found["held_out_nats"] < 0.8 * found["held_out_nats_of_frequencies"]


def test_pretraining_of_fewer_tokens_than_bytes_and_marks_is_refused_before_it_runs() -> None:
    with pytest.raises(ConfigError, match="`vocab_size` is 260: use a whole number of at least 261"):
        pretrain_encoder_step("encoder", "pool", vocab_size=260)
    step = pretrain_encoder_step("encoder", "pool", vocab_size=versioned(260))
    with pytest.raises(ConfigError, match="`vocab_size` is 260"):
        resolve(step.config, "/out", "/p", lambda step: "/q")


def test_hidden_tokens_follow_berts_rule(made: dict[str, str]) -> None:
    tokenizer = EncoderTokenizer.load(Path(made["encoder"]) / "encoder")
    windows = np.random.default_rng(0).integers(5, 320, (400, 30)).astype(np.int32)
    masked = masked_fit.MaskedRows(windows, tokenizer, 0.2, seed=3)
    tokens, places, targets = masked.rows(np.arange(400), 0, 7)
    begin, end = tokenizer.marks
    whole = np.concatenate([np.full((400, 1), begin), windows, np.full((400, 1), end)], axis=1)
    assert places.shape == (400, 6) and places.min() >= 1 and places.max() <= 30
    assert all(len(set(row)) == 6 for row in places.tolist())
    assert np.array_equal(targets, np.take_along_axis(whole, places.astype(np.int64), 1))
    shown = np.take_along_axis(tokens, places.astype(np.int64), 1)
    untouched = tokens.copy()
    np.put_along_axis(untouched, places.astype(np.int64), targets, 1)
    assert np.array_equal(untouched, whole)
    assert abs((shown == tokenizer.mask_id).mean() - 0.8) < 0.03
    assert abs((shown == targets).mean() - 0.1) < 0.03
    again = masked.rows(np.arange(400), 0, 7)
    assert all(np.array_equal(one, other) for one, other in zip((tokens, places, targets), again, strict=True))
    assert not np.array_equal(masked.rows(np.arange(400), 0, 8)[1], places)


def test_pool_with_too_little_text_is_refused(made: dict[str, str], tmp_path: Path) -> None:
    config = dataclasses.replace(
        PRETRAINING, documents=made["sample"], output_path=str(tmp_path), held_out_windows=5000
    )
    with pytest.raises(DataError, match="held_out_windows"):
        pretrain_encoder(config)


def test_pretraining_step_is_part_of_a_classifiers_identity() -> None:
    from marin.execution.step import inputs_of

    step = pretrain_encoder_step("encoders/pool", "pool", num_steps=10)
    assert [each.step for each in inputs_of(EncoderConfig(encoder=step))] == [step]


# --- the loop ---------------------------------------------------------------------------------------------------------


def test_loss_that_is_not_finite_stops_the_loop(tmp_path: Path) -> None:
    def step(state: jax.Array, batch: int) -> tuple[jax.Array, float]:
        return state, float("nan") if batch == 5 else 1.0

    with pytest.raises(NonFiniteLossError, match="step 6"):
        fit(Fit("made", 20, tmp_path), jax.numpy.zeros(()), step, lambda index: index)


def test_loop_prints_how_far_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str], even_clock: None) -> None:
    fit(Fit("made", 20, tmp_path), jax.numpy.zeros(()), lambda state, batch: (state, float(batch)), lambda index: index)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("made: step")]
    assert 2 <= len(lines) <= 10
    # Three steps after the compiled one: two seconds each by the even clock, and one for the line.
    assert lines[0].startswith("made: step 4 of 20, loss 1.5000, 0.4 steps/s")


def test_stop_request_saves_and_the_next_run_goes_on(tmp_path: Path) -> None:
    import os
    import signal

    taken: list[int] = []

    def step(state: jax.Array, batch: int) -> tuple[jax.Array, float]:
        taken.append(batch)
        if batch == 3 and len(taken) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return state + batch, 0.0

    with pytest.raises(KeyboardInterrupt):
        fit(Fit("made", 8, tmp_path), jax.numpy.zeros((), int), step, lambda index: index)
    assert taken == [0, 1, 2, 3]
    state = fit(Fit("made", 8, tmp_path), jax.numpy.zeros((), int), step, lambda index: index)
    assert taken == list(range(8)) and int(state) == sum(range(8))
