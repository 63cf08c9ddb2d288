"""Several claims at once: Holm for those acted on, Benjamini-Hochberg for those looked at (STAT-2).

A p-value that could not be computed is NaN; it stays NaN, counts as a member of its family, and
is never a finding.
"""

from collections.abc import Sequence

import numpy as np

from sluice.base.errors import ContractError
from sluice.verdicts.verdict import Verdict


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return the p-values adjusted for their number, in the order given.

    Held at alpha, the chance of any false claim is at most alpha, however the tests depend on
    each other. statsmodels has it too, but collects garbage at every call, 0.2 s in a large
    process.

    >>> holm([0.01, 0.04, 0.03])
    (0.03, 0.06, 0.06)

    Source:
        Holm (1979), Scandinavian Journal of Statistics 6(2).
    """
    order = np.argsort(p_values, kind="stable")
    steps = np.arange(len(order), 0, -1)
    raised = np.minimum(1.0, np.maximum.accumulate(steps * np.asarray(p_values)[order]))
    adjusted = np.empty(len(order))
    adjusted[order] = raised
    return tuple(adjusted.tolist())


def benjamini_hochberg(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return the p-values adjusted for the rate of false findings, in the order given.

    For exploring (ablations), never for a promotion: of the findings at q, a share of q is
    expected to be false.

    >>> benjamini_hochberg([0.01, 0.04, 0.03, 0.9])
    (0.04, 0.0533..., 0.0533..., 0.9)

    Assumes:
        Tests are independent or positively dependent, as ablations on one window are.

    Source:
        Benjamini & Hochberg (1995), J. Royal Statistical Society B 57(1).
    """
    # Imported here: scipy.stats takes a second and Dagster loads every module.
    from scipy.stats import false_discovery_control

    given = np.asarray(p_values, np.float64)
    known = np.where(np.isnan(given), 1.0, given)  # an unknown one counts in the family
    adjusted = np.where(np.isnan(given), np.nan, false_discovery_control(known))
    return tuple(adjusted.tolist())


def hold_cohort(verdicts: Sequence[Verdict], *, alpha: float) -> tuple[Verdict, ...]:
    """Return the verdicts on a cohort's candidates, of which all promotions hold together.

    A promotion stands when its p-value, adjusted by Holm for all candidates of the cohort, is
    still at most ``alpha``; otherwise it becomes INCONCLUSIVE. Nothing else changes.

    Args:
        verdicts: One for each candidate, all on one window.
        alpha: Chance of any false promotion over the whole cohort.

    Raises:
        ContractError: Two verdicts are about one candidate, or they are on several windows.
    """
    windows, candidates = {v.window for v in verdicts}, {v.candidate for v in verdicts}
    if len(windows) > 1 or len(candidates) < len(verdicts):
        raise ContractError(
            f"A cohort is several candidates judged on one window, got {len(verdicts)} verdicts "
            f"on {len(windows)} windows about {len(candidates)} candidates.",
            fix="Judge each candidate once, all on the same window.",
        )
    adjusted = holm([verdict.p_value for verdict in verdicts])
    return tuple(
        _held(verdict, p_value, alpha=alpha, of=len(verdicts))
        for verdict, p_value in zip(verdicts, adjusted, strict=True)
    )


def _held(verdict: Verdict, adjusted_p: float, *, alpha: float, of: int) -> Verdict:
    if not verdict.passed or adjusted_p <= alpha:
        return verdict
    return verdict.model_copy(
        update={
            "outcome": "INCONCLUSIVE",
            "reason": f"Not proven among {of} candidates: p {verdict.p_value:.2g} alone and "
            f"{adjusted_p:.2g} by Holm, required at most {alpha:g}.",
            "remedy": "Keep what is in production. Enter fewer candidates, chosen on validation "
            "rows, or judge this one on a newer window.",
        }
    )
