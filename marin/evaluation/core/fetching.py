"""Fetching CORE's data: the public archive, unpacked into a folder that appears whole or not at all.

    {parent}/.{name}.fetching/     the archive while it arrives, and what is unpacked of it; gone at the end
    {parent}/{name}/               the bundle

A download that was interrupted goes on. A folder that holds a bundle already is left alone, whatever it holds of CORE.
"""

import shutil
import zipfile
import zlib
from pathlib import Path

from marin.data.core_tasks import PUBLIC_ARCHIVE
from marin.data.download import fetch_all
from marin.data.fetch import RemoteFile
from marin.errors import DataError, StorageError
from marin.evaluation.core.bundle import CONFIG_FILE, Bundle
from marin.execution.attempts import ledger_directory
from marin.storage.lease import Lease

_ARCHIVE, _UNPACKED = "eval_bundle.zip", "unpacked"


def fetch_bundle(folder: Path, url: str = PUBLIC_ARCHIVE) -> Bundle:
    """The bundle in `folder`, fetched and unpacked where it is not there.

    Raises:
        ConfigError: `url` is no address.
        DataError: it cannot be fetched, or is no bundle; the message says what to do by hand.
        StorageError: there is no room to unpack it.
    """
    if not (folder / CONFIG_FILE).is_file():
        # Two downloads would write into one file.
        with Lease(ledger_directory(str(folder))).acquire(announce=print):
            if not (folder / CONFIG_FILE).is_file():
                _fetch(folder, url)
    return Bundle.open(folder)


def _fetch(folder: Path, url: str) -> None:
    if folder.is_dir() and any(folder.iterdir()):
        raise DataError(f"{folder} is there and has no {CONFIG_FILE}: it is no bundle; remove it to have it fetched")
    staging = folder.with_name(f".{folder.name}.fetching")
    archive, unpacked = staging / _ARCHIVE, staging / _UNPACKED
    by_hand = f"fetch {url} on another machine and unpack it as {folder}"
    fetch_all([RemoteFile(url, _ARCHIVE)], str(staging), by_hand=by_hand)
    shutil.rmtree(unpacked, ignore_errors=True)
    try:
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(unpacked)
    except OSError as error:
        raise StorageError(
            f"{unpacked} cannot be written ({error}): make room, and run the same command again"
        ) from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        archive.unlink()
        raise DataError(
            f"{url} is no archive that can be unpacked ({error}): check the address, or {by_hand}"
        ) from None
    found = sorted(unpacked.rglob(CONFIG_FILE), key=lambda path: len(path.parts))
    if not found:
        shutil.rmtree(staging)
        raise DataError(f"{url} has no {CONFIG_FILE} in it: it is no bundle; check the address, or {by_hand}")
    try:
        Bundle.open(found[0].parent)
    except DataError:
        shutil.rmtree(staging)  # else the next try would find the same archive, and not fetch a better one
        raise
    found[0].parent.rename(folder)
    shutil.rmtree(staging)
