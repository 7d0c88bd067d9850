"""What a stage over shards has done so far, summed up and printed."""

from typing import Any

from marin.data.pace import Pace
from marin.data.shard_writer import Record


class StageProgress:
    """Prints how far a stage is: now and then a line when a shard is done, and its result at the end.

    Args:
        num_shards: None if it is not known before the end.
    """

    def __init__(self, stage: str, num_shards: int | None):
        self.stage = stage
        self._num_shards = num_shards
        self._done: list[Record] = []
        self._pace = Pace()

    def shard_done(self, record: Record) -> None:
        """Counts a finished shard."""
        self._done.append(record)
        if not self._pace.is_due():
            return
        of = f" of {self._num_shards:,}" if self._num_shards else ""
        totals = totals_of(self._done)
        rate = totals["bytes"]["in"] / 1e6 / self._pace.elapsed
        print(f"{self.stage}: {len(self._done):,}{of} shards, {_counts(totals)}, {rate:.1f} MB/s", flush=True)

    def finished(self, totals: dict[str, Any]) -> None:
        """Prints the result of all shards."""
        reasons = "".join(f"\n  {count:>10,}  {reason}" for reason, count in totals["dropped_by_reason"].items())
        print(f"{self.stage}: {_counts(totals)}{reasons}", flush=True)


def _counts(totals: dict[str, Any]) -> str:
    documents, size = totals["documents"], totals["bytes"]
    changed = f", {documents['changed']:,} changed" if documents["changed"] else ""
    return (
        f"{documents['kept']:,} of {documents['in']:,} documents kept{changed} "
        f"({size['kept'] / 1e6:,.1f} of {size['in'] / 1e6:,.1f} MB)"
    )


def totals_of(records: list[Record]) -> dict[str, Any]:
    """The sums of what the records count; the most frequent reason comes first."""
    by_reason: dict[str, int] = {}
    for record in records:
        for reason, count in record["dropped_by_reason"].items():
            by_reason[reason] = by_reason.get(reason, 0) + count
    return {
        "documents": {
            key: sum(record["documents"][key] for record in records) for key in ("in", "kept", "changed", "dropped")
        },
        "bytes": {key: sum(record["bytes"][key] for record in records) for key in ("in", "kept")},
        "dropped_by_reason": dict(sorted(by_reason.items(), key=lambda item: (-item[1], item[0]))),
    }
