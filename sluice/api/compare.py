"""``sluice.compare``: the promotion gate on losses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sluice.base.extras import naming_extras
from sluice.evaluation.comparison import compare as decide
from sluice.evaluation.loss_sources import LossSource, losses_of
from sluice.evaluation.losses import LossTable
from sluice.evaluation.settings import GateSettings
from sluice.reports.notebook import HtmlPage
from sluice.verdicts.verdict import Outcome, Verdict


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """Verdict of the promotion gate, and the losses that were compared."""

    verdict: Verdict
    candidate: LossTable
    baseline: LossTable
    settings: GateSettings
    horizon_rows: int

    @property
    def outcome(self) -> Outcome:
        """PROMOTE, REJECT, EQUIVALENT or INCONCLUSIVE."""
        return self.verdict.outcome

    @property
    def passed(self) -> bool:
        """True only for PROMOTE; insufficient evidence does not pass."""
        return self.verdict.passed

    def report(self) -> HtmlPage:
        """Return the page with figures and secondary tests, as ``sluice gate --html`` writes it.

        Raises:
            SettingsError: The extra 'reports' is not installed.
        """
        with naming_extras("The report of a comparison"):
            from sluice.evaluation.gate_page import gate_page_of

            return HtmlPage(
                gate_page_of(
                    self.verdict,
                    self.candidate,
                    self.baseline,
                    self.settings,
                    title=f"{self.candidate.display_name} against {self.baseline.display_name}",
                    horizon_rows=self.horizon_rows,
                )
            )

    def __str__(self) -> str:
        return str(self.verdict)

    def _repr_html_(self) -> str:
        return self.verdict._repr_html_()


def compare(
    candidate: LossSource,
    baseline: LossSource,
    *,
    settings: GateSettings = GateSettings(),  # noqa: B008 - frozen
    horizon_rows: int = 1,
    folds: Sequence[int] | None = None,
    clusters: Sequence[Any] | None = None,
    unit: str = "loss units",
) -> Comparison:
    """Decide whether the candidate is better than the baseline, as ``sluice gate`` does.

    >>> import numpy as np, sluice
    >>> noise = np.random.default_rng(0)
    >>> baseline = noise.normal(1.0, 0.1, size=(5, 1000))
    >>> candidate = noise.normal(0.9, 0.1, size=(5, 1000))
    >>> sluice.compare(candidate, baseline, horizon_rows=0).outcome
    'PROMOTE'

    Args:
        candidate: Loss of each test row: an array (seeds, rows), or (rows,) for a model without
            seeds; a data frame or a Parquet or CSV file with the columns seed, fold, row, loss and
            optionally cluster. The rows of an array are in time order.
        baseline: Losses of the model that the candidate would replace, on the same rows.
        settings: Settings of the gate.
        horizon_rows: Forecast horizon of the target; 0 for independent rows [rows].
        folds: Fold of each row of an array; one fold by default.
        clusters: Cluster of each row of an array, such as the day of several assets; a cluster
            counts as one observation.
        unit: Unit of the losses, for messages.

    Raises:
        ContractError: The losses are of different rows, or not of the described form.
    """
    ours = losses_of(candidate, what="candidate", fold_N=folds, cluster_N=clusters)
    theirs = losses_of(baseline, what="baseline", fold_N=folds, cluster_N=clusters)
    return Comparison(
        verdict=decide(ours, theirs, settings, horizon_rows=horizon_rows, unit=unit),
        candidate=ours,
        baseline=theirs,
        settings=settings,
        horizon_rows=horizon_rows,
    )
