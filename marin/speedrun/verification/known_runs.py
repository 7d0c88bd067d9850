"""Runs that are known already, and whether another is one of them under a new name.

What two runs cannot share: the page of the run, the log, the head of its chain, a training time with all digits. What they
seldom share, and what thus wants an explanation: figures that are another run's rounded, or changed by a little. Seeds of one experiment
do come close to each other: so figures alone hold a run only if it is somebody else's, or on another device, and has no log of its own.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator

from marin.speedrun.arithmetic import core_counts
from marin.speedrun.arithmetic import findings as arithmetic
from marin.speedrun.arithmetic.findings import significant_digits
from marin.speedrun.arithmetic.stated_device import device_block
from marin.speedrun.board.copies import page_of
from marin.speedrun.results import RunInfo
from marin.speedrun.verdict import Finding, Rung
from marin.speedrun.verification.curves import Curves, compare_curves
from marin.speedrun.verification.texts import same_name

_FIGURES = ("training_time", "training_hardware_flops", "model_flops", "c4_en_bpb")
_CLOSE_QUALITY = 2e-3  # relative; seeds of one config differ by about so much
_CLOSE_TIME = 2e-2  # of the time, or of the cost, as by twice the chips in half of the time
_CLOSE_SHAPE = 5e-2  # parameters and tokens: a step more, a larger vocabulary
_ALL_DIGITS = 7  # significant digits from which a time is of one run alone


@dataclasses.dataclass(frozen=True)
class KnownRun:
    """A run that was verified before, and where it stands."""

    source: str
    info: RunInfo
    curves: Curves | None = None


def known_authors(known: Iterable[KnownRun]) -> frozenset[str]:
    return frozenset(run.info.author.name for run in known)


def check_against(info: RunInfo, curves: Curves | None, known: Iterable[KnownRun], *, has_log: bool) -> list[Finding]:
    """What says that the run is one of `known`; each of them is named once, by the strongest sign."""
    known = list(known)
    found: list[Finding] = []
    for other in known:
        sign = next(_signs(info, curves, other, has_log), None)
        if sign is not None:
            found.append(sign)
    return [*found[:8], *_other_documents(info, known)]


def _other_documents(info: RunInfo, known: Iterable[KnownRun]) -> Iterator[Finding]:
    """Whether a set of documents is another one than all known runs have by its name; which of them is right, nobody here knows."""
    block = info.evaluation
    if block is None or block.digest is None:
        return
    evaluations = ((run.source, run.info.evaluation) for run in known)
    digests = {e.digest: source for source, e in evaluations if e is not None and e.name == block.name and e.digest}
    if digests and block.digest not in digests:
        source = min(digests.values())
        message = f"the documents of {block.name[:60]!r} have another digest than in {source}: figures of two texts say nothing about each other"
        yield arithmetic.warning("evaluation.digest", message)


def _signs(info: RunInfo, curves: Curves | None, other: KnownRun, has_log: bool) -> Iterator[Finding]:
    mine, theirs = info.digests, other.info.digests
    same_author = same_name(info.author.name, other.info.author.name)
    for field in ("metrics_log", "log_head"):
        one, two = (mine and getattr(mine, field)), (theirs and getattr(theirs, field))
        if one and one == two:
            yield _error("log", f"digests.{field}", f"the log is that of {other.source}: one run counts once")
    if curves is not None and other.curves is not None:
        yield from compare_curves(curves, other.curves, other.source, same_author=same_author)
    page = page_of(info.wandb_run_link)
    # A page of an author's that is not one run's, as of a project or a report, may show several.
    if page and page == page_of(other.info.wandb_run_link) and not (same_author and "/runs/" not in page):
        yield _error("arithmetic", "wandb_run_link", f"the run's page is that of {other.source}: one run counts once")
    time, their_time = info.training_time, other.info.training_time
    if time and time == their_time and significant_digits(time) >= _ALL_DIGITS:
        device = "" if _device(info) == _device(other.info) else ", with another device"
        yield _error(
            "arithmetic",
            "training_time",
            f"training_time is that of {other.source} to the last digit{device}: no two runs take the same time",
        )
    yield from core_counts.same_scores(info, other.info, other.source)
    rounded = [field for field in _FIGURES if _is_rounding(getattr(info, field), getattr(other.info, field))]
    if "training_time" in rounded and len(rounded) > 1:
        yield _held(f"{' and '.join(rounded)} are those of {other.source}, rounded")
    if not has_log and not (same_author and _device(info) == _device(other.info)):
        yield from _figures_too_close(info, other)


def _figures_too_close(info: RunInfo, other: KnownRun) -> Iterator[Finding]:
    """What two runs of one size seldom share, of which no log says that there were two."""
    theirs = other.info
    if not all(
        _near(one, two, tolerance)
        for one, two, tolerance in (
            (info.model_size, theirs.model_size, _CLOSE_SHAPE),
            (info.total_tokens, theirs.total_tokens, _CLOSE_SHAPE),
            (info.quality, theirs.quality, _CLOSE_QUALITY),
        )
    ):
        return
    if not info.training_time or not theirs.training_time:
        return
    if info.quality == theirs.quality:
        yield _held(
            f"bits per byte are those of {other.source} to the last digit, and no log says that this is another run"
        )
    elif _near(info.training_time, theirs.training_time, _CLOSE_TIME) or _near(
        info.training_hardware_flops, theirs.training_hardware_flops, _CLOSE_TIME
    ):
        by = abs((info.quality or 0.0) - (theirs.quality or 0.0)) / (theirs.quality or 1.0)
        yield _held(
            f"every figure is within {_CLOSE_SHAPE:.0%} of {other.source} (quality within {by:.2%}), and no log says that this is another run"
        )


def _error(rung: Rung, field: str, message: str) -> Finding:
    return Finding(rung, "error", field, message)


def _held(message: str) -> Finding:
    return arithmetic.unchecked("duplicate", f"{message}: hand in the log, or say how it came about")


def _near(one: float | None, other: float | None, tolerance: float) -> bool:
    return bool(one and other) and math.isclose(one or 0.0, other or 0.0, rel_tol=tolerance)


def _device(info: RunInfo) -> tuple[object, ...]:
    resources = info.resources or {}
    variant = device_block(info).get("variant")
    names = (resources.get("accelerator_type"), resources.get("tpu_type"), variant, info.device_name)
    return tuple(str(name) for name in names)


def _is_rounding(value: float | None, known: float | None) -> bool:
    """Whether `value` is `known` with fewer digits, at least three of them."""
    if not value or not known or value == known:
        return False
    digits = significant_digits(value)
    return 3 <= digits < significant_digits(known) - 2 and float(f"{known:.{digits - 1}e}") == value
