"""`marin leaderboard`: a static page of results files, which opens from disk."""

import argparse

HELP = "Build the leaderboard page from the speedrun_results.json files below a directory."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results-dir", action="append", default=[], metavar="DIR",
        help="searched for speedrun_results.json files at any depth; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--rows", action="append", default=[], metavar="FILE",
        help="the runs.json of the public leaderboard; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--output", required=True, metavar="DIR", help="where to write index.html, charts, runs.csv and runs.json"
    )


def run(args: argparse.Namespace) -> int:
    from marin.errors import ConfigError
    from marin.site.leaderboard_page import build_site

    if not args.results_dir and not args.rows:
        raise ConfigError("nothing to show: give --results-dir DIR, such as the prefix of your runs, or --rows FILE")
    summary = build_site(args.results_dir, args.rows, args.output)
    sets = ", ".join(summary.evaluation_sets) or "no evaluation set yet"
    print(f"{summary.num_runs} run{'s' if summary.num_runs != 1 else ''} on {sets}")
    if summary.num_inconsistent:
        print(
            f"{summary.num_inconsistent} with figures that contradict each other: listed with the reasons, without a rank"
        )
    if summary.num_unreadable:
        print(f"{summary.num_unreadable} could not be read: listed at the end of the page with the reasons")
    print(f"page: {summary.index}")
    return 0
