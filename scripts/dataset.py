"""Fetches shards of ClimbMix into BASE/base_data_climbmix; the last shard, which is held out, always comes with them.

    python -m scripts.dataset -n 8

Shards that are there are kept; an interrupted download goes on inside a shard, and one that fails is tried again.
"""

import dataclasses
from typing import Annotated

import tyro

from marin.data.download import fetch_all
from marin.data.fetch import RemoteFile
from marin.errors import ConfigError
from marin.execution.attempts import ledger_directory
from marin.flags import check_at_least
from marin.gpt2.command import parse_flags, run_command
from marin.gpt2.datasets import CLIMBMIX_SHARDS, CLIMBMIX_URL, climbmix_files
from marin.gpt2.places import Places
from marin.storage.lease import Lease


@dataclasses.dataclass(frozen=True)
class Flags:
    """Flags of dataset.

    Args:
        num_files: shards to train on, of about 100 MB each; -1 for all.
        num_workers: shards fetched at a time.
        url: the folder that holds the shards.
        total: shards that the folder has; the last one is held out.
        base_dir: where everything is kept (default: $MARIN_BASE_DIR, $NANOCHAT_BASE_DIR, ~/.cache/marin/gpt2).
    """

    num_files: Annotated[int, tyro.conf.arg(aliases=["-n"])] = -1
    num_workers: Annotated[int, tyro.conf.arg(aliases=["-w"])] = 4
    url: str = CLIMBMIX_URL
    total: int = CLIMBMIX_SHARDS
    base_dir: str | None = None


def main() -> None:
    flags = parse_flags(Flags, __doc__)
    places = Places.of(flags.base_dir)
    if flags.num_files < 1 and flags.num_files != -1:
        raise ConfigError(f"`--num-files` is {flags.num_files}: ask for at least one shard, or -1 for all")
    check_at_least(2, flags, "total")
    check_at_least(1, flags, "num_workers")
    wanted = climbmix_files(flags.num_files, flags.url.rstrip("/"), flags.total)
    missing = _missing(wanted, places)
    print(f"{len(wanted) - len(missing)} of {len(wanted)} shards are in {places.data}")
    if missing:
        by_hand = f"fetch the shards of {flags.url} on another machine and put them into {places.data}"
        # Two downloads would write into one file: that of a pipeline that was killed may still be at it.
        with Lease(ledger_directory(str(places.data))).acquire(announce=print):
            missing = _missing(wanted, places)
            if missing:
                fetch_all(missing, str(places.data), num_workers=flags.num_workers, by_hand=by_hand)
        print(f"fetched {len(missing)} shards")


def _missing(wanted: list[RemoteFile], places: Places) -> list[RemoteFile]:
    """Those that are not there; a shard gets its name when it is whole."""
    return [file for file in wanted if not (places.data / file.name).is_file()]


if __name__ == "__main__":
    run_command(main)
