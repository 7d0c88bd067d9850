"""The leaderboard's rows, read from results files and from the public site's list of runs.

A row is one run on one evaluation set. A file or an entry that cannot be read becomes an `Unreadable` with the reason,
never nothing. Directories are walked in a fixed order, and no link is followed out of them.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from marin import hardware
from marin.errors import HardwareError, ResultsError
from marin.speedrun import consistency, results, strict_json
from marin.speedrun.consistency import Status
from marin.speedrun.results import Author, Number, RunInfo
from marin.speedrun.tracks import C4_EN, NOT_EVALUATED, Cost, Metric
from marin.speedrun.verdict import Finding, Outcome, RungVerdict, Verdict

_SEEDS = ("seed", "data_seed")
_OPTIMIZERS = (
    "C-AdamC", "AdamC", "AdamH", "AdaMuon", "NorMuon", "MuonH", "Muon", "AdEMAMix", "Adamax", "Cautious", "Lion", "SOAP", "Scion", "Kron",
    "Sophia", "MARS", "ADOPT", "AdamW",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Row:
    """One run on one evaluation set. `None` is "not stated", for every figure; `rank` is set among its peers only."""

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
    resumed: bool | None
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
    core: float | None = None
    core_version: str | None = None
    loss: float | None = None
    configuration: str | None = None  # digest of all that is configured but the seeds; None where it is not stated
    stated_runs: int = 1  # above 1 where the row itself is a mean of so many runs
    stated_sd: float | None = None
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    also_at: tuple[str, ...] = ()
    rank: int | None = None
    on_frontier: bool = False

    @property
    def counts(self) -> bool:
        """Whether the row may be ranked: nothing that was checked failed, and it was not withdrawn."""
        return self.verdict.counts

    @property
    def main_metric(self) -> Metric:
        """What the row is compared by where no track says it."""
        if self.bits_per_byte is None and self.core is not None:
            return "core"
        return "loss" if self.bits_per_byte is None and self.loss is not None else "bits_per_byte"

    def metric(self, name: Metric) -> float | None:
        value: float | None = getattr(self, name)
        return value

    def value(self, name: Metric | Cost) -> float | None:
        """A metric or a cost by its name."""
        value: float | None = getattr(self, name)
        return value

    @property
    def has_remarks(self) -> bool:
        """Whether there is more to read than what the status says."""
        return any(
            finding.severity == "warning" or (finding.severity == "error" and finding.rung != "arithmetic")
            for finding in self.findings
        )

    def to_json(self) -> dict[str, object]:
        named = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return named | {
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
            "verdict": self.verdict.model_dump(mode="json"),
        }


@dataclasses.dataclass(frozen=True)
class Unreadable:
    """A file, or an entry of a list, that could not be read, and why."""

    source: str
    reason: str


class PublicRow(BaseModel):
    """One row of the public site's `runs.json`."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=())

    run_name: str
    author: Author
    description: str = ""
    model_size: int | None = None
    training_hardware_flops: Number | None = None
    training_time: Number | None = None
    model_flops: Number | None = None
    eval_paloma_c4_en_bpb: Number | None = None
    wandb_link: str | None = None
    run_completion_timestamp: str | None = None

    def run_info(self) -> RunInfo:
        return RunInfo(
            schema_version=None,
            author=self.author,
            description=self.description,
            model_size=self.model_size,
            training_hardware_flops=self.training_hardware_flops,
            training_time=self.training_time,
            model_flops=self.model_flops,
            c4_en_bpb=self.eval_paloma_c4_en_bpb,
            wandb_run_link=self.wandb_link,
            run_completion_timestamp=self.run_completion_timestamp,
        )


def read_results_tree(directory: str | os.PathLike[str]) -> Iterator[Row | Unreadable]:
    """Rows of every `speedrun_results.json` anywhere below a directory.

    Raises:
        ResultsError: if there is no such directory.
    """
    root = pathlib.Path(directory)
    if not root.is_dir():
        raise ResultsError(
            f"{root}: no such directory: give the directory that holds {results.FILE_NAME} files, such as the prefix"
        )
    problems: list[Unreadable] = []

    def failed(error: OSError) -> None:
        name = os.path.relpath(error.filename or root, root)
        problems.append(Unreadable(name, f"the directory cannot be listed ({error.strerror}): check its permissions"))

    for parent, names, file_names in os.walk(root, onerror=failed):
        names[:] = sorted(name for name in names if not name.startswith("."))  # attempts that are no output lie in one
        if results.FILE_NAME in file_names or results.FILE_NAME in names:
            yield from _read_results_file(pathlib.Path(parent, results.FILE_NAME), root)
    yield from problems


def _read_results_file(path: pathlib.Path, root: pathlib.Path) -> Iterator[Row | Unreadable]:
    source = path.relative_to(root).as_posix()
    if path.is_symlink() and not path.resolve().is_relative_to(root.resolve()):
        yield Unreadable(source, "a symbolic link that leads outside the directory: put the file itself there")
        return
    try:
        infos = results.load_results(path)
    except ResultsError as error:
        yield Unreadable(source, str(error).removeprefix(f"{path}: "))
        return
    name = path.parent.relative_to(root).as_posix().removeprefix("checkpoints/speedrun/")
    name = root.resolve().name if name == "." else re.sub(r"-speedrun_results-[0-9a-f]{8}$", "", name)
    for number, info in enumerate(infos, start=1):
        yield from rows_of(info, name if len(infos) == 1 else f"{name}#{number}", source)


def read_rows_file(path: str | os.PathLike[str]) -> Iterator[Row | Unreadable]:
    """Rows of the public site's `runs.json`.

    Raises:
        ResultsError: if there is no such file.
    """
    source = pathlib.PurePath(path).name
    if not os.path.exists(path):
        raise ResultsError(f"{os.fspath(path)}: no such file: give the path of a runs.json, or leave --rows out")
    try:
        values = strict_json.read_json(path)
    except ResultsError as error:
        yield Unreadable(source, str(error).removeprefix(f"{os.fspath(path)}: "))
        return
    if not isinstance(values, list):
        yield Unreadable(source, "expected a list of rows, as the public site's runs.json is")
        return
    for number, value in enumerate(values, start=1):
        try:
            row = PublicRow.model_validate(value)
            yield from rows_of(row.run_info(), row.run_name, source, listed=True)
        except ValidationError as error:
            yield Unreadable(f"{source}, row {number}", results.explain(error))


def rows_of(
    info: RunInfo, run_name: str, source: str, *, listed: bool = False, verdict: Verdict | None = None
) -> list[Row]:
    """One row for each evaluation set that the run was scored on; one without a score where there is none."""
    findings = tuple(consistency.check(info))
    cost = info.training_hardware_flops
    mfu = info.model_flops / cost if info.model_flops and cost and cost > 0 else None
    compressors = info.compressors.model_dump(exclude_none=True) if info.compressors else {}
    platform, chips = platform_and_chips(info)
    row = Row(
        run_name=run_name,
        source=source,
        digest=digest_of(info),
        author=info.author.name,
        affiliation=info.author.affiliation,
        author_url=info.author.url,
        description=info.description,
        date=info.run_completion_timestamp,
        evaluation_set=NOT_EVALUATED,
        evaluation_digest=None,
        bits_per_byte=None,
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
        resumed=info.resumed,
        compressors={name: value for name, value in compressors.items() if isinstance(value, float)},
        sample=info.sample,
        listed=listed,
        findings=findings,
        status=consistency.status(findings),
        verdict=verdict_of(findings) if verdict is None else verdict,
        platform=platform,
        num_chips=chips,
        training_data=info.tokenized_dataset,
        optimizer=optimizer_name(info, run_name),
        configuration=None if listed else configuration_digest(info),
        details={} if listed else info.to_json(),
    )
    scored = []
    if info.c4_en_bpb is not None:
        scored.append(dataclasses.replace(row, evaluation_set=C4_EN, bits_per_byte=info.c4_en_bpb))
    block = info.evaluation
    if block is not None and block.bits_per_byte is not None and not (scored and block.name == C4_EN):
        scored.append(dataclasses.replace(
            row, evaluation_set=block.name, evaluation_digest=block.digest, bits_per_byte=block.bits_per_byte
        ))  # fmt: skip
    return scored or [row]


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
    return hashlib.sha256(json.dumps(stated, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()


def configuration_digest(info: RunInfo) -> str:
    """What two runs share that differ in their seeds alone: author, configs, data, hardware and commit."""
    value = info.model_dump(
        mode="json", include={"author", "model", "tokenized_dataset", "resources", "device_name", "git_commit"}
    )
    train = {name: item for name, item in (info.train_config or {}).items() if name not in _SEEDS}
    text = json.dumps([value, train], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def optimizer_name(info: RunInfo, run_name: str) -> str | None:
    """By the run's own words where they name one, else by what its config holds; None where neither says it."""
    words = f"{run_name} {info.description}".lower()
    for name in _OPTIMIZERS:
        if re.search(rf"(?<![a-z]){re.escape(name.lower())}(?![a-z])", words):
            return name
    config = (info.train_config or {}).get("optimizer_config")
    if not isinstance(config, dict):
        return None
    if "muon_epsilon" in config:
        return "Muon"
    return "AdamW" if {"beta1", "beta2", "epsilon", "weight_decay"} <= config.keys() else None


def platform_and_chips(info: RunInfo) -> tuple[str | None, int | None]:
    """Processor, GPU or TPU, and how many chips; `None` for what the file does not say."""
    resources = info.resources or {}
    device = resources.get("device")
    device = device if isinstance(device, dict) else {}
    kind = str(device.get("kind") or device.get("type") or "")
    if "tpu_type" in resources or kind == "tpu":
        platform = "tpu"
        try:
            name = str(resources.get("tpu_type") or device.get("variant") or device.get("topology") or "")[:64]
            chips: int | None = hardware.tpu_chips(name) * _count(resources, "slice_count", "replicas")
        except HardwareError:
            chips = None
    elif "gpu_count" in resources or kind == "gpu":
        platform = "gpu"
        chips = _count(resources | device, "gpu_count", "count") * _count(resources, "replicas")
    elif "num_cpus" in resources or kind == "cpu" or info.platform == "cpu":
        platform, chips = "cpu", 1
    else:
        return info.platform, info.num_chips
    return platform, info.num_chips if info.num_chips is not None else chips


def _count(resources: dict[str, Any], *names: str) -> int:
    for name in names:
        value = resources.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 1


def describe_hardware(info: RunInfo) -> str | None:
    """Such as "4 x A100", "v5p-32" or "2 x v4-128"; None where the file does not say."""
    resources = info.resources or {}
    device = resources.get("device")
    device = device if isinstance(device, dict) else {}
    count: object = None
    if isinstance(resources.get("tpu_type"), str):
        name, count = resources["tpu_type"], resources.get("slice_count")
    elif isinstance(resources.get("accelerator_type"), str):
        name, count = resources["accelerator_type"], resources.get("gpu_count")
        name = info.device_name or name if name == "auto" else name
    elif device:
        name = next((device[key] for key in ("variant", "type", "kind") if isinstance(device.get(key), str)), "")
        name, count = ("GPU" if name == "auto" else name), device.get("count")
    elif info.device_name and info.device_name != "cpu":
        name, count = info.device_name, info.num_chips
    elif "num_cpus" in resources or info.platform == "cpu":
        name = "CPU"
    else:
        return None
    return f"{count} x {name}" if isinstance(count, int) and count > 1 else name or None
