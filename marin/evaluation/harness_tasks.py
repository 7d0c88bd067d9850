"""Running `lm-eval` (extra `eval`) on named tasks, with its failures as messages that a person can act on."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from marin.data.tokenizer import Tokenizer
from marin.errors import ConfigError, DataError
from marin.nn.precision import Precision


def require_harness(what: str) -> None:
    """Raises:
    ConfigError: lm-eval is not installed, which `what` needs.
    """
    if find_spec("lm_eval") is None:
        raise ConfigError(f"{what} needs lm-eval, which is not installed: run `pip install 'marin[eval]'`")


def named_tasks(wanted: Sequence[str], manager: Any, *, source: str = "`--tasks`") -> list[str]:
    """The same names of tasks and groups, all of them known.

    Raises:
        ConfigError: the harness knows one of them not; `source` is where it was named.
    """
    for name in wanted:
        if not manager.match_tasks([name]):
            close = [known for known in manager.all_tasks if name.lower() in known.lower()][:5]
            hint = f"did you mean {', '.join(close)}?" if close else "`lm-eval ls tasks` lists them"
            raise ConfigError(f"{source} names {name!r}, which lm-eval does not know: {hint}")
    return list(wanted)


def evaluate_tasks(
    model: Any, names: Sequence[str], manager: Any, *, num_fewshot: int | None = None, limit: int | None = None
) -> dict[str, Any]:
    """What the harness finds.

    Raises:
        DataError: a task's data cannot be had.
    """
    import lm_eval

    with _fetching(names, "`--include-path`"):
        results = lm_eval.simple_evaluate(
            model=model,
            tasks=list(names),
            num_fewshot=num_fewshot,
            limit=limit,
            task_manager=manager,
            log_samples=False,
            # 100 draws make the errors of a metric that has no formula; 100,000, the harness's own, take minutes.
            bootstrap_iters=100,
        )
    assert results is not None
    return dict(results)


@contextlib.contextmanager
def _fetching(names: Sequence[str], source: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # what `datasets` raises where it finds nothing and cannot reach the hub
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(
            f"the data of {', '.join(names)} cannot be had ({first}): lm-eval fetches it from the Hugging Face hub; run the command once"
            f" with network, or name a task of your own with local files ({source})"
        ) from None


class TaskEvaluator:
    """Tasks of the harness measured on a model that is being trained."""

    def __init__(self, tasks: Sequence[str], tokenizer: Tokenizer, max_length: int) -> None:
        """Args:
            tasks: names that the harness knows, or paths of YAML files with tasks of one's own.
        Raises:
            ConfigError: lm-eval is absent or does not know a task, or a file is none of its tasks.
            DataError: a task's data cannot be had.
        """
        require_harness("`task_eval_names`")
        from lm_eval.tasks import TaskManager, get_task_dict

        own = {name: Path(name) for name in tasks if name.endswith((".yaml", ".yml"))}
        folders = sorted({str(path.parent) for path in own.values()})
        self._manager = TaskManager(include_path=folders or None)
        names = [_task_of(own[name]) if name in own else name for name in tasks]
        self._names = named_tasks(names, self._manager, source="`task_eval_names`")
        with _fetching(self._names, "a YAML file in `task_eval_names`"):
            get_task_dict(self._names, self._manager)  # now, rather than after hours of training
        self._tokenizer, self._max_length = tokenizer, max_length

    def __call__(self, model: Any, precision: Precision) -> dict[str, float]:
        """The figures of each task, as `piqa/acc`; standard errors, counts and what is no number are left out."""
        from marin.evaluation.harness import HarnessModel

        answering = HarnessModel(model, self._tokenizer, max_length=self._max_length, precision=precision)
        results = evaluate_tasks(answering, self._names, self._manager)["results"]
        return {
            f"{task}/{metric.removesuffix(',none').replace(',', '_')}": float(value)
            for task, metrics in results.items()
            for metric, value in metrics.items()
            # A metric is named with its filter, as in "acc,none"; counts such as "sample_len" are not.
            if "," in metric and "_stderr" not in metric and isinstance(value, int | float) and math.isfinite(value)
        }


def _task_of(path: Path) -> str:
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"the task file {path} of `task_eval_names` cannot be read: {reason}") from None
    name = content.get("task") if isinstance(content, dict) else None
    if not isinstance(name, str):
        raise ConfigError(
            f"{path} of `task_eval_names` has no `task`: give it a name, as lm-eval's guide of new tasks says"
        )
    return name
