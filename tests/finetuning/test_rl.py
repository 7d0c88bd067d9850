"""Reinforcement learning on a tiny model: it learns what is rewarded, and an interrupted run goes on to the same weights."""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from marin.errors import ConfigError, DataError, NonFiniteLossError
from marin.evaluation.chat import ChatTask, Question
from marin.finetuning import rl
from marin.finetuning.origin import Origin
from marin.finetuning.rl import RlConfig, questions_of, read_figures, train_rl
from marin.finetuning.rl_tasks import rl_task
from marin.optim import AdamConfig
from marin.resources import CpuOnlyConfig
from marin.tracking import RunRecord
from marin.training import checkpoint as checkpoints
from marin.training.run_model import load_run_model

QUESTIONS = [Question([{"role": "user", "content": text}], "") for text in ("a", "b", "c", "d")]


def begins_oddly(question, reply):
    """A reward that chance earns every other time: the first character's number is odd."""
    return bool(reply) and ord(reply[0]) % 2 == 1


@pytest.fixture
def odd_answers(monkeypatch):
    """A task that any model can learn, and an optimizer that compiles fast."""
    task = ChatTask("Odd", 0.0, QUESTIONS * 12, begins_oddly)
    monkeypatch.setattr(rl, "rl_task", lambda *args, **kwargs: (task, dataclasses.replace(task, questions=QUESTIONS)))
    monkeypatch.setattr(
        rl, "finetuning_optimizer", lambda *args, **kwargs: AdamConfig(0.01, lr_schedule="linear", warmup=0)
    )


def config_for(base, output, **changes):
    origin = Origin.open(base.run)
    config = RlConfig(
        CpuOnlyConfig(),
        origin.digest,
        "arithmetic",
        examples_per_step=4,
        num_samples=8,
        max_new_tokens=2,
        origin=str(base.run),
        device_batch_size=8,
        eval_every=6,
        eval_examples=4,
        save_every=-1,
        output_path=str(output),
    )
    return dataclasses.replace(config, **changes)


def test_rl_learns_what_is_rewarded_and_leaves_a_run_that_opens(base, odd_answers, tmp_path):
    train_rl(config_for(base, tmp_path / "run"))
    record, figures = RunRecord.open(tmp_path / "run"), read_figures(tmp_path / "run")
    rewards = [step["reward"] for step in record.steps()]
    assert len(rewards) == 12 == figures["steps"] and record.is_complete
    assert np.mean(rewards[6:]) > np.mean(rewards[:2]) + 0.1  # of 192 samples, and of 64
    assert figures["pass@1"] > record.of("evaluation")[0]["pass@1"]
    assert list(figures)[-4:] == ["pass@1", "pass@2", "pass@4", "pass@8"]
    # What compiling takes is no training time: the first step's line comes as much later than the clock was started.
    start, clock = record.of("start")[0], record.of("clock")[0]
    compiled = sum(
        pause["seconds"] for pause in record.of("pause") if (pause["reason"], pause["step"]) == ("compile", 0)
    )
    assert start["compile_time"] > 0.01 and compiled > 0.05
    assert record.steps()[0]["step_time"] + compiled < record.steps()[0]["time"] - clock["time"] + 0.05
    loaded = load_run_model(tmp_path / "run")
    assert loaded.step == 12 and loaded.info["run_name"] == "run"
    note = json.loads((tmp_path / "run" / "origin.json").read_text())
    assert note["optimizer"]["learning_rate"] == 0.01
    assert Origin.open(tmp_path / "run").optimizer == Origin.open(base.run).optimizer


def test_step_whose_samples_have_one_reward_is_said_to_teach_nothing(base, odd_answers, tmp_path, monkeypatch, capsys):
    answers = itertools.count()
    task = ChatTask("Late", 0.0, QUESTIONS * 2, lambda question, reply: next(answers) >= 32 + 4)
    monkeypatch.setattr(rl, "rl_task", lambda *args, **kwargs: (task, task))
    train_rl(config_for(base, tmp_path / "run", eval_every=-1))
    first, second = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")][:2]
    assert "reward 0.000" in first and first.endswith("(teaches nothing: the samples of each question have one reward)")
    assert "reward 0.875" in second and "teaches" not in second


class Killed(Exception):
    """Stands for whatever ends a process."""


@pytest.mark.slow
def test_rl_that_is_interrupted_goes_on_to_the_same_weights(base, odd_answers, tmp_path, monkeypatch):
    whole, cut = (config_for(base, tmp_path / name, num_epochs=1, eval_every=-1) for name in ("whole", "cut"))
    cut = dataclasses.replace(cut, checkpoint_interval=1e-9)
    train_rl(whole)
    with monkeypatch.context() as patched:

        def killed(config, task, step):
            if step == 5:
                raise Killed
            return questions_of(config, task, step)

        patched.setattr(rl, "questions_of", killed)
        with pytest.raises(Killed):
            train_rl(cut)
    train_rl(cut)
    starts = RunRecord.open(tmp_path / "cut").of("start")
    assert starts[0]["from_step"] == 0 and 0 < starts[1]["from_step"] <= 5
    ours, theirs = (
        checkpoints.read_arrays(checkpoints.at_step(tmp_path / name, 12), "model.") for name in ("cut", "whole")
    )
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    train_rl(cut)  # there is nothing to do
    assert len(RunRecord.open(tmp_path / "cut").of("end")) == 1


def test_questions_are_sampled_by_chances_of_their_own(base, odd_answers, tmp_path):
    """The same question four times: under one seed all four would be answered alike."""
    config = config_for(base, tmp_path / "run")
    task = ChatTask("Odd", 0.0, QUESTIONS[:1] * 4, begins_oddly)
    loaded = load_run_model(base.run)
    sampler = rl.Sampler(config, loaded.model, loaded.tokenizer, loaded.precision, [task, task], 64)

    def ask(step):
        return [[rollout.tokens for rollout in group] for group in sampler.sample(loaded.model, task.questions, step)]

    first = ask(3)
    assert len({str(group) for group in first}) == 4 and ask(3) == first and ask(4) != first


def test_measurement_says_how_far_it_is_and_finds_the_same(base, odd_answers, tmp_path, monkeypatch, capsys):
    config = config_for(base, tmp_path / "run")
    task = ChatTask("Odd", 0.0, QUESTIONS, begins_oddly)
    loaded = load_run_model(base.run)
    sampler = rl.Sampler(config, loaded.model, loaded.tokenizer, loaded.precision, [task, task], 64)
    at_once = sampler.measure(loaded.model, task, 4)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(rl, "_MEASURED_AT_ONCE", 2)
    monkeypatch.setattr(rl, "_SECONDS_BETWEEN_LINES", 0.0)
    assert sampler.measure(loaded.model, task, 4) == at_once
    assert capsys.readouterr().out == "  held-out questions: 2 of 4\n"


def test_samples_beyond_the_trained_context_are_said_once(base, odd_answers, tmp_path, monkeypatch, capsys):
    task = ChatTask("Odd", 0.0, QUESTIONS[:1], begins_oddly)
    monkeypatch.setattr(rl, "rl_task", lambda *args, **kwargs: (task, task))
    train_rl(
        config_for(base, tmp_path / "run", max_new_tokens=70, examples_per_step=1, num_samples=2, device_batch_size=2)
    )
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert len(notes) == 1 and "more than the 64 that the model was trained with" in notes[0]


@pytest.mark.parametrize("after", [0, 2])
def test_loss_that_is_not_finite_keeps_the_state_before_it_and_says_what_helps(
    base, odd_answers, tmp_path, monkeypatch, after
):
    original, taken = rl.policy_batch, []

    def batch(groups, bos_id):
        made = original(groups, bos_id)
        taken.append(made)
        return made if len(taken) <= after else made._replace(weight_BT=made.weight_BT * np.nan)

    monkeypatch.setattr(rl, "policy_batch", batch)
    output = tmp_path / "run"
    with pytest.raises(NonFiniteLossError, match=rf"step {after} is not finite.* move {output} away") as raised:
        train_rl(config_for(base, output))
    assert "lower `--init-lr-frac`" in str(raised.value)
    found, _ = checkpoints.latest_valid(output / "checkpoints")
    assert (found.step if found else 0) == after


@dataclasses.dataclass(frozen=True)
class _Breaking(AdamConfig):
    """AdamW whose third update is no number, of whatever gradient."""

    def build(self, model, num_train_steps):
        def update(updates, count, params=None):
            return jax.tree.map(lambda leaf: jnp.where(count == 2, jnp.nan, leaf), updates), count + 1

        breaks = optax.GradientTransformation(lambda params: jnp.zeros((), jnp.int32), update)
        return optax.chain(super().build(model, num_train_steps), breaks)


def test_optimizer_that_spoils_the_weights_ends_the_run_and_only_sound_checkpoints_are_kept(
    base, odd_answers, tmp_path, monkeypatch
):
    monkeypatch.setattr(rl, "finetuning_optimizer", lambda *args, **kwargs: _Breaking(0.01, warmup=0))
    output = tmp_path / "run"
    config = config_for(base, output, eval_every=-1, save_every=1)
    said = rf"at step 2 the optimizer made numbers that are not finite.*Move {output} away.*lower `--init-lr-frac`"
    for _ in range(2):  # and again, as nobody changed anything
        with pytest.raises(NonFiniteLossError, match=said):
            train_rl(config)
        found, problems = checkpoints.latest_valid(output / "checkpoints")
        assert (found.step, problems) == (2, [])
    assert all(np.all(np.isfinite(array)) for array in checkpoints.read_arrays(found, "model.").values())
    record = RunRecord.open(output)
    assert [step["step"] for step in record.steps()] == [0, 1] and not record.is_complete


def test_each_epoch_asks_every_question_once(base, tmp_path):
    task = ChatTask("x", 0.0, [Question([], str(n)) for n in range(10)], begins_oddly)
    config = config_for(base, tmp_path, num_epochs=2)
    for epoch in (0, 1):
        asked = [q.answer for step in (2 * epoch, 2 * epoch + 1) for q in questions_of(task, config, step)]
        assert len(set(asked)) == 8
    assert questions_of(task, config, 0) != questions_of(task, config, 2)


def test_made_questions_to_learn_from_are_not_those_that_are_held_out(tmp_path):
    learned, held_out = rl_task("arithmetic", tmp_path, num_questions=300, seed=0)
    assert not {q.prompt[0]["content"] for q in learned.questions} & {
        q.prompt[0]["content"] for q in held_out.questions
    }
    assert learned.grade(learned.questions[0], f"#### {learned.questions[0].answer}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_samples": 1}, "num_samples"),
        ({"num_questions": 0}, "num_questions"),
        ({"device_batch_size": 5}, "--device-batch-size"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": 1000.0}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"seed": -3}, "seed"),
        ({"seed": 2**32}, "seed"),
    ],
)
def test_settings_that_cannot_work_are_refused(base, tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        config_for(base, tmp_path, **changes)


def test_task_that_is_unknown_or_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="arithmetic"):
        rl_task("chess", tmp_path, num_questions=1, seed=0)
    with pytest.raises(DataError, match="openai/gsm8k"):
        rl_task("gsm8k", tmp_path, num_questions=1, seed=0)
