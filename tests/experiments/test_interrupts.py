"""Interrupting the job, on real processes: running it again ends where a run that was left alone does.

One store goes through it all: Ctrl-C in a data step, SIGTERM, Ctrl-C and SIGKILL in training, and a damaged checkpoint.
"""

import shutil
import signal
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import pytest

from marin.errors import CheckpointError
from marin.tracking import RunRecord
from marin.training import checkpoint as checkpoints
from marin.training.checkpoint_writer import CheckpointWriter

pytestmark = pytest.mark.torture

TRAINING = "checkpoints/speedrun/miniature-*/"
INTERRUPTED = "\ninterrupted; run the same command again to continue\n"
TERMINATED = "\nterminated; run the same command again to continue\n"


class History(NamedTuple):
    """What each process printed, the checkpoint that was damaged between the last two, and the store."""

    in_data: Any
    after_sigterm: Any
    after_sigint: Any
    after_sigkill: Any
    damaged: Path
    last: Any
    miniature: Any


@pytest.fixture(scope="module")
def history(user_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory, finished: Any) -> History:
    miniature = _slow_miniature(finished, tmp_path_factory.mktemp("interrupted"), user_environment)
    metrics = f"{TRAINING}metrics.jsonl contains "
    in_data = miniature.run_until(
        "corpora/miniature-*/train.jsonl.zst contains ", signal.SIGINT, MINIATURE_CORPUS_SECONDS="60"
    )
    after_sigterm = miniature.run_until(metrics + '"step":4,', signal.SIGTERM)
    after_sigint = miniature.run_until(metrics + '"step":10,', signal.SIGINT)
    after_sigkill = miniature.run_until(metrics + '"step":16,', signal.SIGKILL)
    damaged = _newest_checkpoint(miniature)
    _flip_a_bit(damaged)
    last = miniature.run("--run_only", "speedrun_results")
    return History(in_data, after_sigterm, after_sigint, after_sigkill, damaged, last, miniature)


def _slow_miniature(finished: Any, directory: Path, environment: dict[str, str]) -> Any:
    """It saves a checkpoint after every step: time enough to hit a step, and saving is interrupted too."""
    return type(finished.miniature).create(directory, environment, CHECKPOINT_INTERVAL="1e-6")


def _newest_checkpoint(miniature: Any) -> Path:
    return max(miniature.run_directory.glob("checkpoints/step-*"))


def _flip_a_bit(checkpoint: Path) -> None:
    file = _largest_file(checkpoint)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def _largest_file(checkpoint: Path) -> Path:
    return max((path for path in checkpoint.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


@pytest.mark.parametrize(
    ("process", "status", "message"),
    [
        ("in_data", 130, INTERRUPTED),
        ("after_sigterm", 143, TERMINATED),
        ("after_sigint", 130, INTERRUPTED),
    ],
)
def test_interrupted_process_exits_with_one_message(history: History, process: str, status: int, message: str) -> None:
    ended = getattr(history, process)
    assert (ended.status, ended.err) == (status, message)
    assert "Traceback" not in ended.out


def test_killed_process_says_nothing_more(history: History) -> None:
    assert history.after_sigkill.status == -signal.SIGKILL


def test_interrupted_training_saves_what_it_did_and_continues_there(history: History) -> None:
    assert "stopping: the checkpoint of step " in history.after_sigterm.out
    for process in (history.after_sigint, history.after_sigkill, history.last):
        assert "RUN checkpoints/speedrun/miniature -> " in process.out
        assert "(interrupted; continues)\ncontinuing from the checkpoint of step " in process.out
    starts = [event["from_step"] for event in history.miniature.events("start")]
    assert starts == sorted(starts)
    # What a signal stops is saved; a kill may come while a checkpoint is being written, and then the one before it counts.
    assert [starts[1] >= 5, starts[2] >= 11, starts[3] >= starts[2]] == [True] * 3


def test_damaged_checkpoint_is_named_and_passed_over_for_the_one_before(history: History) -> None:
    step = int(history.damaged.name.removeprefix("step-"))
    assert history.last.err.startswith(f"warning: checkpoint of step {step} is not used: {history.damaged}")
    assert history.last.err.count("\n") == 1
    assert history.miniature.events("start")[-1]["from_step"] == step - 1


def test_interrupted_run_ends_as_one_left_alone(history: History, finished: Any) -> None:
    assert history.last.status == 0
    interrupted, alone = history.miniature, finished.miniature
    assert interrupted.run_directory.name == alone.run_directory.name
    assert interrupted.parameters() == alone.parameters()
    ours, theirs = interrupted.results(), alone.results()
    for key in ("evaluation", "compressors", "sample", "model_size", "total_tokens", "model_flops"):
        assert ours[key] == theirs[key]
    for name in ("config", "data", "tokenizer", "evaluation_set"):
        assert ours["digests"][name] == theirs["digests"][name]
    losses = [[step["loss"] for step in RunRecord.open(m.run_directory).steps()] for m in (interrupted, alone)]
    assert losses[0] == losses[1]


def test_results_of_an_interrupted_run_say_that_it_was_resumed_and_what_that_cost(
    history: History, finished: Any
) -> None:
    ours = history.miniature.results()
    starts = history.miniature.events("start")
    assert ours["resumed"] is True
    assert ours["num_resumes"] == len(starts) - 1 >= 3
    record = RunRecord.open(history.miniature.run_directory)
    assert len(record.superseded()) >= 1  # the damaged checkpoint's step was taken again
    assert ours["wasted_time"] == pytest.approx(sum(step["step_time"] for step in record.superseded()))
    assert ours["training_time"] == pytest.approx(sum(step["step_time"] for step in record.steps()))
    assert "resumed " in history.last.out


def test_evaluation_with_a_damaged_last_checkpoint_scores_no_earlier_one(history: History, tmp_path: Path) -> None:
    miniature = history.miniature.copied(tmp_path, trained=True)
    for path in [*miniature.store.glob("evaluation/*/*"), *miniature.store.glob("speedrun/*")]:
        shutil.rmtree(path)
    assert len(list(miniature.run_directory.glob("checkpoints/step-*"))) == 2
    newest = _newest_checkpoint(miniature)
    _flip_a_bit(newest)
    done = miniature.run("--run_only", "speedrun_results")
    assert done.status == 2
    assert str(newest) in done.err
    assert not list(miniature.store.glob("speedrun/*/speedrun_results.json"))


# --- checkpoints alone ---------------------------------------------------------------------------------------------


def _two_checkpoints(directory: Path) -> list[Path]:
    with CheckpointWriter(directory, keep_every=100) as writer:
        for step in (1, 2):
            writer.save({"weight": jnp.full((64, 64), float(step))}, step)
    return sorted(directory.glob("step-*"))


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "manifest"])
def test_checkpoints_that_are_all_damaged_are_refused_with_the_next_step(damage: str, tmp_path: Path) -> None:
    both = _two_checkpoints(tmp_path / "checkpoints")
    for checkpoint in both:
        file = _largest_file(checkpoint)
        match damage:
            case "flip":
                _flip_a_bit(checkpoint)
            case "cut":
                file.write_bytes(file.read_bytes()[:-1])
            case "remove":
                file.unlink()
            case "manifest":
                (checkpoint / "manifest.json").write_text('{"step": 1, "fi')
    with pytest.raises(CheckpointError) as refused:
        checkpoints.latest_valid(tmp_path / "checkpoints")
    message = str(refused.value)
    assert message.startswith("no checkpoint is whole")
    assert message.endswith(f"remove {tmp_path / 'checkpoints'} to start from the first step")
    assert [str(checkpoint) in message for checkpoint in both] == [True, True]
    assert sorted((tmp_path / "checkpoints").iterdir()) == both


# --- the slower phases ---------------------------------------------------------------------------------------------


def test_run_interrupted_while_compiling_and_evaluating_ends_as_one_left_alone(
    user_environment: dict[str, str], tmp_path: Path, finished: Any
) -> None:
    miniature = _slow_miniature(finished, tmp_path, user_environment)
    in_compile = miniature.run_until(f"{TRAINING}.executor_status contains RUNNING", signal.SIGINT)
    assert (in_compile.status, in_compile.err) == (130, INTERRUPTED)
    in_evaluation = miniature.run_until("evaluation/*/*/.executor_status contains RUNNING", signal.SIGTERM)
    assert (in_evaluation.status, in_evaluation.err) == (143, TERMINATED)
    last = miniature.run()
    assert (last.status, last.err) == (0, "")
    assert miniature.parameters() == finished.miniature.parameters()
    assert miniature.results()["evaluation"] == finished.miniature.results()["evaluation"]


def test_run_whose_checkpoints_are_all_damaged_is_refused_and_keeps_them(
    user_environment: dict[str, str], tmp_path: Path, finished: Any
) -> None:
    miniature = _slow_miniature(finished, tmp_path, user_environment)
    miniature.run_until(f'{TRAINING}metrics.jsonl contains "step":8,', signal.SIGKILL)
    both = sorted(miniature.run_directory.glob("checkpoints/step-*"))
    for checkpoint in both:
        _flip_a_bit(checkpoint)
    refused = miniature.run()
    assert refused.status == 2
    assert "Traceback" not in refused.err + refused.out
    message = " ".join((refused.out + refused.err).split())
    assert f"remove {miniature.run_directory / 'checkpoints'} to start from the first step" in message
    assert sorted(miniature.run_directory.glob("checkpoints/step-*")) == both
