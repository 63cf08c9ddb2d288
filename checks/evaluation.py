"""Both arms must stand on the same rows; and what the candidate did on the regression suites."""

from collections.abc import Iterator

import dagster as dg

from sluice.assets.evaluated import Evaluation
from sluice.assets.resources import State
from sluice.base.errors import ContractError
from sluice.checks.outcomes import blocking, result
from sluice.config.pipeline import PipelineSettings

PAIRED = "both_arms_stand_on_the_same_rows"
SUITES = "regression_suites_hold"


def evaluation_checks(pipeline: PipelineSettings) -> dg.AssetChecksDefinition:
    """Build the checks (STAT-2, DATA-5).

    A suite that does not hold is no broken run: it warns here, and the verdict is no PROMOTE.
    """
    asset = [pipeline.name, "evaluation"]

    @dg.multi_asset_check(
        name=f"{pipeline.name}__evaluation_checks",
        specs=[
            blocking(PAIRED, asset, "Candidate and reference were scored on the same rows."),
            dg.AssetCheckSpec(
                SUITES,
                asset=dg.AssetKey(asset),
                description="Every regression suite that is a guard holds. The verdict counts it.",
            ),
        ],
        ins={"evaluation": dg.AssetIn(key=asset)},
    )
    def evaluation_checks(
        sluice_state: dg.ResourceParam[State], evaluation: Evaluation
    ) -> Iterator[dg.AssetCheckResult]:
        evidence = evaluation.evidence(sluice_state.store)
        candidate, reference = evidence.candidate, evidence.reference
        try:
            reference.aligned_to(candidate)
        except ContractError as error:
            yield result(PAIRED, asset, passed=False, seen=str(error))
        else:
            yield result(
                PAIRED,
                asset,
                passed=True,
                seen=f"Both arms have the same {candidate.num_rows} test rows; "
                f"{max(1, len(candidate.seeds))} against {max(1, len(reference.seeds))} loss sets.",
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
