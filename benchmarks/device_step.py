"""How much of an accelerator's peak the hackable transformer's training step uses, and what FP8 gives.

    python -m benchmarks.device_step                               # bf16, all four sizes, on one GPU
    python -m benchmarks.device_step --sizes 1_2b --fp8            # FP8 and bf16 by turns
    python -m benchmarks.device_step --sizes 1_2b --fp8 --loss-steps 500 --batch 4
    python -m benchmarks.device_step --sizes cpu --vocabulary 2048 --batch 4 --rows 2 --repetitions 2    # that it works: a minute

Model, optimizer, batch and context are those of `experiments/hackable_transformer_starter_template.py`, but that the backward pass
recomputes nothing unless `--recompute` says so; the vocabulary has 128,256 tokens. Prints one JSON line a figure: name, value, unit, n
(repetitions), context with device and driver.

MFU divides model FLOPs by the device's published dense peak in bfloat16, on a processor by that of a measured product. Model FLOPs are
the reference's formula with attention halved, as the model is causal; `traced` in the context is the share by the products of the
program itself. Neither counts what is computed twice. Attention masks documents, as training does; each row is one, so that nothing
is hidden from the FLOPs that are counted, unless `--document-length` says otherwise. A rate is the median over steps; everything is compiled before.

`--fp8` takes steps of two programs by turns and prints the ratio of their rates. `--loss-steps` trains both from the same weights
on the same tokens by turns, which follow one another by a made rule that can be learned, and prints every 100 steps the difference of their
mean losses over the last twentieth. Aims on an H200: 40, 45, 50 and 55 % for 130m, 300m, 520m and 1_2b; FP8 at least 1.2 times as fast at
1_2b, with a loss within 0.002 after 500 steps.
"""

import argparse
import dataclasses
import functools
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import numpy as np

from benchmarks.data import print_figure
from experiments.hackable_transformer_starter_template import PRESETS, VOCAB_SIZE, Preset
from marin import hardware
from marin.data.rows import Batch
from marin.errors import HardwareError
from marin.flags import HelpFormatter
from marin.nn import Precision
from marin.nn.trees import is_shape
from marin.training.compile_cache import use_compile_cache
from marin.training.programs import compile_traced, on_accelerator, trace_program, why_no_fp8
from marin.training.state import StepConfig, init_state, make_train_step
from marin.training.traced_flops import traced_flops

SUCCESSORS = 4  # of each token, in the made text
_SCHEDULE_STEPS = 1000
_LOSSES_SHOWN = 100  # steps after which losses are compared, so that a stop keeps what there is
_RECOMPUTE: dict[str, bool | str] = {"nothing": False, "products": "products", "blocks": True}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--repetitions", type=_count, default=5)
    parser.add_argument(
        "--profile", metavar="DIR", help="write the profiler's trace of one more step of each program there"
    )
    parser.add_argument("--loss-steps", type=_count, help="with --fp8: compare losses after so many steps instead")
    args, presets = parse(parser)
    if args.loss_steps and not args.fp8:
        parser.error("--loss-steps compares FP8 with bf16: give --fp8 too")
    if args.profile:
        if args.loss_steps:
            parser.error("--profile traces steps whose rate is measured: leave out --loss-steps")
        try:
            os.makedirs(args.profile, exist_ok=True)
        except OSError as error:
            parser.error(f"--profile {args.profile}: {error.strerror}: use a folder that can be written")
    use_compile_cache()
    measure = compare_losses if args.loss_steps else compare_rates if args.fp8 else show_mfu
    for size, preset in presets.items():
        try:
            measure(size, preset, args)
        except HardwareError as error:
            sys.exit(f"error: {error}")
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            sys.exit(
                f"error: {size} does not fit into the device's memory: use a smaller --rows or --batch, or --recompute products"
            )
        except KeyboardInterrupt:
            sys.exit("stopped: what was printed stands")


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """What says which programs are meant, for this benchmark and for `absent_gpu`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=HelpFormatter)
    parser.add_argument("--sizes", default="130m,300m,520m,1_2b", help=f"of {', '.join(PRESETS)}")
    parser.add_argument("--vocabulary", type=_count, default=VOCAB_SIZE)
    parser.add_argument("--batch", type=_count, help="rows of a step (default: the preset's)")
    parser.add_argument(
        "--document-length", type=_count, help="mean of documents that share rows (default: a row each)"
    )
    parser.add_argument("--rows", type=_count, default=16, help="of them at once; the others follow as micro-batches")
    parser.add_argument("--loss-block", type=_count, help="tokens whose logits exist at once (default: the preset's)")
    parser.add_argument("--recompute", choices=list(_RECOMPUTE), default="nothing", help="in the backward pass")
    parser.add_argument("--fp8", action="store_true")
    return parser


def parse(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, dict[str, Preset]]:
    """The arguments, and the sizes with the batch and recomputation that they ask for."""
    args = parser.parse_args()
    presets = {}
    for size in args.sizes.split(","):
        if size not in PRESETS:
            parser.error(f"no size {size!r}: use of {', '.join(PRESETS)}")
        model = dataclasses.replace(PRESETS[size].model, gradient_checkpointing=_RECOMPUTE[args.recompute])
        if args.loss_block:
            model = dataclasses.replace(model, cross_entropy_block_size=args.loss_block)
        rows = args.batch or PRESETS[size].train_batch_size
        presets[size] = dataclasses.replace(PRESETS[size], model=model, train_batch_size=rows)
        if rows % min(args.rows, rows):
            parser.error(f"{rows} rows a step cannot be taken {args.rows} at once: use a divisor of {rows} for --rows")
    return args, presets


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return int(text)


# --- the program --------------------------------------------------------------------------------------------------


def step_of(
    preset: Preset, args: argparse.Namespace, precision: Precision, *, shapes_only: bool = False
) -> tuple[Any, Callable[..., Any], StepConfig]:
    """A size's training state, or the shapes of it; the step that takes it and a batch; and how that step computes."""
    config = preset.model
    shapes = eqx.filter_eval_shape(config.build, args.vocabulary, key=jax.random.key(0))
    optimizer = preset.optimizer.build(eqx.filter(shapes, is_shape), _SCHEDULE_STEPS)
    micro_batches = preset.train_batch_size // rows_at_once(preset, args)
    step_config = StepConfig(precision, micro_batches=micro_batches, loss_block=config.cross_entropy_block_size)

    def begin() -> Any:
        return init_state(config.build(args.vocabulary, key=jax.random.key(0)), optimizer, None)

    # Not as one program: that of 1_2b would compile for a minute on a GPU.
    state = eqx.filter_eval_shape(begin) if shapes_only else begin()
    return state, make_train_step(optimizer, preset.optimizer.schedule(_SCHEDULE_STEPS), step_config), step_config


class Program:
    """A size's training step in one number format, compiled, with its state."""

    def __init__(self, preset: Preset, args: argparse.Namespace, precision: Precision) -> None:
        self._state, step, step_config = step_of(preset, args, precision)
        way = on_accelerator(precision, jax.local_devices()[0].platform)
        self._step = compile_traced(trace_program(step, self._state, batch_shapes(preset)), way)
        self.traced_flops_per_token = traced_flops(preset.model, args.vocabulary, step_config).training

    def begin(self, batch: Batch) -> Any:
        """The loss of one step, which need not have ended."""
        self._state, metrics = self._step(self._state, batch)
        return metrics["loss"]

    def take(self, batch: Batch) -> tuple[float, float]:
        """Seconds of one step, and its loss."""
        start = time.perf_counter()
        loss = float(self.begin(batch))
        return time.perf_counter() - start, loss

    def take_many(self, batches: Iterator[Batch], count: int) -> list[float]:
        """Seconds of each of so many steps, of which each begins before the one before it has ended, as in training."""
        ends, running = [], self.begin(next(batches))
        for _ in range(count + 1):
            following = self.begin(next(batches))
            float(running)
            ends.append(time.perf_counter())
            running = following
        float(running)
        return [end - start for start, end in itertools.pairwise(ends)]

    def profile(self, batch: Batch, directory: str | None) -> None:
        """One more step, with a trace of it where a directory is given."""
        if directory is None:
            return
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        jax.profiler.start_trace(directory, profiler_options=options)
        self.take(batch)
        jax.profiler.stop_trace()


def rows_at_once(preset: Preset, args: argparse.Namespace) -> int:
    return min(args.rows, preset.train_batch_size)


def batch_shapes(preset: Preset) -> Any:
    """Of what `made_batches` gives."""
    shape = (preset.train_batch_size, preset.model.seq_len)
    ids: Any = jax.ShapeDtypeStruct(shape, np.int32)
    weights: Any = jax.ShapeDtypeStruct(shape, np.float32)
    return Batch(ids, ids, weights, ids)


def made_batches(preset: Preset, args: argparse.Namespace) -> Iterator[Batch]:
    """Rows in which each token is one of a few that may follow the one before, the first likelier than the last."""
    draw = np.random.default_rng(0)
    following = draw.integers(0, args.vocabulary, (args.vocabulary, SUCCESSORS)).astype(np.int32)
    rows, length = preset.train_batch_size, preset.model.seq_len
    while True:
        choices = draw.choice(SUCCESSORS, (rows, length), p=np.arange(SUCCESSORS, 0, -1) / sum(range(SUCCESSORS + 1)))
        tokens = np.empty((rows, length + 1), np.int32)
        tokens[:, 0] = draw.integers(0, args.vocabulary, rows)
        for position in range(length):
            tokens[:, position + 1] = following[tokens[:, position], choices[:, position]]
        shape = (rows, length)
        begins = draw.random(shape) < 1 / args.document_length if args.document_length else np.zeros(shape, bool)
        begins[:, 0] = False
        segment_ids = np.cumsum(begins, axis=1, dtype=np.int32)
        yield Batch(tokens[:, :-1], tokens[:, 1:], np.ones(shape, np.float32), segment_ids)


def flops_per_token(config: Any, vocab_size: int) -> float:
    """Of training, with attention halved: the reference's formula is a line over the context, whose slope is attention."""
    whole = config.flops_per_token(vocab_size, config.seq_len)
    attention = config.flops_per_token(vocab_size, 2 * config.seq_len) - whole
    return float(3 * (whole - attention / 2))


# --- figures ------------------------------------------------------------------------------------------------------


def show_mfu(size: str, preset: Preset, args: argparse.Namespace) -> None:
    peak = peak_flops()
    program = Program(preset, args, bf16())
    batches = made_batches(preset, args)
    program.take(next(batches))
    seconds = statistics.median(program.take_many(batches, args.repetitions))
    tokens = preset.train_batch_size * preset.model.seq_len
    show = figures(preset, args, args.repetitions)
    show(f"mfu_{size}", mfu(preset, args, seconds), "share of peak",
         traced=round(tokens * program.traced_flops_per_token / seconds / peak, 4), peak_tflops=round(peak / 1e12, 3))  # fmt: skip
    show(f"rate_{size}", tokens / seconds, "tokens/s", step_seconds=round(seconds, 4))
    program.profile(next(batches), args.profile and os.path.join(args.profile, size))


def compare_rates(size: str, preset: Preset, args: argparse.Namespace) -> None:
    programs = {name: Program(preset, args, precision) for name, precision in (("bf16", bf16()), ("fp8", fp8()))}
    batches = made_batches(preset, args)
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for repetition in range(args.repetitions + 1):  # the first warms up
        batch = next(batches)
        for name, program in programs.items():
            taken, _ = program.take(batch)
            if repetition:
                seconds[name].append(taken)
    median = {name: statistics.median(taken) for name, taken in seconds.items()}
    each = {f"{name}_step_seconds": round(taken, 4) for name, taken in median.items()}
    each |= {f"{name}_mfu": round(mfu(preset, args, taken), 4) for name, taken in median.items()}
    figures(preset, args, args.repetitions)(f"fp8_speedup_{size}", median["bf16"] / median["fp8"], "times bf16", **each)
    for name, program in programs.items():
        program.profile(batch, args.profile and os.path.join(args.profile, f"{size}_{name}"))


def compare_losses(size: str, preset: Preset, args: argparse.Namespace) -> None:
    programs = {name: Program(preset, args, precision) for name, precision in (("bf16", bf16()), ("fp8", fp8()))}
    batches = made_batches(preset, args)
    losses: dict[str, list[float]] = {name: [] for name in programs}
    show = figures(preset, args, 1)
    for step in range(1, args.loss_steps + 1):
        batch = next(batches)
        for name, program in programs.items():
            losses[name].append(program.take(batch)[1])
        if step % _LOSSES_SHOWN == 0 or step == args.loss_steps:
            last = max(1, step // 20)
            mean = {name: statistics.fmean(found[-last:]) for name, found in losses.items()}
            each = {f"{name}_loss": round(loss, 5) for name, loss in mean.items()}
            show(
                f"fp8_loss_difference_{size}", mean["fp8"] - mean["bf16"], "nats a token", steps=step, last=last, **each
            )


def bf16() -> Precision:
    return Precision("bf16")


def fp8() -> Precision:
    return Precision("bf16", "fp8")


def figures(preset: Preset, args: argparse.Namespace, repetitions: int) -> Callable[..., None]:
    """What prints a figure with what it was measured on."""
    device = jax.local_devices()[0]
    context = {
        "parameters": preset.model.total_trainable_params(args.vocabulary),
        "batch": preset.train_batch_size,
        "rows_at_once": rows_at_once(preset, args),
        "recompute": args.recompute,
        "loss_block": preset.model.cross_entropy_block_size,
        "context_length": preset.model.seq_len,
        "document_length": args.document_length or preset.model.seq_len,
        "vocabulary": args.vocabulary,
        "device": device.device_kind,
        "driver": hardware.gpu_driver_version() if device.platform == "gpu" else None,
        "jax": jax.__version__,
        "load": round(os.getloadavg()[0], 1),
    }
    if args.fp8:
        context["fp8_units"] = why_no_fp8() is None  # without them products are emulated, and the rate says nothing

    def show(name: str, value: float, unit: str, **more: Any) -> None:
        print_figure(name, value, unit, repetitions, **context, **more)

    return show


def mfu(preset: Preset, args: argparse.Namespace, seconds: float) -> float:
    """Of a step that takes so long."""
    tokens = preset.train_batch_size * preset.model.seq_len
    return tokens * flops_per_token(preset.model, args.vocabulary) / seconds / peak_flops()


@functools.cache
def peak_flops() -> float:
    device = jax.local_devices()[0]
    return (
        hardware.measure_cpu_peak()
        if device.platform == "cpu"
        else hardware.lookup_device(device.device_kind).peak("bf16")
    )


if __name__ == "__main__":
    main()
