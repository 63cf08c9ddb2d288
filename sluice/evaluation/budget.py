"""How much of alpha each attempt on one window may spend.

A window that is asked again and again says yes in the end. So the attempts on one window share
one alpha: each spends a part fixed by its number alone, and the parts add up to no more than the
whole, however many there will be. Then the chance of any false promotion on the window is at most
alpha, whatever the attempts have in common.
"""

from collections.abc import Iterable

from scipy.special import zeta

from sluice.base.errors import SettingsError
from sluice.evaluation.settings import GateSettings
from sluice.verdicts.row_sketch import RowSketch

DECAY = 1.6
"""Attempt k spends alpha * k**-DECAY / zeta(DECAY): 44 % for the first, 0.2 % for the thirtieth.

Chosen by power at the effect where one attempt at full alpha has 0.80 (normal approximation):

===============  =============  ===========  ============  ====================
spending         first attempt  seventh      thirtieth     mean of the first 30
===============  =============  ===========  ============  ====================
k**-1.4          0.63           0.28         0.12          0.23
k**-1.6          0.68           0.27         0.11          0.22
k**-2            0.73           0.23         0.07          0.18
1 / (k (k + 1))  0.70           0.26         0.08          0.20
2**-k            0.70           0.19         0.00          0.12
1 / 30           0.33           0.33         0.33          0.33, and none beyond
===============  =============  ===========  ============  ====================

Most windows see few attempts, so equal parts cost too much; 2**-k cannot find anything any more
after a week.
"""


def spent_alpha(alpha: float, attempt: int) -> float:
    """Return the part of ``alpha`` that one attempt on a window may spend [rate].

    >>> round(spent_alpha(0.05, 1), 4), round(spent_alpha(0.05, 30), 6)
    (0.0219, 9.5e-05)

    Args:
        alpha: Chance of any false promotion on the window, over all attempts.
        attempt: 1 for the first question that was asked on the window. A question that was asked
            before is no new attempt: its answer stands.

    Raises:
        SettingsError: ``attempt`` is below 1.
    """
    if attempt < 1:
        raise SettingsError(
            f"Attempts on a window are counted from 1, got {attempt}.",
            fix="Give 1 plus the number of other questions decided on the window.",
        )
    part: float = attempt**-DECAY / float(zeta(DECAY))
    return alpha * part


def count_attempt(rows: RowSketch, earlier: Iterable[RowSketch | None], *, overlap: float) -> int:
    """Return which question on this window a new one is, 1 for the first.

    A window that gained a few rows since is the same window: else a budget would begin anew with
    every day of data, and daily retraining would promote falsely before long.

    Args:
        rows: Of the window that is asked about.
        earlier: Of every decision made before, whatever was compared and decided. None for one
            that does not say which rows it was made on: it counts, as it may have been these.
        overlap: A decision counts when its rows are at least this share of the window's [rate].
    """
    return 1 + sum(other is None or rows.share_in(other) >= overlap for other in earlier)


def for_attempt(settings: GateSettings, attempt: int) -> GateSettings:
    """Return the gate's settings with what this attempt on the window may spend as alpha.

    Raises:
        SettingsError: ``attempt`` is below 1.
    """
    return settings.model_copy(update={"alpha": spent_alpha(settings.alpha, attempt)})
