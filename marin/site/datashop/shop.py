"""What all pages share: the folders, the uploads, the runs, and who may use them."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence

from marin.errors import StorageError
from marin.site.browser.records import Records
from marin.site.browser.roots import Root
from marin.site.datashop.access import Access
from marin.site.datashop.runs import Runs
from marin.site.datashop.uploads import Uploads

FOLDER = "datashop_page"
"""Below the prefix: what belongs to the page and to no step."""


@dataclasses.dataclass(frozen=True)
class Shop:
    """What the handlers share.

    Args:
        prefix: where outputs go, without links.
        folders: where paths that a person names may lead to.
    """

    prefix: str
    folders: tuple[str, ...]
    uploads: Uploads
    runs: Runs
    records: Records
    access: Access


Form = Mapping[str, Sequence[str]]


def value_of(form: Form, name: str) -> str:
    """The first value of a form's field; "" if none was sent."""
    return next(iter(form.get(name, ())), "")


def open_shop(prefix: str, folders: Sequence[str], port: int, command: Sequence[str] | None = None) -> Shop:
    """The datashop of a prefix, whose folder is made.

    Args:
        command: see `Runs`.
    Raises:
        StorageError: the folder cannot be made.
    """
    real = os.path.realpath(prefix)
    own = pathlib.Path(real, FOLDER)
    try:
        own.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"{own} cannot be made ({error.strerror}): give a folder that you may write to, with --prefix DIR"
        ) from None
    return Shop(
        real,
        tuple(dict.fromkeys([real, *map(os.path.realpath, folders)])),
        Uploads(own / "uploads"),
        Runs(own / "runs", real, command),
        Records(Root(0, real)),
        Access(own, port),
    )
