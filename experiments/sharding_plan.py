"""What a large run will take, before anything is allocated: tokens, FLOPs, hours, cost, and the memory of each device.

The command line of files such as `experiments/marin_8b.py`:

    python -m experiments.marin_8b                                 the plan
    python -m experiments.marin_8b --devices 64                    on another number of devices; not with --train
    python -m experiments.marin_8b --price_per_chip_hour 4.2       with its cost; prices are yours to look up
    python -m experiments.marin_8b --train --prefix gs://bucket    train; all other flags are the executor's

A run that does not fit into its devices' memory is refused with what to change, also before training.
"""

import resource
import sys
import time
from collections.abc import Sequence

from experiments.data_phases import Phase, phases_text
from marin.errors import clean_exit
from marin.execution import executor_main
from marin.execution.step import ExecutorStep
from marin.flags import Parser
from marin.models.lm import LmConfig
from marin.training.config import SimpleTrainConfig
from marin.training.memory_plan import plan_memory

# Of the peak that models of this size are known to reach on such machines, and what a bad set-up leaves of it: the public
# figures are between 0.33 and 0.65.
_MFU = (0.5, 0.3)


def main(
    model: LmConfig,
    vocab_size: int,
    train: SimpleTrainConfig,
    arguments: list[str] | None = None,
    *,
    phases: Sequence[Phase] = (),
    step: ExecutorStep | None = None,
) -> None:
    """Prints the plan, and with `--train` runs `step` after it."""
    parser = Parser(description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--devices",
        type=int,
        help="plan for so many devices in place of the config's; training takes those of the config",
    )
    parser.add_argument(
        "--price_per_chip_hour", "--price-per-chip-hour", type=float, metavar="PRICE",
        help="what an hour of one chip costs",
    )  # fmt: skip
    parser.add_argument("--train", action="store_true", help="train; further flags are the executor's")
    with clean_exit():
        args, others = parser.parse_known_args(arguments)
        if others and not args.train:
            parser.error(f"unrecognized arguments: {' '.join(others)}")
        if args.devices is not None and args.devices < 1:
            parser.error(f"argument --devices: at least 1 device is needed, not {args.devices}")
        if args.devices is not None and args.train:
            parser.error(
                "argument --devices: a plan alone may be for other devices, and --train trains on the config's"
            )
        if args.price_per_chip_hour is not None and not args.price_per_chip_hour >= 0:
            parser.error(f"argument --price_per_chip_hour: {args.price_per_chip_hour} is no price")
        started = time.perf_counter()
        print(cost_text(model, vocab_size, train, args.devices, args.price_per_chip_hour))
        if phases:
            print(f"phases:\n{phases_text(phases, model.max_seq_len)}")
        plan = plan_memory(model, vocab_size, train, args.devices)
        print(plan.text())
        unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is kilobytes on Linux and bytes on macOS
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        print(f"planned in {time.perf_counter() - started:.1f} s with {peak / 2**30:.2f} GiB of this machine's memory")
        plan.check()
        if args.train and step is not None:
            sys.argv = [sys.argv[0], *others]
            executor_main(steps=[step], description="a large model")


def cost_text(
    model: LmConfig, vocab_size: int, train: SimpleTrainConfig, num_chips: int | None, price: float | None
) -> str:
    """Tokens, model FLOPs, and hours on the run's hardware at two utilizations; with a price, what they cost."""
    tokens = train.num_train_sequences * train.seq_len(model)
    flops = 3 * model.flops_per_token(vocab_size, train.seq_len(model)) * tokens
    chips = num_chips or train.resources.num_chips
    lines = [
        f"{model.total_trainable_params(vocab_size):,} parameters, {train.num_train_steps:,} steps, {tokens / 1e12:.3g}T tokens,"
        f" {flops:.3g} model FLOPs"
    ]
    for mfu in _MFU:
        hours = flops / (train.resources.device_flops * chips * mfu) / 3600
        line = (
            f"  at {mfu:.0%} of the peak of {chips:,} x {train.resources.device_name}: {hours:,.0f} hours ({hours / 24:,.0f} days),"
            f" {hours * chips:,.0f} chip-hours, {flops / mfu:.3g} hardware FLOPs"
        )
        lines.append(line if price is None else f"{line}, {hours * chips * price:,.0f} at {price:g} a chip-hour")
    if price is None:
        lines.append("  (its cost: --price_per_chip_hour PRICE)")
    return "\n".join(lines)
