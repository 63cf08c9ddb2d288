"""P-value adjustments: Holm for decisions, Benjamini-Hochberg for exploration.

A p-value that cannot be computed is NaN. It remains NaN, counts as a test of its family, and is
never significant.
"""

from collections.abc import Sequence

import numpy as np

from sluice.base.errors import ContractError
from sluice.verdicts.verdict import Verdict


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return the p-values adjusted by Holm's method, in the given order.

    Compared with alpha, they control the family-wise error rate under any dependence of the tests.
    statsmodels has this function as well, but runs a garbage collection in every call, which takes
    0.2 s in a large process.

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
    """Return the p-values adjusted for the false discovery rate, in the given order.

    Use it for exploration (ablations) only, not for a promotion: at q, a share of q of the
    findings is expected to be false.

    >>> benjamini_hochberg([0.01, 0.04, 0.03, 0.9])
    (0.04, 0.0533..., 0.0533..., 0.9)

    Assumes:
        Tests are independent or positively dependent, as ablations on one window are.

    Source:
        Benjamini & Hochberg (1995), J. Royal Statistical Society B 57(1).
    """
    # Imported here: scipy.stats takes a second and Dagster loads every module.
    from scipy.stats import false_discovery_control

    raw = np.asarray(p_values, np.float64)
    known = np.where(np.isnan(raw), 1.0, raw)  # an unknown p-value counts as a test
    adjusted = np.where(np.isnan(raw), np.nan, false_discovery_control(known))
    return tuple(adjusted.tolist())


def adjust_cohort(verdicts: Sequence[Verdict], *, alpha: float) -> tuple[Verdict, ...]:
    """Return the verdicts on a cohort of candidates, adjusted for their number.

    A PROMOTE remains if its p-value, adjusted by Holm for all candidates of the cohort, is at most
    ``alpha``; otherwise it becomes INCONCLUSIVE. Other verdicts do not change.

    Args:
        verdicts: One verdict for each candidate, all on the same window.
        alpha: Probability of any false promotion in the cohort.

    Raises:
        ContractError: Two verdicts have the same candidate, or the windows differ.
    """
    windows, candidates = {v.window for v in verdicts}, {v.candidate for v in verdicts}
    if len(windows) > 1 or len(candidates) < len(verdicts):
        raise ContractError(
            f"A cohort must have one verdict per candidate on the same window, got "
            f"{len(verdicts)} verdicts on {len(windows)} windows for {len(candidates)} candidates.",
            fix="Evaluate each candidate once, all on the same window.",
        )
    adjusted = holm([verdict.p_value for verdict in verdicts])
    return tuple(
        _adjusted(verdict, p_value, alpha=alpha, of=len(verdicts))
        for verdict, p_value in zip(verdicts, adjusted, strict=True)
    )


def _adjusted(verdict: Verdict, adjusted_p: float, *, alpha: float, of: int) -> Verdict:
    if not verdict.passed or adjusted_p <= alpha:
        return verdict
    return verdict.model_copy(
        update={
            "outcome": "INCONCLUSIVE",
            "reason": f"Not significant among {of} candidates: p {verdict.p_value:.2g}, adjusted p "
            f"{adjusted_p:.2g} (Holm), required at most {alpha:g}.",
            "remedy": "Keep the version in production. Compare fewer candidates, selected on "
            "validation rows, or evaluate this one on a newer window.",
        }
    )
