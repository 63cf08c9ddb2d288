"""Opens the artifacts that the evaluation of a pipeline will read, before the training starts."""

from sluice.assets.receipt_subjects import candidate_subject
from sluice.assets.resources import SluiceState
from sluice.config.pipeline import PipelineSettings
from sluice.evaluation.inputs import open_evaluation_inputs
from sluice.evaluation.suites.library import SuiteLibrary


def open_inputs(pipeline: PipelineSettings, state: SluiceState, *, data: str) -> tuple[str, ...]:
    """Open all artifacts that the evaluation of a candidate will read; return their names.

    Raises:
        IntegrityError, GateBlocked: See ``open_evaluation_inputs``.
    """
    with state.ledger() as ledger:
        return open_evaluation_inputs(
            ledger,
            pipeline.name,
            SuiteLibrary(state.home.suites / pipeline.name, state.store),
            state.store,
            approved=pipeline.guards.approved,
            guarded_suites=[guard.suite for guard in pipeline.suites.guards],
            subject=candidate_subject(pipeline, data),
            seeds=pipeline.seeds,
        )
