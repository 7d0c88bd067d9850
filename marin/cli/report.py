"""`marin report expNNN`: the report of an experiment, from the runs below a prefix."""

import argparse
import pathlib
from collections.abc import Sequence

from marin.errors import ConfigError

HELP = """\
Write the report of an experiment into docs/reports: the verdict on its hypothesis by the rule that was written down before,
curves with seeds and intervals, cost, and links to every step. Runs that are not done are shown as that, so it can be made at
any time; nothing is run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("experiment", metavar="EXPERIMENT", help="such as exp73, exp73_z_loss, or a .py file")
    parser.add_argument("--prefix", help="where outputs lie (default: $MARIN_PREFIX, then local_store)")
    parser.add_argument("--output", type=pathlib.Path, metavar="DIR", help="default: docs/reports of the checkout")


def run(args: argparse.Namespace) -> int:
    from marin.cli import checkout
    from marin.execution import experiment_file
    from marin.execution.step import ExecutorStep
    from marin.site.experiment_report import write_report
    from marin.site.experiment_results import Findings, gather
    from marin.storage import files
    from marin.storage.prefix import resolve_prefix

    root = checkout.require_checkout()
    script = find_script(args.experiment, root)
    prefix = resolve_prefix(args.prefix)
    found: list[Findings] = []

    def use(steps: Sequence[ExecutorStep]) -> None:
        found.append(gather(steps, prefix))

    experiment_file.with_steps_of(str(script), use)
    inside = script.relative_to(root) if script.is_relative_to(root) else pathlib.Path(script.name)
    with files.placed_by("--output"):
        written = write_report(found[0], args.output or root / "docs" / "reports", inside.as_posix())
    results = found[0].results
    print(f"{results.num_done} of {len(results.rows)} runs are done under {prefix}")
    print(f"{results.verdict.outcome}: {results.verdict.reason}")
    for path in (written.page, *written.images, written.index):
        print(f"wrote {path.relative_to(root) if path.is_relative_to(root) else path}")
    return 0


def find_script(name: str, root: pathlib.Path) -> pathlib.Path:
    """The experiment's file: by its path, its name, or its number.

    Raises:
        ConfigError: there is none, or several.
    """
    if name.endswith(".py"):
        path = pathlib.Path(name).resolve()
        if not path.is_file():
            raise ConfigError(f"{name} is no file: give an experiment such as exp73, or the path of its .py file")
        return path
    folder = root / "experiments"
    word = name.rpartition(".")[2]
    if not word.isidentifier() or not word.startswith("exp"):
        raise ConfigError(f"{name!r} is no experiment's name: give one such as exp73, or the path of its .py file")
    exact = folder / f"{word}.py"
    found = [exact] if exact.is_file() else sorted(folder.glob(f"{word}_*.py"))
    if len(found) != 1:
        there = ", ".join(path.stem for path in sorted(folder.glob("exp*_*.py"))) or "none"
        problem = "no experiment" if not found else f"{len(found)} experiments"
        raise ConfigError(f"there is {problem} called {word} below {folder}: there are {there}")
    return found[0]
