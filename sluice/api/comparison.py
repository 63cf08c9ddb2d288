"""Result of ``sluice.compare`` for one candidate."""

from dataclasses import dataclass, replace

from sluice.base.extras import naming_extras
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
        """Whether the verdict is PROMOTE."""
        return self.verdict.passed

    def with_verdict(self, verdict: Verdict) -> "Comparison":
        """Return the comparison with another verdict on the same losses."""
        return replace(self, verdict=verdict)

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
