"""The commands as a person uses them, on two small files of text: tokenizer, training, report; and what goes wrong."""

import json
import shutil

import pytest
from small_commands import TINY, run_script, where, write_text

from marin.errors import ConfigError, DataError, LeaseHeldError, StepFailedError
from marin.execution.attempts import ledger_directory
from marin.gpt2 import pretraining
from marin.speedrun.verification import verify_submission
from marin.storage.lease import Lease
from marin.tracking import RunRecord
from scripts import base_train, report, series, tok_eval, tok_train

SHORT = [*TINY, "--num-iterations=8", "--eval-every=3", "--sample-every=4"]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A base directory in which everything up to the tokenizer is done."""
    folder = tmp_path_factory.mktemp("pipeline")
    write_text(folder)
    run_script(report, "reset", f"--base-dir={folder}")
    run_script(tok_train, "--vocab-size=300", "--max-chars=20000", *where(folder))
    return folder


@pytest.fixture(autouse=True)
def _known_peak(monkeypatch):
    monkeypatch.setenv("MARIN_CPU_PEAK_FLOPS", "1e11")
    monkeypatch.setenv("WANDB_MODE", "disabled")


def test_tokenizer_has_the_chats_tokens_and_is_compared(base, capsys):
    info = json.loads((base / "tokenizer" / "tokenizer_info.json").read_text())
    assert info["vocab_size"] == 300 and len(info["special_tokens"]) == 9
    assert info["trained_on"]["bytes"] == 20000  # as `--max-chars` says
    run_script(tok_eval, *where(base))
    shown = capsys.readouterr().out
    assert all(kind in shown for kind in ("news", "korean", "code", "math", "science", "train", "val"))
    assert "Not compared" in shown and "cl100k_base" in shown


def test_tokenizer_whose_file_came_later_is_compared_too(base, tmp_path, capsys):
    others = f"--others={tmp_path}"
    run_script(tok_eval, others, *where(base))
    shutil.copy(base / "tokenizer" / "tokenizer.json", tmp_path / "gpt2.json")
    capsys.readouterr()
    run_script(tok_eval, others, *where(base))
    shown = capsys.readouterr().out
    assert "gpt2 " in shown and "no file of it: cl100k_base." in shown
    away = shutil.move(tmp_path, f"{tmp_path}-away")
    run_script(tok_eval, f"--others={away}", *where(base))  # the same files elsewhere
    assert "nothing to do" in capsys.readouterr().out


@pytest.mark.usefixtures("as_a_person_trains")
def test_base_model_is_trained_measured_and_reported_and_a_failure_at_the_end_costs_only_the_measuring(
    base, tmp_path, monkeypatch, capsys
):
    whole = pretraining.write_samples

    def fail_at_the_end(model, tokenizer, context, precision, path):
        if path.name == "samples-000008.json":
            raise OSError("the disk is full")
        whole(model, tokenizer, context, precision, path)

    monkeypatch.setattr(pretraining, "write_samples", fail_at_the_end)
    with pytest.raises(StepFailedError, match="the disk is full"):
        run_script(base_train, *SHORT, *where(base))
    monkeypatch.setattr(pretraining, "write_samples", whole)
    run_script(base_train, *SHORT, *where(base))
    run = base / "base_checkpoints" / "d2"
    record = RunRecord.open(run)
    assert [entry["step"] for entry in record.of("evaluation")] == [3, 6]
    assert len(record.of("step")) == 8 == len(record.steps())  # none was taken twice
    figures = json.loads((run / "base_train.json").read_text())
    times = [step["step_time"] for step in record.steps()]
    assert figures["total_training_time"] == pytest.approx(sum(times))
    assert figures["total_training_time_after_10_steps"] == 0  # there are only 8
    assert figures["tokens"] == 8 * 256 and figures["min_val_bpb"] <= figures["val_bpb"] < 8
    assert figures["val_bpb_nanochat"] < figures["val_bpb"]
    capsys.readouterr()
    run_script(base_train, *SHORT, *where(base))
    assert "nothing to do" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"matrix_lr|learning_rate"):
        run_script(base_train, *SHORT, *where(base), "--matrix-lr=0.01")

    run_script(report, "generate", f"--base-dir={base}", f"--copy-to={tmp_path}", "--price-per-hour=24")
    text = (tmp_path / "report.md").read_text()
    for heading in (
        "Environment",
        "Tokenizer training",
        "Base model training",
        "Time and cost",
        "Would the record stand?",
    ):
        assert f"## {heading}\n" in text
    assert f"- val_bpb: {figures['val_bpb']:,.6g}\n" in text and "The capital of France is" in text
    assert "| --total-batch-size | 256 |" in text and "would not stand as a record: hardware: 8 x H100" in text
    page = (base / "report" / "report.html").read_text()
    assert page.count("<polyline") >= 2 and "<script" not in page and "Validation, bits per byte" in page
    results = json.loads((run / "speedrun_results.json").read_text())["runs"][0]["run_info"]
    assert results["training_time"] == pytest.approx(sum(times)) and results["core_metric"] is None
    ((_, verdict),) = verify_submission(run)
    assert verdict["log"].outcome == "passed", verdict["log"]  # its evaluations and samples are pauses that it planned


def test_run_goes_back_to_an_earlier_checkpoint_and_takes_the_same_steps_again(base, monkeypatch, capsys):
    arguments = [*TINY, "--num-iterations=8", "--eval-every=-1", "--sample-every=6", "--save-every=2", *where(base)]

    def fail(model, tokenizer, context, precision, path):
        raise OSError("the disk is full")

    with monkeypatch.context() as patch, pytest.raises(StepFailedError, match="the disk is full"):
        patch.setattr(pretraining, "write_samples", fail)
        run_script(base_train, *arguments, "--model-tag=back")
    run = base / "base_checkpoints" / "back"
    assert sorted(path.name for path in run.glob("checkpoints/step-*")) == ["step-00000002", "step-00000004"]
    with (
        Lease(ledger_directory(str(run))).acquire(),
        pytest.raises(LeaseHeldError, match="wait for it to finish, or stop it"),
    ):
        run_script(base_train, *arguments, "--model-tag=back", "--resume-from-step=2")
    assert len(list(run.glob("checkpoints/step-*"))) == 2  # of a run that another process trains nothing is removed
    with pytest.raises(ConfigError, match="an unfinished `gpt2/base_train` with other settings"):
        run_script(base_train, *arguments, "--model-tag=back", "--resume-from-step=2", "--matrix-lr=0.03")
    assert len(list(run.glob("checkpoints/step-*"))) == 2
    with monkeypatch.context() as patch, pytest.raises(StepFailedError, match="the disk is full"):
        patch.setattr(pretraining, "write_samples", fail)
        run_script(base_train, *arguments, "--model-tag=back", "--resume-from-step=2")
    assert "the checkpoint of step 4 is removed, as asked: continuing from step 2" in capsys.readouterr().out
    # The same command again, as a launcher gives it, continues where it was and goes back no second time.
    run_script(base_train, *arguments, "--model-tag=back", "--resume-from-step=2")
    assert "went back to step 2 before and continues" in capsys.readouterr().out
    record = RunRecord.open(run)
    assert [start["from_step"] for start in record.of("start")] == [0, 2, 4]
    taken = [(step["step"], step["loss"]) for step in record.of("step")]
    assert len(taken) > 8 == len(record.steps())  # some were taken twice, and count once
    assert {step for step, _ in taken} == set(range(8)) and len(set(taken)) == 8  # each time with the same loss
    run_script(base_train, *arguments, "--model-tag=back", "--resume-from-step=2")
    assert "nothing to do" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"--resume-from-step` is 4, but the run in .* is finished"):
        run_script(base_train, *arguments, "--model-tag=back", "--resume-from-step=4")


def test_run_goes_back_to_an_earlier_checkpoint_only_where_it_is_there(base):
    with pytest.raises(ConfigError, match=r"--resume-from-step` is 3, and .* has checkpoints of these steps: none"):
        run_script(base_train, *SHORT, *where(base), "--model-tag=other", "--resume-from-step=3")


def test_training_on_other_text_than_the_tokenizers_warns_and_on_more_of_the_same_does_not(base, tmp_path, capsys):
    def warns(dataset):
        with pytest.raises(ConfigError, match="checkpoints of these steps: none"):  # before anything is trained
            run_script(base_train, *SHORT, f"--base-dir={base}", dataset, "--model-tag=other", "--resume-from-step=3")
        return "warning: the tokenizer" in capsys.readouterr().out

    write_text(tmp_path, 151)
    other = (tmp_path / "text" / "a.jsonl.zst").rename(tmp_path / "text" / "other.jsonl.zst").parent
    assert [warns(f"--dataset={text}") for text in (base / "text", other)] == [False, True]
    shutil.copy(base / "text" / "a.jsonl.zst", other)
    assert not warns(f"--dataset={other}")
    (other / "a.jsonl.zst").unlink()
    (base / "tokenizer" / ".executor_info").rename(tmp_path / "info")
    try:
        assert not warns(f"--dataset={other}")  # where it was trained is not known
    finally:
        (tmp_path / "info").rename(base / "tokenizer" / ".executor_info")


def test_commands_name_what_must_be_made_first(tmp_path, base):
    with pytest.raises(DataError, match="scripts.dataset"):
        run_script(tok_train, f"--base-dir={tmp_path}")
    with pytest.raises(DataError, match="scripts.tok_train"):
        run_script(base_train, f"--base-dir={tmp_path}", f"--dataset={base}/text")
    with pytest.raises(ConfigError, match="at least 2 are needed"):
        run_script(tok_train, f"--base-dir={tmp_path}", f"--dataset={base}/text/a.jsonl.zst")
    with pytest.raises(DataError, match="has no sections"):
        run_script(report, "generate", f"--base-dir={tmp_path}")


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (tok_train, ["--max-files=0"], "`--max-files` is 0"),
        (tok_eval, ["--max-files=-2"], "`--max-files` is -2"),
        (tok_eval, ["--others=nowhere"], "`--others` is nowhere, which is no folder"),
        (series, ["../x", "--tags", "d2"], "`name` is '../x'"),
        (series, ["x", "--tags"], "argument --tags: expected at least one argument"),
        (report, ["generate", "--copy-to=nowhere"], "`--copy-to` is nowhere"),
        (report, ["generate", "--price-per-hour=-1"], "`--price-per-hour` is -1"),
    ],
)
def test_flags_that_cannot_be_are_refused_before_anything_is_done(base, command, arguments, message):
    with pytest.raises(ConfigError, match=message):
        run_script(command, *arguments, f"--base-dir={base}")


def test_text_under_another_field_is_found_by_the_flag_that_the_message_names(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"content": "some text " * 50}) + "\n")
    given = [f"--base-dir={tmp_path}", f"--dataset={tmp_path}/a.jsonl,{tmp_path}/b.jsonl", "--vocab-size=266"]
    with pytest.raises(StepFailedError, match=r"a.jsonl:1: .* \(fields: content; `--text-key` names another\)"):
        run_script(tok_train, *given)
    run_script(tok_train, *given, "--text-key=content")


def test_training_whose_figures_are_gone_is_not_called_done_nor_reported_without_them(base, capsys):
    arguments = [*TINY, "--num-iterations=2", "--eval-every=-1", "--sample-every=-1", "--model-tag=gone", *where(base)]
    run_script(base_train, *arguments)
    section = (base / "report" / "base-model-training.json").read_bytes()
    (base / "base_checkpoints" / "gone" / "base_train.json").unlink()
    with pytest.raises(DataError, match="gone was finished before, and its base_train.json is not there any more"):
        run_script(base_train, *arguments)
    assert (base / "report" / "base-model-training.json").read_bytes() == section


def test_report_begins_anew_and_keeps_no_section(base, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(base / "report", folder / "report")
    run_script(report, "reset", f"--base-dir={folder}")
    assert [path.name for path in (folder / "report").iterdir()] == ["header.json"]
