"""The leaderboard page as the last step of a run: its own result among those of the repository and of the same prefix."""

import dataclasses
from pathlib import Path
from typing import Any

from marin.execution.attempts import usual_path
from marin.execution.step import ExecutorStep, InputName, placement, this_output_path
from marin.site.leaderboard.build import build_site
from marin.storage import files

_SUBMISSIONS = Path(__file__).resolve().parents[2] / "experiments" / "speedrun"


@dataclasses.dataclass(frozen=True)
class LeaderboardConfig:
    """The page is made anew for a new result; `marin leaderboard` makes it at any time."""

    results: Any
    prefix: Any
    submissions: str = placement(default=str(_SUBMISSIONS))
    output_path: str = this_output_path()


def leaderboard_step(results: ExecutorStep) -> ExecutorStep:
    """The step that builds the page once `results`, the last step of a speedrun, is done."""
    return ExecutorStep(
        name="leaderboard",
        fn=build_leaderboard,
        config=LeaderboardConfig(results=results, prefix=InputName.hardcoded("")),
        description="a static leaderboard page",
    )


def build_leaderboard(config: LeaderboardConfig) -> None:
    """Writes the page of every result below the prefix's `speedrun` folder and in the repository's submissions."""
    places = [files.join(str(config.prefix), "speedrun"), config.submissions]
    summary = build_site([place for place in places if files.exists(place)], [], config.output_path)
    print(f"  leaderboard        {usual_path(str(summary.index))}   ({summary.num_runs} runs; open it in a browser)")
