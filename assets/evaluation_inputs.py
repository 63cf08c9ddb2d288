"""Opens the artifacts that the evaluation of a pipeline will read, before the training starts."""

from dataclasses import dataclass

from sluice.assets.features import FeatureSet
from sluice.assets.receipt_subjects import candidate_subject
from sluice.assets.resources import SluiceState
from sluice.config.resolved import TrainingInputs
from sluice.data.table import load_table
from sluice.evaluation.guard_settings import GuardSettings
from sluice.evaluation.imported_baseline import load_baseline
from sluice.evaluation.inputs import open_evaluation_inputs
from sluice.evaluation.simple_rules import BaselineSettings
from sluice.evaluation.suites.library import SuiteLibrary
from sluice.evaluation.suites.settings import SuiteSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEvaluation:
    """Settings that determine what the evaluation of a later candidate will read."""

    seeds: tuple[int, ...]
    baseline: BaselineSettings
    guards: GuardSettings
    suites: SuiteSettings


def open_inputs(
    pipeline: str,
    inputs: TrainingInputs,
    planned_evaluation: PlannedEvaluation,
    state: SluiceState,
    *,
    features: FeatureSet,
) -> tuple[str, ...]:
    """Open all artifacts that the evaluation of a candidate will read; return descriptions of them.

    Raises:
        IntegrityError, GateBlocked: See ``open_evaluation_inputs`` and ``load_baseline``.
        ContractError: See ``load_baseline``.
    """
    with state.ledger() as ledger:
        descriptions = open_evaluation_inputs(
            ledger,
            pipeline,
            SuiteLibrary(state.home.suites / pipeline, state.store),
            state.store,
            approved=planned_evaluation.guards.approved,
            guarded_suites=planned_evaluation.suites.guarded_suites,
            subject=candidate_subject(inputs, features.table.digest),
            seeds=planned_evaluation.seeds,
        )
        predictions_uri = planned_evaluation.baseline.predictions
        if predictions_uri is None or ledger.production_number(pipeline) is not None:
            return descriptions
        frame = load_table(features.table, state.store)
        load_baseline(
            ledger,
            pipeline,
            predictions_uri,
            state.store,
            inputs.workload,
            frame,
            features.folds,
        )
    return (*descriptions, f"the predictions of {predictions_uri}")
