"""Checks of the evaluation: both arms share their test rows, and the regression suites pass."""

from collections.abc import Iterator

import dagster as dg

from sluice.assets.evaluation_record import Evaluation
from sluice.assets.resources import SluiceState
from sluice.base.errors import ContractError
from sluice.checks.outcomes import blocking_result, blocking_spec, failing_with_messages

SAME_ROWS = "both_arms_are_scored_on_the_same_rows"
SUITES = "regression_suites_pass"


def evaluation_checks(pipeline: str) -> dg.AssetChecksDefinition:
    """Build the checks of ``evaluation``.

    A failed suite does not stop the run: this check warns, and the verdict is not PROMOTE.
    """
    asset = [pipeline, "evaluation"]

    @dg.multi_asset_check(
        name=f"{pipeline}__evaluation_checks",
        specs=[
            blocking_spec(
                SAME_ROWS, asset, "Candidate and reference were scored on the same rows."
            ),
            dg.AssetCheckSpec(
                SUITES,
                asset=dg.AssetKey(asset),
                description="The candidate passes every regression suite with a guard. A failed "
                "suite prevents the verdict PROMOTE.",
            ),
        ],
        ins={"evaluation": dg.AssetIn(key=asset)},
    )
    @failing_with_messages
    def evaluation_checks(
        sluice_state: dg.ResourceParam[SluiceState], evaluation: Evaluation
    ) -> Iterator[dg.AssetCheckResult]:
        evidence = evaluation.evidence(sluice_state.store)
        candidate, reference = evidence.candidate, evidence.reference
        try:
            reference.aligned_to(candidate)
        except ContractError as error:
            yield blocking_result(SAME_ROWS, asset, passed=False, message=str(error))
        else:
            yield blocking_result(
                SAME_ROWS,
                asset,
                passed=True,
                message=f"Both arms are scored on the same {candidate.num_rows:,} test rows. "
                f"Seeds: candidate {len(candidate.seeds) or 'none'}, reference "
                f"{len(reference.seeds) or 'none'}.",
                metadata={"rows": candidate.num_rows},
            )
        report = evaluation.suite_report(sluice_state.store)
        yield dg.AssetCheckResult(
            asset_key=dg.AssetKey(asset),
            check_name=SUITES,
            passed=report.passed,
            severity=dg.AssetCheckSeverity.WARN,
            description=report.reason,
            metadata={"suites": len(report.results), "guards": len(report.guards)},
        )

    return evaluation_checks
