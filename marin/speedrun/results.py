"""`speedrun_results.json`: what a run claims, in the public contest's schema.

`{"runs": [{"run_info": {...}}]}`, indented by 2, keys sorted. Files of every era are read, also a bare run without the
`runs` list; keys that this version does not know are kept. A figure that is absent or null is `None`, "unknown", and is
never taken for zero. Reading executes nothing and believes nothing: whether the figures fit together is the business of
`marin.speedrun.arithmetic.consistency`.

Fields that hold a whole config stay plain JSON objects, since the configs of other people's experiments have no schema.
"""

import datetime
import json
import os
import unicodedata
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from marin.errors import ResultsError
from marin.speedrun import strict_json
from marin.storage import files

SCHEMA_VERSION = 1
FILE_NAME = "speedrun_results.json"
C4_EN_BPB = "eval/paloma/c4_en/bpb"
TIMESTAMP = "%Y-%m-%d %H:%M:%S UTC"
MAX_BYTES = 2 * 2**20
MAX_RUNS = 500
MAX_VALUES = 100_000

_MAX_LISTED_ERRORS = 5
_NEXT_STEP = "copy the file again from the run directory, unedited, or run `results_from_run` again"


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


# Strict: a number is never taken from a string or a boolean. JSON does not tell 1 from 1.0, so whole numbers are floats.
Number = Annotated[float, BeforeValidator(_number)]


class _Record(BaseModel):
    model_config = ConfigDict(
        strict=True, extra="allow", frozen=True, populate_by_name=True, allow_inf_nan=False, protected_namespaces=()
    )


class Author(_Record):
    name: str
    affiliation: str
    url: str | None = None


class Evaluation(_Record):
    """Bits per byte on one fixed, named set of documents."""

    name: str
    digest: str | None = Field(default=None, description="SHA-256 of the evaluation documents")
    bits_per_byte: Number | None = Field(default=None, description="sum of nats / (ln 2 x sum of bytes)")
    levanter_bits_per_byte: Number | None = Field(default=None, description="token-weighted mean over batches")
    loss: Number | None = Field(default=None, description="sum of nats / number of predicted tokens")
    bytes: int | None = None
    tokens: int | None = None
    documents: int | None = None
    context_length: int | None = Field(default=None, description="tokens of a row that was scored")
    flops_per_token: Number | None = Field(
        default=None, description="forward pass as scored, as the traced program counts, causal attention halved"
    )
    uncounted: list[str] | None = Field(
        default=None,
        max_length=64,
        description="what the program as scored has and `flops_per_token` lacks, or has one turn of",
    )
    held_bytes: int | None = Field(
        default=None,
        description="bytes that the program holds which was scored, beside parameters, as zlib writes them",
    )
    replaced: list[str] | None = Field(
        default=None,
        max_length=64,
        description="names behind which there was other code than their files have, when the run was scored",
    )


class Probe(_Record):
    """One validity probe: the worst that was measured, and what is allowed."""

    passed: bool
    measured: Number | None = None
    limit: Number | None = None
    message: str = ""


class Validity(_Record):
    """What the probes at the end of training found (see `marin.evaluation.validity`)."""

    passed: bool = Field(description="whether all probes passed")
    seed: int | None = Field(default=None, description="where windows, cuts and positions lay")
    num_cuts: int | None = None
    num_positions: int | None = None
    seconds: Number | None = None
    normalization: Probe = Field(description="probabilities over the whole vocabulary sum to 1")
    causality: Probe = Field(description="changing later tokens leaves earlier predictions as they were")
    one_pass: Probe = Field(description="a score depends on what stands before it in its row, and is made once")
    byte_count: Probe = Field(description="bytes are those of the raw text, in tokens as training has them")
    held_out: Probe | None = Field(
        default=None,
        description="passages of the set do not stand in the training data; null where that was not at hand",
    )

    @property
    def probes(self) -> dict[str, Probe]:
        names = ("normalization", "causality", "one_pass", "byte_count", "held_out")
        return {name: probe for name in names if (probe := getattr(self, name)) is not None}

    @property
    def failed(self) -> list[str]:
        """The names of the probes that did not pass."""
        return [name for name, probe in self.probes.items() if not probe.passed]


class Compressors(_Record):
    """What general compressors need for the same bytes, in bits per byte."""

    gzip_9: Number | None = None
    xz_9: Number | None = None
    zstd_19: Number | None = None


class CoreCounts(_Record):
    """One task of CORE: the counts that its share of `core_metric` follows from."""

    num_items: int
    num_correct: int
    data: str | None = Field(default=None, description="SHA-256 of the task's data file")
    records: str | None = Field(default=None, description="SHA-256 of the lines with what was found of each item")


class Core(_Record):
    """What `core_metric` was made from."""

    weights: str | None = Field(
        default=None, description="SHA-256 of the manifest of the checkpoint that was evaluated"
    )
    tasks: dict[str, CoreCounts] = Field(max_length=64, description="by their labels in the bundle")


class Digests(_Record):
    """SHA-256 of what went in and of the log that came out."""

    config: str | None = None
    data: str | None = None
    tokenizer: str | None = None
    evaluation_set: str | None = None
    run: str | None = Field(default=None, description="of run.json")
    metrics_log: str | None = Field(default=None, description="of metrics.jsonl")
    log_head: str | None = Field(default=None, description="the head of the hash chain over both, after the last line")
    evaluation_link: str | None = Field(default=None, description="the chain's last link, over the evaluation and CORE")
    checkpoint: str | None = Field(
        default=None, description="of the manifest of the checkpoint that the run ended with"
    )


class RunInfo(_Record):
    """One run. Construct it by attribute names; files use the aliases where the two differ."""

    schema_version: int | None = Field(default=SCHEMA_VERSION, description="null for files from before there was one")

    author: Author
    description: str
    model: dict[str, Any] | None = Field(
        default=None, validation_alias="model_config", serialization_alias="model_config"
    )
    train_config: dict[str, Any] | None = None
    tokenized_dataset: str | None = None
    resources: dict[str, Any] | None = None

    model_size: int | None = Field(default=None, description="trainable parameters")
    total_tokens: int | None = Field(default=None, description="batch x steps x sequence length")
    num_train_steps: int | None = None
    model_flops: Number | None = Field(default=None, description="3 x model_flops_per_token x total_tokens")
    model_flops_per_token: Number | None = Field(default=None, description="forward pass, by the config's own formula")
    counted_flops_per_token: Number | None = Field(
        default=None, description="forward pass, as the traced program counts, attention in full"
    )
    traced_flops: Number | None = Field(default=None, description="traced_training_flops_per_token x total_tokens")
    traced_flops_per_token: Number | None = Field(
        default=None, description="forward pass, as the traced program counts, causal attention halved"
    )
    traced_training_flops_per_token: Number | None = Field(
        default=None, description="loss and gradient, counted the same way, without recomputation"
    )

    device_name: str | None = None
    platform: str | None = None
    processor: str | None = Field(default=None, description="its name, of a run on no accelerator")
    num_devices: int | None = None
    num_chips: int | None = None
    device_flops: Number | None = Field(default=None, description="peak FLOP/s of one chip")
    training_time: Number | None = Field(default=None, description="seconds on the clock")
    compile_time: Number | None = None
    wasted_time: Number | None = Field(default=None, description="seconds of work done twice because of interruptions")
    training_hardware_flops: Number | None = Field(default=None, description="training_time x num_chips x device_flops")
    mfu: Number | None = Field(default=None, description="model_flops / training_hardware_flops")
    traced_mfu: Number | None = Field(default=None, description="traced_flops / training_hardware_flops")
    wall_time: dict[str, Number] | None = Field(
        default=None,
        max_length=64,
        description="seconds by what they went to, `total`, and `goodput`, the part that is training",
    )
    peak_memory_bytes: int | None = None

    c4_en_bpb: Number | None = Field(default=None, validation_alias=C4_EN_BPB, serialization_alias=C4_EN_BPB)
    evaluation: Evaluation | None = None
    validity: Validity | None = Field(default=None, description="null: the model was not probed")
    core_metric: Number | None = Field(default=None, description="mean centered accuracy of the tasks of CORE")
    core_version: str | None = Field(
        default=None, description="v1 or v2: the baselines that accuracies were centered with"
    )
    core: Core | None = None
    compressors: Compressors | None = None
    sample: str | None = Field(default=None, description="text that the trained model wrote")

    run_completion_timestamp: str | None = Field(default=None, description="YYYY-MM-DD HH:MM:SS UTC")
    wandb_run_link: str | None = None
    seed: int | None = None
    resumed: bool | None = None
    num_resumes: int | None = None
    stopped_by: str | None = Field(
        default=None, description='"budget" where the run ended before all of its steps; null for a whole run'
    )
    git_commit: str | None = None
    git_dirty: bool | None = None
    digests: Digests | None = None

    @property
    def quality(self) -> float | None:
        """The bits per byte that a run is held to: those of C4-EN as published rows count them, where it states them."""
        if self.c4_en_bpb is not None or self.evaluation is None:
            return self.c4_en_bpb
        return self.evaluation.bits_per_byte

    @property
    def train_config_but_seeds(self) -> dict[str, Any]:
        """What runs share that differ in their seeds alone."""
        return {name: value for name, value in (self.train_config or {}).items() if name not in ("seed", "data_seed")}

    @property
    def log_digest(self) -> str | None:
        """SHA-256 of its metrics.jsonl, as stated."""
        return self.digests.metrics_log if self.digests else None

    def to_json(self) -> dict[str, Any]:
        """The run as a JSON object under the file's own keys, unknown values as null."""
        return self.model_dump(mode="python", by_alias=True)


class RunEntry(_Record):
    run_info: RunInfo


class SpeedrunResults(_Record):
    """The whole file."""

    runs: list[RunEntry] = Field(min_length=1)


def timestamp(seconds: float) -> str:
    """A time in seconds since 1970 as results write it."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime(TIMESTAMP)


def plain_name(name: str) -> str:
    """An author's name without what two spellings of it differ in: case, spaces and the composition of accents."""
    return " ".join(unicodedata.normalize("NFC", name).casefold().split())


def load_results(path: str | os.PathLike[str]) -> list[RunInfo]:
    """The runs in a results file, in its order.

    Raises:
        ResultsError: if the file is not strict JSON of this schema; says where, what was expected and what to do.
    """
    return parse_results(strict_json.read_json(path, MAX_BYTES, MAX_VALUES), os.fspath(path))


def parse_results(value: Any, path: str) -> list[RunInfo]:
    """The runs in an already parsed results file; `path` is only named in errors.

    Raises:
        ResultsError: if the value does not fit the schema.
    """
    if not isinstance(value, dict):
        raise ResultsError(f'{path}: expected an object with a list "runs", got {_kind(value)}: {_NEXT_STEP}')
    if "runs" not in value:
        value = {"runs": [value if "run_info" in value else {"run_info": value}]}
    runs = value["runs"]
    if isinstance(runs, list) and len(runs) > MAX_RUNS:
        raise ResultsError(f"{path}: {len(runs):,} runs, at most {MAX_RUNS} are read from one file: {_NEXT_STEP}")
    for entry in runs if isinstance(runs, list) else ():
        info = entry.get("run_info") if isinstance(entry, dict) else None
        if isinstance(info, dict):
            info.setdefault("schema_version", None)
            version = info["schema_version"]
            if isinstance(version, int) and version > SCHEMA_VERSION:
                raise ResultsError(
                    f"{path}: schema_version is {version}, this Marin reads up to {SCHEMA_VERSION}: update Marin"
                )
    try:
        return [entry.run_info for entry in SpeedrunResults.model_validate(value).runs]
    except ValidationError as error:
        raise ResultsError(f"{path}: {explain(error)}: {_NEXT_STEP}") from None


def write_results(path: str | os.PathLike[str], run_info: RunInfo) -> None:
    """Writes one run as `path`, whole or not at all; equal runs give equal bytes.

    Raises:
        ResultsError: if a config in it holds a value that JSON has no form for, such as NaN.
        StorageError: if the path cannot be written.
    """
    files.write_bytes(os.fspath(path), dump_results([run_info], os.fspath(path)))


def dump_results(run_infos: list[RunInfo], path: str = FILE_NAME) -> bytes:
    """The bytes of a results file; `path` is only named in errors."""
    value = {"runs": [{"run_info": info.to_json()} for info in run_infos]}
    try:
        text = json.dumps(value, indent=2, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ResultsError(
            f"{path}: cannot be written ({error}): give configs of finite numbers, strings, lists and string keys"
        ) from None
    return (text + "\n").encode("utf-8")


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a results file."""
    return SpeedrunResults.model_json_schema(by_alias=True)


def explain(error: ValidationError) -> str:
    """A validation error in one line: each field by its path in the file, what stands there, what was expected."""
    found = error.errors(include_url=False, include_context=False)
    parts = [_explain_one(item) for item in found[:_MAX_LISTED_ERRORS]]
    if len(found) > _MAX_LISTED_ERRORS:
        parts.append(f"and {len(found) - _MAX_LISTED_ERRORS} more")
    return "; ".join(parts)


def _explain_one(item: Any) -> str:
    field = ""
    for part in item["loc"]:
        field += f"[{part}]" if isinstance(part, int) else f"{'.' if field else ''}{part}"
    if item["type"] == "missing":
        return f"field `{field}` is missing"
    message = str(item["msg"]).removeprefix("Input should be ")
    if item["type"] == "model_type":
        message = "an object"
    where = f"field `{field}`" if field else "the whole"
    if item["type"] == "value_error":
        return f"{where}: {message.removeprefix('Value error, ')}"
    return f"{where} is {_kind(item['input'])}, expected {message}"


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    return json.dumps(value)[:60]
