"""What an evaluation reads besides the candidate: opened for a pipeline before it trains."""

from sluice.assets.resources import State
from sluice.assets.subjects import candidate_subject
from sluice.config.pipeline import PipelineSettings
from sluice.evaluation.inputs import open_evaluation_inputs
from sluice.evaluation.suites.library import SuiteLibrary


def open_inputs(pipeline: PipelineSettings, state: State, *, data: str) -> tuple[str, ...]:
    """Open all that the evaluation of a candidate on this data will read; return what.

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
