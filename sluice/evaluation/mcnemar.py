"""McNemar's test of two classifiers on the same rows, seed by seed (STAT-2).

Shown beside the gate, never deciding: it speaks of the very networks that were trained, and leaves
out that the recipe would give others with other seeds.

Shape legend: S = seeds, N = test rows.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sluice.base.errors import ContractError
from sluice.base.settings import Record
from sluice.evaluation.losses import LossTable
from sluice.evaluation.multiplicity import holm

MOST_EXACT = 1_000
"""Discordant rows up to which the exact distribution is used; beyond, chi-square is as good."""

Method = Literal["exact", "chi-square"]


class SeedTest(Record):
    """One network of the candidate against one classifier of the reference."""

    seed: int
    reference_seed: int | None = Field(description="None for a rule without seeds.")
    only_candidate_wrong: int = Field(description="Rows that only the candidate gets wrong.")
    only_reference_wrong: int = Field(description="Rows that only the reference gets wrong.")
    method: Method
    p_value: float = Field(description="Two-sided, of both being wrong equally often.")
    adjusted_p: float = Field(description="Holm's, over all seeds.")


class McNemarReport(Record):
    """Every seed's test; ``better`` and ``worse`` hold together at ``alpha``."""

    candidate: str
    reference: str
    num_rows: int
    alpha: float
    tests: tuple[SeedTest, ...]

    @property
    def better(self) -> int:
        """Networks of the candidate proven wrong less often than what they were paired with."""
        return sum(
            t.adjusted_p <= self.alpha and t.only_candidate_wrong < t.only_reference_wrong
            for t in self.tests
        )

    @property
    def worse(self) -> int:
        """Networks of the candidate proven wrong more often."""
        return sum(
            t.adjusted_p <= self.alpha and t.only_candidate_wrong > t.only_reference_wrong
            for t in self.tests
        )

    def __str__(self) -> str:
        smallest = min(t.adjusted_p for t in self.tests)
        return (
            f"McNemar on {self.num_rows} rows: of {len(self.tests)} networks {self.better} are "
            f"wrong less often than the reference and {self.worse} more often, at "
            f"{self.alpha:g} for all together (Holm); smallest adjusted p {smallest:.2g}."
        )


def mcnemar(candidate: LossTable, reference: LossTable, *, alpha: float) -> McNemarReport:
    """Test for each seed whether candidate and reference are wrong equally often.

    How seeds are combined: each network is tested on its own and Holm's correction holds the
    chance of any false claim at ``alpha``, however the tests depend on each other. A majority vote
    of the seeds would be a test of the vote, a classifier that nobody deploys and that hides how
    much the seeds differ; and 0/1 losses do not even say what a vote would answer, as seeds may be
    wrong in different ways. Pooling seeds x rows would count each row S times.

    A reference with seeds is paired in the order of the seeds, again from its first when it has
    fewer: a pairing fixed beforehand, as good as any other, because seeds of two recipes have
    nothing in common.

    The test is exact (binomial) up to 1,000 discordant rows, then chi-square with continuity
    correction; both two-sided.

    Args:
        candidate: 0/1 losses: 1 where the network is wrong.
        reference: The same on the same rows, in any order.
        alpha: Chance of any false claim over all seeds.

    Raises:
        ContractError: The arms were scored on different windows or rows, or a loss is not 0 or 1.

    Assumes:
        Rows are independent. Rows in time order need the gate's blocks instead.

    Source:
        McNemar (1947), Psychometrika 12(2); Holm (1979), Scandinavian Journal of Statistics 6(2).
    """
    reference = reference.aligned_to(candidate)
    wrong_SN = _mistakes(candidate, "candidate")
    other_SN = _mistakes(reference, "reference")
    seeds = candidate.seeds or (0,)
    found = []
    for at, wrong_N in enumerate(wrong_SN):
        other_N = other_SN[at % len(other_SN)]
        only_ours, only_theirs = int((wrong_N & ~other_N).sum()), int((other_N & ~wrong_N).sum())
        found.append((only_ours, only_theirs, *_p_value(only_ours, only_theirs)))
    adjusted = holm([p for *_, p in found])
    return McNemarReport(
        candidate=candidate.subject,
        reference=reference.subject,
        num_rows=candidate.num_rows,
        alpha=alpha,
        tests=tuple(
            SeedTest(
                seed=seeds[at],
                reference_seed=reference.seeds[at % len(other_SN)] if reference.seeds else None,
                only_candidate_wrong=only_ours,
                only_reference_wrong=only_theirs,
                method=method,
                p_value=p_value,
                adjusted_p=adjusted[at],
            )
            for at, (only_ours, only_theirs, method, p_value) in enumerate(found)
        ),
    )


def _mistakes(table: LossTable, name: str) -> NDArray[np.bool_]:
    loss_SN = table.loss_SN
    bad_SN = ~((loss_SN == 0) | (loss_SN == 1))
    if bad_SN.any():
        seed, row = np.unravel_index(int(bad_SN.argmax()), bad_SN.shape)
        raise ContractError(
            f"McNemar's test needs losses of 0 and 1, got {int(bad_SN.sum())} others in the "
            f"{name}, first {loss_SN[seed, row]:g} at row {table.label_N[row]}.",
            cause="These are losses of another kind, or a model that diverged.",
            fix="Give 1 where the predicted class is wrong and 0 where it is right.",
        )
    return np.asarray(loss_SN == 1)


def _p_value(only_ours: int, only_theirs: int) -> tuple[Method, float]:
    # Imported here: statsmodels takes two seconds and Dagster loads every module.
    from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar

    if only_ours + only_theirs == 0:
        return "exact", 1.0  # wrong on exactly the same rows
    exact = only_ours + only_theirs <= MOST_EXACT
    table = [[0, only_ours], [only_theirs, 0]]  # rows both get right or wrong say nothing
    tested = statsmodels_mcnemar(table, exact=exact, correction=True)
    return ("exact" if exact else "chi-square"), min(1.0, float(tested.pvalue))
