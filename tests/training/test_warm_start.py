"""Training that begins from weights: the weights, the optimizer, and where in the data it goes on."""

import dataclasses
import shutil
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from stopping import assert_equal, stop_after

from marin.data.cache import TokenizeConfig, tokenize
from marin.data.documents import read_documents, write_documents
from marin.data.loader import BatchSource
from marin.data.mixture import Mixture
from marin.data.tokenizer import TrainTokenizerConfig, train_tokenizer
from marin.errors import CheckpointError
from marin.models.llama import LlamaModel
from marin.nn.rotary import RotaryConfig
from marin.optim.hyperball import MuonHConfig
from marin.tracking import RunRecord
from marin.training.loop import train_lm
from marin.training.run_setup import set_up
from tests.training.conftest import MODEL


class _RenamedModel(eqx.Module):
    """A Llama whose parameters have other names."""

    inner: LlamaModel
    logit_softcap: None = None

    @property
    def lm_head_DV(self):
        return self.inner.lm_head_DV

    def activations(self, tokens_BT, segment_ids_BT):
        return self.inner.activations(tokens_BT, segment_ids_BT)


@dataclasses.dataclass(frozen=True)
class Renamed:
    seq_len: int = MODEL.seq_len
    max_seq_len: int = MODEL.seq_len

    def build(self, vocab_size, *, key):
        return _RenamedModel(MODEL.build(vocab_size, key=key))

    def flops_per_token(self, vocab_size, context_length):
        return MODEL.flops_per_token(vocab_size, context_length)


def _samples_taken(config, monkeypatch) -> list[int]:
    """Trains, and returns the samples of its steps in order."""
    found: dict[int, int] = {}
    original = BatchSource.batch_from

    def batch_from(self, seed, first_sample, batch_size, host=(0, 1)):
        found[first_sample] = batch_size
        return original(self, seed, first_sample, batch_size, host)

    with monkeypatch.context() as patch:
        patch.setattr(BatchSource, "batch_from", batch_from)
        train_lm(config)
    return [sample for first, size in sorted(found.items()) for sample in range(first, first + size)]


def test_training_from_a_checkpoint_takes_its_weights_and_may_go_on_in_its_data(make_config, trained):
    losses = {}
    for reset in (True, False):
        config = make_config(
            f"reset{reset}",
            num_train_steps=1,
            initialize_from_checkpoint_path=trained.path,
            reset_data_loader_on_init=reset,
        )
        train_lm(config)
        losses[reset] = RunRecord.open(config.output_path).steps()[0]["loss"]
    fresh = RunRecord.open(trained.path).steps()
    assert losses[True] < fresh[0]["loss"] - 0.3
    assert losses[True] != losses[False]
    assert int(trained.state.step) == 5


@pytest.mark.parametrize("path", ["step-00000005", "~/step-00000005"])
def test_training_from_a_checkpoint_by_a_relative_path_knows_its_run(path, make_config, trained, monkeypatch):
    checkpoints = Path(trained.path) / "checkpoints"
    monkeypatch.chdir(checkpoints)
    monkeypatch.setenv("HOME", str(checkpoints))
    options = {"initialize_from_checkpoint_path": path, "reset_data_loader_on_init": False, "train_batch_size": 4}
    config = make_config("relative", num_train_steps=1, **options)
    assert _samples_taken(config, monkeypatch) == list(range(5 * 8, 5 * 8 + 4))


def test_run_that_goes_on_in_the_data_takes_no_row_that_the_runs_before_it_took(make_config, monkeypatch):
    first = make_config("first", num_train_steps=4)
    train_lm(first)
    goes_on = {"reset_data_loader_on_init": False, "train_batch_size": 4}
    second = make_config("second", num_train_steps=3, initialize_from_checkpoint_path=first.output_path, **goes_on)
    taken = _samples_taken(second, monkeypatch)
    assert taken == list(range(4 * 8, 4 * 8 + 3 * 4))
    goes_on["train_batch_size"] = 16
    third = make_config("third", num_train_steps=1, initialize_from_checkpoint_path=second.output_path, **goes_on)
    assert _samples_taken(third, monkeypatch) == list(range(taken[-1] + 1, taken[-1] + 17))


@pytest.mark.parametrize("saved", [True, False])
def test_run_that_began_from_another_goes_on_as_it_began_though_that_one_trained_further(
    saved, make_config, monkeypatch
):
    options = {"num_train_steps": 8, "steps_per_export": 4, "steps_per_hf_export": -1}
    origin = make_config("origin", **options)
    stop_after(origin, 3, monkeypatch)
    goes_on = {"initialize_from_checkpoint_path": origin.output_path, "reset_data_loader_on_init": False}
    alone = train_lm(make_config("alone", num_train_steps=4, **goes_on))
    config = make_config("stopped", num_train_steps=4, **goes_on)
    stop_after(config, 1, monkeypatch)
    train_lm(origin)
    if saved:
        shutil.rmtree(origin.output_path)  # what the run needs of it is in its own checkpoint
    else:  # as a kill before the first checkpoint leaves it
        shutil.rmtree(Path(config.output_path) / "checkpoints")
    assert_equal(alone, train_lm(config))


def test_training_from_a_checkpoint_of_a_larger_model_names_what_is_left_over(make_config):
    larger = dataclasses.replace(make_config().model, num_layers=2)
    origin = make_config("origin", num_train_steps=1, model=larger)
    train_lm(origin)
    options = {"initialize_from_checkpoint_path": origin.output_path, "num_train_steps": 1}
    with pytest.raises(
        CheckpointError, match=r"holds `model\.blocks\.1\..* and \d+ more, for which the config's model"
    ):
        train_lm(make_config("smaller", **options))
    assert int(train_lm(make_config("partial", allow_partial_checkpoint=True, **options)).step) == 1


@pytest.mark.parametrize("layout", ["checkpoint", "hf"])
def test_training_from_a_part_of_a_model_says_what_it_has_of_its_own_and_what_is_left_out(
    layout, make_config, trained, capsys
):
    """The origin has one layer without biases; the run that begins from it has another kind of layer, or another model."""
    beginnings = {
        "checkpoint": {"initialize_from_checkpoint_path": trained.path},
        "hf": {"initialize_from_hf": f"{trained.path}/hf/step-5"},
    }
    options = {"num_train_steps": 1, "allow_partial_checkpoint": True, **beginnings[layout]}
    model = dataclasses.replace(make_config().model, use_bias=True, tie_word_embeddings=True)
    capsys.readouterr()
    begun = train_lm(make_config("part", model=model, **options))
    np.testing.assert_allclose(begun.model.embedding.weight_VD, trained.state.model.embedding.weight_VD, atol=0.05)
    said = capsys.readouterr().err
    assert "7 of 18 parameters keep their initial values (`" in said and "bias_O`" in said
    assert "1 of the checkpoint are left out (`" in said and "lm_head.weight" in said
    with pytest.raises(CheckpointError, match="no parameter of the config's model"):
        train_lm(make_config("another", model=Renamed(), **options))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, None),
        ({"train_batch_size": 4, "seed": 5}, None),
        ({"train_seq_len": 16}, "rows of another length"),
        ({"data_seed": 7}, "another `data_seed`"),
        ({"data_seed": 7, "reset_data_loader_on_init": True}, None),
    ],
    ids=str,
)
def test_data_that_cannot_go_on_where_another_run_stopped_is_said(make_config, trained, capsys, options, why):
    capsys.readouterr()
    begin = {"initialize_from_checkpoint_path": trained.path, "reset_data_loader_on_init": False}
    config = make_config("goes on", num_train_steps=2, **(begin | options))
    set_up(config)
    said = capsys.readouterr().err
    assert (why in said and "samples are others" in said) if why else "samples are others" not in said


@pytest.mark.parametrize(("size", "is_other"), [(8, False), (4, True), ([(0, 8), (2, 4)], False)])
def test_weights_that_would_change_at_other_samples_than_those_of_the_run_before_are_said(
    size, is_other, make_config, capsys
):
    data = make_config().data
    mixture = Mixture({"one": data, "two": data}, [(0, {"one": 1}), (2, {"two": 1})])
    origin = make_config("origin", num_train_steps=3, train_batch_size=8)
    train_lm(dataclasses.replace(origin, data=mixture))
    begin = {"initialize_from_checkpoint_path": origin.output_path, "reset_data_loader_on_init": False}
    config = make_config("goes on", num_train_steps=8, train_batch_size=size, **begin)
    capsys.readouterr()
    set_up(dataclasses.replace(config, data=mixture))
    assert ("samples are others" in capsys.readouterr().err) == is_other


def test_data_that_cannot_go_on_is_not_said_again_of_a_run_that_is_over(make_config, trained, capsys):
    begin = {"initialize_from_checkpoint_path": trained.path, "reset_data_loader_on_init": False, "data_seed": 7}
    config = make_config("goes on", num_train_steps=2, **begin)
    train_lm(config)
    assert "samples are others" in capsys.readouterr().err
    train_lm(config)
    assert "samples are others" not in capsys.readouterr().err


@pytest.mark.parametrize("also", [{}, {"data_seed": 7}, {"train_seq_len": 16}], ids=str)
def test_other_data_that_goes_on_where_another_run_stopped_is_said_before_what_else_differs(
    also, make_config, trained, data, tmp_path, capsys
):
    # The same documents the other way round: as many rows of the same length, which only the digest tells apart.
    turned = reversed(list(read_documents(str(data / "docs.jsonl.zst"))))
    write_documents(str(tmp_path / "turned.jsonl.zst"), turned)
    tokenize(TokenizeConfig(str(tmp_path / "turned.jsonl.zst"), str(data), str(tmp_path / "turned")))
    said = {}
    for place in (data / "tokens", shutil.copytree(data / "tokens", tmp_path / "moved"), tmp_path / "turned"):
        begin = {"initialize_from_checkpoint_path": trained.path, "reset_data_loader_on_init": False}
        config = make_config(f"on {place.name}", num_train_steps=1, **(begin | also))
        capsys.readouterr()
        set_up(dataclasses.replace(config, data=str(place)))
        said[place.name] = "it has other data, so samples are others" in capsys.readouterr().err
    assert said == {"tokens": False, "moved": False, "turned": True}


def test_training_from_a_checkpoint_names_settings_that_shapes_do_not_show(make_config, capsys):
    origin = make_config("origin", num_train_steps=1, ema_beta=0.9)
    train_lm(origin)
    other = dataclasses.replace(origin.model, rope=RotaryConfig(theta=77_000.0))
    train_lm(make_config("other", model=other, num_train_steps=1, initialize_from_checkpoint_path=origin.output_path))
    said = capsys.readouterr().err
    assert "the weights were trained with `rope.theta`" in said and "here 77000.0" in said
    assert "kept an average of its weights: the weights themselves are taken" in said


@pytest.mark.parametrize("layout", ["checkpoint", "hf"])
def test_optimizer_begins_from_the_weights_that_training_begins_from(layout, make_config, trained):
    """Hyperball keeps each matrix at the norm that it begins with, which is not that of the weights it would have drawn."""
    if layout == "hf":
        options = {"initialize_from_hf": f"{trained.path}/hf/step-5"}
    else:
        options = {"initialize_from_checkpoint_path": trained.path}
    hyperball = MuonHConfig(learning_rate=0.02, adam_lr=0.01, warmup=0)
    state = train_lm(make_config("again", num_train_steps=2, optimizer_config=hyperball, **options))

    def norm(state) -> float:
        return float(jnp.linalg.norm(state.model.blocks[0].mlp.up.weight_IO))

    assert norm(state) == pytest.approx(norm(trained.state), rel=1e-5)


@pytest.mark.parametrize("layout", ["checkpoint", "hf"])
def test_training_from_weights_of_another_tokenizer_is_refused(layout, make_config, trained, data, tmp_path, capsys):
    other = tmp_path / "other"
    documents = str(data / "docs.jsonl.zst")
    train_tokenizer(TrainTokenizerConfig(documents=documents, vocab_size=290, output_path=str(other)))
    tokenize(TokenizeConfig(documents=documents, tokenizer=str(other), output_path=str(other / "tokens")))
    options = {"num_train_steps": 1}
    if layout == "hf":
        options["initialize_from_hf"] = str(next((Path(trained.path) / "hf").iterdir()))
    else:
        options["initialize_from_checkpoint_path"] = trained.path
    theirs = {"tokenizer": str(other), "data": str(other / "tokens")}
    config = dataclasses.replace(make_config("again", **options), **theirs)
    with pytest.raises(CheckpointError, match="stand for other tokens"):
        train_lm(config)
    config = dataclasses.replace(make_config("meant", allow_partial_checkpoint=True, **options), **theirs)
    assert int(train_lm(config).step) == 1
    assert "stand for other tokens" in capsys.readouterr().err


def test_training_from_a_checkpoint_of_another_shape_names_the_parameter(make_config, trained):
    wider = dataclasses.replace(trained.config.model, intermediate_dim=32)
    config = make_config("wider", model=wider, initialize_from_checkpoint_path=trained.path)
    with pytest.raises(CheckpointError, match=r"mlp\.gate"):
        train_lm(config)
    biased = dataclasses.replace(trained.config.model, use_bias=True)
    config = make_config("biased", model=biased, initialize_from_checkpoint_path=trained.path)
    with pytest.raises(CheckpointError, match="bias"):
        train_lm(config)
    config = make_config(
        "partial",
        model=biased,
        initialize_from_checkpoint_path=trained.path,
        allow_partial_checkpoint=True,
        num_train_steps=1,
    )
    assert int(train_lm(config).step) == 1
