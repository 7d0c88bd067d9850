"""A copy of a run's metrics on Weights & Biases, where a login is found; never needed, never the truth.

A key in `WANDB_API_KEY` or a stored login (`wandb login`) turns it on, and so does `WANDB_MODE=offline`;
`WANDB_MODE=disabled` turns it off. `WANDB_ENTITY` and `WANDB_PROJECT` say where the run goes. A fault of W&B never
stops training: it is reported once.
"""

import contextlib
import importlib.util
import math
import netrc
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

DEFAULT_PROJECT = "marin"
_LONGEST = 64
_DIGEST = len("-01234567")
# Seconds for what is not uploaded yet at the end of a run. By itself W&B tries for hours to reach a service that is gone.
_LONGEST_FINISH = 300.0


def has_login() -> bool:
    """Whether `WANDB_API_KEY` or a stored login of api.wandb.ai is there."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").removeprefix("https://").removeprefix("http://")
    host = host.split("/")[0].split(":")[0]
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, UnicodeDecodeError, netrc.NetrcParseError):
        return False


def is_wanted() -> bool:
    """Whether a run should be copied: asked for by a login or by `WANDB_MODE`, and not turned off by it."""
    return os.environ.get("WANDB_MODE", "").lower() != "disabled" and (_is_offline() or has_login())


def _is_offline() -> bool:
    return os.environ.get("WANDB_MODE", "").lower() in ("offline", "dryrun")


class WandbMirror:
    """One W&B run that follows a local one; every method is safe to call whatever W&B does."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._failed = False

    @property
    def url(self) -> str | None:
        return getattr(self._run, "url", None)

    def log(self, step: int, metrics: dict[str, Any]) -> None:
        if self._failed:
            return
        try:
            values = {name: _for_wandb(value) for name, value in metrics.items()}
            self._run.log({name: value for name, value in values.items() if value is not None}, step=step)
        except Exception as error:  # W&B raises many kinds; none may stop training
            self._failed = True
            print(f"W&B stopped taking metrics ({error}); training goes on, metrics.jsonl is complete")

    def summarize(self, figures: dict[str, float]) -> None:
        """Sets figures of the whole run, which its table on W&B shows."""
        try:
            self._run.summary.update(figures)
        except Exception as error:
            print(f"W&B did not take the summary ({error}); the run's own files have it")


def _for_wandb(value: Any) -> Any:
    """A histogram in W&B's own form, None for one that is not finite; numbers as they are."""
    if not isinstance(value, dict):
        return value
    if not math.isfinite(value["max"] - value["min"]):
        return None
    import numpy as np
    import wandb

    counts = np.asarray(value["counts"])
    edges = np.linspace(value["min"], value["max"], len(counts) + 1)
    return wandb.Histogram(np_histogram=(counts, edges))


def _shortened(text: str) -> str:
    """At most as long as W&B takes. The end stays, as it is the digest by which runs of one long name differ."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - _DIGEST]}{text[-_DIGEST:]}"


@contextlib.contextmanager
def wandb_mirror(
    run_id: str, config: dict[str, Any], directory: str, tags: Sequence[str] = (), name: str | None = None
) -> Iterator[WandbMirror | None]:
    """The mirror of this run, or None where W&B is not wanted or does not start.

    Args:
        run_id: unique to the run's config; a resumed run continues its mirror.
    """
    if not is_wanted():
        yield None
        return
    if importlib.util.find_spec("wandb") is None:
        print("W&B is asked for but not installed; training goes on without it: `pip install 'marin[wandb]'` adds it")
        yield None
        return
    import wandb

    try:
        run = wandb.init(
            id=_shortened(run_id),
            name=_shortened(name or run_id),
            project=os.environ.get("WANDB_PROJECT", DEFAULT_PROJECT),
            entity=os.environ.get("WANDB_ENTITY"),
            config=config,
            tags=list(tags),
            dir=directory,
            resume="allow",
            settings=_settings(wandb),
        )
        written = pathlib.Path(run.dir).parent  # run.dir is `files` in it
    except Exception as error:  # no network, wrong key: training does not need W&B
        print(f"W&B did not start ({error}); training goes on without it")
        yield None
        return
    try:
        yield WandbMirror(run)
    finally:
        upload = f"`wandb sync wandb/{written.name}`, started in the run's directory, uploads this copy"
        try:
            run.finish()
            if _is_offline():
                print(f"W&B: {upload}")
        except Exception as error:  # the last upload failed: the run is done all the same
            print(f"W&B did not finish ({error}); metrics.jsonl is complete, and {upload}")


def _settings(wandb: Any) -> dict[str, Any]:
    if _is_offline():
        # W&B ends with a command to upload the run from its directory, which is moved when the step is done.
        return {"quiet": True}
    if "finish_timeout" not in getattr(
        wandb.Settings, "model_fields", {}
    ):  # an older W&B refuses what it does not know
        return {}
    return {"finish_timeout": _LONGEST_FINISH, "finish_timeout_raises": True}
