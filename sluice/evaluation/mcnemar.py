"""McNemar's test of two classifiers on the same rows, for each seed.

This secondary test does not affect the decision, because it ignores the variance over seeds: it
compares the trained networks themselves.

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

MAX_EXACT_ROWS = 1_000
"""Maximum number of discordant rows for the exact test. A row is discordant if exactly one arm
predicts a wrong class. For more rows, the chi-square test gives practically the same result."""

Method = Literal["exact", "chi-square"]


class SeedTest(Record):
    """Test of one network of the candidate against one classifier of the reference."""

    seed: int
    reference_seed: int | None = Field(
        description="Seed of the reference; None for a rule without seeds."
    )
    only_candidate_wrong: int = Field(
        description="Number of rows that only the candidate gets wrong."
    )
    only_reference_wrong: int = Field(
        description="Number of rows that only the reference gets wrong."
    )
    method: Method
    p_value: float = Field(
        description="Two-sided p-value of the hypothesis that both error rates are equal."
    )
    adjusted_p: float = Field(description="P-value adjusted by Holm over all seeds.")


class McNemarReport(Record):
    """Tests of all seeds, one for each network of the candidate.

    Each network is compared with one classifier of the reference. ``num_better`` and ``num_worse``
    control the family-wise error rate at ``alpha``.
    """

    candidate: str
    reference: str
    num_rows: int
    alpha: float
    tests: tuple[SeedTest, ...]

    @property
    def num_better(self) -> int:
        """Number of candidate networks with a significantly lower error rate."""
        return sum(
            test.adjusted_p <= self.alpha and test.only_candidate_wrong < test.only_reference_wrong
            for test in self.tests
        )

    @property
    def num_worse(self) -> int:
        """Number of candidate networks with a significantly higher error rate."""
        return sum(
            test.adjusted_p <= self.alpha and test.only_candidate_wrong > test.only_reference_wrong
            for test in self.tests
        )

    def __str__(self) -> str:
        smallest_p = min(test.adjusted_p for test in self.tests)
        return (
            f"McNemar's test on {self.num_rows} rows: of {len(self.tests)} networks, "
            f"{self.num_better} have a significantly lower error rate than the reference and "
            f"{self.num_worse} a higher one (family-wise alpha {self.alpha:g}, Holm); "
            f"smallest adjusted p {smallest_p:.2g}."
        )


def mcnemar(candidate: LossTable, reference: LossTable, *, alpha: float) -> McNemarReport:
    """Test for each seed whether candidate and reference have the same error rate.

    Each network is tested separately, and Holm's correction controls the family-wise error rate at
    ``alpha`` under any dependence of the tests. A majority vote of the seeds is not tested: it is
    another classifier, which is not deployed and hides the differences between seeds. Pooling
    seeds x rows would count each row S times.

    The seeds of both arms are paired in their order. If the reference has fewer seeds than the
    candidate, its seeds are reused cyclically. A reference without seeds is compared with every
    network. Any fixed pairing is equally valid, because equal seeds of two trainings have nothing
    in common.

    The test is two-sided. It is exact (binomial) up to ``MAX_EXACT_ROWS`` discordant rows; for more
    rows, it is a chi-square test with continuity correction.

    Args:
        candidate: 0/1 losses of the candidate: 1 where the network is wrong.
        reference: 0/1 losses of the reference on the same rows, in any order.
        alpha: Family-wise error rate over all seeds.

    Raises:
        ContractError: The arms were scored on different windows or rows, or a loss is not 0 or 1.

    Assumes:
        Rows are independent. Dependent rows need the block-based test of the gate.

    Source:
        McNemar (1947), Psychometrika 12(2); Holm (1979), Scandinavian Journal of Statistics 6(2).
    """
    reference = reference.aligned_to(candidate)
    candidate_SN = _require_mistakes(candidate, "candidate")
    reference_SN = _require_mistakes(reference, "reference")
    seeds = candidate.seeds or (0,)
    results = []
    for index, candidate_N in enumerate(candidate_SN):
        reference_N = reference_SN[index % len(reference_SN)]
        only_candidate_wrong = int((candidate_N & ~reference_N).sum())
        only_reference_wrong = int((reference_N & ~candidate_N).sum())
        method, p_value = _p_value(only_candidate_wrong, only_reference_wrong)
        results.append((only_candidate_wrong, only_reference_wrong, method, p_value))
    adjusted_p_values = holm([p_value for *_, p_value in results])
    return McNemarReport(
        candidate=candidate.subject,
        reference=reference.subject,
        num_rows=candidate.num_rows,
        alpha=alpha,
        tests=tuple(
            SeedTest(
                seed=seeds[index],
                reference_seed=reference.seeds[index % len(reference_SN)]
                if reference.seeds
                else None,
                only_candidate_wrong=only_candidate_wrong,
                only_reference_wrong=only_reference_wrong,
                method=method,
                p_value=p_value,
                adjusted_p=adjusted_p_values[index],
            )
            for index, (only_candidate_wrong, only_reference_wrong, method, p_value) in enumerate(
                results
            )
        ),
    )


def _require_mistakes(table: LossTable, name: str) -> NDArray[np.bool_]:
    loss_SN = table.loss_SN
    is_invalid_SN = ~((loss_SN == 0) | (loss_SN == 1))
    if is_invalid_SN.any():
        seed_index, row = np.unravel_index(int(is_invalid_SN.argmax()), is_invalid_SN.shape)
        raise ContractError(
            f"McNemar's test needs losses of 0 and 1, got {int(is_invalid_SN.sum())} other values "
            f"in the losses of the {name}, first {loss_SN[seed_index, row]:g} at row "
            f"{table.label_N[row]}.",
            cause="The table contains other losses, or the model diverged.",
            fix="Use 1 where the predicted class is wrong and 0 where it is right.",
        )
    return np.asarray(loss_SN == 1)


def _p_value(only_candidate_wrong: int, only_reference_wrong: int) -> tuple[Method, float]:
    # Imported here, because statsmodels takes two seconds and Dagster loads every module.
    from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar

    if only_candidate_wrong + only_reference_wrong == 0:
        return "exact", 1.0  # both are wrong on exactly the same rows
    is_exact = only_candidate_wrong + only_reference_wrong <= MAX_EXACT_ROWS
    table = [
        [0, only_candidate_wrong],
        [only_reference_wrong, 0],
    ]  # concordant rows do not affect the test
    result = statsmodels_mcnemar(table, exact=is_exact, correction=True)
    return ("exact" if is_exact else "chi-square"), min(1.0, float(result.pvalue))
