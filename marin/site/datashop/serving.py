"""The page's server on the loopback address."""

import os
from collections.abc import Sequence

from marin.errors import ConfigError
from marin.site.datashop.access import QUERY
from marin.site.datashop.app import build_app
from marin.site.datashop.shop import Shop, open_shop
from marin.storage import files
from marin.storage.prefix import resolve_prefix
from marin.web.listen import address_of, answer_until_stopped, bind, port_of


def serve(prefix: str | None, port: int, folders: Sequence[str] = ()) -> None:
    """Shows the page until Ctrl-C or SIGTERM; runs go on without it.

    Args:
        prefix: of the outputs; None as everywhere else.
        port: 0 is any free one.
        folders: where paths that are typed into the page may lead to, beside the prefix.
    Raises:
        ConfigError: a folder is not on this machine or not there, or the port cannot be used.
    """
    resolved = resolve_prefix(prefix)
    if not files.is_local(resolved):
        raise ConfigError(
            f"{resolved} is not on this machine: the page needs a local folder for its outputs, give one with --prefix DIR; "
            "`marin datashop run CONFIG` takes any"
        )
    for folder in folders:
        if not os.path.isdir(folder):
            raise ConfigError(f"--data {folder}: there is no such folder")
    listener = bind(port)
    try:
        shop = open_shop(str(files.local_path(resolved)), folders, port_of(listener))
        app = build_app(shop, port_of(listener))
        print(f"outputs below {shop.prefix}")
        print(f"open {address_of(listener)}/?{QUERY}={shop.access.key}  (Ctrl-C stops)", flush=True)
        answer_until_stopped(app, listener)
        _say_what_goes_on(shop)
    finally:
        listener.close()


def _say_what_goes_on(shop: Shop) -> None:
    working = [run for run in shop.runs.all() if run.is_alive]
    print("stopped")
    for run in working:
        print(f"{run.title} goes on without the page: `marin datashop` shows it again")
