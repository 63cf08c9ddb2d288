"""Result of ``sluice.compare`` for several candidates: one decision on all of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sluice.api.comparison import Comparison
from sluice.base.pluralize import pluralize
from sluice.evaluation.multiplicity import adjust_cohort, holm
from sluice.reports.notebook import HtmlPage, details, fragment, heading, paragraph, text_table
from sluice.reports.page import html_page
from sluice.verdicts.verdict import Verdict

_COLUMNS = ("candidate", "verdict", "p, Holm", "p", "gain", "low", "high")
"""Columns of the table. A narrow screen, such as a phone's, shows only the first four."""
_TITLE = "Promotion gate, several candidates"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CohortComparison:
    """Verdicts on several candidates, adjusted by Holm's method for the number of candidates."""

    comparisons: Mapping[str, Comparison]
    """Comparison of each candidate with the baseline, by name of the candidate. A verdict that
    would be PROMOTE without the adjustment is INCONCLUSIVE if the adjusted p-value is above
    alpha."""
    adjusted_p_values: Mapping[str, float]
    """One-sided p-value of each candidate, adjusted for the number of candidates."""

    @property
    def promoted(self) -> tuple[str, ...]:
        """Names of the candidates with the verdict PROMOTE, in the order of ``comparisons``."""
        return tuple(name for name, comparison in self.comparisons.items() if comparison.passed)

    @property
    def passed(self) -> bool:
        """Whether at least one candidate has the verdict PROMOTE."""
        return bool(self.promoted)

    def report(self) -> HtmlPage:
        """Return the page with a table of all candidates, and the details of each verdict."""
        return HtmlPage(html_page(_TITLE, self._repr_html_()))

    def __str__(self) -> str:
        return "\n".join(
            f"{name}: {verdict.outcome}, gain {verdict.gain:.4g} {verdict.unit}, "
            f"p {verdict.p_value:.2g}, adjusted p {self.adjusted_p_values[name]:.2g}. "
            f"{verdict.reason}"
            for name, verdict in self._verdicts.items()
        )

    @property
    def _verdicts(self) -> dict[str, Verdict]:
        return {name: comparison.verdict for name, comparison in self.comparisons.items()}

    def _repr_html_(self) -> str:
        verdicts = self._verdicts
        rows = [
            (
                name,
                v.outcome,
                f"{self.adjusted_p_values[name]:.3g}",
                f"{v.p_value:.3g}",
                *(f"{value:.4g}" for value in (v.gain, v.lower_bound, v.upper_bound)),
            )
            for name, v in verdicts.items()
        ]
        outcome = f"{len(self.promoted)} of {len(verdicts)} PROMOTE"
        alpha = next(iter(verdicts.values())).alpha
        return fragment(
            heading(_TITLE, outcome, "good" if self.passed else "unsure"),
            paragraph(
                f"{pluralize(len(verdicts), 'candidate')} against one baseline on the same rows. "
                f"The probability of any false promotion is at most {alpha:g}."
            ),
            text_table(_COLUMNS, rows, numbers=frozenset(range(2, len(_COLUMNS)))),
            *(details(f"{name}: {v.reason}", v._repr_html_()) for name, v in verdicts.items()),
        )


def adjust(comparisons: Mapping[str, Comparison], *, alpha: float) -> CohortComparison:
    """Adjust the verdicts on several candidates by Holm's method.

    Args:
        comparisons: Comparison of each candidate with the same baseline, by name.
        alpha: Maximum probability of any false promotion among the candidates.

    Raises:
        ContractError: Two candidates have the same losses.
    """
    verdicts = [comparison.verdict for comparison in comparisons.values()]
    adjusted_pairs = zip(comparisons.items(), adjust_cohort(verdicts, alpha=alpha), strict=True)
    p_values = holm([verdict.p_value for verdict in verdicts])
    return CohortComparison(
        comparisons=MappingProxyType(
            {
                name: comparison.with_verdict(verdict)
                for (name, comparison), verdict in adjusted_pairs
            }
        ),
        adjusted_p_values=MappingProxyType(dict(zip(comparisons, p_values, strict=True))),
    )
