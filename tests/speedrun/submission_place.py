"""A clone and a store in which `marin submit` is tried, with runs made by the engine's own record code."""

import pathlib
import random
import shutil

from forgeries.honest import Plan, write_submission

from marin.cli.main import dispatch
from marin.speedrun.results import dump_results, load_results


class Place:
    """A small clone with one submission `example` to come, another one on its board, and a prefix."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root, self.prefix = root / "clone", root / "store"
        self.directory = self.root / "experiments" / "speedrun" / "example"
        self.directory.mkdir(parents=True)
        (self.root / "pyproject.toml").write_text('[project]\nname = "marin"\n')
        (self.directory / "main.py").write_text("raise SystemExit('submitted code must not run')\n")
        other = Plan(hidden=128, author="Grace Other", seed=3, description="Another one.")
        write_submission(self.directory.with_name("other"), [other], random.Random(7))

    def add_runs(self, *plans: Plan, rng: int = 1) -> list[pathlib.Path]:
        """Run directories and evaluations of finished runs, as the steps of a speedrun leave them."""
        scratch = self.root.parent / f"scratch-{rng}"
        write_submission(scratch, list(plans), random.Random(rng))
        found = []
        for number, info in enumerate(load_results(scratch / "speedrun_results.json")):
            run = self.prefix / "checkpoints" / "speedrun" / f"example-{rng}{number:07d}"
            evaluation = self.prefix / "evaluation" / "speedrun" / f"example-{rng}{number:07d}"
            shutil.copytree(scratch / "logs" / str(number), run)
            evaluation.mkdir(parents=True)
            (run / "evaluation.json").rename(evaluation / "evaluation.json")
            (run / "speedrun_results.json").write_bytes(dump_results([info]))
            found.append(run)
        return found

    def submit(self, *flags: str) -> int:
        return dispatch(["submit", str(self.directory), "--prefix", str(self.prefix), *flags])

    def body(self) -> str:
        return (self.root / ".submit" / "example.md").read_text()
