"""A run scored apart from its code: by the program that its evaluation wrote down, in a sandbox; and programs that name what is not theirs."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from trained_run import MODEL, VOCAB, Trained

from marin.errors import CheckpointError, ConfigError, MarinError, ResultsError
from marin.evaluation import Scorer
from marin.speedrun import sandbox, scoring_apart, scoring_apart_child
from marin.speedrun.scoring_apart import ABOUT_FILE, WANTED, Request
from marin.speedrun.steps import EvaluateConfig, evaluate_speedrun

FAILED = sandbox.Finished(1, "")


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """A run, and what its evaluation left: figures that its process made up, and the program."""

    store: Path
    run: Path
    said: dict[str, Any]

    @property
    def program(self) -> Path:
        return self.store / "evaluation" / scoring_apart.PROGRAM_FOLDER

    @property
    def checkpoint(self) -> Path:
        return max((self.run / "checkpoints").glob("step-*"))

    def scored(self, found: Path, trained_in: Path | None = None) -> scoring_apart.Found:
        places = (self.program, self.store, self.checkpoint, trained_in or self.run)
        return scoring_apart_child.score(Request(*map(str, places), seed=3, found=str(found)))


@pytest.fixture(scope="module")
def evaluated(trained: Trained, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    """The process that ran the code scores a tenth better than the model is, as code of a submission could have it do."""
    store = tmp_path_factory.mktemp("store")
    for file in data.glob("*.json*"):
        shutil.copy(file, store)
    config = EvaluateConfig(
        run=trained.path, model=MODEL, vocab_size=VOCAB, tokenizer=str(store), evaluation_set="words",
        evaluation_documents=str(store / "docs.jsonl.zst"), ema=False, output_path=str(store / "evaluation"),
    )  # fmt: skip
    honest = Scorer.nats
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(WANTED, "1")
        patch.setattr(Scorer, "nats", lambda self, *arguments: 0.9 * honest(self, *arguments))
        evaluate_speedrun(config)
    said = json.loads((store / "evaluation" / "evaluation.json").read_text())["evaluation"]
    return Evaluated(store, Path(trained.path), said)


@pytest.fixture
def changed(evaluated: Evaluated, tmp_path: Path) -> Evaluated:
    """A copy, to change."""
    run = tmp_path / "runs" / "run"
    shutil.copytree(evaluated.store, tmp_path / "store")
    shutil.copytree(evaluated.run, run, ignore=shutil.ignore_patterns("hf"))
    copy = dataclasses.replace(evaluated, store=tmp_path / "store", run=run)
    _say(copy, tokenizer=str(copy.store), evaluation_documents=str(copy.store / "docs.jsonl.zst"))
    return copy


def _say(evaluated: Evaluated, **changes: Any) -> None:
    place = evaluated.program / ABOUT_FILE
    place.write_text(json.dumps(json.loads(place.read_text()) | changes))


def test_run_is_scored_apart_in_a_sandbox_whatever_its_own_process_says(
    evaluated: Evaluated, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("CI", raising=False)
    try:
        sandbox.require()
    except ConfigError as error:
        pytest.skip(str(error))
    found = scoring_apart.score_apart(evaluated.program, evaluated.store, evaluated.checkpoint, evaluated.run, 300.0)
    assert found.bits_per_byte == pytest.approx(evaluated.said["bits_per_byte"] / 0.9, rel=1e-6)
    assert found.levanter_bits_per_byte == pytest.approx(evaluated.said["levanter_bits_per_byte"] / 0.9, rel=1e-6)
    assert found.digest == evaluated.said["digest"] and found.context_length == MODEL.seq_len
    assert found.num_parameters == json.loads((evaluated.run / "run.json").read_text())["num_parameters"]
    assert found.flops_per_token == pytest.approx(evaluated.said["flops_per_token"], rel=0.1)
    # Text that the model was trained on, as both figures and probes are of the run's own documents.
    assert found.failed_probes == ["held_out"]


def test_sandbox_that_finds_nothing_to_score_says_why(evaluated: Evaluated, tmp_path: Path, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    try:
        sandbox.require()
    except ConfigError as error:
        pytest.skip(str(error))
    with pytest.raises(ResultsError, match=r"has no figure \(status 1\)[^$]*nowhere"):
        scoring_apart.score_apart(tmp_path / "nowhere", evaluated.store, evaluated.checkpoint, evaluated.run, 300.0)


def test_training_data_is_read_from_the_store_that_has_it_not_beside_a_run_that_was_handed_over(
    evaluated: Evaluated, changed: Evaluated, tmp_path: Path
):
    assert changed.scored(tmp_path / "found.json").failed_probes == []
    assert changed.scored(tmp_path / "found.json", trained_in=evaluated.run).failed_probes == ["held_out"]


def test_documents_and_tokenizer_are_taken_from_the_store_alone(changed: Evaluated, tmp_path: Path):
    own = tmp_path / "own.jsonl.zst"
    shutil.copy(changed.store / "docs.jsonl.zst", own)
    (changed.store / "link.jsonl.zst").symlink_to(own)
    for place in (str(own), str(changed.store / ".." / own.name), str(changed.store / "link.jsonl.zst")):
        _say(changed, evaluation_documents=place)
        with pytest.raises(ResultsError, match="not in the verifier's store"):
            changed.scored(tmp_path / "found.json")


def test_tokenizer_that_was_changed_is_not_scored_with(changed: Evaluated, tmp_path: Path):
    content = json.loads((changed.store / "tokenizer.json").read_text())
    content["added_tokens"][0]["content"] = "<|another|>"
    (changed.store / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(MarinError, match="another tokenizer than"):
        changed.scored(tmp_path / "found.json")


@pytest.mark.parametrize(
    ("said", "message"),
    [({"prefix": "optimizer."}, "not what an evaluation writes"), ({"softcap": "much"}, "not what an evaluation writes"),
     ({"tokenizer": 3}, "not what an evaluation writes"), ({"more": 1}, "not what an evaluation writes"),
     ({"prefix": "average."}, "of another model")],
    ids=str,
)  # fmt: skip
def test_about_a_program_what_no_evaluation_writes_is_refused(
    said: dict[str, Any], message: str, changed: Evaluated, tmp_path: Path
):
    _say(changed, **said)
    with pytest.raises(MarinError, match=message):
        changed.scored(tmp_path / "found.json")


def test_checkpoint_below_one_that_is_named_like_none_is_not_scored(changed: Evaluated, tmp_path: Path):
    """The folder has the manifest that the log ends with, and in it lie other weights."""
    own = changed.checkpoint
    other = own.with_name("step-x")
    shutil.copytree(own, other / own.name)
    shutil.copy(own / "manifest.json", other)
    shutil.copy(changed.run / "run.json", own.parent)
    request = Request(*map(str, (changed.program, changed.store, other, changed.run)), seed=3, found=str(tmp_path))
    with pytest.raises(ResultsError, match="step-x is named like no checkpoint"):
        scoring_apart_child.score(request)


def test_record_of_a_run_is_its_own_where_its_checkpoint_is_a_link(changed: Evaluated, tmp_path: Path, monkeypatch):
    own = changed.checkpoint
    other = tmp_path / "other" / "checkpoints" / own.name
    other.parent.mkdir(parents=True)
    own.rename(other)
    own.symlink_to(other)
    asked: list[str] = []
    monkeypatch.setattr(sandbox, "run", lambda command, *_: asked.append(Path(command[-1]).read_text()) or FAILED)
    with pytest.raises(ResultsError):
        scoring_apart.score_apart(changed.program, changed.store, own, changed.run, 300.0)
    assert Path(json.loads(asked[0])["checkpoint"]).parents[1] == changed.run


def test_checkpoint_that_is_damaged_is_not_scored(changed: Evaluated, tmp_path: Path):
    victim = max(
        (path for path in (changed.checkpoint / "state").rglob("*") if path.is_file()),
        key=lambda path: path.stat().st_size,
    )
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    with pytest.raises(CheckpointError):
        changed.scored(tmp_path / "found.json")
