"""SFT from a base run: what is learned, that it lowers the loss, and that an interrupted run goes on to the same weights."""

import dataclasses
import json
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from marin.data.cache import TokenCache
from marin.data.loader import open_batches
from marin.data.mixture import Mixture
from marin.errors import CheckpointError, ConfigError, DataError, MarinError
from marin.finetuning import sft
from marin.finetuning.answer_loss import answer_bits_per_byte
from marin.finetuning.chat_scores import ChatEvalOptions
from marin.finetuning.conversations import ConversationsConfig, tokenize_conversations
from marin.finetuning.origin import FinetuneRates, Origin, finetuning_optimizer, with_context
from marin.finetuning.sft import SftConfig, read_figures, train_sft, training_config
from marin.finetuning.sources import LocalFile
from marin.models.llama import LlamaConfig
from marin.nn.precision import Precision
from marin.nn.trees import named_leaves
from marin.resources import CpuOnlyConfig
from marin.tracking import RunRecord
from marin.training import checkpoint as checkpoints
from marin.training.config_json import config_to_json
from marin.training.run_model import load_run_model


@pytest.fixture(scope="session")
def made(base, tmp_path_factory):
    """Caches of made conversations."""
    folder = tmp_path_factory.mktemp("conversations")
    config = ConversationsConfig(
        base.tokenizer.digest, 64, made=600, tokenizer=base.tokenizer_folder, output_path=str(folder)
    )
    tokenize_conversations(config)
    return folder


def config_for(base, made, output, **changes):
    origin = Origin.open(base.run)
    config = SftConfig(
        CpuOnlyConfig(),
        str(made),
        origin.digest,
        num_iterations=12,
        origin=str(base.run),
        eval_every=6,
        chatcore_every=0,
        output_path=str(output),
    )
    return dataclasses.replace(config, **changes)


@pytest.fixture(scope="module")
def finished(base, made, tmp_path_factory):
    """A finished SFT run."""
    output = tmp_path_factory.mktemp("sft") / "run"
    train_sft(config_for(base, made, output))
    return output


def test_conversations_learn_what_assistants_write_and_not_that_a_document_follows(base, made):
    tokenizer = base.tokenizer
    cache, mask = TokenCache.open(str(made)), TokenCache.open(str(made / "loss_mask"))
    report = json.loads((made / "report.json").read_text())["train"]["made"]
    assert report["conversations"] == 600 == cache.num_documents
    assert int((mask.tokens[:] > 0).sum()) == report["learned"]
    source = open_batches(Mixture({"a": str(made)}, {"a": 1.0}, packing="best_fit_truncate"), 64, tokenizer.bos_id)
    rows = source.components[0].rows
    batch = rows.read(np.arange(rows.num_rows))
    learned = batch.weight_BT > 0
    assert learned.sum() == report["learned"]
    forbidden = [
        "<|bos|>",
        "<|user_start|>",
        "<|user_end|>",
        "<|assistant_start|>",
        "<|output_start|>",
        "<|output_end|>",
    ]
    assert not np.isin(batch.targets_BT[learned], [tokenizer.special_tokens[name] for name in forbidden]).any()
    ends = tokenizer.special_tokens["<|assistant_end|>"]
    assert (batch.targets_BT[learned] == ends).sum() == (cache.tokens[:] == ends).sum()
    # Best fit that pads: each row begins a conversation, and none is cut but those longer than a row.
    assert (batch.tokens_BT[:, 0] == tokenizer.bos_id).all()
    assert rows.counts.num_lost_tokens == 0


def test_packing_of_three_conversations_is_the_worked_example(base, tmp_path):
    rows = [("a", "b c d e f g"), ("h", "i"), ("j", "k l")]
    path = tmp_path / "chats.jsonl"
    # The first of every fifty rows is held out.
    lines = [("held", "out"), *rows]
    path.write_text("".join(json.dumps({"prompt": p, "response": r}) + "\n" for p, r in lines))
    tokenizer = base.tokenizer
    config = ConversationsConfig(
        tokenizer.digest,
        24,
        local=(LocalFile.of(str(path)),),
        tokenizer=base.tokenizer_folder,
        output_path=str(tmp_path / "out"),
    )
    tokenize_conversations(config)
    mixture = Mixture({"a": str(tmp_path / "out")}, {"a": 1.0}, packing="best_fit_truncate")
    source = open_batches(mixture, 24, tokenizer.bos_id).components[0].rows
    sizes = [5 + len(tokenizer.encode(p)) + len(tokenizer.encode(r)) for p, r in rows]
    assert max(sizes) <= 24 < sum(sizes)
    batch = source.read(np.arange(source.num_rows))
    special = tokenizer.special_tokens
    names = ("<|bos|>", "<|user_start|>", "<|user_end|>", "<|assistant_start|>", "<|assistant_end|>")
    bos, user, user_end, start, end = (special[name] for name in names)

    def tokens(row):
        prompt, response = (tokenizer.encode(text) for text in row)
        return [bos, user, *prompt, user_end, start, *response, end], [0] * (4 + len(prompt)) + [1] * (
            len(response) + 1
        )

    seen = []
    for row_tokens, row_weights, segments in zip(batch.tokens_BT, batch.weight_BT, batch.segment_ids_BT, strict=True):
        expected = []
        for segment in range(int(segments.max()) + 1):
            part = row_tokens[segments == segment].tolist()
            found = [number for number, row in enumerate(rows) if tokens(row)[0] == part]
            seen += found
            # A weight belongs to the token that follows: it is the mask, one to the left. Padding has none.
            expected += [*tokens(rows[found[0]])[1][1:], 0] if found else [0] * len(part)
            assert found or set(part) == {bos}
        assert row_weights.tolist() == expected
    assert sorted(seen) == [0, 1, 2] and source.num_rows == 2


def test_local_rows_with_messages_or_pairs_and_bad_ones(base, tmp_path):
    path = tmp_path / "chats.jsonl"
    bad = {"messages": [{"role": "user", "content": "a"}, {"role": "robot", "content": "b"}]}
    path.write_text(json.dumps({"prompt": "a", "response": "b"}) + "\n" * 2 + json.dumps(bad) + "\n")
    config = ConversationsConfig(
        base.tokenizer.digest,
        24,
        local=(LocalFile.of(str(path)),),
        tokenizer=base.tokenizer_folder,
        output_path=str(tmp_path / "o"),
    )
    with pytest.raises(DataError, match=r"chats\.jsonl:3: message 2 of the conversation is of the role 'robot'"):
        tokenize_conversations(config)
    path.write_text(json.dumps({"prompt": "a", "response": "\ud800"}) + "\n")
    with pytest.raises(DataError, match=r"chats\.jsonl:1: a text holds a lone surrogate"):
        tokenize_conversations(config)
    path.write_text(json.dumps({"prompt": "a", "response": "b"}) + "\n")
    with pytest.raises(DataError, match="give at least two"):
        tokenize_conversations(config)
    for content, problem in (
        ("", r"chats\.jsonl has no rows: give rows with `messages`, or"),
        (
            '{"text": "x", "id": 3}\n',
            r"chats\.jsonl:1 is no conversation \(its fields: text, id\): give rows with `messages`",
        ),
        (
            '{"prompt": "a", "response": 3}\n',
            r"chats\.jsonl:1 is no conversation \(its fields: prompt, response\): give",
        ),
        (
            '{"prompt": "a", "response": "b"}\n{"messages": "hi"}\n',
            r"chats\.jsonl:2: field `messages` is 'hi', expected a list of at least one message: mend the row$",
        ),
        (
            '{"messages": []}\n',
            r"chats\.jsonl:1: field `messages` is \[\], expected a list of at least one message: mend the row$",
        ),
    ):
        path.write_text(content)
        with pytest.raises(DataError, match=problem):
            tokenize_conversations(config)
    (tmp_path / "empty").mkdir()
    for name, problem in (("absent", "is not there"), ("empty", "no .jsonl")):
        with pytest.raises(ConfigError, match=problem):
            LocalFile.of(str(tmp_path / name))
    with pytest.raises(ConfigError, match="--made"):
        ConversationsConfig("x", 24)


@pytest.mark.parametrize("blank", ["", " "])
def test_blank_path_to_conversations_is_not_the_working_directory(tmp_path, monkeypatch, blank):
    (tmp_path / "others.jsonl").write_text('{"prompt": "a", "response": "b"}\n' * 2)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="`--dataset` is blank"):
        LocalFile.of(blank)


@pytest.mark.parametrize(("held_out", "learned", "split"), [("", "yes", "validation"), ("yes", "", "train")])
def test_conversations_without_text_in_their_answers_are_refused_before_training(
    base, tmp_path, held_out, learned, split
):
    path = tmp_path / "chats.jsonl"
    rows = [{"prompt": "a", "response": held_out if number % 50 == 0 else learned} for number in range(60)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    local = (LocalFile.of(str(path)),)
    config = ConversationsConfig(
        base.tokenizer.digest, 24, local=local, tokenizer=base.tokenizer_folder, output_path=str(tmp_path / "o")
    )
    with pytest.raises(DataError, match=f"no {split} conversation of .*chats.* has an answer with text"):
        tokenize_conversations(config)


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_iterations", 0), ("total_batch_size", 0), ("device_batch_size", -2), ("eval_tokens", 0)],
)
def test_counts_that_cannot_be_are_refused(base, made, tmp_path, name, value):
    with pytest.raises(ConfigError, match=f"`--{name.replace('_', '-')}` is {value}: use at least 1"):
        config_for(base, made, tmp_path, **{name: value})


def test_checkpoint_that_changed_since_the_command_began_is_refused(base):
    origin = Origin.open(base.run)
    assert Origin.reopen(base.run, origin.digest) == origin
    with pytest.raises(ConfigError, match="another checkpoint than when the command began: run it again"):
        Origin.reopen(base.run, "0" * 64)


def test_damaged_notes_of_a_run_are_named(base, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(base.run, run)
    for content in ('{"optimizer', '{"optimizer": 3}'):
        (run / "origin.json").write_text(content)
        with pytest.raises(MarinError, match=r"origin\.json"):
            Origin.open(run)
    (run / "sft.json").write_text("{")
    with pytest.raises(MarinError, match=r"sft\.json"):
        read_figures(run)


@pytest.mark.parametrize("kernel", ["CUDNN", "SPLASH"])
def test_a_run_that_named_another_device_s_kernel_is_finetuned_by_the_best_one_here(base, tmp_path, kernel):
    run = tmp_path / "run"
    shutil.copytree(base.run, run)
    info = json.loads((run / "run.json").read_text())
    model = LlamaConfig(seq_len=64, hidden_dim=32, intermediate_dim=64, num_layers=1, num_heads=2, num_kv_heads=2)
    described = config_to_json(dataclasses.replace(model, attn_backend=kernel))
    info |= {"model_class": "marin.models.llama:LlamaConfig"}
    info["config"] |= {"model": described, "tokenizer": base.tokenizer_folder}
    (run / "run.json").write_text(json.dumps(info))
    assert Origin.open(run).model == model


def test_sft_lowers_the_loss_and_leaves_a_run_that_opens(base, made, finished):
    steps = RunRecord.open(finished).steps()
    figures = read_figures(finished)
    measured = [event["val_bpb"] for event in RunRecord.open(finished).of("evaluation")]
    assert len(steps) == 12 == figures["steps"]
    assert steps[-1]["loss"] < steps[0]["loss"] - 0.3
    assert figures["val_bpb"] < measured[0]
    loaded = load_run_model(finished)
    assert loaded.step == 12 and loaded.config == Origin.open(base.run).model
    # Rates fall from 0.8 of the base run's over the second half.
    rates = [step["learning_rate"] for step in steps]
    assert rates[0] == rates[5] == pytest.approx(0.8 * 0.01) and rates[11] < 0.2 * rates[0]


def test_loss_of_some_rows_is_that_of_rows_from_all_lengths(base, made):
    """The first rows hold one long conversation each, the last ones several short ones."""
    data = Mixture({"validation": str(made / "val")}, {"validation": 1.0}, packing="best_fit_truncate")
    source = open_batches(data, 64, base.tokenizer.bos_id)
    rows, asked = source.components[0].rows, []
    model = load_run_model(base.run).model

    class Asked:
        num_rows = rows.num_rows

        def read(self, numbers):
            asked.extend(numbers.tolist())
            return rows.read(numbers)

    noted = SimpleNamespace(components=[SimpleNamespace(rows=Asked())])
    options = {"precision": Precision("f32"), "batch_size": 8}
    whole = answer_bits_per_byte(model, noted, base.tokenizer, **options)
    assert asked == list(range(rows.num_rows))
    asked.clear()
    some = answer_bits_per_byte(model, noted, base.tokenizer, max_rows=rows.num_rows // 5, **options)
    assert len(asked) == rows.num_rows // 5 and set(np.diff(asked)) <= {5, 6} and rows.num_rows - asked[-1] <= 6
    assert some == pytest.approx(whole, rel=0.02)


class Killed(Exception):
    """Stands for whatever ends a process."""


@pytest.mark.slow
def test_sft_that_is_interrupted_goes_on_to_the_same_weights(base, made, finished, tmp_path, monkeypatch):
    config = config_for(base, made, tmp_path / "run", checkpoint_interval=0.01)
    with monkeypatch.context() as patched:
        patched.setattr(sft, "answer_bits_per_byte", lambda *args, **kwargs: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            train_sft(config)
    assert not (tmp_path / "run" / "sft.json").exists()
    train_sft(config)
    assert len(RunRecord.open(tmp_path / "run").of("start")) == 2
    ours, theirs = (
        checkpoints.read_arrays(checkpoints.at_step(run, 12), "model.") for run in (tmp_path / "run", finished)
    )
    assert ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours)
    train_sft(config)  # there is nothing to do


def test_sft_begins_with_the_moments_of_the_base_run_and_its_own_schedule(base, made, tmp_path):
    origin = Origin.open(base.run)
    moments = checkpoints.read_arrays(origin.checkpoint, "opt_state.")
    assert any(np.abs(value).max() > 0 for name, value in moments.items() if ".momentum." in name)
    from marin.training.placement import parameter_shapes
    from marin.training.warm_start import optimizer_state_from

    config = training_config(config_for(base, made, tmp_path), origin)
    optimizer = config.train.build_optimizer().build(parameter_shapes(config.model, config.vocab_size), 12)
    fresh = optimizer.init(
        jax.tree.map(
            lambda leaf: jax.numpy.zeros(leaf.shape, leaf.dtype),
            parameter_shapes(config.model, config.vocab_size),
            is_leaf=lambda leaf: hasattr(leaf, "shape"),
        )
    )
    warm = named_leaves(optimizer_state_from(origin.checkpoint, fresh))
    for name, value in warm.items():
        if name.endswith(".step"):
            assert int(value) == 0
        elif ".momentum." in name or ".mu." in name or ".nu." in name:
            assert np.array_equal(np.asarray(value), moments[name])
    counts = {name: int(value) for name, value in warm.items() if name.endswith(".count")}
    assert sorted(set(counts.values())) == [0, 3]  # schedules begin, bias correction goes on


def test_rates_and_batch_are_inherited_or_given(base, made, tmp_path):
    origin = Origin.open(base.run)
    plain = finetuning_optimizer(origin, FinetuneRates(), momentum=(0.85, 0.95, 300))
    assert (plain.learning_rate, plain.embedding_lr, plain.weight_decay) == pytest.approx((0.008, 0.08, 0.0))
    assert (plain.momentum_start, plain.momentum, plain.momentum_end, plain.momentum_steps) == (0.85, 0.95, 0.95, 300)
    given = FinetuneRates(embedding_lr=0.2, unembedding_lr=0.1, matrix_lr=0.3, init_lr_frac=0.5, warmup_ratio=0.1)
    found = finetuning_optimizer(origin, given, momentum=(0.85, 0.95, 300))
    rates = (found.embedding_lr, found.value_embedding_lr, found.head_lr, found.learning_rate, found.warmup)
    assert rates == pytest.approx((0.1, 0.05, 0.05, 0.15, 0.1))
    config = training_config(config_for(base, made, tmp_path, num_iterations=-1, total_batch_size=4 * 8 * 64), origin)
    rows = open_batches(config.data, 64, base.tokenizer.bos_id).components[0].rows.num_rows
    assert (config.train.train_batch_size, config.train.num_train_steps) == (32, rows // 32)
    assert config.train.learning_rate == pytest.approx(2 * 0.008)
    # As in pretraining, that of smear and backout goes by no batch.
    assert config.train.optimizer_config.mixing_lr == pytest.approx(plain.mixing_lr)
    with pytest.raises(ConfigError, match="^`--device-batch-size` is 3: a batch of 8 has no equal parts of 3 "):
        training_config(config_for(base, made, tmp_path, device_batch_size=3), origin)
    plain_rows = training_config(config_for(base, made, tmp_path), origin).train.train_batch_size
    of_half = dataclasses.replace(origin, seq_len=origin.model.max_seq_len // 2)  # trained on rows of half the context
    halved = training_config(config_for(base, made, tmp_path), of_half).train
    assert (plain_rows, halved.train_batch_size) == (8, 4)
    with pytest.raises(ConfigError, match="--total-batch-size"):
        training_config(config_for(base, made, tmp_path, total_batch_size=100), origin)
    with pytest.raises(ConfigError, match="warmdown"):
        FinetuneRates(warmup_ratio=0.7, warmdown_ratio=0.7)


def test_rates_of_a_run_of_another_optimizer_are_one_for_all_weights(base):
    origin = dataclasses.replace(Origin.open(base.run), optimizer={"learning_rate": 3e-4})
    found = finetuning_optimizer(origin, FinetuneRates(init_lr_frac=0.5), batch_scale=2.0, momentum=(0.85, 0.95, 300))
    assert found.learning_rate == pytest.approx(3e-4)
    given = FinetuneRates(matrix_lr=1e-3, init_lr_frac=0.5)
    assert finetuning_optimizer(origin, given, momentum=(0.85, 0.95, 300)).learning_rate == pytest.approx(5e-4)
    for name in ("embedding_lr", "unembedding_lr"):
        with pytest.raises(ConfigError, match=f"`--{name.replace('_', '-')}` is 0.1.*`--matrix-lr`"):
            finetuning_optimizer(origin, FinetuneRates(**{name: 0.1}), momentum=(0.85, 0.95, 300))


def test_another_context_keeps_the_windows(base):
    model = Origin.open(base.run).model
    shorter = with_context(model, 32)
    assert shorter.max_seq_len == 32 and [shorter.window(layer) for layer in range(2)] == [16, None]
    assert with_context(model, 64) is model
    with pytest.raises(ConfigError, match="--max-seq-len"):
        with_context(model, 1)


def test_origin_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(CheckpointError):
        Origin.open(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"), [({"max_choices": 0}, "-1 for all"), ({"max_replies": -2}, "-1 for all"), ({"num_samples": 0}, "num_samples")]
)  # fmt: skip
def test_chat_tasks_without_questions_or_answers_are_refused_before_training(changes, message):
    with pytest.raises(ConfigError, match=message):
        ChatEvalOptions(**changes)


def test_chat_tasks_are_asked_at_the_end(base, made, tmp_path):
    config = config_for(base, made, tmp_path / "run", num_iterations=1, eval_every=0, chatcore_every=5)
    config = dataclasses.replace(config, chat_eval=ChatEvalOptions(max_replies=2, max_new_tokens=8, batch_size=8))
    train_sft(config)
    tasks = read_figures(tmp_path / "run")["tasks"]
    assert set(tasks) == {"Spelling", "SpellingBee", "Arithmetic", "Identity"}
    assert all(task["total"] == 2 for task in tasks.values())


@pytest.mark.parametrize(
    ("every", "environment", "asks", "says"),
    [
        (200, {}, True, False),
        (200, {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, False, True),
        (200, {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, False, False),
        (-1, {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, False, False),
    ],
)  # fmt: skip
def test_several_processes_say_once_that_they_ask_no_chat_tasks(capsys, every, environment, asks, says):
    assert sft.asks_tasks(every, environment) is asks
    assert ("`python -m scripts.chat_eval -i sft` asks them afterwards" in capsys.readouterr().err) is says
