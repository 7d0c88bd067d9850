"""Serves a model of the pipeline: a page to chat on, and OpenAI's protocol (see `marin serve`).

    python -m scripts.chat_web -i sft

It listens on this machine alone, unless `--host` says otherwise.
"""

import dataclasses
from typing import Annotated

import tyro

from marin.cli.serve import ServerOptions, serve
from marin.gpt2.command import parse_flags, run_command
from marin.gpt2.opening import ModelFlags, open_model


@dataclasses.dataclass(frozen=True)
class Flags(ServerOptions, ModelFlags):
    """Flags of chat_web, beside those of `ModelFlags` and `ServerOptions`.

    Args:
        port: 0 takes any free one.
    """

    port: Annotated[int, tyro.conf.arg(aliases=["-p"])] = ServerOptions.port


def main() -> None:
    flags = parse_flags(Flags, __doc__)
    loaded, precision = open_model(flags)
    serve(loaded, precision, ServerOptions.of(flags))


if __name__ == "__main__":
    run_command(main)
