"""Alpha spending: distributes alpha over repeated attempts on one test window.

An attempt is one decision of the promotion gate. Repeated attempts on the same window eventually
give a false promotion. Therefore all attempts on a window share one alpha: each attempt spends a
share that depends only on its number, and the shares sum to at most 1 for any number of attempts.
The probability of at least one false promotion on the window is then at most alpha, regardless of
the dependence between the attempts.
"""

from collections.abc import Iterable

from scipy.special import zeta

from sluice.base.errors import SettingsError
from sluice.evaluation.settings import GateSettings
from sluice.verdicts.row_sketch import RowSketch

SPENDING_EXPONENT = 1.6
"""Exponent s of the spending function: attempt k spends alpha * k**-s / zeta(s). This is 44 % of
alpha for the first attempt and 0.2 % for the thirtieth.

The table shows the power of an attempt for several spending functions, at the effect that an
attempt with the full alpha detects with power 0.80 (normal approximation):

===============  =============  ===========  ============  ====================
spending         first attempt  seventh      thirtieth     mean of the first 30
===============  =============  ===========  ============  ====================
k**-1.4          0.63           0.28         0.12          0.23
k**-1.6          0.68           0.27         0.11          0.22
k**-2            0.73           0.23         0.07          0.18
1 / (k (k + 1))  0.70           0.26         0.08          0.20
2**-k            0.70           0.19         0.00          0.12
1 / 30           0.33           0.33         0.33          0.33, and 0 beyond
===============  =============  ===========  ============  ====================

Most windows have few attempts, so equal shares (the last line) would waste too much power. With
2**-k, a month of daily attempts leaves almost no power.
"""


def spent_alpha(alpha: float, attempt: int) -> float:
    """Return the part of ``alpha`` that one attempt on a window spends [rate].

    >>> round(spent_alpha(0.05, 1), 4), round(spent_alpha(0.05, 30), 6)
    (0.0219, 9.5e-05)

    Args:
        alpha: Maximum probability of a false promotion on the window, over all attempts.
        attempt: Number of the attempt on the window, from 1. A repeated comparison is not a new
            attempt; its recorded decision is returned.

    Raises:
        SettingsError: ``attempt`` is below 1.
    """
    if attempt < 1:
        raise SettingsError(
            f"The attempt must be at least 1, got {attempt}.",
            fix="Pass 1 plus the number of earlier decisions on the window.",
        )
    share: float = attempt**-SPENDING_EXPONENT / float(zeta(SPENDING_EXPONENT))
    return alpha * share


def count_attempt(
    rows: RowSketch, earlier_rows: Iterable[RowSketch | None], *, overlap: float
) -> int:
    """Return the number of a new attempt on this window, 1 for the first.

    A window with a few additional rows counts as the same window. If each day of data started a new
    alpha budget, daily retraining would soon cause a false promotion.

    Args:
        rows: Sketch of the window's rows.
        earlier_rows: Sketches of the rows of all earlier decisions; None for a decision without a
            sketch. Such a decision is counted, because it may have been made on these rows.
        overlap: Minimum share of the window's rows that an earlier decision must contain to count
            as an attempt on this window [rate].
    """
    return 1 + sum(sketch is None or rows.share_in(sketch) >= overlap for sketch in earlier_rows)


def settings_for_attempt(settings: GateSettings, attempt: int) -> GateSettings:
    """Return the gate's settings with the alpha of this attempt on the window.

    Raises:
        SettingsError: ``attempt`` is below 1.
    """
    return settings.model_copy(update={"alpha": spent_alpha(settings.alpha, attempt)})
