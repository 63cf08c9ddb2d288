"""The table of the POC gate's checks, in the order they run."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from sluice.config.poc_settings import TimeLimit, TimeLimits
from sluice.eventlog.event_log_check import check_event_log
from sluice.failfast.checkpoints.checkpoint_round_trip import check_checkpoint
from sluice.failfast.data.data_loading import check_data_loading
from sluice.failfast.data.feature_frame import check_features
from sluice.failfast.data.look_ahead import check_look_ahead
from sluice.failfast.data.raw_schema import check_raw_schema
from sluice.failfast.data.served_inputs import check_served_inputs
from sluice.failfast.data.signal import check_signal
from sluice.failfast.data.split_independence import check_examples_stand_alone
from sluice.failfast.gate.inputs import GateInputs
from sluice.failfast.gate.plan import PlannedCheck
from sluice.failfast.gradients.gradient_flow import check_gradient_flow
from sluice.failfast.learning.instantiation import check_instantiation
from sluice.failfast.learning.memorization import check_memorization
from sluice.failfast.learning.mini_training import judge_mini_training
from sluice.failfast.learning.predictions import check_predictions
from sluice.failfast.learning.scoring_check import check_scoring
from sluice.failfast.learning.selector import check_selector
from sluice.failfast.result import Level
from sluice.findings.finding import Finding
from sluice.findings.hard_examples import find_hard_examples
from sluice.training.loop import predict

_BOTH: frozenset[Level] = frozenset({"minimum", "full"})
_FULL: frozenset[Level] = frozenset({"full"})


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCheck:
    """One line of the table."""

    requirement: str
    name: str
    """A sentence that is true when the check passes; also the name of the Dagster check."""
    description: str
    function: Callable[[GateInputs], Finding]
    limit: Callable[[TimeLimits], TimeLimit]
    needs: tuple[str, ...] = ()
    """Names of checks that must have passed, or this one is skipped."""
    levels: frozenset[Level] = _BOTH

    def planned(self, times: TimeLimits) -> PlannedCheck:
        """Return the check as data."""
        return PlannedCheck(
            name=self.name,
            requirement=self.requirement,
            limit=self.limit(times),
            needs=self.needs,
        )


def _mini_training(inputs: GateInputs) -> Finding:
    mini = inputs.mini
    finding = judge_mini_training(
        mini, inputs.settings, learning_rate=inputs.training.learning_rate
    )
    if mini.failed is not None:
        return finding
    losses = inputs.workload.losses(predict(mini.model, mini.examples.x), mini.examples.y)
    hardest = find_hard_examples(
        losses.double().numpy(),
        mini.examples.rows,
        inputs.frame,
        inputs.workload.feature_columns,
        count=inputs.settings.hard_examples,
    )
    return replace(finding, examples=hardest)


def _predictions(inputs: GateInputs) -> Finding:
    if inputs.mini.failed is not None:
        return _no_predictions()
    held_out = inputs.held_out
    return check_predictions(predict(inputs.mini.model, held_out.x), held_out.y, inputs.settings)


def _scoring(inputs: GateInputs) -> Finding:
    if inputs.mini.failed is not None:
        return _no_predictions()
    held_out = inputs.held_out
    output = predict(inputs.mini.model, held_out.x)
    return check_scoring(
        inputs.workload,
        output,
        held_out,
        inputs.frame,
        inputs.folds[0],
        compared=inputs.stored is not None,
    )


def _no_predictions() -> Finding:
    return Finding(
        outcome="insufficient",
        summary="There are no predictions to judge, because the mini training ended early.",
        fix="Correct what mini_training_learns says first.",
    )


CHECKS: tuple[GateCheck, ...] = (
    GateCheck(
        requirement="POC-6",
        name="data_loads",
        description="The rows load, and enough of them are complete and distinct.",
        function=lambda i: check_data_loading(i.raw, i.workload.raw_schema, i.settings),
        limit=lambda times: times.data_loading,
    ),
    GateCheck(
        requirement="POC-7",
        name="raw_schema_holds",
        description="The raw rows have the declared columns, index and dtypes.",
        function=lambda i: check_raw_schema(i.raw, i.workload.raw_schema),
        limit=lambda times: times.raw_schema,
        needs=("data_loads",),
    ),
    GateCheck(
        requirement="POC-8",
        name="features_compute",
        description="The features compute, hold their schema, vary, and are not the target.",
        function=lambda i: check_features(i.workload, i.raw, i.frame, i.folds, i.settings),
        limit=lambda times: times.features,
        needs=("raw_schema_holds",),
    ),
    GateCheck(
        requirement="POC-8",
        name="features_do_not_look_ahead",
        description="No feature changes when later rows change.",
        function=lambda i: check_look_ahead(i.workload, i.raw, i.frame, i.settings, seed=i.seed),
        limit=lambda times: times.look_ahead,
        needs=("features_compute",),
        levels=_FULL,
    ),
    GateCheck(
        requirement="POC-8",
        name="examples_stand_alone",
        description="An example does not depend on which other rows its split holds.",
        function=lambda i: check_examples_stand_alone(i.workload, i.frame, i.folds, i.settings),
        limit=lambda times: times.features,
        needs=("features_compute",),
        levels=_FULL,
    ),
    GateCheck(
        requirement="POC-8",
        name="inputs_can_be_served",
        description="A pipeline's inputs are what a client can send: windows of feature rows.",
        function=lambda i: check_served_inputs(i.workload, required=i.served),
        limit=lambda times: times.features,
        needs=("features_compute",),
        levels=_FULL,
    ),
    GateCheck(
        requirement="POC-9",
        name="targets_depend_on_features",
        description="The features say something about the target; shuffled labels would not.",
        function=lambda i: check_signal(
            i.train, i.settings, required=i.workload.expects_signal, seed=i.seed
        ),
        limit=lambda times: times.signal,
        needs=("features_compute",),
        levels=_FULL,
    ),
    GateCheck(
        requirement="POC-1",
        name="model_instantiates",
        description="The model runs on one real batch; its output has the target's shape.",
        function=lambda i: check_instantiation(
            i.workload, i.model, i.train, i.settings, seed=i.seed
        ),
        limit=lambda times: times.instantiation,
        needs=("features_compute",),
    ),
    GateCheck(
        requirement="POC-2",
        name="gradients_flow",
        description="Every trainable parameter is optimised and gets a finite gradient.",
        function=lambda i: check_gradient_flow(
            i.workload, i.model, i.training, i.train, i.settings, seed=i.seed
        ),
        limit=lambda times: times.gradient_flow,
        needs=("model_instantiates",),
    ),
    GateCheck(
        requirement="POC-3",
        name="event_log_works",
        description="The event log can be written, flushed, read back and validated.",
        function=lambda i: check_event_log(
            i.folder,
            architecture=i.model.architecture,
            features=i.workload.feature_columns,
            config={
                "model": i.model.model_dump(mode="json"),
                "training": i.training.model_dump(mode="json"),
            },
            headline=i.workload.headline_metric,
            clock=i.clock,
        ),
        limit=lambda times: times.event_log,
    ),
    GateCheck(
        requirement="POC-4",
        name="selector_finds_best_epoch",
        description="The epoch selector returns planted best epochs and never an unusable one.",
        function=lambda i: check_selector(i.workload.select_epoch, i.settings, seed=i.seed),
        limit=lambda times: times.selector,
    ),
    GateCheck(
        requirement="POC-13",
        name="model_memorizes",
        description="The model can learn a tiny batch by heart.",
        function=lambda i: check_memorization(
            i.workload, i.model, i.train, i.settings, seed=i.seed
        ),
        limit=lambda times: times.memorization,
        needs=("model_instantiates", "gradients_flow"),
        levels=_FULL,
    ),
    GateCheck(
        requirement="POC-5",
        name="mini_training_learns",
        description="A brief training lowers the loss by more than seed noise explains.",
        function=_mini_training,
        limit=lambda times: times.mini_training,
        needs=("model_instantiates", "gradients_flow"),
    ),
    GateCheck(
        requirement="POC-9",
        name="predictions_are_alive",
        description="Predictions on held-out rows vary, in proportion to the targets.",
        function=_predictions,
        limit=lambda times: times.predictions,
        needs=("model_instantiates", "gradients_flow"),
        levels=_FULL,
    ),
    GateCheck(
        requirement="POC-9",
        name="predictions_can_be_scored",
        description="Metrics and baseline compute, as the evaluation will call them.",
        function=_scoring,
        limit=lambda times: times.predictions,
        needs=("model_instantiates", "gradients_flow"),
        levels=_FULL,
    ),
    GateCheck(
        requirement="POC-10",
        name="checkpoint_round_trips",
        description="A training that is stopped and resumed ends with the same bits.",
        function=lambda i: check_checkpoint(
            i.workload,
            i.model,
            i.training,
            i.train,
            i.settings,
            seed=i.seed,
            folder=i.folder,
        ),
        limit=lambda times: times.checkpoint,
        needs=("model_instantiates", "gradients_flow"),
        levels=_FULL,
    ),
)
