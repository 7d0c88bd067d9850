"""A command of the pipeline as a step of the executor, and the section that it adds to the report.

    step = stage("base_train", run, config, places, places.checkpoints("base", tag))
    output = run_stage(places, step)
    if output is not None:
        report_section(places, "Base model training", figures)

The config is what identifies the stage: all flags that change its results, and digests of what it reads from other stages.
What only says where or how fast it runs is a field made with `placement()`. Run again, a finished stage does nothing, and an
interrupted one continues (where its config's class says `marin_resumable = True`). Other flags under the same path are
refused, with every difference, rather than written over.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from marin.errors import ConfigError, DataError
from marin.execution.executor import Executor, ExecutorMainConfig, ExecutorStep
from marin.execution.following import follow
from marin.execution.graph import Graph, Node
from marin.execution.redaction import without_secrets
from marin.execution.status import INFO_NAME, Status, own_leftovers, read_info, read_status
from marin.gpt2.places import Places
from marin.gpt2.sections import note_time, report_section
from marin.storage import files

__all__ = ["process_index", "refuse_other_settings", "report_section", "run_stage", "seen_by_others", "stage"]

_DIFFERENCES_SHOWN = 12


def stage(name: str, fn: Callable[[Any], Any], config: Any, places: Places, output: Path) -> ExecutorStep:
    """The step that runs `fn(config)` and writes at `output`, a path below the base directory.

    Args:
        name: the command's, such as "base_train".
        fn: a function of one argument, defined at the top level of a file.
        config: a frozen dataclass with a field `output_path: str = this_output_path()`.
    """
    relative = places.relative(output)
    return ExecutorStep(name=f"gpt2/{name}", fn=fn, config=config, override_output_path=relative)


def run_stage(places: Places, step: ExecutorStep, leaves: str = "") -> Path | None:
    """Runs the stage with what it depends on, unless it is done, and returns its output.

    Where torchrun, SLURM or `marin.run.launch` has started several processes, the first of them does so; the others take
    part in steps whose config's class says `marin_together = True`, and get None: they have nothing more to do.

    Args:
        leaves: the file that a finished stage has, below its output; "" for none in particular.
    Raises:
        ConfigError: the path holds what was made with other settings.
        DataError: the stage was done before, and what it left is not there any more.
        StepFailedError: the stage, or one that it depends on, failed.
    """
    graph = Graph([step], places.base)
    index = process_index()
    if index > 0:
        from marin.parallel import distributed  # imports JAX, which stages that train nothing do not need

        follow(
            [step],
            places.base,
            index,
            distributed.leads,
            watch=distributed.watch_process_0(places.base, os.environ),
        )
        return None
    started = time.monotonic()
    with seen_by_others(places):
        refuse_other_settings(places, step)
        results = Executor(ExecutorMainConfig(prefix=places.base), description=step.name).run([step])
    if any(result.kind == "ran" for result in results.values()):
        note_time(places, step.name, time.monotonic() - started)
    output = Path(graph.node(step).output_path)
    if leaves and not (output / leaves).is_file():
        raise DataError(
            f"{output} was finished before, and its {leaves} is not there any more: restore it, or move that directory away and run"
            " the same command again"
        )
    return output


def refuse_other_settings(places: Places, step: ExecutorStep) -> None:
    """Raises:
    ConfigError: where the stage would write lies what was made with other settings.
    """
    for node in Graph([step], places.base).nodes:
        if node.override_output_path is not None:
            _refuse_other_settings(node, places.base)


def process_index() -> int:
    """The number of this process; 0 for one that is alone.

    Raises:
        ConfigError: the environment says something that cannot be.
    """
    if not _may_be_several():
        return 0
    from marin.parallel import distributed

    return distributed.process_index(os.environ)


def seen_by_others(places: Places) -> contextlib.AbstractContextManager[None]:
    """For what process 0 does before others join it in a stage: they wait, and end where it does."""
    if not _may_be_several():
        return contextlib.nullcontext()
    from marin.parallel import distributed

    return distributed.show_process_0(places.base, os.environ)


def _may_be_several() -> bool:
    """Whether it takes a closer look to know: the module for that imports JAX, which stages that train nothing do not need."""
    return any(name in os.environ for name in ("RANK", "WORLD_SIZE", "MARIN_PROCESS_ID", "SLURM_STEP_NUM_TASKS"))


def _refuse_other_settings(node: Node, prefix: str) -> None:
    """Refuses to go on where work of other settings lies, finished or not; a failure that left nothing is replaced."""
    info = read_info(node.output_path)
    if info is None or info.get("fingerprint") in (None, node.fingerprint) or not own_leftovers(node.output_path):
        return
    rows = _differences(node, info, prefix)
    if len(rows) > _DIFFERENCES_SHOWN:
        rows[_DIFFERENCES_SHOWN:] = [f"  and {len(rows) - _DIFFERENCES_SHOWN} more, see {INFO_NAME} there"]
    state = "a finished" if read_status(node.output_path) is Status.SUCCESS else "an unfinished"
    raise ConfigError(
        f"{node.output_path} holds {state} `{node.name}` with other settings:\n"
        + "\n".join(rows)
        + f"\nuse those again, or {_other_ways(node)}"
    )


def _other_ways(node: Node) -> str:
    """What a person can do to have the stage with both settings."""
    if node.name == "gpt2/base_train":
        return "choose another `--model-tag`, or move that directory away"
    path = Path(node.output_path)
    if node.name in ("gpt2/chat_sft", "gpt2/chat_rl"):  # their tag is that of the run that they begin from
        return f"rename that directory, such as to {path.name}_1, which is then its `--model-tag`"
    return "choose another `--base-dir`, or move that directory away"


def _differences(node: Node, info: Mapping[str, Any], prefix: str, at: str = "") -> list[str]:
    """A line for each setting of a step that was another in what is recorded, those of steps that it depends on among them.

    Args:
        at: what the names of the settings begin with.
    """
    version = info.get("version")
    old = version.get("config", {}) if isinstance(version, Mapping) else {}
    new, rows = without_secrets(node.parts), list[str]()
    for place in dict.fromkeys([*new, *old]):
        was, now = old.get(place, "(absent)"), new.get(place, "(absent)")
        if was == now:
            continue
        # A step stands there as `step NAME-DIGEST/`, and two digests say nothing to a person.
        within = [each for each in node.dependencies if now == f"step {each.name}-{each.fingerprint[:8]}/"]
        before = read_info(files.join(prefix, was.removeprefix("step "))) if within else None
        inner = _differences(within[0], before, prefix, f"{at}{place}: ") if before else []
        rows += inner or [f"  {at}{place}: was {was}, is {now}"]
    return rows
