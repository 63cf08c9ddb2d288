"""Adjusts p-values for multiple tests: Holm for decisions, Benjamini-Hochberg for exploration.

A p-value that cannot be computed is NaN. Its adjusted value is NaN too, so it is never significant,
but it counts as one of the tests.
"""

from collections.abc import Sequence

import numpy as np

from sluice.base.errors import ContractError
from sluice.base.pluralize import pluralize
from sluice.verdicts.verdict import Verdict


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return the p-values adjusted by Holm's method, in the given order.

    Rejecting the hypotheses whose adjusted p-value is at most alpha controls the family-wise error
    rate at alpha, under any dependence of the tests. The function of statsmodels is not used,
    because it runs a garbage collection in every call, which takes 0.2 s in a large process.

    >>> holm([0.01, 0.04, 0.03])
    (0.03, 0.06, 0.06)

    Source:
        Holm (1979), Scandinavian Journal of Statistics 6(2).
    """
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(order), 0, -1)
    ascending_p_values = np.minimum(
        1.0, np.maximum.accumulate(factors * np.asarray(p_values)[order])
    )
    adjusted_p_values = np.empty(len(order))
    adjusted_p_values[order] = ascending_p_values
    return tuple(adjusted_p_values.tolist())


def benjamini_hochberg(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return the p-values adjusted for the false discovery rate, in the given order.

    Use this function for exploration (ablations) only, not for a promotion: of the results with an
    adjusted p-value of at most q, up to a share q is expected to be false.

    >>> benjamini_hochberg([0.01, 0.04, 0.03, 0.9])
    (0.04, 0.0533..., 0.0533..., 0.9)

    Assumes:
        Tests are independent or positively dependent, as ablations on one window are.

    Source:
        Benjamini & Hochberg (1995), J. Royal Statistical Society B 57(1).
    """
    # Imported here, because scipy.stats takes a second and Dagster loads every module.
    from scipy.stats import false_discovery_control

    values = np.asarray(p_values, np.float64)
    without_nan = np.where(np.isnan(values), 1.0, values)  # an unknown p-value counts as a test
    adjusted_p_values = np.where(np.isnan(values), np.nan, false_discovery_control(without_nan))
    return tuple(adjusted_p_values.tolist())


def adjust_cohort(verdicts: Sequence[Verdict], *, alpha: float) -> tuple[Verdict, ...]:
    """Return the verdicts on a cohort of candidates, adjusted for their number.

    A PROMOTE remains if its p-value, adjusted by Holm for all candidates of the cohort, is at most
    ``alpha``; otherwise it becomes INCONCLUSIVE. Other verdicts do not change.

    Args:
        verdicts: One verdict for each candidate, all on the same window.
        alpha: Maximum probability of a false promotion in the cohort.

    Raises:
        ContractError: Two verdicts have the same candidate, or the windows differ.
    """
    windows, candidates = {v.window for v in verdicts}, {v.candidate for v in verdicts}
    if len(windows) > 1 or len(candidates) < len(verdicts):
        raise ContractError(
            "A cohort must have one verdict per candidate on the same window, got "
            f"{pluralize(len(verdicts), 'verdict')} on {pluralize(len(windows), 'window')} for "
            f"{pluralize(len(candidates), 'candidate')}.",
            fix="Evaluate each candidate once, all on the same window.",
        )
    adjusted_p_values = holm([verdict.p_value for verdict in verdicts])
    return tuple(
        _adjust(verdict, p_value, alpha=alpha, cohort_size=len(verdicts))
        for verdict, p_value in zip(verdicts, adjusted_p_values, strict=True)
    )


def _adjust(verdict: Verdict, adjusted_p: float, *, alpha: float, cohort_size: int) -> Verdict:
    """Return the verdict, as INCONCLUSIVE if its PROMOTE is not significant in the cohort."""
    if not verdict.passed or adjusted_p <= alpha:
        return verdict
    return verdict.model_copy(
        update={
            "outcome": "INCONCLUSIVE",
            "reason": f"Not significant among {cohort_size} candidates: p {verdict.p_value:.2g}, "
            f"adjusted p {adjusted_p:.2g} (Holm), required at most {alpha:g}.",
            "remedy": "Leave production unchanged. Compare fewer candidates, selected on "
            "validation rows, or evaluate this one on a newer window.",
        }
    )
