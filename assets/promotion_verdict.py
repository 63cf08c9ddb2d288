"""Asset ``promotion_verdict``: decision of the promotion gate, made once and recorded."""

import os
from collections.abc import Mapping, Sequence

import dagster as dg

from sluice.assets.config_schema import NO_CONFIG
from sluice.assets.evaluation_record import Evaluation
from sluice.assets.metadata import REUSED, table
from sluice.assets.resources import RECORDS, SluiceState, utc_now
from sluice.assets.spans import spanned
from sluice.assets.verdict_metadata import guard_table, verdict_pictures
from sluice.base.artifacts import ArtifactStore
from sluice.base.receipts import Receipt
from sluice.base.settings import Record
from sluice.evaluation.gate_page import gate_page
from sluice.evaluation.guard_settings import GuardSettings
from sluice.evaluation.mcnemar import McNemarReport, mcnemar
from sluice.evaluation.promotion_decision import decide_promotion
from sluice.evaluation.secondary_tests import (
    SecondaryTests,
    SecondaryTestSettings,
    run_secondary_tests,
)
from sluice.evaluation.settings import GateSettings
from sluice.metrics.directions import direction_of
from sluice.models.settings import ModelSettings
from sluice.registry.approval_settings import ApprovalSettings
from sluice.reports.folder import save_page
from sluice.training.code import identify_code
from sluice.verdicts.verdict import Verdict
from sluice.workloads.workload import Workload


class PromotionDecision(Record):
    """Verdict of the promotion gate with the receipt that records it."""

    verdict: Verdict
    receipt: Receipt


def promotion_verdict_asset(
    pipeline: str,
    workload: Workload,
    model: ModelSettings,
    *,
    gate: GateSettings,
    guards: GuardSettings,
    gate_settings_digest: str,
    approval_settings: ApprovalSettings,
) -> dg.AssetsDefinition:
    """Build the asset for one pipeline.

    Args:
        pipeline: Name of the pipeline.
        workload: Workload of the pipeline.
        model: Settings of the model.
        gate: Settings of the promotion gate.
        guards: Settings of the guards.
        gate_settings_digest: Digest of the settings of gate, guards and suites.
        approval_settings: Approval that a promotion requires; the receipt records it.
    """

    @dg.asset(
        key=[pipeline, "promotion_verdict"],
        ins={"evaluation": dg.AssetIn(key=[pipeline, "evaluation"])},
        io_manager_key=RECORDS,
        config_schema=NO_CONFIG,
        group_name=pipeline,
        kinds={"python"},
        description="Decision on the candidate: PROMOTE if it is significantly better than the "
        "version in production (or than the baseline, before the first promotion) and passes all "
        "guards. The test accounts for seed variance and for dependent rows. The confidence bound "
        "of the gain decides, not its mean. Repeated attempts on the same rows share one alpha. "
        "The decision is recorded: the same comparison always returns the same verdict.",
    )
    @spanned
    def promotion_verdict(
        context: dg.AssetExecutionContext,
        sluice_state: dg.ResourceParam[SluiceState],
        evaluation: Evaluation,
    ) -> dg.MaterializeResult[PromotionDecision]:
        evidence = evaluation.evidence(sluice_state.store)
        suite_report = evaluation.suite_report(sluice_state.store)
        caveats = tuple(
            caveat
            for caveat in (
                identify_code(workload, model).coverage_warning,
                _headline_caveat(workload),
            )
            if caveat
        )

        was_recorded = True  # ``make_decision`` is called only if no verdict is recorded

        def make_decision(earlier_receipts: Sequence[Receipt]) -> Receipt:
            nonlocal was_recorded
            was_recorded = False
            verdict = decide_promotion(
                evidence,
                gate,
                guards,
                suite_guards=suite_report.guard_outcomes,
                earlier_verdicts=[Verdict.of(receipt) for receipt in earlier_receipts],
                directions=workload.metric_directions,
                horizon_rows=workload.horizon_rows,
                unit=workload.loss_unit,
            ).model_copy(update={"tables": evaluation.tables, "caveats": caveats})
            return verdict.with_symptoms(evaluation.symptoms).receipt(
                {
                    **evaluation.subject,
                    "rules": gate_settings_digest,
                    **approval_settings.subject_entry,
                },
                decided_at=utc_now(),
            )

        decision_subject = {
            "candidate": evidence.candidate.subject,
            "reference": evidence.reference.subject,
            "window": evaluation.window,
        }
        with sluice_state.ledger() as ledger:
            receipt = ledger.decide(pipeline, decision_subject, make_decision)
        verdict = Verdict.of(receipt)
        if receipt.subject.get("rules") != gate_settings_digest:
            context.log.warning(
                "This decision was made with other settings of gate, guards or suites. It remains "
                "recorded but does not allow a promotion. Evaluate the candidate on newer rows."
            )
        context.log.info(f"{verdict.outcome}: {verdict.reason}")
        secondary_tests = run_secondary_tests(
            verdict,
            evidence.candidate,
            evidence.reference,
            SecondaryTestSettings(),
            horizon_rows=workload.horizon_rows,
        )
        page = save_page(
            gate_page(
                verdict,
                secondary_tests,
                evidence.candidate,
                evidence.reference,
                title=f"{pipeline} against {evaluation.reference_name}",
                advised_power=gate.advised_power,
                row_descriptions=evaluation.worst_rows,
            ),
            f"gate/{pipeline}",
            home=sluice_state.home,
            environ=os.environ,
        )
        return dg.MaterializeResult(
            value=PromotionDecision(verdict=verdict, receipt=receipt),
            metadata={
                **({"training": " ".join(verdict.symptoms)} if verdict.symptoms else {}),
                "verdict": verdict.outcome,
                **({REUSED: "the recorded verdict"} if was_recorded else {}),
                "reason": verdict.reason,
                "next step": verdict.remedy,
                **(
                    {"worse metrics": "; ".join(map(str, worse))}
                    if (worse := verdict.worse_metrics)
                    else {}
                ),
                **({"caveats": " ".join(verdict.caveats)} if verdict.caveats else {}),
                "compared with": evaluation.reference_name,
                "decided at": receipt.decided_at.isoformat(timespec="seconds"),
                "alpha": verdict.alpha_summary,
                "guards": guard_table(verdict),
                **verdict_pictures(verdict, evidence, advised_power=gate.advised_power),
                **_number_metadata(verdict, secondary_tests),
                **_mcnemar_metadata(
                    evaluation, sluice_state.store, verdict, horizon_rows=workload.horizon_rows
                ),
                "folds": table([fold.model_dump() for fold in verdict.folds]),
                "full report": dg.MetadataValue.url(page.url),
            },
        )

    return promotion_verdict


def _headline_caveat(workload: Workload) -> str:
    """Return a caveat if the direction of the headline metric is unknown; "" otherwise."""
    name = workload.headline_metric
    if direction_of(name, workload.metric_directions) is not None:
        return ""
    return (
        f"The headline metric '{name}' was not compared, because it is unknown whether higher or "
        f"lower is better. Add {{'{name}': 'higher'}} or 'lower' to the workload's "
        "metric_directions."
    )


def _number_metadata(
    verdict: Verdict, secondary_tests: SecondaryTests
) -> Mapping[str, float | dg.MetadataValue]:
    unit = verdict.unit
    results = {
        "two-way bootstrap interval": f"{secondary_tests.percentile_low:.4g} to "
        f"{secondary_tests.percentile_high:.4g}",
        "sign-flip test, p": f"{secondary_tests.sign_flip_p:.3g}",
        "Diebold-Mariano, p": f"{secondary_tests.diebold_mariano_p:.3g}",
        "probability of improvement": f"{secondary_tests.improvement:.3g} "
        f"({secondary_tests.improvement_low:.3g} to {secondary_tests.improvement_high:.3g})",
        "Cohen's d over seeds": f"{secondary_tests.seed_effect_size:.3g}",
    }
    return {
        f"gain [{unit}]": verdict.gain,
        f"lower bound [{unit}]": verdict.lower_bound,
        f"upper bound [{unit}]": verdict.upper_bound,
        "effect size": verdict.effect_size,
        "secondary tests (not decisive)": table(
            [{"test": name, "result": value} for name, value in results.items()]
        ),
    }


def _mcnemar_metadata(
    evaluation: Evaluation, store: ArtifactStore, verdict: Verdict, *, horizon_rows: int
) -> dict[str, dg.MetadataValue | str]:
    """Return McNemar's tests for a classifier on independent rows; empty for other workloads."""
    mistakes = evaluation.mistakes(store)
    if mistakes is None or horizon_rows > 0 or verdict.num_clusters is not None:
        return {}
    report: McNemarReport = mcnemar(*mistakes, alpha=verdict.alpha_of_all)
    rows = [
        {
            "seed": test.seed,
            "only candidate wrong": test.only_candidate_wrong,
            "only reference wrong": test.only_reference_wrong,
            "p": test.p_value,
            "adjusted p (Holm)": test.adjusted_p,
        }
        for test in report.tests
    ]
    return {"McNemar": str(report), "McNemar by seed": table(rows)}
