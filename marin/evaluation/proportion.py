"""How sure a share of right answers is."""

import math

_Z = 1.959963984540054  # the normal distribution's 97.5 % point


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a proportion (Wilson, 1927), which keeps within 0 and 1 and holds for few trials too."""
    if trials == 0:
        return 0.0, 1.0
    share, z2 = successes / trials, _Z * _Z
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials * trials))
    return max(0.0, middle - half), min(1.0, middle + half)
