"""What was found out about a run or a submission, rung by rung, with reasons.

A ladder of trust: each rung asks for more than the one below, and says what it does not prove.

    parsed        the file is strict JSON of the schema
    arithmetic    its figures fit together, and to our catalogue of devices
    log           `run.json` and `metrics.jsonl` agree with the results to the digit, and a hash chain binds them
    re-evaluated  somebody else scored the checkpoint again
    re-run        somebody else trained it again from the same commit

Up to `log` everything can be invented by one who takes care. `statistics` stands beside the ladder: whether so many runs support
the claim if they are what they say, so many invented runs would pass it too, and it lifts nothing above `log`.
"""

import dataclasses
import functools
from typing import Literal

from pydantic import BaseModel, ConfigDict

Rung = Literal["parsed", "arithmetic", "log", "statistics", "re-evaluated", "re-run"]
Severity = Literal["error", "warning", "unchecked", "note"]
Outcome = Literal["passed", "failed", "open"]

LADDER: tuple[Rung, ...] = ("parsed", "arithmetic", "log", "re-evaluated", "re-run")
RUNGS: tuple[Rung, ...] = ("parsed", "arithmetic", "log", "statistics", "re-evaluated", "re-run")
DOES_NOT_PROVE: dict[Rung, str] = {
    "parsed": "that a single figure is true",
    "arithmetic": "that the run took place: figures that fit together can be made up",
    "log": "that the run took place: a whole log that fits can be made up, with its chain",
    "statistics": "that the runs took place, or that no others were left out",
    "re-evaluated": "that the checkpoint was trained as stated, or in the stated time",
    "re-run": "that it takes the stated time, or that other hardware or data would give the same",
}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was found; `corrected` is the value that follows from the rest, where one does.

    Severities: an `error` cannot be true of any run; a `warning` wants an explanation; `unchecked` says what could not be
    computed again, and why; a `note` explains something that is fine. `submission` is about the form: author, texts, dates.
    """

    rung: Rung | Literal["submission"]
    severity: Severity
    field: str
    message: str
    corrected: float | None = None


class RungVerdict(BaseModel):
    """One rung: `open` is what was not checked, or could not be; the findings say why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rung: Rung
    outcome: Outcome
    findings: tuple[Finding, ...] = ()

    @property
    def is_malformed(self) -> bool:
        """Whether something is wrong with the form: it fails no rung, and is to be put right before anybody relies on it."""
        return any(found.rung == "submission" and found.severity == "error" for found in self.findings)

    @property
    def word(self) -> str:
        return "to mend" if self.outcome == "open" and self.is_malformed else self.outcome


@functools.cache
def _unchecked(rung: Rung) -> RungVerdict:
    return RungVerdict(rung=rung, outcome="open")


class Verdict(BaseModel):
    """All rungs of a run or of a submission, and what people said about it since."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rungs: tuple[RungVerdict, ...]
    challenged: str | None = None
    withdrawn: str | None = None

    def __getitem__(self, rung: Rung) -> RungVerdict:
        for found in self.rungs:
            if found.rung == rung:
                return found
        return _unchecked(rung)

    def __copy__(self) -> "Verdict":
        # Without what was worked out from its fields, which `model_copy(update=...)` would keep.
        return Verdict(rungs=self.rungs, challenged=self.challenged, withdrawn=self.withdrawn)

    @functools.cached_property
    def level(self) -> Rung | None:
        """The highest rung of the ladder that was passed with none failed; None where even parsing failed."""
        reached: Rung | None = None
        for rung in LADDER:
            outcome = self[rung].outcome
            if outcome == "failed":
                return reached
            if outcome == "passed":
                reached = rung
        return reached

    @functools.cached_property
    def passed_over(self) -> tuple[Rung, ...]:
        """The rungs below `level` that could not be checked."""
        level = self.level
        below = LADDER[: LADDER.index(level)] if level else ()
        return tuple(rung for rung in below if self[rung].outcome == "open")

    @property
    def sound(self) -> bool:
        """Whether nothing is to be put right: no rung failed, and nothing is wrong with the form."""
        return not any(rung.outcome == "failed" or rung.is_malformed for rung in self.rungs)

    @functools.cached_property
    def counts(self) -> bool:
        """Whether the row may be ranked: no rung of the ladder failed, and it was not withdrawn.

        Too few runs for a claim take nothing from the figures themselves.
        """
        return self.withdrawn is None and not any(
            found.outcome == "failed" and found.rung != "statistics" for found in self.rungs
        )
