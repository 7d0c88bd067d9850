"""What a run did: `run.json` and `metrics.jsonl` are the truth; the console and W&B show copies."""

from marin.tracking.run_record import RunRecord, RunWriter, SilentRunWriter

__all__ = ["RunRecord", "RunWriter", "SilentRunWriter"]
