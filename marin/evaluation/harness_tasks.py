"""Running `lm-eval` on named tasks, with its failures as messages that a person can act on."""

from collections.abc import Sequence
from typing import Any

from marin.errors import ConfigError, DataError


def named_tasks(wanted: Sequence[str], manager: Any) -> list[str]:
    """The same names of tasks and groups, all of them known.

    Raises:
        ConfigError: the harness knows one of them not.
    """
    for name in wanted:
        if not manager.match_tasks([name]):
            close = [known for known in manager.all_tasks if name.lower() in known.lower()][:5]
            hint = f"did you mean {', '.join(close)}?" if close else "`lm-eval ls tasks` lists them"
            raise ConfigError(f"`--tasks` names {name!r}, which lm-eval does not know: {hint}")
    return list(wanted)


def evaluate_tasks(
    model: Any, names: Sequence[str], manager: Any, *, num_fewshot: int | None = None, limit: int | None = None
) -> dict[str, Any]:
    """What the harness finds.

    Raises:
        DataError: a task's data cannot be had.
    """
    import lm_eval

    try:
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
    except OSError as error:  # what `datasets` raises where it finds nothing and cannot reach the hub
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(
            f"the data of {', '.join(names)} cannot be had ({first}): lm-eval fetches it from the Hugging Face hub; run the command once"
            " with network, or name a task of your own with local files (`--include-path`)"
        ) from None
    assert results is not None
    return dict(results)
