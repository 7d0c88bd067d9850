"""`marin serve`: a model behind OpenAI's protocol, with a page to chat on."""

import argparse

HELP = """\
Serve a trained model: OpenAI's /v1/chat/completions, /v1/completions and /v1/models, and a page to chat on at /.

CHECKPOINT is a run's output directory, of which the newest whole checkpoint is taken, one of its checkpoints/step-*, or a
local folder in Hugging Face's layout. The server listens on this machine only, unless --host says otherwise; it asks for
no password, so put a proxy that does before it where others can reach it."""

DEFAULT_PORT = 8000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CHECKPOINT")
    add_server_arguments(parser)


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that `scripts.chat_web` shares."""
    parser.add_argument("--host", default="127.0.0.1", metavar="H", help="address to listen on; default: 127.0.0.1")
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, metavar="N", help=f"0 takes any free one; default: {DEFAULT_PORT}"
    )
    parser.add_argument(
        "--name", metavar="NAME", help="the model's name for clients; default: the run's, with the step"
    )
    parser.add_argument("--tokenizer", metavar="PATH", help="a tokenizer.json or its directory; default: the run's")
    parser.add_argument("--dtype", choices=("f32", "bf16"), help="number format to compute in; default: the run's")
    parser.add_argument(
        "--max-length", type=int, metavar="T", help="tokens of a prompt with its answer; default: the model's context"
    )
    parser.add_argument("--max-rows", type=int, default=16, metavar="N", help="samples at once; default: 16")
    parser.add_argument("--max-queue", type=int, default=256, metavar="N", help="requests that may wait; default: 256")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="S", help="seconds for a request; default: 300")
    parser.add_argument(
        "--compile-all",
        action="store_true",
        help="compile for every length before the first request, not when one needs it",
    )
    parser.add_argument("--no-tools", action="store_true", help="leave the calls of the calculator unanswered")


def run(args: argparse.Namespace) -> int:
    from marin.training.run_model import load_any_model

    return serve(load_any_model(args.checkpoint, tokenizer=args.tokenizer), args)


def serve(loaded: object, args: argparse.Namespace) -> int:
    """Serves an opened model (`RunModel`) until Ctrl-C or SIGTERM."""
    import time

    from marin.inference import Engine
    from marin.inference.server import Limits, Worker, build_app
    from marin.nn.precision import Precision
    from marin.training.compile_cache import use_compile_cache
    from marin.training.run_model import RunModel
    from marin.web.listen import address_of, answer_until_stopped, bind, hosts_of

    assert isinstance(loaded, RunModel)
    limits = Limits(queue=args.max_queue, seconds=args.timeout)
    listener = bind(args.port, args.host)
    use_compile_cache()
    precision = Precision(args.dtype) if args.dtype else loaded.precision
    max_length = args.max_length or loaded.config.max_seq_len
    engine = Engine(
        loaded.model, loaded.tokenizer, max_length=max_length, max_rows=args.max_rows, precision=precision,
        tools=not args.no_tools,
    )  # fmt: skip
    start = time.perf_counter()
    engine.warm_up(every_length=args.compile_all)
    name = args.name or loaded.name
    print(f"serving {name} in {precision.compute}: {max_length:,} tokens, {args.max_rows} samples at once", flush=True)
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
