"""What the verdict makes of a run's validity probes: a failed one is an error, whatever the file itself concludes.

The limits are those of `marin.evaluation.validity`, in its most lenient precision: a file that allows itself more is not believed.
"""

from marin.speedrun.arithmetic import findings as arithmetic
from marin.speedrun.results import RunInfo
from marin.speedrun.verdict import Finding

# The widest limits that the engine sets: nats in bfloat16, bytes, and how far a sum of probabilities may be from 1.
LIMITS = {"normalization": 1e-4, "causality": 1e-2, "one_pass": 1e-2, "byte_count": 0.0, "held_out": 0.25}
_ASKED_COPIED = 0.05  # of the passages of the evaluation set; hello world: 0.016


def check(info: RunInfo) -> list[Finding]:
    """Findings about the field `validity`."""
    validity = info.validity
    if validity is None:
        return [arithmetic.note("validity", "not probed: nothing says that the scores are predictions")]
    found = []
    for name, probe in validity.probes.items():
        field = f"validity.{name}"
        if not probe.passed:
            said = f": {probe.message[:300]}" if probe.message else ""
            found.append(arithmetic.error(field, f"the validity probe `{name}` failed{said}"))
        elif probe.measured is None or probe.limit is None:
            found.append(arithmetic.error(field, f"the validity probe `{name}` states no figure, so it shows nothing"))
        elif probe.limit > LIMITS[name] or not 0 <= probe.measured <= probe.limit:
            message = f"the validity probe `{name}` is said to have passed with {probe.measured:g}, at most {min(probe.limit, LIMITS[name]):g} is allowed"
            found.append(arithmetic.error(field, message))
    copied = validity.held_out.measured if validity.held_out else None
    if copied is not None and _ASKED_COPIED < copied <= LIMITS["held_out"]:
        message = (
            f"{copied:.0%} of the evaluation set's passages stand in the training data too: say how they came there"
        )
        found.append(arithmetic.warning("validity.held_out", message))
    # An engine that states `held_bytes` reads the training data too, unless it is not there.
    if validity.held_out is None and info.evaluation is not None and info.evaluation.held_bytes is not None:
        message = "the training data was not at hand when the run was scored, so the evaluation set may be in it: score it again where the data lies"
        found.append(arithmetic.unchecked("validity.held_out", message))
    if validity.passed == bool(validity.failed):
        found.append(arithmetic.error("validity.passed", "`validity.passed` is not what its probes say"))
    return found
