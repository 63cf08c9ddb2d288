"""What the promotion gate decided, with the numbers to argue with it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from sluice.base.digests import short
from sluice.base.errors import ContractError, IntegrityError
from sluice.base.pluralize import counted
from sluice.base.receipts import Receipt
from sluice.base.settings import Record
from sluice.verdicts.guard_outcome import GuardOutcome
from sluice.verdicts.metric_change import MetricChange, sentence_of
from sluice.verdicts.row_sketch import RowSketch

Outcome = Literal["PROMOTE", "REJECT", "EQUIVALENT", "INCONCLUSIVE"]


class FoldGain(Record):
    """Mean gain on one fold's test rows."""

    fold_id: int
    gain: float = Field(description="Reference's loss less candidate's [loss units].")
    low: float = Field(description="One-sided lower bound at the gate's alpha [loss units].")
    high: float = Field(description="One-sided upper bound at the gate's alpha [loss units].")
    num_rows: int


class Verdict(Record):
    """Whether the candidate is proven better than the reference on one window.

    A gain is positive when the candidate's loss is lower. Numbers that could not be computed
    are NaN, and then the outcome is INCONCLUSIVE.
    """

    outcome: Outcome
    candidate: str = Field(description="Digest of the model judged.")
    reference: str = Field(description="Digest of what it would replace.")
    window: str = Field(description="Digest of the data and rows both were scored on.")
    unit: str = Field(description="Unit of losses and gains.")
    candidate_loss: float = Field(description="Mean over seeds and rows [unit].")
    reference_loss: float = Field(description="Mean over seeds and rows [unit].")
    gain: float = Field(description="Reference's mean loss less candidate's [unit].")
    standard_error: float = Field(description="Of the gain, over seeds and rows [unit].")
    seed_se: float = Field(description="Its part from the random seeds of both arms [unit].")
    row_se: float = Field(description="Its part from the dependent test rows [unit].")
    degrees_of_freedom: float = Field(description="Satterthwaite's, of the standard error.")
    lower_bound: float = Field(description="One-sided, at alpha [unit].")
    upper_bound: float = Field(description="One-sided, at alpha [unit].")
    required: float = Field(description="The lower bound must exceed this [unit].")
    margin: float = Field(description="Gains within +- this do not matter [unit].")
    p_value: float = Field(description="One-sided, of a true gain no larger than required.")
    alpha: float = Field(description="One-sided rate of false promotions; what was spent here.")
    attempt: int = Field(1, ge=1, description="Which question on this window's rows it is.")
    alpha_of_all: float = Field(
        description="What all attempts on the window may spend together; equal to alpha for a "
        "question that stands alone."
    )
    rows: RowSketch | None = Field(
        description="Of the window, to know it again; None in a verdict from before it was kept."
    )
    effect_size: float = Field(
        description="Cohen's d of paired differences: the gain divided by the standard deviation "
        "over rows of the seed-averaged gain per row."
    )
    num_seeds: int = Field(description="Candidate's seeds.")
    num_reference_seeds: int = Field(description="0 for a rule without seeds.")
    diverged_seeds: tuple[int, ...] = Field(
        description="Candidate's seeds with losses that are not finite."
    )
    diverged_reference_seeds: tuple[int, ...] = Field(
        description="Reference's seeds with losses that are not finite."
    )
    num_rows: int = Field(description="Test rows over all folds.")
    num_clusters: int | None = Field(
        None,
        description="What the rows are in, when they belong together; each then counts as one.",
    )
    block_length: int = Field(description="Rows, or clusters, of a bootstrap block.")
    folds: tuple[FoldGain, ...]
    guards: tuple[GuardOutcome, ...] = Field(
        (), description="What else was asked of it; each must have passed for a PROMOTE."
    )
    lacking: tuple[str, ...] = Field(
        (), description="What keeps the evidence from carrying any decision."
    )
    tables: dict[str, str] = Field(
        default_factory=dict, description="Artifact digests of what was judged, by role."
    )
    worse_metrics: tuple[MetricChange, ...] = Field(
        (), description="Metrics of the workload that are worse than the reference's."
    )
    symptoms: tuple[str, ...] = Field(
        (), description="What the candidate's training curves show to be wrong, with what to run."
    )
    caveats: tuple[str, ...] = Field(
        (), description="What the decision takes for granted and could not check."
    )
    reason: str = Field(description="One sentence for people.")
    remedy: str = Field(description="What to do next.")

    @model_validator(mode="before")
    @classmethod
    def _before_attempts_were_counted(cls, values: Any) -> Any:
        """Read verdicts of ledgers that are older than attempts: they spent all of alpha."""
        if isinstance(values, Mapping) and "alpha" in values and "attempt" not in values:
            return {"rows": None, "alpha_of_all": values["alpha"], **values}
        return values

    @property
    def passed(self) -> bool:
        """True only for PROMOTE: too little evidence does not pass."""
        return self.outcome == "PROMOTE"

    @classmethod
    def of(cls, receipt: Receipt) -> "Verdict":
        """Read the verdict that a promotion receipt holds.

        Raises:
            IntegrityError: It holds something else.
        """
        try:
            return cls.model_validate(receipt.evidence)
        except ValidationError as error:
            raise IntegrityError(
                f"The promotion receipt {receipt.digest[:12]} must hold the numbers it was decided "
                f"on, and {error.error_count()} of its fields are missing or of another kind.",
                cause="It was not written by the promotion gate.",
                fix="Judge the candidate on a newer window.",
            ) from error

    @property
    def evidence_words(self) -> str:
        """How many rows there are and what counts as one observation, for people."""
        if self.num_clusters is None:
            return f"{self.num_rows} in blocks of {self.block_length}"
        return (
            f"{self.num_rows} in {self.num_clusters} clusters, in blocks of {self.block_length} "
            "clusters"
        )

    @property
    def spending(self) -> str:
        """What the decision may spend of alpha, for people."""
        if self.alpha == self.alpha_of_all:
            return f"{self.alpha:.4g}"
        return (
            f"{self.alpha:.2g} of {self.alpha_of_all:g} for all attempts on these rows; this is "
            f"number {self.attempt}"
        )

    def with_guards(self, outcomes: Sequence[GuardOutcome]) -> "Verdict":
        """Return the verdict with its guards, of which any that did not pass ends a PROMOTE.

        A broken guard makes it a REJECT, one without proof INCONCLUSIVE; other outcomes stay.
        """
        guards = tuple(outcomes)
        broken = [guard for guard in guards if guard.result == "fail"]
        unproven = [guard for guard in guards if not guard.passed and guard.result != "fail"]
        if not self.passed or not (broken or unproven):
            return self.model_copy(update={"guards": guards})
        why = " ".join(guard.reason for guard in broken or unproven)
        outcome: Outcome = "REJECT" if broken else "INCONCLUSIVE"
        return self.model_copy(
            update={
                "guards": guards,
                "outcome": outcome,
                "reason": f"{self.reason.rstrip('.')}, but {why[0].lower()}{why[1:]}",
                "remedy": "Keep what is in production. "
                + (
                    "Find out what the better loss was paid for with."
                    if broken
                    else "Hand over the evidence the guard lacks, or more seeds or test rows."
                ),
            }
        )

    def with_symptoms(self, symptoms: Sequence[str]) -> "Verdict":
        """Return the verdict with what went wrong in the trainings.

        Where the candidate is not promoted it stands first: more seeds and rows do not repair a
        training that was not done.
        """
        found = tuple(symptoms)
        if self.passed or not found:
            return self.model_copy(update={"symptoms": found})
        return self.model_copy(
            update={
                "symptoms": found,
                "reason": " ".join([*found, self.reason]),
                "remedy": f"Correct the training first, as above. {self.remedy}",
            }
        )

    def with_worse_metrics(self, changes: Sequence[MetricChange]) -> "Verdict":
        """Return the verdict with the metrics that got worse, which its reason then names."""
        worse = tuple(changes)
        reason = " ".join(part for part in (self.reason, sentence_of(worse)) if part)
        return self.model_copy(update={"worse_metrics": worse, "reason": reason})

    def receipt(self, subject: Mapping[str, str], *, decided_at: datetime) -> Receipt:
        """Return the decision as a receipt of the gate 'promotion'.

        Args:
            subject: Digest by further role (data, config, code). The roles candidate, reference
                and window are the verdict's own.
            decided_at: Now, UTC.

        Raises:
            ContractError: ``subject`` names one of the verdict's own roles differently.
        """
        own = {"candidate": self.candidate, "reference": self.reference, "window": self.window}
        for role, digest in own.items():
            if subject.get(role, digest) != digest:
                raise ContractError(
                    f"The receipt's {role} must be the one judged, {short(digest)}, got "
                    f"{short(subject[role])}.",
                    fix="Judge what is to be promoted, then write its receipt.",
                )
        return Receipt(
            gate="promotion",
            outcome=self.outcome,
            passed=self.passed,
            subject={**subject, **own},
            evidence=self.model_dump(mode="json"),
            reason=self.reason,
            decided_at=decided_at,
        )

    def __str__(self) -> str:
        return (
            f"{self.outcome}: candidate {short(self.candidate)} against {short(self.reference)}, "
            f"gain {self.gain:.4g} {self.unit} in [{self.lower_bound:.4g}, "
            f"{self.upper_bound:.4g}], required > {self.required:.4g}, p {self.p_value:.2g}, "
            f"{counted(self.num_seeds, 'seed')}, {counted(self.num_rows, 'row')}. {self.reason} "
            f"{self.remedy}"
        )
