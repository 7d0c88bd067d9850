"""`marin table`: the results of an experiment's sweep as they are now."""

import argparse

from marin.errors import ConfigError

HELP = """\
Print the table of a sweep as it is now: also while its runs go on, and when some of them have failed.

EXPERIMENT is a module or a .py file that ends with executor_main and has a table step (`Sweep.table_step`). It is run up
to there; none of its steps is run and nothing is written but the file that --csv names."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("experiment", metavar="EXPERIMENT", help="such as experiments.my_sweep or my_sweep.py")
    parser.add_argument("--prefix", help="where outputs lie (default: $MARIN_PREFIX, then local_store)")
    parser.add_argument("--csv", metavar="FILE", help="write it as CSV to this file too; - prints CSV only")


def run(args: argparse.Namespace) -> int:
    from marin.execution import experiment_file
    from marin.execution.sweep import tables_now
    from marin.storage import files
    from marin.storage.prefix import resolve_prefix

    prefix = resolve_prefix(args.prefix)
    if not experiment_file.is_experiment(args.experiment):
        raise ConfigError(f"{args.experiment!r} is no module or .py file that Python finds from here")
    tables = {}
    experiment_file.with_steps_of(args.experiment, lambda steps: tables.update(tables_now(steps, prefix)))
    if not tables:
        raise ConfigError(f"{args.experiment} has no table step: add `runs.table_step(...)` of a sweep to its steps")
    if args.csv and len(tables) > 1:
        raise ConfigError(f"{args.experiment} has {len(tables)} table steps, {', '.join(tables)}: --csv takes one")
    for name, table in tables.items():
        if args.csv == "-":
            print(table.to_csv(), end="")
            continue
        print(f"{name} under {prefix}")
        table.show()
        if args.csv:
            with files.placed_by("--csv"):
                files.write_bytes(args.csv, table.to_csv().encode())
    return 0
