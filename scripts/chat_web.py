"""Serves a model of the pipeline: a page to chat on, and OpenAI's protocol (see `marin serve`).

    python -m scripts.chat_web -i sft

It listens on this machine alone, unless `--host` says otherwise.
"""

import argparse
import dataclasses
from typing import Annotated

import tyro

from marin.cli.serve import DEFAULT_PORT, serve
from marin.gpt2.command import parse_flags, run_command
from marin.gpt2.opening import ModelFlags, open_model


@dataclasses.dataclass(frozen=True)
class Flags(ModelFlags):
    """Flags of chat_web, beside those of `ModelFlags`.

    Args:
        port: 0 takes any free one.
        host: address to listen on; 0.0.0.0 for all of this machine's.
        max_rows: samples at once.
        max_queue: requests that may wait.
        timeout: seconds for a request.
    """

    port: Annotated[int, tyro.conf.arg(aliases=["-p"])] = DEFAULT_PORT
    host: str = "127.0.0.1"
    max_rows: int = 16
    max_queue: int = 256
    timeout: float = 300.0


def main() -> None:
    flags = parse_flags(Flags, __doc__)
    loaded, precision = open_model(flags)
    asked = argparse.Namespace(
        **dataclasses.asdict(flags) | {"dtype": precision.compute, "name": None, "max_length": None, "no_tools": False}
    )
    serve(loaded, asked)


if __name__ == "__main__":
    run_command(main)
