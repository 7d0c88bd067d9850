"""`marin serve`: a model behind OpenAI's protocol, with a page to chat on."""

import argparse
import dataclasses
import time

from marin.errors import ConfigError
from marin.flags import check_at_least

HELP = """\
Serve a trained model: OpenAI's /v1/chat/completions, /v1/completions and /v1/models, and a page to chat on at /.

CHECKPOINT is a run's output directory, of which the newest whole checkpoint is taken, one of its checkpoints/step-*, or a
local folder in Hugging Face's layout. The server listens on this machine only, unless --host says otherwise; it asks for
no password, so put a proxy that does before it where others can reach it."""


@dataclasses.dataclass(frozen=True)
class ServerOptions:
    """How a model is served: what `marin serve` and `scripts.chat_web` both take as flags.

    Args:
        host: address to listen on; 0.0.0.0 for all of this machine's.
        port: 0 takes any free one.
        max_length: tokens of a prompt with its answer; the model's context by default.
        max_rows: samples at once.
        max_queue: requests that may wait.
        timeout: seconds for a request.
        compile_all: compile for every length before the first request, not when one needs it.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    max_length: int | None = None
    max_rows: int = 16
    max_queue: int = 256
    timeout: float = 300.0
    compile_all: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"`--port` is {self.port}: use a number from 0 to 65535")
        check_at_least(2, self, "max_length")
        check_at_least(1, self, "max_rows", "max_queue")
        if not self.timeout > 0:
            raise ConfigError(f"`--timeout` is {self.timeout:g}: use more than 0 seconds")

    @staticmethod
    def of(flags: object) -> "ServerOptions":
        """Those among a command's flags."""
        return ServerOptions(**{field.name: getattr(flags, field.name) for field in dataclasses.fields(ServerOptions)})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    usual = ServerOptions()
    parser.add_argument("checkpoint", metavar="CHECKPOINT")
    parser.add_argument("--host", default=usual.host, metavar="H", help=f"address to listen on; default: {usual.host}")
    parser.add_argument(
        "--port", type=int, default=usual.port, metavar="N", help=f"0 takes any free one; default: {usual.port}"
    )
    parser.add_argument(
        "--name", metavar="NAME", help="the model's name for clients; default: the run's, with the step"
    )
    parser.add_argument("--tokenizer", metavar="PATH", help="a tokenizer.json or its directory; default: the run's")
    parser.add_argument("--dtype", choices=("f32", "bf16"), help="number format to compute in; default: the run's")
    parser.add_argument(
        "--max-length", type=int, metavar="T", help="tokens of a prompt with its answer; default: the model's context"
    )
    parser.add_argument(
        "--max-rows", type=int, default=usual.max_rows, metavar="N", help=f"samples at once; default: {usual.max_rows}"
    )
    parser.add_argument(
        "--max-queue",
        type=int,
        default=usual.max_queue,
        metavar="N",
        help=f"requests that may wait; default: {usual.max_queue}",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=usual.timeout,
        metavar="S",
        help=f"seconds for a request; default: {usual.timeout:g}",
    )
    parser.add_argument(
        "--compile-all",
        action="store_true",
        help="compile for every length before the first request, not when one needs it",
    )
    parser.add_argument("--no-tools", action="store_true", help="leave the calls of the calculator unanswered")


def run(args: argparse.Namespace) -> int:
    options = ServerOptions.of(args)  # before JAX is imported, and a model loaded

    from marin.nn.precision import Precision
    from marin.training.run_model import load_any_model

    loaded = load_any_model(args.checkpoint, tokenizer=args.tokenizer)
    precision = Precision(args.dtype) if args.dtype else loaded.precision
    return serve(loaded, precision, options, name=args.name, tools=not args.no_tools)


def serve(
    loaded: object, precision: object, options: ServerOptions, *, name: str | None = None, tools: bool = True
) -> int:
    """Serves an opened model (`RunModel`) in a number format (`Precision`) until Ctrl-C or SIGTERM.

    Args:
        name: the model's for clients; None for the run's, with the step.
        tools: whether the calculator answers.
    """
    from marin.inference import Engine
    from marin.inference.context import note_beyond_context
    from marin.inference.server import Limits, Worker, build_app
    from marin.nn.precision import Precision
    from marin.training.compile_cache import use_compile_cache
    from marin.training.run_model import RunModel
    from marin.web.listen import address_of, answer_until_stopped, bind, hosts_of

    assert isinstance(loaded, RunModel) and isinstance(precision, Precision)
    limits = Limits(queue=options.max_queue, seconds=options.timeout)
    listener = bind(options.port, options.host)
    use_compile_cache()
    max_length = loaded.config.max_seq_len if options.max_length is None else options.max_length
    note_beyond_context("`--max-length` is", max_length, loaded.config.max_seq_len)
    rows = options.max_rows
    engine = Engine(
        loaded.model, loaded.tokenizer, max_length=max_length, max_rows=rows, precision=precision, tools=tools
    )
    start = time.perf_counter()
    engine.warm_up(every_length=options.compile_all)
    name = name or loaded.name
    print(f"serving {name} in {precision.compute}: {max_length:,} tokens, {rows} samples at once", flush=True)
    print(f"compiled in {time.perf_counter() - start:.1f} s", flush=True)
    worker = Worker(engine, limits)
    address = address_of(listener)
    print(f"open {address}   OpenAI base URL: {address}/v1   (Ctrl-C stops)", flush=True)
    try:
        answer_until_stopped(build_app(worker, name, hosts_of(listener)), listener, worker.stop_soon)
    finally:
        worker.close()
    print("stopped")
    return 0
