"""`scripts.base_eval` as a person uses it: on a run, on a Hugging Face folder, again, and wrongly."""

import csv
import dataclasses
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file
from small_commands import TINY, run_script, where, write_core_bundle, write_text

from marin.data.core_tasks import CORE_TASKS
from marin.errors import CheckpointError, ConfigError, DataError
from marin.execution.graph import Graph
from marin.gpt2 import base_evaluation
from marin.gpt2.base_evaluation import BaseModel, bits_step
from marin.gpt2.datasets import DataFile, Dataset
from marin.gpt2.places import Places
from marin.gpt2.results import CoreFigures, write_run_results
from marin.models import LlamaConfig
from marin.models.gpt2 import Gpt2Config, published_name
from marin.models.hf_export import export_hf
from marin.models.hf_layout import parameters_of
from marin.speedrun import rechecks, sandbox
from marin.speedrun.results import Author, Core, CoreCounts, write_results
from marin.speedrun.verification import Submission
from marin.tracking import RunRecord
from scripts import base_eval, base_train, tok_train

ROOT = Path(__file__).parents[2]
EVALUATED = ["--max-seq-len=64", "--num-iterations=3", "--eval-every=-1", "--sample-every=-1"]


@pytest.fixture(scope="module")
def made_bundle(tmp_path_factory):
    return write_core_bundle(tmp_path_factory.mktemp("made") / "bundle")


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    """A base directory with a tokenizer, two files of text and a run of three steps."""
    folder = tmp_path_factory.mktemp("base")
    write_text(folder, 60, 10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARIN_CPU_PEAK_FLOPS", "1e11")
        patch.setenv("WANDB_MODE", "disabled")
        run_script(tok_train, "--vocab-size=300", "--max-chars=9000", *where(folder))
        run_script(base_train, *TINY, *EVALUATED, *where(folder))
    return folder


def _section(base: Path) -> dict:
    return json.loads((base / "report" / "base-model-evaluation.json").read_text())


def test_run_is_evaluated_written_down_and_not_measured_twice(base, made_bundle, capsys, monkeypatch):
    arguments = [*where(base), f"--eval-bundle={made_bundle}", "--split-tokens=300", "--device-batch-size=4"]
    opened, load = [], base_evaluation.load_run_model

    def load_once(*args, **kwargs):
        assert not opened, "the model was opened already"
        opened.append(args)
        return load(*args, **kwargs)

    monkeypatch.setattr(base_evaluation, "load_run_model", load_once)
    run_script(base_eval, *arguments)
    shown = capsys.readouterr().out
    assert "partial CORE (2 of 22 tasks)" in shown and "this is not CORE" in shown
    assert "train bits per byte" in shown and "The capital of France is" in shown
    with (base / "base_eval" / "base_model_000003.csv").open() as lines:
        rows = [[cell.strip() for cell in row] for row in csv.reader(lines)]
    assert rows[0] == ["Task", "Accuracy", "Centered"] and [row[0] for row in rows[1:3]] == ["copa", "winograd"]
    assert rows[-1][0].startswith("partial CORE")
    records = base / "base_eval" / "d2_000003" / "records"
    assert len((records / "copa.jsonl").read_text().splitlines()) == 6
    found = [base / "base_eval" / name for name in ("base_model_000003.json", "d2_000003/core.json")]
    assert found[0].read_text() == found[1].read_text()
    core = json.loads(found[1].read_text())  # what the report takes into the results, bound to the log
    assert core["weights"] == RunRecord.open(base / "base_checkpoints" / "d2").of("end")[-1]["checkpoint"]
    sources = {
        "data_sha256": made_bundle / "eval_data" / "copa.jsonl",
        "records_sha256": records / "copa.jsonl",
    }
    for name, path in sources.items():
        assert core["tasks"]["copa"][name] == hashlib.sha256(path.read_bytes()).hexdigest()
    before = {path: path.read_bytes() for path in [*records.iterdir(), found[1]]}
    limited = [*where(base), f"--eval-bundle={made_bundle}", "--eval=core", "--max-per-task=2", "--device-batch-size=4"]
    with monkeypatch.context() as patch:
        patch.setattr(base_evaluation, "load_run_model", load)
        run_script(base_eval, *limited)  # a look takes the place of nothing
    assert before == {path: path.read_bytes() for path in before}
    assert len((records.with_name("records_2_a_task") / "copa.jsonl").read_text().splitlines()) == 2
    run_script(base_eval, *arguments)
    section = _section(base)
    assert section["figures"]["core_metric"] is None and 0 < section["figures"]["val_bpb"] < 9
    assert section["figures"]["tasks"]["copa"]["accuracy"] == pytest.approx(float(rows[1][1]), abs=1e-6)
    missing = " ".join(section["figures"]["not CORE, as data is missing"].values())
    assert "squad" in missing and "llm-foundry" in missing
    assert "base_eval_core" in json.loads((base / "report" / "times.json").read_text())

    def never(*args, **kwargs):
        raise AssertionError("it was measured already")

    monkeypatch.setattr("marin.evaluation.core.evaluate.questions", never)
    monkeypatch.setattr("marin.gpt2.base_evaluation.write_samples", never)
    monkeypatch.setattr("marin.gpt2.base_evaluation.bits_per_byte", never)
    run_script(base_eval, *arguments)
    assert "as found before" in capsys.readouterr().out and _section(base)["figures"] == section["figures"]
    for part in ("core", "bpb", "sample"):  # one part at a time takes nothing of the others away
        run_script(base_eval, *arguments, f"--eval={part}")
        assert _section(base)["figures"] == section["figures"]
        assert _section(base)["text"] == section["text"] != ""
    run_script(base_eval, *where(base), "--split-tokens=300", "--device-batch-size=4")  # without CORE's data: a note
    assert "CORE is not measured" in capsys.readouterr().out
    assert _section(base)["figures"] == section["figures"]
    of_others = section | {"figures": section["figures"] | {"weights": "others"}}
    (base / "report" / "base-model-evaluation.json").write_text(json.dumps(of_others))
    run_script(base_eval, *arguments, "--eval=bpb")
    assert "tasks" not in _section(base)["figures"]


@pytest.mark.slow
def test_core_of_a_submitted_run_is_scored_again_in_the_sandbox(base, tmp_path, monkeypatch):
    """By the code of the run's commit, in which CORE's tasks are made as small as the bundle's."""
    monkeypatch.delenv("CI", raising=False)
    try:
        sandbox.require()
    except ConfigError as error:
        pytest.skip(str(error))
    bundle = write_core_bundle(tmp_path / "bundle", 12, {label: task.kind for label, task in CORE_TASKS.items()})
    clone = tmp_path / "clone"
    for name in ("marin", "scripts"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    tasks = clone / "marin" / "data" / "core_tasks.py"
    tasks.write_text(re.sub(r"(CoreTask\(\s*\"\w+\",\s*\w+,\s*\d+,\s*)\d+", r"\g<1>12", tasks.read_text()))
    git = ["git", "-C", str(clone), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "small"]):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()

    run = base / "base_checkpoints" / "d2"
    counts = Core(tasks={label: CoreCounts(num_items=12, num_correct=6) for label in CORE_TASKS})
    info = write_run_results(run, CoreFigures(0.2, counts), "A base run.", Author(name="Ada Example", affiliation=""))
    submission = tmp_path / "my_d2"
    (submission / "logs" / "0").mkdir(parents=True)
    for name in ("run.json", "metrics.jsonl"):
        shutil.copyfile(run / name, submission / "logs" / "0" / name)
    write_results(submission / "speedrun_results.json", info.model_copy(update={"git_commit": commit}))
    read = Submission.read(submission)
    (tmp_path / "work").mkdir()
    workspace = rechecks.prepare(read, clone, None, tmp_path / "work", 600.0)
    with pytest.raises(ConfigError, match="give its data with --eval-bundle"):
        rechecks.reevaluate(read, run, workspace)
    (measured,) = rechecks.reevaluate(read, run, workspace, bundle)
    (found,) = workspace.store.glob("base_eval/d2_*/core.json")
    said = json.loads(found.read_text())
    assert measured.bits_per_byte is None and measured.core == said["core_metric"] is not None
    assert len(said["tasks"]) == 22 and not (base / "base_eval" / "d2_000003" / "records" / "squad.jsonl").exists()


def test_hugging_face_folder_is_evaluated_under_its_name(base, made_bundle, tmp_path, capsys):
    config = LlamaConfig(seq_len=64, hidden_dim=32, intermediate_dim=40, num_layers=1, num_heads=2, num_kv_heads=2)
    model = config.build(300, key=jax.random.key(0))
    export_hf(model, config, str(base / "tokenizer"), tmp_path / "small-llama")
    run_script(
        base_eval,
        f"--base-dir={base}",
        f"--hf-path={tmp_path / 'small-llama'}",
        f"--eval-bundle={made_bundle}",
        "--eval=core",
        "--max-per-task=4",
    )
    assert "at most 4 items a task" in capsys.readouterr().out
    found = json.loads((base / "base_eval" / "small-llama.json").read_text())
    assert found["tasks"]["winograd"]["num_items"] == 4 and found["core_metric"] is None
    assert len(found["missing"]) == 20


def test_gpt2_in_hugging_faces_layout_is_measured_in_all_parts(base, made_bundle, tmp_path, capsys):
    model = Gpt2Config(seq_len=48, hidden_dim=16, num_layers=1, num_heads=2).build(300, key=jax.random.key(0))
    folder = tmp_path / "small-gpt2"
    folder.mkdir()
    sizes = {"n_positions": 48, "n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 300}
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes}))
    weights = {published_name(name): np.asarray(leaf) for name, leaf in parameters_of(model).items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(base / "tokenizer" / "tokenizer.json", folder)
    arguments = [*where(base), f"--hf-path={folder}", f"--eval-bundle={made_bundle}", "--split-tokens=300"]
    run_script(base_eval, *arguments, "--device-batch-size=4")
    shown = capsys.readouterr().out
    assert "partial CORE (2 of 22 tasks)" in shown and "The capital of France is" in shown
    figures = _section(base)["figures"]
    assert figures["model"] == "small-gpt2" and 1 < figures["val_bpb"] < 9
    found = json.loads((base / "base_eval" / "small-gpt2.json").read_text())
    assert {label: task["num_items"] for label, task in found["tasks"].items()} == {"copa": 6, "winograd": 6}


def test_bits_per_byte_of_a_hugging_face_model_are_measured_in_a_context_that_fits(base, tmp_path):
    """A published model may state 131,072 tokens, of which even this small one takes no batch in a minute."""
    config = LlamaConfig(seq_len=131_072, hidden_dim=16, intermediate_dim=16, num_layers=1, num_heads=2, num_kv_heads=2)
    folder = tmp_path / "long-llama"
    export_hf(config.build(300, key=jax.random.key(0)), config, str(base / "tokenizer"), folder)
    arguments = [*where(base), f"--hf-path={folder}", "--split-tokens=300", "--device-batch-size=2"]
    run_script(base_eval, *arguments, "--eval=bpb")
    assert 1 < _section(base)["figures"]["val_bpb"] < 9


def test_bits_per_byte_of_other_weights_or_text_under_the_same_names_are_measured_anew(tmp_path):
    places = Places(str(tmp_path))
    model = BaseModel(tmp_path, 3, False, "base_model_000003", tmp_path / "base_eval" / "d2_000003", "weights")
    dataset = Dataset("text", (DataFile("a.jsonl", 7),), DataFile("b.jsonl", 8))

    def path(model: BaseModel = model, dataset: Dataset = dataset, split: str = "val", tokens: int = 300) -> str:
        step = bits_step(model, dataset, split, tokens, 4, places)
        return Graph([step], places.base).node(step).output_path

    others = [
        path(dataclasses.replace(model, identity="others")),
        path(dataset=dataclasses.replace(dataset, validation=DataFile("b.jsonl", 9))),
        path(dataset=dataclasses.replace(dataset, text_key="content")),
        path(split="train"),
        path(tokens=400),
    ]
    assert path() == path() and len({path(), *others}) == 6
    assert path().startswith(str(tmp_path / "base_eval" / "d2_000003" / "bits-val-text-300-"))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["--eval=core,all"], ConfigError, "`--eval` is 'core,all'"),
        (["--device-batch-size=0"], ConfigError, "`--device-batch-size` is 0"),
        (["--hf-path=x", "--step=3"], ConfigError, "leave out `--model-tag` and `--step`"),
        (["--hf-path=nowhere/at/all"], ConfigError, "no folder here"),
        (["--model-tag=d9"], DataError, "scripts.base_train --model-tag d9"),
        (["--step=2"], CheckpointError, "checkpoint of step 2"),
        (["--eval=core"], DataError, r"core.yaml is not there"),
        (["--eval-bundle=nowhere"], DataError, r"nowhere/core.yaml is not there"),
        (["--eval=core", "--max-per-task=0", "--eval-bundle=BUNDLE"], ConfigError, "`--max-per-task` is 0"),
        (["--eval=core", "--max-per-task=-2", "--eval-bundle=BUNDLE"], ConfigError, "`--max-per-task` is -2"),
    ],
)
def test_what_cannot_work_is_refused_with_what_to_do(base, made_bundle, arguments, error, message):
    arguments = [argument.replace("BUNDLE", str(made_bundle)) for argument in arguments]
    with pytest.raises(error, match=message):
        run_script(base_eval, *where(base), *arguments)


def test_fewer_items_than_a_task_shows_are_refused_by_the_flag_that_says_how_many(base, made_bundle, tmp_path):
    bundle = shutil.copytree(made_bundle, tmp_path / "bundle")
    tasks = (bundle / "core.yaml").read_text()
    (bundle / "core.yaml").write_text(tasks.replace('"num_fewshot": [0]', '"num_fewshot": [3]'))
    with pytest.raises(ConfigError, match=r"^`--max-per-task` is 2, and `copa` shows 3 other items .*use at least 4"):
        run_script(base_eval, *where(base), "--eval=core", "--max-per-task=2", f"--eval-bundle={bundle}")
    shutil.copytree(bundle, base / "eval_bundle")  # where training looks for it
    try:
        with pytest.raises(ConfigError, match=r"^`--core-metric-max-per-task` is 2, and `copa` shows 3 other items "):
            run_script(
                base_train, *TINY, *EVALUATED, *where(base), "--core-metric-every=1", "--core-metric-max-per-task=2"
            )
    finally:
        shutil.rmtree(base / "eval_bundle")


def test_damaged_bundle_is_refused_before_anything_is_measured(base, made_bundle, tmp_path, monkeypatch):
    bundle = shutil.copytree(made_bundle, tmp_path / "bundle")
    path = bundle / "eval_data" / "winograd.jsonl"
    path.write_text(path.read_text()[:-20])
    monkeypatch.setattr(base_evaluation, "load_run_model", None)
    with pytest.raises(DataError, match=r"winograd.jsonl:6 is not JSON .* restore the file"):
        run_script(base_eval, *where(base), f"--eval-bundle={bundle}")


def test_absent_bundle_is_noted_where_other_parts_are_asked_for_too(base, capsys):
    run_script(base_eval, *where(base), "--eval=core,sample")
    said = capsys.readouterr().out
    assert "note: CORE is not measured" in said and "`python -m scripts.eval_bundle` fetches it" in said
