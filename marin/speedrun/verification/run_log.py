"""A run's `run.json` and `metrics.jsonl` as somebody handed them in, checked for form before any figure is believed.

`parse_log` gives the same `RunRecord` that the engine's own reader gives, so that results are computed again by the very function
that made them; unlike that reader it takes nothing that the engine cannot have written: another type, a number that is not
finite, a key twice. Fields that no check needs are let go at once, which bounds the memory that a hostile log can take.
"""

import dataclasses
import pathlib
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from marin.errors import ResultsError
from marin.speedrun import results, strict_json
from marin.speedrun.results import Number
from marin.speedrun.verification.submission import MAX_LINES, LogFiles
from marin.tracking import log_chain
from marin.tracking.run_record import METRICS_FILE, RUN_FILE, RunRecord

MAX_VALUES = 1_000_000
MAX_LINE_BYTES = 256 * 2**10

# event -> its fields that checks need: their kind, and whether a line must have them
_WHOLE, _SECONDS, _FIGURE, _TEXT = "a whole number of at least 0", "seconds", "a number", "a text"
_FIELDS: dict[str, dict[str, tuple[str, bool]]] = {
    "start": {
        "from_step": (_WHOLE, True), "compile_time": (_SECONDS, True), "setup_time": (_SECONDS, False),
        "num_chips": (_WHOLE, False), "device_flops": (_FIGURE, False), "measures": (_TEXT, False),
        "calls_out": (_TEXT, False), "held_bytes": (_WHOLE, False), "replaced": (_TEXT, False),
    },
    "step": {
        "step": (_WHOLE, True), "tokens": (_WHOLE, True), "step_time": (_SECONDS, True), "data_wait": (_SECONDS, False),
        "mfu_model_flops": (_FIGURE, False), "loss": (_FIGURE, True), "grad_norm": (_FIGURE, False),
    },
    "pause": {"reason": (_TEXT, True), "seconds": (_SECONDS, True), "step": (_WHOLE, False)},
    "checkpoint": {"step": (_WHOLE, True)},
    "evaluation": {"step": (_WHOLE, True), "bits_per_byte": (_FIGURE, False)},
    "mirror": {"wandb_url": (_TEXT, False)},
    "end": {"steps": (_WHOLE, True), "peak_memory_bytes": (_WHOLE, True), "stopped_by": (_TEXT, False), "checkpoint": (_TEXT, False)},
}  # fmt: skip
_LARGEST = 1e300
_ALL_EVENTS = {"time": (_SECONDS, True)}
_PLANS = {
    event: tuple((field, *what) for field, what in (_ALL_EVENTS | fields).items()) for event, fields in _FIELDS.items()
}
_OTHER_PLAN = tuple((field, *what) for field, what in _ALL_EVENTS.items())
_NOT_FINITE = ("nan", "inf", "-inf")  # how the engine writes a loss that is no number


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=())


class _Config(_Strict):
    model: dict[str, Any]
    train: dict[str, Any]
    data: str | dict[str, Any] | None = None
    vocab_size: int | None = None


class _Seeds(_Strict):
    model: int | None
    data: int | None = None


class _Git(_Strict):
    commit: str | None
    dirty: bool | None
    loaded_unlike: list[str] = Field(default_factory=list, max_length=100)


class _Digests(_Strict):
    config: str | None
    data: str | None
    tokenizer: str | None


class _Traced(_Strict):
    forward: Number | None = None
    training: Number | None = None


class _Gpu(_Strict):
    name: str


class _Host(_Strict):
    platform: str | None = None
    cores_usable: Number | None = None
    gpus: list[_Gpu] = Field(default_factory=list, max_length=4096)


class RunJson(_Strict):
    """What checks need of `run.json`."""

    config: _Config
    num_parameters: int = Field(gt=0)
    device_name: str | None
    platform: str | None
    num_devices: int = Field(gt=0)
    num_chips: int = Field(gt=0)
    device_flops: Number = Field(gt=0)
    peak_is_given: bool = False
    seeds: _Seeds
    git: _Git
    digests: _Digests
    host: _Host = Field(default_factory=_Host)
    model_class: str | None = None
    model_flops_per_token: Number | None = None
    traced_flops_per_token: _Traced | None = None
    calls_out: list[str] = Field(default_factory=list, max_length=64)
    evaluation_link: int | None = None


@dataclasses.dataclass(frozen=True)
class RunLog:
    """A log whose form is right; `record.info` is `run.json` as it stands, `run` the checked part of it."""

    name: str
    run: RunJson
    record: RunRecord
    links: log_chain.Links
    files: LogFiles


def parse_log(files: LogFiles) -> RunLog:
    """Raises:
    ResultsError: if a file is not what the engine writes; names the file, the line and the field.
    """
    run_name = f"{files.name}/{RUN_FILE}".removeprefix("./")
    name = f"{files.name}/{METRICS_FILE}".removeprefix("./")
    for part, content in ((run_name, files.run), (name, files.metrics)):
        if b"\r\n" in content:  # the engine writes none: in JSON a carriage return is escaped
            raise ResultsError(
                f"{part}: its lines end as on Windows (CR LF), and the hash chain binds its bytes: copy it again from the run directory"
            )
    info = strict_json.parse_json(files.run, run_name, max_values=results.MAX_VALUES)
    try:
        run = RunJson.model_validate(info)
    except ValidationError as error:
        raise ResultsError(f"{run_name}: {results.explain(error)}: it was changed after it was written") from None
    if not isinstance(run.config.train.get("resources"), dict):
        raise ResultsError(
            f"{run_name}: field `config.train.resources` is missing: it was changed after it was written"
        )
    if strict_json.most_values(files.metrics) > MAX_VALUES:
        raise ResultsError(f"{name}: over {MAX_VALUES:,} values, which is more than are read")
    lines = files.metrics.split(b"\n")
    if lines.pop():
        raise ResultsError(f"{name}: line {len(lines) + 1} is cut off: copy it again from the run directory")
    if len(lines) > MAX_LINES:
        raise ResultsError(f"{name}: {len(lines):,} lines, of which at most {MAX_LINES:,} are read")
    events: list[dict[str, Any]] = []
    links: list[object] = []
    for number, line in enumerate(lines, start=1):
        event, link = _event(line, f"{name}:{number}")
        events.append(event)
        links.append(link)
    record = RunRecord(pathlib.Path(files.name), info, tuple(events))
    return RunLog(files.name, run, record, log_chain.check_links(files.run, lines, links), files)


def _event(line: bytes, where: str) -> tuple[dict[str, Any], object]:
    if len(line) > MAX_LINE_BYTES:
        raise ResultsError(f"{where}: a line of {len(line):,} bytes, of which at most {MAX_LINE_BYTES:,} are read")
    entry = strict_json.parse_line(line, where)
    name = entry.get("event")
    if not isinstance(name, str):
        raise ResultsError(f'{where}: no "event": the file was changed after it was written')
    event: dict[str, Any] = {"event": name}
    get = entry.get
    for field, kind, needed in _PLANS.get(name, _OTHER_PLAN):
        value = get(field)
        # The usual cases without a call: most of the time of a long log goes here.
        if type(value) is float:
            if 0.0 <= value < _LARGEST and (kind is _SECONDS or kind is _FIGURE):
                event[field] = value
                continue
        elif type(value) is int and kind is _WHOLE and 0 <= value < 2**63:
            event[field] = value
            continue
        value = _checked(entry, field, kind, needed, where)
        if value is not None:
            event[field] = value
    return event, get(log_chain.KEY)


def _checked(entry: dict[str, Any], field: str, kind: str, needed: bool, where: str) -> Any:
    value = entry.get(field)
    if value is None and not needed:
        return None
    if kind is _TEXT:
        good = isinstance(value, str) and len(value) <= 2_000
    elif isinstance(value, bool) or not isinstance(value, int | float):
        good = kind is _FIGURE and value in _NOT_FINITE
        value = float(value) if good and isinstance(value, str) else value
    elif kind is _WHOLE:
        good = isinstance(value, int) and 0 <= value < 2**63
    else:
        good = abs(value) < _LARGEST and (kind is _FIGURE or value >= 0)
    if not good:
        raise ResultsError(
            f"{where}: `{field}` is {str(value)[:40]!r}, expected {kind}: the file was changed after it was written"
        )
    return value
