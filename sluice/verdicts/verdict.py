"""Verdict of the promotion gate, with all numbers on which it is based."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from sluice.base.digests import short
from sluice.base.errors import ContractError, IntegrityError
from sluice.base.format_number import format_number
from sluice.base.format_range import format_range
from sluice.base.pluralize import pluralize
from sluice.base.receipts import Receipt
from sluice.base.settings import Record
from sluice.reports.notebook import details, fragment, heading, paragraph, text_table
from sluice.reports.page import Tone
from sluice.verdicts.guard_outcome import GuardOutcome
from sluice.verdicts.metric_change import MetricDeterioration, describe_deteriorations
from sluice.verdicts.row_sketch import RowSketch

Outcome = Literal["PROMOTE", "REJECT", "EQUIVALENT", "INCONCLUSIVE"]

_TONES: dict[Outcome, Tone] = {
    "PROMOTE": "good",
    "REJECT": "bad",
    "EQUIVALENT": "plain",
    "INCONCLUSIVE": "unsure",
}


class FoldGain(Record):
    """Mean gain on the test rows of one fold."""

    fold_id: int
    gain: float = Field(
        description="Loss of the reference minus loss of the candidate [loss units]."
    )
    low: float = Field(
        description="One-sided lower bound of the gain at the gate's alpha [loss units]."
    )
    high: float = Field(
        description="One-sided upper bound of the gain at the gate's alpha [loss units]."
    )
    num_rows: int


class Verdict(Record):
    """Result of the comparison of candidate and reference on one test window.

    A gain is positive if the candidate's loss is lower. Numbers that cannot be computed are NaN,
    and the outcome is then INCONCLUSIVE.
    """

    outcome: Outcome
    candidate: str = Field(description="Digest of the candidate.")
    reference: str = Field(
        description="Digest of the model or rule that the candidate would replace."
    )
    window: str = Field(description="Digest of the data and rows on which both arms were scored.")
    unit: str = Field(description="Unit of losses and gains.")
    candidate_loss: float = Field(
        description="Mean loss of the candidate over seeds and rows [unit]."
    )
    reference_loss: float = Field(
        description="Mean loss of the reference over seeds and rows [unit]."
    )
    gain: float = Field(
        description="Mean loss of the reference minus mean loss of the candidate [unit]."
    )
    standard_error: float = Field(description="Standard error of the gain [unit].")
    seed_se: float = Field(
        description="Standard error of the gain due to the seeds of both arms [unit]."
    )
    row_se: float = Field(description="Standard error of the gain due to the test rows [unit].")
    degrees_of_freedom: float = Field(
        description="Satterthwaite's degrees of freedom of the standard error."
    )
    lower_bound: float = Field(description="One-sided lower bound of the gain at alpha [unit].")
    upper_bound: float = Field(description="One-sided upper bound of the gain at alpha [unit].")
    required: float = Field(
        description="Gain that the lower bound must exceed for a promotion [unit]."
    )
    margin: float = Field(
        description="Equivalence margin: a gain between -margin and margin is irrelevant [unit]."
    )
    p_value: float = Field(
        description="One-sided p-value of the hypothesis that the true gain is at most "
        "``required``."
    )
    alpha: float = Field(description="One-sided false promotion rate spent on this attempt.")
    attempt: int = Field(1, ge=1, description="Number of this attempt on the window's rows.")
    alpha_of_all: float = Field(
        description="Total alpha of all attempts on the window; equal to ``alpha`` if there is "
        "only one attempt."
    )
    rows: RowSketch | None = Field(
        description="Sketch of the window's rows; None in verdicts older than row sketches."
    )
    effect_size: float = Field(
        description="Cohen's d of paired differences: the gain divided by the standard deviation "
        "of the seed-averaged gains of the rows."
    )
    num_seeds: int = Field(description="Number of seeds of the candidate.")
    num_reference_seeds: int = Field(
        description="Number of seeds of the reference; 0 for a rule without seeds."
    )
    diverged_seeds: tuple[int, ...] = Field(
        description="Seeds of the candidate with non-finite losses."
    )
    diverged_reference_seeds: tuple[int, ...] = Field(
        description="Seeds of the reference with non-finite losses."
    )
    num_rows: int = Field(description="Number of test rows over all folds.")
    num_clusters: int | None = Field(
        None,
        description="Number of clusters; each counts as one observation. None without clusters.",
    )
    block_length: int = Field(
        description="Length of a block of dependent rows [rows, or clusters for clustered rows]."
    )
    folds: tuple[FoldGain, ...]
    guards: tuple[GuardOutcome, ...] = Field(
        (), description="Outcomes of the guards; a PROMOTE requires that all pass."
    )
    lacking: tuple[str, ...] = Field(
        (), description="Missing evidence without which no decision is possible."
    )
    tables: dict[str, str] = Field(
        default_factory=dict, description="Artifact digests of the compared tables, by role."
    )
    worse_metrics: tuple[MetricDeterioration, ...] = Field(
        (), description="Metrics that are worse for the candidate than for the reference."
    )
    symptoms: tuple[str, ...] = Field(
        (), description="Problems in the candidate's training curves, with a command to run."
    )
    caveats: tuple[str, ...] = Field(
        (), description="Assumptions of the decision that were not checked."
    )
    reason: str = Field(description="Reason of the outcome, in one or more sentences.")
    remedy: str = Field(description="Recommended next step.")

    @model_validator(mode="before")
    @classmethod
    def _accept_old_verdicts(cls, values: Any) -> Any:
        """Accept old verdicts without an attempt count; each of them spent the whole alpha."""
        if isinstance(values, Mapping) and "alpha" in values and "attempt" not in values:
            return {"rows": None, "alpha_of_all": values["alpha"], **values}
        return values

    @property
    def passed(self) -> bool:
        """True only for PROMOTE; insufficient evidence does not pass."""
        return self.outcome == "PROMOTE"

    @classmethod
    def of(cls, receipt: Receipt) -> "Verdict":
        """Return the verdict that is stored in a promotion receipt.

        Raises:
            IntegrityError: The receipt does not contain a valid verdict.
        """
        try:
            return cls.model_validate(receipt.evidence)
        except ValidationError as error:
            num_fields = error.error_count()
            verb = "is" if num_fields == 1 else "are"
            raise IntegrityError(
                f"The promotion receipt {receipt.digest[:12]} must contain a verdict, but "
                f"{pluralize(num_fields, 'field')} of the verdict {verb} missing or "
                "invalid.",
                cause="The receipt was not written by the promotion gate.",
                fix="Evaluate the candidate on a newer window.",
            ) from error

    @property
    def rows_summary(self) -> str:
        """Number of rows and clusters, and length of a block, as text."""
        if self.num_clusters is None:
            return f"{self.num_rows} in blocks of {self.block_length}"
        return (
            f"{self.num_rows} in {pluralize(self.num_clusters, 'cluster')}, in blocks of "
            f"{pluralize(self.block_length, 'cluster')}"
        )

    @property
    def alpha_summary(self) -> str:
        """Alpha of this attempt and of all attempts, as text."""
        if self.alpha == self.alpha_of_all:
            return f"{self.alpha:.4g}"
        return (
            f"{self.alpha:.2g} of {self.alpha_of_all:g} for all attempts on these rows; this is "
            f"attempt {self.attempt}"
        )

    def with_guards(self, outcomes: Sequence[GuardOutcome]) -> "Verdict":
        """Return the verdict with these guards; a guard that does not pass prevents a PROMOTE.

        A failed guard changes PROMOTE to REJECT, and an insufficient guard changes PROMOTE to
        INCONCLUSIVE. Other outcomes do not change.
        """
        guards = tuple(outcomes)
        failed_guards = [guard for guard in guards if guard.result == "fail"]
        insufficient_guards = [
            guard for guard in guards if not guard.passed and guard.result != "fail"
        ]
        if not self.passed or not (failed_guards or insufficient_guards):
            return self.model_copy(update={"guards": guards})
        guard_reason = " ".join(guard.reason for guard in failed_guards or insufficient_guards)
        continuation = guard_reason[0].lower() + guard_reason[1:]
        outcome: Outcome = "REJECT" if failed_guards else "INCONCLUSIVE"
        return self.model_copy(
            update={
                "guards": guards,
                "outcome": outcome,
                "reason": f"{self.reason.rstrip('.')}, but {continuation}",
                "remedy": "Leave production unchanged. "
                + (
                    "Find out which property of the candidate got worse."
                    if failed_guards
                    else "Provide the missing evidence of the guard, or more seeds or test rows."
                ),
            }
        )

    def with_symptoms(self, symptoms: Sequence[str]) -> "Verdict":
        """Return the verdict with the problems of the candidate's trainings.

        If the candidate is not promoted, the reason begins with these problems, because more seeds
        and rows do not help until the training is corrected.
        """
        problems = tuple(symptoms)
        if self.passed or not problems:
            return self.model_copy(update={"symptoms": problems})
        return self.model_copy(
            update={
                "symptoms": problems,
                "reason": " ".join([*problems, self.reason]),
                "remedy": f"Correct the training first, as described above. {self.remedy}",
            }
        )

    def with_worse_metrics(self, worse_metrics: Sequence[MetricDeterioration]) -> "Verdict":
        """Return the verdict with the worse metrics, which are also appended to the reason."""
        description = describe_deteriorations(tuple(worse_metrics))
        reason = " ".join(part for part in (self.reason, description) if part)
        return self.model_copy(update={"worse_metrics": tuple(worse_metrics), "reason": reason})

    def receipt(self, subject: Mapping[str, str], *, decided_at: datetime) -> Receipt:
        """Return the decision as a receipt of the gate 'promotion'.

        Args:
            subject: Digests by role (data, config, code). The roles candidate, reference and
                window are taken from the verdict.
            decided_at: Current time, UTC.

        Raises:
            ContractError: ``subject`` has another digest for one of the verdict's roles.
        """
        roles = {"candidate": self.candidate, "reference": self.reference, "window": self.window}
        for role, digest in roles.items():
            if subject.get(role, digest) != digest:
                raise ContractError(
                    f"The {role} of the receipt must be the {role} of the verdict, "
                    f"{short(digest)}, got {short(subject[role])}.",
                    fix="Evaluate the candidate that you want to promote, then write its receipt.",
                )
        return Receipt(
            gate="promotion",
            outcome=self.outcome,
            passed=self.passed,
            subject={**subject, **roles},
            evidence=self.model_dump(mode="json"),
            reason=self.reason,
            decided_at=decided_at,
        )

    def _repr_html_(self) -> str:
        return fragment(
            heading("Promotion gate", self.outcome, _TONES[self.outcome]),
            paragraph(self.reason),
            paragraph(self.remedy, soft=True),
            *(paragraph(caveat, soft=True) for caveat in self.caveats),
            text_table(("", ""), _number_rows(self)),
            text_table(
                ("guard", "result", "reason"),
                [(guard.name, guard.result, guard.reason) for guard in self.guards],
            ),
            details("Gain by fold", _folds_table(self)),
        )

    def __str__(self) -> str:
        return (
            f"{self.outcome}: candidate {short(self.candidate)} against {short(self.reference)}, "
            f"gain {self.gain:.4g} {self.unit} in [{self.lower_bound:.4g}, "
            f"{self.upper_bound:.4g}], required > {self.required:.4g}, p {self.p_value:.2g}, "
            f"{pluralize(self.num_seeds, 'seed')}, {pluralize(self.num_rows, 'row')}. "
            f"{self.reason} {self.remedy}"
        )


def _number_rows(verdict: Verdict) -> list[tuple[str, str]]:
    bounds = format_range(format_number(verdict.lower_bound), format_number(verdict.upper_bound))
    return [
        (
            f"gain [{verdict.unit}]",
            f"{format_number(verdict.gain)}, required above {format_number(verdict.required)}",
        ),
        (
            "bounds",
            f"{bounds}, each one-sided at alpha {verdict.alpha:.3g}; a PROMOTE requires a lower "
            "bound above the required gain",
        ),
        (
            "mean loss",
            f"{format_number(verdict.candidate_loss)} candidate, "
            f"{format_number(verdict.reference_loss)} reference",
        ),
        ("p-value", f"{format_number(verdict.p_value)}, one-sided"),
        (
            "seeds",
            f"{verdict.num_seeds or 'none'} candidate, "
            f"{verdict.num_reference_seeds or 'none'} reference",
        ),
        ("test rows", verdict.rows_summary),
    ]


def _folds_table(verdict: Verdict) -> str:
    return text_table(
        ("fold", "gain", "lower bound", "upper bound", "rows"),
        [
            (
                str(fold.fold_id),
                *(format_number(value) for value in (fold.gain, fold.low, fold.high)),
                str(fold.num_rows),
            )
            for fold in verdict.folds
        ],
        numbers=frozenset({1, 2, 3, 4}),
    )
