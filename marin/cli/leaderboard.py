"""`marin leaderboard`: the leaderboard's static site, built from results files, and a local server for it."""

import argparse
import pathlib
import socket

from marin.errors import ConfigError

HELP = (
    "Build the leaderboard's site from the speedrun_results.json files below a directory (`build`, which is also what happens "
    "without a verb), or show a built one on this machine (`serve`)."
)

DEFAULT_PORT = 8322
_SHOWN = 3  # of what could not be read, at a terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("verb", nargs="?", choices=("build", "serve"), default="build", help="default: build")
    parser.add_argument(
        "--results-dir", action="append", default=[], metavar="DIR",
        help="searched for speedrun_results.json files at any depth; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--rows", action="append", default=[], metavar="FILE",
        help="published rows: the public leaderboard's runs.json, nanochat's table (.md), or logs of modded-nanogpt (.txt, .log or a "
        "folder); may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--output", required=True, metavar="DIR", help="the site's directory: written by build, shown by serve"
    )
    parser.add_argument(
        "--cache",
        metavar="DIR",
        help="keeps what was verified and fitted here, so that the next build is faster (default: nothing is kept)",
    )
    parser.add_argument(
        "--allowed-signers", metavar="FILE",
        help="whose signed statements count (default: experiments/speedrun/allowed_signers, if it is there)",
    )  # fmt: skip
    parser.add_argument(
        "--port",
        type=int,
        default=DEFAULT_PORT,
        metavar="N",
        help=f"of serve; 0 takes any free one; default: {DEFAULT_PORT}",
    )


def run(args: argparse.Namespace) -> int:
    has_sources = bool(args.results_dir or args.rows)
    if args.verb == "build" and not has_sources:
        raise ConfigError("nothing to show: give --results-dir DIR, such as the prefix of your runs, or --rows FILE")
    if args.verb == "build" and args.port != DEFAULT_PORT:
        raise ConfigError("--port is of `serve`, and `build` shows nothing: leave it out, or give `serve`")
    if args.verb == "serve" and not has_sources and (args.cache or args.allowed_signers):
        raise ConfigError(
            "--cache and --allowed-signers are of a build: give --results-dir or --rows too, or leave them out"
        )
    if args.verb == "build":
        _build(args)
        return 0
    from marin.web.listen import bind  # takes 0.15 s, which a build does not need

    listener = bind(args.port)
    if has_sources:
        _build(args)
    return _serve(pathlib.Path(args.output), listener)


def _build(args: argparse.Namespace) -> None:
    from marin.site.leaderboard.build import build_site
    from marin.speedrun.signers import chosen_signers
    from marin.storage import files

    signers = chosen_signers(args.allowed_signers)
    with files.placed_by("--output"):
        summary = build_site(args.results_dir, args.rows, args.output, cache=args.cache, allowed_signers=signers)
    tracks = f" on {', '.join(summary.tracks)}" if summary.tracks else ""
    print(f"{summary.num_runs or 'no'} run{'s' if summary.num_runs != 1 else ''}{tracks}")
    if summary.num_held:
        print(f"{summary.num_held} listed without a rank: their pages say why")
    if unreadable := summary.unreadable:
        print(f"{len(unreadable)} could not be read: listed in unreadable.html with the reasons")
        for each in unreadable[:_SHOWN]:
            print(f"  {each.source}: {each.reason}")
        if len(unreadable) > _SHOWN:
            print(f"  and {len(unreadable) - _SHOWN} more")
    print(f"{summary.num_written} files written")
    print(f"page: {summary.index}")


def _serve(site: pathlib.Path, listener: socket.socket) -> int:
    from marin.site.leaderboard.serve import make_app
    from marin.web.listen import address_of, answer_until_stopped, port_of

    try:
        app = make_app(site, port_of(listener))
        print(f"open {address_of(listener)}  (Ctrl-C stops)", flush=True)
        answer_until_stopped(app, listener)
    finally:
        listener.close()
    print("stopped")
    return 0
