"""The leaderboard's rows: one run on one evaluation set, with its verdict.

The importers make them. A file or an entry that cannot be read becomes an `Unreadable` with the reason, never nothing.
"""

import dataclasses
import functools
import hashlib
import json
from typing import Any

from marin.speedrun.arithmetic import consistency
from marin.speedrun.arithmetic.consistency import Status
from marin.speedrun.board.labels import depth_of, describe_hardware, optimizer_name, platform_and_chips
from marin.speedrun.results import RunInfo, plain_name
from marin.speedrun.tracks import C4_EN, NOT_EVALUATED, Cost, Metric
from marin.speedrun.verdict import LADDER, Finding, Outcome, RungVerdict, Verdict


@dataclasses.dataclass(frozen=True)
class Row:
    """One run on one evaluation set. `None` is "not stated", for every figure."""

    run_name: str
    source: str  # the file that says so, relative to what was searched
    digest: str  # SHA-256 of all that it says about the run
    author: str
    affiliation: str
    author_url: str | None
    description: str
    date: str | None
    evaluation_set: str
    evaluation_digest: str | None
    bits_per_byte: float | None
    training_hardware_flops: float | None
    model_flops: float | None
    mfu: float | None
    training_time: float | None
    model_size: int | None
    total_tokens: int | None
    hardware: str | None
    run_link: str | None
    git_commit: str | None
    seed: int | None
    compressors: dict[str, float]
    sample: str | None
    listed: bool  # from a list of rows, which says less than a results file
    findings: tuple[Finding, ...]
    status: Status
    verdict: Verdict
    platform: str | None = None  # "cpu", "gpu" or "tpu"
    num_chips: int | None = None
    training_data: str | None = None
    optimizer: str | None = None
    depth: int | None = None
    core: float | None = None
    core_version: str | None = None
    loss: float | None = None
    configuration: str | None = None  # digest of all that is configured but the seeds; None where it is not stated
    repeated: bool = False  # rows of one configuration are repetitions though none states a seed, as public logs are
    stated_runs: int = 1  # above 1 where the row itself is a mean of so many runs
    stated_sd: float | None = None
    details_json: str = "{}"  # all that is stated about the run, as JSON: ten thousand are kept, and few are looked at
    also_at: tuple[str, ...] = ()
    log_digest: str | None = None  # SHA-256 of its metrics.jsonl, as stated
    searched: int = 0  # which of several directories `source` is relative to

    @property
    def counts(self) -> bool:
        """Whether the row may be ranked: nothing that was checked failed, and it was not withdrawn."""
        return self.verdict.counts

    @property
    def level(self) -> int:
        """How many rungs of the ladder its verdict reached."""
        level = self.verdict.level
        return 0 if level is None else LADDER.index(level) + 1

    @property
    def main_metric(self) -> Metric:
        """What the row is compared by where no track says it."""
        if self.bits_per_byte is None and self.core is not None:
            return "core"
        return "loss" if self.bits_per_byte is None and self.loss is not None else "bits_per_byte"

    def value(self, name: Metric | Cost) -> float | None:
        """A metric or a cost by its name."""
        value: float | None = getattr(self, name)
        return value

    @property
    def details(self) -> dict[str, Any]:
        """All that is stated about the run, under the results file's own keys; empty for a row of a list that says no more."""
        value: dict[str, Any] = {} if self.details_json == "{}" else json.loads(self.details_json)
        return value


@dataclasses.dataclass(frozen=True)
class Unreadable:
    """A file, or an entry of a list, that could not be read, and why."""

    source: str
    reason: str


def rows_of(
    info: RunInfo,
    run_name: str,
    source: str,
    *,
    listed: bool = False,
    verdict: Verdict | None = None,
    optimizer_class: str | None = None,
) -> list[Row]:
    """One row for each evaluation set that the run was scored on; one without a score where there is none.

    Args:
        optimizer_class: as the run's `run.json` names it, where that is at hand.
    """
    if verdict is None:
        findings = tuple(consistency.check(info))
        verdict = verdict_of(findings)
    else:
        findings = tuple(finding for rung in verdict.rungs for finding in rung.findings)
    cost = info.training_hardware_flops
    mfu = info.model_flops / cost if info.model_flops and cost and cost > 0 else None
    compressors = info.compressors.model_dump(exclude_none=True) if info.compressors else {}
    platform, chips = platform_and_chips(info)
    stated: dict[str, Any] = dict(
        run_name=run_name,
        source=source,
        digest=digest_of(info),
        author=info.author.name,
        affiliation=info.author.affiliation,
        author_url=info.author.url,
        description=info.description,
        date=info.run_completion_timestamp,
        training_hardware_flops=cost,
        model_flops=info.model_flops,
        mfu=mfu if mfu is not None and mfu < float("inf") else None,
        training_time=info.training_time,
        model_size=info.model_size,
        total_tokens=info.total_tokens,
        hardware=describe_hardware(info),
        run_link=info.wandb_run_link,
        git_commit=info.git_commit,
        seed=info.seed,
        compressors={name: value for name, value in compressors.items() if isinstance(value, float)},
        sample=info.sample,
        listed=listed,
        findings=findings,
        status=consistency.status(findings),
        verdict=verdict,
        platform=platform,
        num_chips=chips,
        training_data=info.tokenized_dataset,
        optimizer=optimizer_name(info, run_name, optimizer_class),
        depth=depth_of(info),
        core=info.core_metric,
        core_version=info.core_version,
        configuration=None if listed else configuration_digest(info),
        details_json="{}" if listed else json.dumps(info.to_json()),
        log_digest=info.log_digest,
    )
    scored = []
    if info.c4_en_bpb is not None:
        scored.append(Row(evaluation_set=C4_EN, evaluation_digest=None, bits_per_byte=info.c4_en_bpb, **stated))
    block = info.evaluation
    if block is not None and not (scored and block.name == C4_EN) and (block.bits_per_byte, block.loss) != (None, None):
        scored.append(Row(
            evaluation_set=block.name, evaluation_digest=block.digest, bits_per_byte=block.bits_per_byte, loss=block.loss, **stated
        ))  # fmt: skip
    return scored or [Row(evaluation_set=NOT_EVALUATED, evaluation_digest=None, bits_per_byte=None, **stated)]


@functools.lru_cache(maxsize=1024)  # rows of a list lack the same things
def verdict_of(findings: tuple[Finding, ...]) -> Verdict:
    """The verdict on figures alone, without a log."""
    arithmetic = tuple(finding for finding in findings if finding.rung == "arithmetic")
    severities = {finding.severity for finding in arithmetic}
    outcome: Outcome = "failed" if "error" in severities else "open" if "unchecked" in severities else "passed"
    parsed = tuple(finding for finding in findings if finding.rung in ("parsed", "submission"))
    return Verdict(rungs=(
        RungVerdict(rung="parsed", outcome="passed", findings=parsed),
        RungVerdict(rung="arithmetic", outcome=outcome, findings=arithmetic),
    ))  # fmt: skip


def digest_of(info: RunInfo) -> str:
    """SHA-256 of all that is stated; a field that is null is one that is absent, so that a later schema changes nothing."""
    stated = info.model_dump(mode="json", by_alias=True, exclude_none=True)
    return hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()


def configuration_digest(info: RunInfo) -> str:
    """What two runs share that differ in their seeds alone: author, configs, data, hardware and commit.

    An author is known by `plain_name`: an unlucky seed must not leave the mean by another affiliation.
    """
    value = info.model_dump(
        mode="json", include={"model", "tokenized_dataset", "resources", "device_name", "git_commit"}
    ) | {"author": plain_name(info.author.name)}
    text = json.dumps([value, info.train_config_but_seeds], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
