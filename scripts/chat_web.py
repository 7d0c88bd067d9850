"""Serves a model of the pipeline: a page to chat on, and OpenAI's protocol (see `marin serve`).

    python -m scripts.chat_web -i sft

It listens on this machine alone, unless `--host` says otherwise.
"""

import argparse
import dataclasses
from typing import Annotated, Literal

import tyro

from marin.cli.serve import DEFAULT_PORT, serve
from marin.gpt2.command import parse_flags, run_command
from marin.gpt2.opening import open_model


@dataclasses.dataclass(frozen=True)
class Flags:
    """Flags of chat_web.

    Args:
        source: which model: base, sft or rl.
        model_tag: the run; the deepest by default.
        step: its checkpoint; the newest by default.
        port: 0 takes any free one.
        host: address to listen on; 0.0.0.0 for all of this machine's.
        dtype: number format; by default the one that the run was trained in.
        max_rows: samples at once.
        max_queue: requests that may wait.
        timeout: seconds for a request.
        checkpoint: a run, a checkpoint or a Hugging Face folder, in place of a source and a tag.
        device_type: auto, cpu or cuda.
        base_dir: where everything is kept (default: $MARIN_BASE_DIR, $NANOCHAT_BASE_DIR, ~/.cache/marin/gpt2).
    """

    source: Annotated[Literal["base", "sft", "rl"], tyro.conf.arg(aliases=["-i"])] = "sft"
    model_tag: Annotated[str | None, tyro.conf.arg(aliases=["-g"])] = None
    step: Annotated[int | None, tyro.conf.arg(aliases=["-s"])] = None
    port: Annotated[int, tyro.conf.arg(aliases=["-p"])] = DEFAULT_PORT
    host: str = "127.0.0.1"
    dtype: Annotated[Literal["float32", "bfloat16"] | None, tyro.conf.arg(aliases=["-d"])] = None
    max_rows: int = 16
    max_queue: int = 256
    timeout: float = 300.0
    checkpoint: str | None = None
    device_type: str = ""
    base_dir: str | None = None


def main() -> None:
    flags = parse_flags(Flags, __doc__)
    loaded, precision = open_model(flags)
    asked = argparse.Namespace(
        **dataclasses.asdict(flags) | {"dtype": precision.compute, "name": None, "max_length": None, "no_tools": False}
    )
    serve(loaded, asked)


if __name__ == "__main__":
    run_command(main)
