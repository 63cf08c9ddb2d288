"""The statistical gate's decision. One question, one answer: it is recorded and stands."""

import dagster as dg

from assets.evaluation import Evaluation, evaluated_losses
from assets.metadata import picture, table
from assets.resources import State, utc_now
from sluice.evaluation.comparison import compare
from sluice.evaluation.plots import fold_gains_png
from sluice.evaluation.verdict import Verdict
from sluice.pipeline import PipelineSettings
from sluice.receipts import Receipt
from sluice.settings import Record


class Decision(Record):
    """A verdict and the receipt it is recorded under."""

    verdict: Verdict
    receipt: Receipt


def promotion_verdict_asset(pipeline: PipelineSettings) -> dg.AssetsDefinition:
    """Build the asset for one pipeline."""

    @dg.asset(
        key=[pipeline.name, "promotion_verdict"],
        ins={"evaluation": dg.AssetIn(key=[pipeline.name, "evaluation"])},
        group_name=f"{pipeline.name}_promotion",
        kinds={"python"},
        owners=list(pipeline.owners),
        description="Whether the candidate is better than what is in production (or, when nothing "
        "is, than the baseline) by more than seed noise and dependent rows explain. The bound "
        "decides, never the mean. Asked again, it answers the same.",
    )
    def promotion_verdict(
        context: dg.AssetExecutionContext, state: State, evaluation: Evaluation
    ) -> dg.MaterializeResult[Decision]:
        candidate, reference = evaluated_losses(evaluation, state.store)
        verdict = compare(
            candidate,
            reference,
            pipeline.gate,
            horizon_rows=pipeline.loaded_workload.horizon_rows,
            unit=pipeline.loaded_workload.loss_unit,
        )
        with state.ledger() as ledger:
            receipt = ledger.record_decision(
                pipeline.name, verdict.receipt(evaluation.subject, decided_at=utc_now())
            )
        # A question that was asked before keeps its first answer, numbers and all.
        verdict = Verdict.model_validate(receipt.evidence)
        context.log.info(f"{verdict.outcome}: {verdict.reason}")
        unit = pipeline.loaded_workload.loss_unit
        return dg.MaterializeResult(
            value=Decision(verdict=verdict, receipt=receipt),
            metadata={
                "verdict": verdict.outcome,
                "why": verdict.reason,
                "what next": verdict.remedy,
                "per fold": picture(fold_gains_png(verdict), "gain per fold with its interval"),
                "compared with": evaluation.reference_name,
                "decided at": receipt.decided_at.isoformat(timespec="seconds"),
                f"gain [{unit}]": verdict.gain,
                f"lower bound [{unit}]": verdict.lower_bound,
                f"upper bound [{unit}]": verdict.upper_bound,
                "effect size": verdict.effect_size,
                "folds": table([fold.model_dump() for fold in verdict.folds]),
            },
        )

    return promotion_verdict
