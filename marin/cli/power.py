"""`marin power`: how many runs a claim needs to be told from chance."""

import argparse
from typing import TYPE_CHECKING

from marin.errors import ConfigError

if TYPE_CHECKING:
    from marin.speedrun.statistics.means import Noise
    from marin.speedrun.statistics.power import Plan
    from marin.speedrun.tracks import Track

HELP = """Say how many runs, with different seeds, show an improvement of a given size.

  marin power --track time-to-gpt2 --effect 0.005        above the track's bound by 0.005 in CORE
  marin power --track fineweb-edu --effect 0.0002 --against 1   better than a record that has one run
  marin power --sd 0.003 --effect 0.01 --against 5       noise of your own, measured from your runs"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--effect", type=float, required=True, help="true improvement, in the units of the metric")
    parser.add_argument("--track", metavar="KEY", help="takes noise, p and fewest runs from a track of the contest")
    parser.add_argument(
        "--sd", type=float, help="standard deviation between runs that differ in their seeds; wins over the track's"
    )
    parser.add_argument(
        "--sd-runs", type=int, metavar="N", help="how many runs --sd was measured from, beside those of the claim"
    )
    parser.add_argument(
        "--against", type=int, metavar="N", help="runs of the record that is to be beaten; left out: a fixed bound"
    )
    parser.add_argument("--p", type=float, help="how often chance alone may pass (default: the track's, 0.01)")
    parser.add_argument(
        "--power", type=float, default=0.9, help="how often a true improvement should pass (default: 0.9)"
    )


def run(args: argparse.Namespace) -> int:
    from marin.speedrun.statistics.means import Noise
    from marin.speedrun.statistics.power import plan_runs
    from marin.speedrun.tracks import TRACKS

    track = next((track for track in TRACKS if track.key == args.track), None)
    if args.track is not None and track is None:
        raise ConfigError(f"no track is called {args.track!r}: use one of {', '.join(track.key for track in TRACKS)}")
    if args.sd_runs is not None and args.sd is None:
        raise ConfigError(
            "--sd-runs is of --sd, and a track's noise has runs of its own: give --sd too, or leave it out"
        )
    if args.sd is not None:
        noise: Noise | None = Noise(args.sd, args.sd_runs, "given")
    else:
        noise = track.noise if track is not None else None
    if noise is None:
        what = f"the noise of track {track.key} is not measured" if track is not None else "no noise is given"
        raise ConfigError(
            f"{what}: give --sd, the standard deviation of a few runs of yours, or --track with a known one"
        )
    if args.sd_runs is not None and args.sd_runs < 2:
        raise ConfigError(f"--sd-runs is {args.sd_runs}: one run shows no noise: give the number of runs, at least 2")
    p_value = args.p if args.p is not None else track.p_value if track is not None else 0.01
    plan = plan_runs(
        args.effect, sd=noise.sd, p_value=p_value, power=args.power, noise_runs=noise.runs,
        known=args.sd is None and noise.runs is None, against=args.against,
    )  # fmt: skip
    _show(plan, args, track, noise, p_value)
    return 0


def _show(plan: "Plan", args: argparse.Namespace, track: "Track | None", noise: "Noise", p_value: float) -> None:
    from marin.speedrun.statistics.power import p_if_best_of
    from marin.speedrun.tracks import METRICS

    fewest = max(plan.runs, track.min_runs if track is not None else 1)
    metric = METRICS[track.metric] if track is not None else None
    unit = "the metric" if metric is None else metric.unit or metric.name
    versus = "a fixed bound" if args.against is None else f"a record of {_runs(args.against)}"
    print(f"{_runs(fewest)}: enough to show {args.effect:g} in {unit} against {versus}")
    print(f"  power     {plan.power:.1%} with {_runs(plan.runs)}, one-sided test at p < {p_value:g}")
    print(f"  noise     sd {noise.sd:g} between runs ({noise.source})")
    if track is not None and track.min_runs > plan.runs:
        print(f"  rule      the track asks for at least {track.min_runs} runs")
    if plan.runs > 1:
        print(
            f"  mind      the luckiest single run of {plan.runs:,} lies {plan.best_of_runs:.2g} beyond their mean: report the mean of all"
        )
    print(
        f"  choosing  the best of 10 attempts passes by chance in {p_if_best_of(p_value, 10):.1%} of cases: fix the runs before you see them"
    )


def _runs(count: int) -> str:
    return f"{count:,} run{'s' if count != 1 else ''}"
