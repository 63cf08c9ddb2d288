"""The decision on a candidate. One question, one answer: it is recorded and stands."""

import os
from collections.abc import Mapping, Sequence

import dagster as dg

from sluice.assets.config_schema import NO_CONFIG
from sluice.assets.evaluated import Evaluation
from sluice.assets.metadata import table
from sluice.assets.resources import RECORDS, State, utc_now
from sluice.assets.traced import traced
from sluice.assets.verdict_metadata import guard_table, verdict_pictures
from sluice.base.artifacts import ArtifactStore
from sluice.base.receipts import Receipt
from sluice.base.settings import Record
from sluice.config.pipeline import PipelineSettings
from sluice.evaluation.companions import Companions, CompanionSettings, accompany
from sluice.evaluation.gate_page import gate_page
from sluice.evaluation.judgement import judge
from sluice.evaluation.mcnemar import McNemarReport, mcnemar
from sluice.metrics.directions import direction_of
from sluice.reports.folder import save_page
from sluice.training.code import identify_code
from sluice.verdicts.verdict import Verdict
from sluice.workloads.workload import Workload


class Decision(Record):
    """A verdict and the receipt it is recorded under."""

    verdict: Verdict
    receipt: Receipt


def promotion_verdict_asset(pipeline: PipelineSettings) -> dg.AssetsDefinition:
    """Build the asset for one pipeline."""

    @dg.asset(
        key=[pipeline.name, "promotion_verdict"],
        ins={"evaluation": dg.AssetIn(key=[pipeline.name, "evaluation"])},
        io_manager_key=RECORDS,
        config_schema=NO_CONFIG,
        group_name=f"{pipeline.name}_promotion",
        kinds={"python"},
        owners=list(pipeline.owners),
        description="Whether the candidate is better than what is in production (or, when nothing "
        "is, than the baseline) by more than seed noise and dependent rows explain, and holds "
        "every guard. The bound decides, never the mean; every further question on the same rows "
        "may spend less of alpha. Asked again, it answers the same (STAT-1..3).",
    )
    @traced
    def promotion_verdict(
        context: dg.AssetExecutionContext,
        sluice_state: dg.ResourceParam[State],
        evaluation: Evaluation,
    ) -> dg.MaterializeResult[Decision]:
        workload = pipeline.loaded_workload
        evidence = evaluation.evidence(sluice_state.store)
        suites = evaluation.suite_report(sluice_state.store)
        caveats = tuple(
            said
            for said in (identify_code(workload, pipeline.model).gap, _headline_gap(workload))
            if said
        )

        def answer(earlier: Sequence[Receipt]) -> Receipt:
            verdict = judge(
                evidence,
                pipeline.gate,
                pipeline.guards,
                suite_guards=suites.guard_outcomes,
                earlier=[Verdict.of(receipt) for receipt in earlier],
                directions=workload.metric_directions,
                horizon_rows=workload.horizon_rows,
                unit=workload.loss_unit,
            ).model_copy(update={"tables": evaluation.tables, "caveats": caveats})
            return verdict.with_symptoms(evaluation.symptoms).receipt(
                evaluation.subject | {"rules": pipeline.promotion_rules}, decided_at=utc_now()
            )

        question = {
            "candidate": evidence.candidate.subject,
            "reference": evidence.reference.subject,
            "window": evaluation.window,
        }
        with sluice_state.ledger() as ledger:
            receipt = ledger.decide(pipeline.name, question, answer)
        verdict = Verdict.of(receipt)
        if receipt.subject.get("rules") != pipeline.promotion_rules:
            context.log.warning(
                "This was decided under other settings of gate, guards or suites than now. The "
                "answer stands, and promotes nothing any more: judge on a newer window."
            )
        context.log.info(f"{verdict.outcome}: {verdict.reason}")
        companions = accompany(
            verdict,
            evidence.candidate,
            evidence.reference,
            CompanionSettings(),
            horizon_rows=workload.horizon_rows,
        )
        page = save_page(
            gate_page(
                verdict,
                companions,
                evidence.candidate,
                evidence.reference,
                title=f"{pipeline.name} against {evaluation.reference_name}",
                advised_power=pipeline.gate.advised_power,
            ),
            f"gate/{pipeline.name}",
            home=sluice_state.home,
            environ=os.environ,
        )
        return dg.MaterializeResult(
            value=Decision(verdict=verdict, receipt=receipt),
            metadata={
                **({"training": " ".join(verdict.symptoms)} if verdict.symptoms else {}),
                "verdict": verdict.outcome,
                "why": verdict.reason,
                "what next": verdict.remedy,
                **(
                    {"worse": "; ".join(map(str, worse))}
                    if (worse := verdict.worse_metrics)
                    else {}
                ),
                **({"not checked": " ".join(verdict.caveats)} if verdict.caveats else {}),
                "compared with": evaluation.reference_name,
                "decided at": receipt.decided_at.isoformat(timespec="seconds"),
                "alpha": verdict.spending,
                "guards": guard_table(verdict),
                **verdict_pictures(verdict, evidence, advised_power=pipeline.gate.advised_power),
                **_numbers(verdict, companions),
                **_classes(
                    evaluation, sluice_state.store, verdict, horizon_rows=workload.horizon_rows
                ),
                "folds": table([fold.model_dump() for fold in verdict.folds]),
                "whole report": dg.MetadataValue.url(page.url),
            },
        )

    return promotion_verdict


def _headline_gap(workload: Workload) -> str:
    """Say that nobody knows whether the headline metric got worse; "" where it is known."""
    name = workload.headline_metric
    if direction_of(name, workload.metric_directions) is not None:
        return ""
    return (
        f"Whether the headline metric '{name}' got worse is not known: add "
        f"{{'{name}': 'higher'}} or 'lower' to the workload's metric_directions."
    )


def _numbers(verdict: Verdict, companions: Companions) -> Mapping[str, float | dg.MetadataValue]:
    unit = verdict.unit
    beside = {
        "two-way bootstrap": f"{companions.percentile_low:.4g} to {companions.percentile_high:.4g}",
        "sign flips, p": f"{companions.sign_flip_p:.3g}",
        "Diebold-Mariano, p": f"{companions.diebold_mariano_p:.3g}",
        "probability of improvement": f"{companions.improvement:.3g} "
        f"({companions.improvement_low:.3g} to {companions.improvement_high:.3g})",
        "Cohen's d over seeds": f"{companions.seed_effect_size:.3g}",
    }
    return {
        f"gain [{unit}]": verdict.gain,
        f"lower bound [{unit}]": verdict.lower_bound,
        f"upper bound [{unit}]": verdict.upper_bound,
        "effect size": verdict.effect_size,
        "other tests, not deciding": table(
            [{"test": name, "says": value} for name, value in beside.items()]
        ),
    }


def _classes(
    evaluation: Evaluation, store: ArtifactStore, verdict: Verdict, *, horizon_rows: int
) -> dict[str, dg.MetadataValue | str]:
    """Return McNemar's tests of a classifier on independent rows; nothing elsewhere."""
    mistakes = evaluation.mistakes(store)
    if mistakes is None or horizon_rows > 0 or verdict.num_clusters is not None:
        return {}
    found: McNemarReport = mcnemar(*mistakes, alpha=verdict.alpha_of_all)
    rows = [
        {
            "seed": test.seed,
            "only the candidate is wrong": test.only_candidate_wrong,
            "only the reference is wrong": test.only_reference_wrong,
            "p": test.p_value,
            "p by Holm": test.adjusted_p,
        }
        for test in found.tests
    ]
    return {"McNemar": str(found), "McNemar by seed": table(rows)}
