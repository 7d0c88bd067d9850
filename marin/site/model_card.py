"""The catalogue of the models below a prefix, and the card of one: what it is, and the code, commit and step that made it."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marin.errors import ResultsError, StorageError
from marin.execution.status import read_info
from marin.site.browser.records import Records
from marin.site.browser.roots import make_roots
from marin.site.leaderboard.curves import figure_of
from marin.speedrun.results import FILE_NAME, load_results
from marin.storage import files
from marin.tracking.run_record import RUN_FILE, RunRecord

_FIGURE_FILES = ("base_train.json", "result.json", "sft.json")  # written after the last measurement, which has no event
_QUALITY = ("bits_per_byte", "val_bpb", "core_metric", "pass@1")


@dataclasses.dataclass(frozen=True)
class Model:
    """A finished training run.

    Args:
        step: its output below the prefix.
        figures: what was measured last, by name; of a model that was not, the training loss of its last step, under that name.
    """

    step: str
    directory: Path
    model_class: str
    num_parameters: int | None
    num_steps: int
    num_tokens: int
    figures: Mapping[str, float]
    fn_name: str | None
    git_commit: str | None
    git_dirty: bool | None
    fingerprint: str | None


def catalogue(prefix: str) -> list[Model]:
    """The models of finished runs below a local prefix, by the paths of their steps."""
    (root,) = make_roots([files.local_path(prefix).as_posix()])
    index = Records(root)
    found = []
    for parts, step in sorted(index.steps().items()):
        directory = Path(root.path, *parts)
        if index.state(parts).word == "success" and (directory / RUN_FILE).is_file():
            try:
                found.append(read_model(directory, step.relative))
            except ResultsError:  # a record that is being written, or that somebody changed
                continue
    return found


def read_model(directory: Path, step: str | None = None) -> Model:
    """The model of the run in a directory.

    Raises:
        ResultsError: there is no finished run.
    """
    record = RunRecord.open(directory)
    if not record.is_complete:
        raise ResultsError(f"the run in {directory} has not ended: run the same command again to continue it")
    info = read_info(str(directory)) or {}
    steps = record.steps()
    return Model(
        step=step or str(info.get("name") or directory.name),
        directory=directory,
        model_class=str(record.info.get("model_class") or "unknown"),
        num_parameters=record.info.get("num_parameters"),
        num_steps=len(steps),
        num_tokens=sum(each["tokens"] for each in steps),
        figures=_figures(directory, record) or _loss_of_last_step(steps),
        fn_name=info.get("fn_name"),
        git_commit=info.get("git_commit"),
        git_dirty=info.get("git_dirty"),
        fingerprint=info.get("fingerprint"),
    )


def card_text(model: Model, name: str) -> str:
    """The card as the README of a repository on the hub, in Markdown with its metadata."""
    commit = (
        "not recorded"
        if model.git_commit is None
        else f"`{model.git_commit}`" + (" with uncommitted changes" if model.git_dirty else "")
    )
    facts = {
        "model": f"`{model.model_class}`",
        "parameters": "unknown" if model.num_parameters is None else f"{model.num_parameters:,}",
        "trained on": f"{model.num_tokens:,} tokens in {model.num_steps:,} steps",
        **{key: f"{value:.4f}" for key, value in model.figures.items()},
        "made by step": f"`{model.step}`",
        "function": f"`{model.fn_name or 'unknown'}`",
        "fingerprint of its whole config": f"`{model.fingerprint or 'unknown'}`",
        "commit of the code": commit,
    }
    lines = [f"- {key}: {value}" for key, value in facts.items()]
    return (
        "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- marin\n---\n\n"
        f"# {name}\n\nTrained with [Marin](https://github.com/marin-community/marin). Written from the record of its run.\n\n"
        + "\n".join(lines)
        + f'\n\n```python\nfrom transformers import AutoModelForCausalLM\n\nmodel = AutoModelForCausalLM.from_pretrained("{name}")\n```\n'
    )


def _figures(directory: Path, record: RunRecord) -> dict[str, float]:
    figures: dict[str, Any] = {}
    for event in record.of("evaluation"):  # each has what was measured at its own pace
        figures |= event
    if (directory / FILE_NAME).is_file():  # of a speedrun, whose evaluation is a step of its own
        # The model is there all the same, with no figure of a file that is broken.
        with contextlib.suppress(ResultsError):
            measured = load_results(directory / FILE_NAME)[-1].evaluation
            if measured is not None and measured.bits_per_byte is not None:
                figures["bits_per_byte"] = measured.bits_per_byte
    for name in _FIGURE_FILES:
        content: Any = None
        with contextlib.suppress(StorageError):  # as above
            content = files.read_json(str(directory / name)) if (directory / name).is_file() else None
        figures |= content if isinstance(content, dict) else {}
    kept = {key: figure_of(figures.get(key)) for key in _QUALITY}
    return {key.replace("_", " "): value for key, value in kept.items() if value is not None}


def _loss_of_last_step(steps: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    loss = figure_of(steps[-1].get("loss")) if steps else None
    return {} if loss is None else {"training loss of the last step": loss}
