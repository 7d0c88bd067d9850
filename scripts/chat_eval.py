"""Asks a model chat tasks and prints their scores with 95 % intervals, and ChatCORE.

    python -m scripts.chat_eval -i sft
    python -m scripts.chat_eval -i sft -a "ARC-Easy|GSM8K" -x 100
    python -m scripts.chat_eval -i sft -a "Spelling|SpellingBee|Arithmetic|Identity"     # made questions: no network

Every question's reply and verdict are in BASE/chat_eval, in a folder for each way of asking. Run again, it continues with the
task that it was at; what is finished is not asked twice.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from marin.errors import ConfigError
from marin.gpt2.command import check_numbers, parse_flags, run_command, top_k_of
from marin.gpt2.opening import precision_for
from marin.gpt2.places import Places
from marin.gpt2.sections import limit_words, pass_words, timed
from marin.gpt2.stages import process_index, report_section

if TYPE_CHECKING:  # what imports JAX is imported where it is used, as `--help` does not need it
    from marin.evaluation.chat import TaskScore
    from marin.finetuning.chat_scores import ChatEvalOptions


@dataclasses.dataclass(frozen=True)
class Flags:
    """Flags of chat_eval.

    Args:
        source: which model: base, sft or rl.
        task_name: tasks, joined by |; by default the public ones whose data is there, and the made ones.
        dtype: number format; by default the one that the run was trained in.
        temperature: of generated answers; 0 takes the likeliest token.
        max_new_tokens: of an answer.
        num_samples: answers to a question, of which one must be right.
        top_k: how many likeliest tokens are chosen among; 0 for all.
        batch_size: questions, or answers, at once.
        model_tag: the run; the deepest by default.
        step: its checkpoint; the newest by default.
        max_problems: questions of a task; all by default.
        download: fetch the data of public tasks where it is not there.
        device_type: auto, cpu or cuda.
        base_dir: where everything is kept (default: $MARIN_BASE_DIR, $NANOCHAT_BASE_DIR, ~/.cache/marin/gpt2).
    """

    source: Annotated[Literal["base", "sft", "rl"], tyro.conf.arg(aliases=["-i"])] = "sft"
    task_name: Annotated[str | None, tyro.conf.arg(aliases=["-a"])] = None
    dtype: Annotated[Literal["float32", "bfloat16"] | None, tyro.conf.arg(aliases=["-d"])] = None
    temperature: Annotated[float, tyro.conf.arg(aliases=["-t"])] = 0.0
    max_new_tokens: Annotated[int, tyro.conf.arg(aliases=["-m"])] = 512
    num_samples: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 1
    top_k: Annotated[int, tyro.conf.arg(aliases=["-k"])] = 50
    batch_size: Annotated[int, tyro.conf.arg(aliases=["-b"])] = 8
    model_tag: Annotated[str | None, tyro.conf.arg(aliases=["-g"])] = None
    step: Annotated[int | None, tyro.conf.arg(aliases=["-s"])] = None
    max_problems: Annotated[int | None, tyro.conf.arg(aliases=["-x"])] = None
    download: bool = False
    device_type: str = ""
    base_dir: str | None = None

    def __post_init__(self) -> None:
        check_numbers(self, ("num_samples", "batch_size", "max_new_tokens"))
        if self.max_problems is not None and self.max_problems < 1:
            raise ConfigError(f"`--max-problems` is {self.max_problems}: use at least 1, or leave it out for all")
        if self.task_name is not None and not all(name.strip() for name in self.task_name.split("|")):
            raise ConfigError(
                f"`--task-name` is {self.task_name!r}: use names with `|` between them, such as 'GSM8K|MMLU', or leave it out for all"
            )
        _ = self.options

    @property
    def options(self) -> "ChatEvalOptions":
        """How the tasks are asked."""
        from marin.finetuning.chat_scores import ChatEvalOptions

        limit = self.max_problems or -1
        return ChatEvalOptions(
            max_choices=limit,
            max_replies=limit,
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            top_k=top_k_of(self.top_k),
            num_samples=self.num_samples,
            batch_size=self.batch_size,
        )

    @property
    def asked(self) -> str:
        """What a folder of replies ends in: the flags that change them and are not as usual.

        So a look at a few questions does not take the place of hours of asking all.
        """
        usual = Flags.__dataclass_fields__
        names = ("max_problems", "num_samples", "temperature", "top_k", "max_new_tokens", "batch_size", "dtype")
        others = [f"_{name}={getattr(self, name)}" for name in names if getattr(self, name) != usual[name].default]
        return "".join(others)


def task_names(flags: Flags, task_data: Path) -> list[str]:
    """The tasks that the flags ask for, fetched where that is asked for too."""
    from marin.evaluation.chat import PUBLIC_TASKS, source_of
    from marin.evaluation.chat.datasets import download
    from marin.finetuning.chat_scores import available_tasks

    named = [name.strip() for name in flags.task_name.split("|")] if flags.task_name else None
    if flags.download:
        for name in PUBLIC_TASKS:
            if named is None or name.lower() in (each.lower() for each in named):
                download(source_of(name), task_data)
    if named is None:
        return available_tasks(task_data)
    once: dict[str, str] = {}  # a task that is named twice counts once
    for name in named:
        once.setdefault(name.lower(), name)
    return list(once.values())


def show(scores: "dict[str, TaskScore]", task_data: Path, options: "ChatEvalOptions") -> str:
    """Prints the scores under their names, and returns what ChatCORE is, or why there is none.

    Args:
        task_data: where data of public tasks lies.
        options: how the tasks were asked.
    """
    from marin.evaluation.chat import chat_core, source_of

    table = Table("task", "right", "accuracy", "95 % interval", "guessing", "centered")
    for name, score in scores.items():
        low, high = score.interval
        once = name == score.name  # one right answer of several is not held against a guess that is made once
        table.add_row(
            name,
            f"{score.correct:,} of {score.total:,}",
            f"{score.accuracy:.4f}",
            f"{low:.4f} to {high:.4f}",
            f"{score.baseline:.4f}" if once else "",
            f"{score.centered:+.4f}" if once else "",
        )
    Console().print(table)
    core = chat_core(list(scores.values()), options.max_replies)
    if core is None:
        return "no ChatCORE: none of its tasks was asked"
    missing = "; ".join(
        f"{name} was not asked"
        if source_of(name).is_there(task_data)
        else f"{name} is not there: https://huggingface.co/datasets/{source_of(name).repository}"
        for name in core.missing
    )
    how = limit_words(options.max_replies) + pass_words(options.num_samples)
    return f"{core.name}{how}: {core.value:.4f}" + (f" ({missing})" if missing else "")


def main() -> None:
    flags = parse_flags(Flags, __doc__)
    if process_index() > 0:  # one process asks; the others, which a launcher started, have nothing to do
        return

    from marin.evaluation.chat import chat_core
    from marin.evaluation.records import RecordFolder
    from marin.finetuning.chat_scores import AskedModel, chat_scores, open_task
    from marin.finetuning.origin import Origin
    from marin.gpt2.devices import take_devices
    from marin.training.compile_cache import use_compile_cache
    from marin.training.preflight import check_devices
    from marin.training.run_model import load_run_model

    places = Places.of(flags.base_dir)
    run = places.find_run(flags.source, flags.model_tag)
    tasks = [open_task(name, places.task_data) for name in task_names(flags, places.task_data)]
    check_devices(take_devices(flags.device_type))
    use_compile_cache()
    weights = Origin.open(run, flags.step).digest
    loaded = load_run_model(run, step=flags.step)
    precision = precision_for(loaded, flags.dtype)
    options = flags.options
    limit = options.max_replies
    print(
        f"asking {flags.source} {run.name}, step {loaded.step:,}: {', '.join(task.name for task in tasks)}", flush=True
    )
    folder = Path(places.base, "chat_eval", f"{flags.source}_{run.name}_{loaded.step:06d}{flags.asked}")
    kept = RecordFolder(folder, {"weights": weights})
    with timed(places, f"chat_eval, {flags.source}"):
        asked = AskedModel(loaded.model, loaded.tokenizer, precision, loaded.config.max_seq_len)
        scores = chat_scores(asked, tasks, options, report=counter, records=kept)
    letters = {task.name for task in tasks if task.grade is None}  # chosen by their logits, whatever is sampled
    named = {score.name + ("" if score.name in letters else pass_words(options.num_samples)): score for score in scores}
    verdict = show(named, places.task_data, options)
    core = chat_core(scores, limit)
    print(f"{verdict}\nreplies: {folder}")
    samples = "### Replies\n\n" + "\n".join(sample_lines(score) for score in scores if score.records)
    report_section(
        places,
        f"Chat evaluation {flags.source}",
        {
            "model": f"{run.name}, step {loaded.step}",
            "ChatCORE": verdict if core is not None else "not measured: none of its tasks was asked",
            "chatcore_metric": core.value if core is not None and core.is_whole else None,
            "max_problems": limit,
            "num_samples": flags.num_samples,
            "temperature": flags.temperature,
            "top_k": flags.top_k,
            "max_new_tokens": flags.max_new_tokens,
            "tasks": {name: score.as_json() for name, score in named.items()},
        },
        samples,
    )


def sample_lines(score: "TaskScore") -> str:
    """The first three replies of a task, for people."""
    shown = [
        f"    {score.name}: {'right' if record['right'] else 'wrong'}, expected {_short(record['answer'])}, reply {_short(record['reply'])}"
        for record in score.records[:3]
    ]
    return "\n".join(shown)


def _short(text: Any) -> str:
    return json.dumps(str(text)[:100], ensure_ascii=False)


def counter(name: str) -> Callable[[int, int, int], None]:
    """Says how far a task is."""

    def report(done: int, total: int, right: int) -> None:
        print(f"  {name}: {done:,} of {total:,}, {right:,} right", flush=True)

    return report


if __name__ == "__main__":
    run_command(main)
