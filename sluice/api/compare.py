"""``sluice.compare``: the decision of the promotion gate, from losses alone."""

from collections.abc import Mapping, Sequence
from typing import Any, overload

from sluice.api.cohort import CohortComparison, adjust
from sluice.api.comparison import Comparison
from sluice.base.errors import ContractError
from sluice.evaluation.comparison import compare as decide
from sluice.evaluation.loss_sources import LossSource, losses_of
from sluice.evaluation.settings import GateSettings


@overload
def compare(
    candidate: LossSource,
    baseline: LossSource,
    *,
    settings: GateSettings = ...,
    horizon_rows: int = ...,
    folds: Sequence[int] | None = ...,
    clusters: Sequence[Any] | None = ...,
    unit: str = ...,
) -> Comparison: ...


@overload
def compare(
    candidate: Mapping[str, LossSource],
    baseline: LossSource,
    *,
    settings: GateSettings = ...,
    horizon_rows: int = ...,
    folds: Sequence[int] | None = ...,
    clusters: Sequence[Any] | None = ...,
    unit: str = ...,
) -> CohortComparison: ...


def compare(
    candidate: LossSource | Mapping[str, LossSource],
    baseline: LossSource,
    *,
    settings: GateSettings = GateSettings(),  # noqa: B008 - frozen
    horizon_rows: int = 1,
    folds: Sequence[int] | None = None,
    clusters: Sequence[Any] | None = None,
    unit: str = "loss units",
) -> Comparison | CohortComparison:
    """Decide whether the candidate is better than the baseline, as ``sluice gate`` does.

    >>> import numpy as np, sluice
    >>> rng = np.random.default_rng(0)
    >>> baseline = rng.normal(1.0, 0.1, size=(5, 1000))
    >>> candidate = rng.normal(0.9, 0.1, size=(5, 1000))
    >>> sluice.compare(candidate, baseline, horizon_rows=0).outcome
    'PROMOTE'

    Several candidates are tested together. Holm's method keeps the probability of any false
    promotion among them at most ``settings.alpha``:

    >>> candidates = {"wide": candidate, "deep": rng.normal(1.0, 0.1, size=(5, 1000))}
    >>> sluice.compare(candidates, baseline, horizon_rows=0).promoted
    ('wide',)

    Args:
        candidate: Loss of each test row: an array (seeds, rows) in time order, or (rows,) for a
            model without seeds; or a data frame, Parquet file or CSV file with the columns seed,
            fold, row, loss and optionally cluster. For several candidates, a mapping from the name
            of each candidate to its losses.
        baseline: Losses of the model that the candidate would replace, on the same rows.
        settings: Settings of the promotion gate.
        horizon_rows: Forecast horizon of the target; 0 for independent rows [rows].
        folds: Fold of each row of an array; one fold by default.
        clusters: Cluster of each row of an array, such as the day of several assets; a cluster
            counts as one observation.
        unit: Unit of the losses, for messages.

    Raises:
        ContractError: The losses are of different rows, or not of the described form; ``candidate``
            is an empty mapping; or two candidates have the same losses.
    """
    baseline_losses = losses_of(baseline, what="baseline", fold_N=folds, cluster_N=clusters)

    def compare_with_baseline(losses: LossSource, what: str) -> Comparison:
        candidate_losses = losses_of(losses, what=what, fold_N=folds, cluster_N=clusters)
        return Comparison(
            verdict=decide(
                candidate_losses, baseline_losses, settings, horizon_rows=horizon_rows, unit=unit
            ),
            candidate=candidate_losses,
            baseline=baseline_losses,
            settings=settings,
            horizon_rows=horizon_rows,
        )

    if not isinstance(candidate, Mapping):
        return compare_with_baseline(candidate, "candidate")
    if not candidate:
        raise ContractError(
            "At least one candidate must be compared, got an empty mapping.",
            fix="Pass the losses of each candidate under its name.",
        )
    comparisons = {name: compare_with_baseline(losses, name) for name, losses in candidate.items()}
    return adjust(comparisons, alpha=settings.alpha)
