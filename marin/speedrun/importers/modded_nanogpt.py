"""modded-nanogpt's logs: one text file a run, which holds the whole program, the machine, and the times and losses of its steps.

    <source of the program>
    ====================
    Running Python 3.12 ... / Running PyTorch 2.10 compiled for CUDA 12.6 / the output of nvidia-smi
    ====================
    step:0/1770 val_loss:10.8258 train_time:0ms step_avg:0.03ms
    step:1/1770 train_time:57ms step_avg:57.00ms
    ...
    step:1770/1770 val_loss:3.2787 train_time:79532ms step_avg:57.22ms

The source is never run; its digest says which logs are runs of one program, which makes them one entry. A log without its last
step, with a clock that runs backwards or with a loss that is no number is unreadable, with the line.
"""

import dataclasses
import datetime
import hashlib
import json
import math
import os
import pathlib
import re
from collections.abc import Iterator

from marin.errors import ResultsError
from marin.speedrun import strict_json
from marin.speedrun.board.rows import Row, Unreadable, rows_of
from marin.speedrun.results import Author, Evaluation, RunInfo
from marin.speedrun.tracks import FINEWEB_VALIDATION, FINEWEB_VALIDATION_TOKENS

MAX_BYTES = 32 * 2**20
ENDINGS = (".txt", ".log")
_WARMING_STEPS = 32  # early programs set the clock back to zero after their first ten steps
_RULE = re.compile(r"^={20,}\s*$")
_STEP = re.compile(
    r"^(?:s|step):(\d{1,9})/(\d{1,9})(?:\s+(?:tl:\S+|train_loss:\S+))?(?:\s+val_loss:(\S+))?\s+train_time:(\d{1,12})ms\s+step_avg:(\S+)"
)
_GPU = re.compile(r"^\|\s+\d+\s+(?:NVIDIA |Tesla )?([A-Z][A-Za-z]*\d+[A-Za-z]*)\b")


@dataclasses.dataclass(frozen=True)
class Log:
    """What a log says; `validations` are (step, loss, seconds)."""

    source_digest: str
    versions: str
    gpus: tuple[str, ...]
    steps: int
    validations: tuple[tuple[int, float, float], ...]
    peak_memory_mib: int | None


class _BadLog(ValueError):
    """A log that is not what a whole run writes."""


def read_modded_logs(path: str | os.PathLike[str]) -> Iterator[Row | Unreadable]:
    """Rows of a log, or of every log below a directory; no link is followed.

    Raises:
        ResultsError: if there is no such file or directory.
    """
    root = pathlib.Path(path)
    if root.is_dir():
        for parent, names, files in os.walk(root):
            names.sort()
            for name in sorted(files):
                place = pathlib.Path(parent, name)
                if name.endswith(ENDINGS) and not place.is_symlink():
                    yield _read_log(place, place.relative_to(root).as_posix(), root.resolve().name)
    elif root.exists():
        yield _read_log(root, root.name, root.resolve().parent.name)
    else:
        raise ResultsError(f"{root}: no such file or directory: give a log of modded-nanogpt, or a directory of them")


def _read_log(path: pathlib.Path, source: str, parent: str) -> Row | Unreadable:
    try:
        content = strict_json.read_limited(str(path), MAX_BYTES)
        if len(content) > MAX_BYTES:
            raise _BadLog(f"over {MAX_BYTES // 2**20} MiB, which no log has")
        log = parse_log(content)
    except (_BadLog, ResultsError) as error:
        return Unreadable(source, str(error).removeprefix(f"{path}: "))
    folder = pathlib.PurePosixPath(source).parent.as_posix()
    group = parent if folder == "." else f"{parent}/{folder}"
    return _row(log, f"{group}/{path.stem}", source, hashlib.sha256(content).hexdigest(), _date_of(group))


def parse_log(content: bytes) -> Log:
    """What a log says.

    Raises:
        ValueError: if it is not the log of a whole run; the message says in which line.
    """
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise _BadLog(f"byte {error.start} is not UTF-8: expected a log of modded-nanogpt, unedited") from None
    rules = [number for number, line in enumerate(lines) if _RULE.match(line)]
    first = next((number for number, line in enumerate(lines) if _STEP.match(line)), None)
    if first is None or len(rules) < 2:
        raise _BadLog(
            "not a log of modded-nanogpt: expected the program, `====`, the machine, `====`, and lines `step:...`"
        )
    before = [number for number in rules if number < first]
    if len(before) < 2:
        raise _BadLog(
            "the program and the machine are not in the log: expected them before the steps, between lines of `====`"
        )
    program, machine = lines[: before[-2]], lines[before[-2] + 1 : before[-1]]
    while program and _RULE.match(program[0]):
        program = program[1:]
    if not any(line.strip() for line in program):
        raise _BadLog("the program is not in the log: expected its source before the first `====`")
    steps, validations = _read_steps(lines, before[-1] + 1)
    memory = next(
        (
            match
            for line in reversed(lines)
            if (match := re.match(r"peak memory (?:allocated|consumption): (\d{1,9}) MiB", line))
        ),
        None,
    )
    return Log(
        source_digest=hashlib.sha256("\n".join(program).encode()).hexdigest(),
        versions="; ".join(line.strip()[:200] for line in machine if line.startswith("Running "))[:600],
        gpus=tuple(match[1] for line in machine if (match := _GPU.match(line))),
        steps=steps,
        validations=validations,
        peak_memory_mib=None if memory is None else int(memory[1]),
    )


def _read_steps(lines: list[str], start: int) -> tuple[int, tuple[tuple[int, float, float], ...]]:
    last_step, last_time, total = -1, 0, 0
    validations = []
    for number in range(start, len(lines)):
        match = _STEP.match(lines[number])
        if match is None:
            continue
        step, of, clock = int(match[1]), int(match[2]), int(match[4])
        where = f"line {number + 1}"
        if total and of != total:
            raise _BadLog(f"{where}: the run has {of} steps, earlier lines say {total}: two logs in one file?")
        total = of
        if step not in (last_step, last_step + 1):
            raise _BadLog(f"{where}: step {step} follows step {last_step}: lines are missing or were moved")
        if clock < last_time and step > _WARMING_STEPS:
            raise _BadLog(f"{where}: the clock runs backwards, from {last_time} to {clock} ms")
        last_step, last_time = step, clock
        if match[3] is not None:
            validations.append((step, _loss(match[3], where), clock / 1000))
    if last_step != total or not validations or validations[-1][0] != total:
        raise _BadLog(
            f"the log ends at step {last_step} of {total} without a last val_loss: the run did not end, or the file was cut"
        )
    return total, tuple(validations)


def _loss(text: str, where: str) -> float:
    try:
        value = float(text) if re.fullmatch(r"\d{1,4}\.\d{1,12}", text) else math.nan
    except ValueError:
        value = math.nan
    if not value > 0:
        raise _BadLog(f"{where}: val_loss is {text[:20]!r}, expected a positive number")
    return value


def _row(log: Log, name: str, source: str, digest: str, date: str | None) -> Row:
    _, loss, seconds = log.validations[-1]
    same = len(set(log.gpus)) == 1
    info = RunInfo(
        schema_version=None,
        author=Author(name="not stated", affiliation="modded-nanogpt"),
        description=f"{log.steps} steps; {log.versions or 'versions not stated'}",
        tokenized_dataset="FineWeb",
        device_name=log.gpus[0] if same else None,
        platform="gpu",
        num_chips=len(log.gpus) or None,
        num_train_steps=log.steps,
        training_time=seconds,
        evaluation=Evaluation(name=FINEWEB_VALIDATION, loss=loss, tokens=FINEWEB_VALIDATION_TOKENS),
        peak_memory_bytes=None if log.peak_memory_mib is None else log.peak_memory_mib * 2**20,
    )
    (row,) = rows_of(info, name[-200:], source, listed=True)
    configuration = hashlib.sha256(f"{log.source_digest} {sorted(log.gpus)}".encode()).hexdigest()
    curve = [{"step": step, "val_loss": value, "train_time": clock} for step, value, clock in log.validations]
    return dataclasses.replace(
        row,
        digest=digest,
        date=date,
        configuration=configuration,
        repeated=True,
        details_json=json.dumps(info.to_json() | {"source_digest": log.source_digest, "validations": curve}),
    )


def _date_of(text: str) -> str | None:
    """The day in a directory's name, such as `2025-01-16_Sub3Min` or `101024_Muon`."""
    plain = re.search(r"(?<!\d)(20\d\d)-(\d\d)-(\d\d)(?!\d)", text)
    short = re.search(r"(?<!\d)(\d\d)(\d\d)(\d\d)(?=_)", text)
    try:
        if plain:
            return datetime.date(int(plain[1]), int(plain[2]), int(plain[3])).isoformat()
        if short:
            return datetime.date(2000 + int(short[3]), int(short[1]), int(short[2])).isoformat()
    except ValueError:
        pass
    return None
