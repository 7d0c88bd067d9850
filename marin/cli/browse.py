"""`marin browse`: the data browser, a local web app over the folders of a prefix."""

import argparse

from marin.errors import ConfigError

HELP = (
    "Look at data, runs and where each file came from, in a local web app. It reads and never writes, and it listens on this "
    "machine only."
)

DEFAULT_PORT = 8321


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prefix", metavar="P", help="the folder of outputs; default: MARIN_PREFIX, else local_store in this directory"
    )
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, metavar="N", help=f"0 takes any free one; default: {DEFAULT_PORT}"
    )
    parser.add_argument(
        "--root", action="append", default=[], metavar="DIR", help="another folder to allow; may be given several times"
    )


def run(args: argparse.Namespace) -> int:
    from marin.site.browser.app import build_app
    from marin.site.browser.roots import make_roots
    from marin.storage import files
    from marin.storage.prefix import resolve_prefix
    from marin.web.listen import address_of, answer_until_stopped, bind, port_of

    prefix = resolve_prefix(args.prefix)
    for folder in (prefix, *args.root):
        if not files.is_local(folder):
            raise ConfigError(
                f"{folder} is not on this machine: the browser shows local folders, copy or mount it first"
            )
    roots = make_roots([prefix, *args.root])
    listener = bind(args.port)
    app = build_app(roots, port_of(listener))
    for root in roots:
        print(f"showing {root.path}")
    print(f"open {address_of(listener)}  (Ctrl-C stops)", flush=True)
    answer_until_stopped(app, listener)
    print("stopped")
    return 0
