"""Table of the POC gate's checks, in the order in which they run."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from sluice.config.poc_settings import TimeLimit, TimeLimits
from sluice.data.rows.protocol import flat_input
from sluice.eventlog.event_log_check import check_event_log
from sluice.failfast.checkpoints.checkpoint_round_trip import check_checkpoint
from sluice.failfast.data.data_loading import check_data_loading
from sluice.failfast.data.feature_frame import check_features
from sluice.failfast.data.fitted_state import check_fitted_state
from sluice.failfast.data.look_ahead import check_look_ahead
from sluice.failfast.data.raw_schema import check_raw_schema
from sluice.failfast.data.served_inputs import check_served_inputs
from sluice.failfast.data.signal import check_signal
from sluice.failfast.data.split_independence import check_split_independence
from sluice.failfast.gate.inputs import GateInputs
from sluice.failfast.gate.plan import PlannedCheck
from sluice.failfast.gradients.gradient_flow import check_gradient_flow
from sluice.failfast.learning.epoch_selector import check_epoch_selector
from sluice.failfast.learning.example_sampling import sample_evenly
from sluice.failfast.learning.instantiation import check_instantiation
from sluice.failfast.learning.mini_training import judge_mini_training
from sluice.failfast.learning.overfit_one_batch import check_overfit_one_batch
from sluice.failfast.learning.predictions import check_predictions
from sluice.failfast.learning.scoring_check import check_scoring
from sluice.failfast.result import Level
from sluice.findings.check_outcome import CheckOutcome
from sluice.findings.hard_examples import find_hard_examples
from sluice.training.loop import predict

_MAX_COMPARED_INPUTS = 256
"""Maximum number of held-out examples among which distinct inputs are counted."""

_BOTH_LEVELS: frozenset[Level] = frozenset({"minimum", "full"})
_FULL_LEVEL: frozenset[Level] = frozenset({"full"})


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCheck:
    """Definition of one check of the POC gate."""

    check_id: str
    """Stable identifier of the check in logs, receipts and JSON, such as ``gradient_flow``."""
    name: str
    """Statement that is true when the check passes; also the name of the Dagster check."""
    description: str
    function: Callable[[GateInputs], CheckOutcome]
    select_limit: Callable[[TimeLimits], TimeLimit]
    needs: tuple[str, ...] = ()
    """Names of the prerequisite checks; this check is skipped unless they passed."""
    levels: frozenset[Level] = _BOTH_LEVELS

    def to_planned_check(self, times: TimeLimits) -> PlannedCheck:
        """Return the check as plain data, without its function."""
        return PlannedCheck(
            name=self.name,
            check_id=self.check_id,
            limit=self.select_limit(times),
            needs=self.needs,
        )


def _check_fit_and_examples(inputs: GateInputs) -> CheckOutcome:
    state_outcome = check_fitted_state(
        inputs.workload, inputs.raw, inputs.frame, inputs.folds, seed=inputs.seed
    )
    if state_outcome is not None and state_outcome.outcome == "fail":
        return state_outcome
    examples_outcome = check_split_independence(
        inputs.workload, inputs.frame, inputs.folds, inputs.settings
    )
    if state_outcome is None or examples_outcome.outcome != "pass":
        return examples_outcome
    return replace(
        examples_outcome,
        summary=f"{examples_outcome.summary} {state_outcome.summary}",
        numbers={**examples_outcome.numbers, **state_outcome.numbers},
    )


def _check_mini_training(inputs: GateInputs) -> CheckOutcome:
    mini = inputs.mini_training
    outcome = judge_mini_training(
        mini, inputs.settings, learning_rate=inputs.train_settings.learning_rate
    )
    if mini.failure is not None:
        return outcome
    losses = inputs.workload.losses(predict(mini.model, mini.examples.x), mini.examples.targets)
    hardest_examples = find_hard_examples(
        losses.double().numpy(),
        mini.examples.rows,
        inputs.frame,
        inputs.workload.feature_columns,
        count=inputs.settings.hard_examples,
        display_column=inputs.workload.display_column,
    )
    return replace(outcome, examples=hardest_examples)


def _check_predictions(inputs: GateInputs) -> CheckOutcome:
    if inputs.mini_training.failure is not None:
        return _no_predictions_outcome()
    held_out = inputs.held_out
    x_NP = flat_input(sample_evenly(held_out, _MAX_COMPARED_INPUTS).inputs).cpu().numpy()
    return check_predictions(
        predict(inputs.mini_training.model, held_out.x),
        held_out.targets,
        inputs.settings,
        num_distinct_inputs=len({x_P.tobytes() for x_P in x_NP}),
    )


def _check_scoring(inputs: GateInputs) -> CheckOutcome:
    if inputs.mini_training.failure is not None:
        return _no_predictions_outcome()
    held_out = inputs.held_out
    output = predict(inputs.mini_training.model, held_out.x)
    return check_scoring(
        inputs.workload,
        output,
        held_out,
        inputs.frame,
        inputs.folds[0],
        # Pipelines, and scripts that register a model, store the data before the gate, and
        # later compare the candidate with the baseline. A script that only checks a workload
        # does neither.
        needs_baseline=inputs.stored_data is not None,
        guarded_metrics=inputs.guarded_metrics,
    )


def _no_predictions_outcome() -> CheckOutcome:
    return CheckOutcome(
        outcome="insufficient",
        summary="There are no predictions to check, because the mini training ended early.",
        fix="Correct the failure of mini_training_lowers_loss first.",
    )


CHECKS: tuple[GateCheck, ...] = (
    GateCheck(
        check_id="data_loading",
        name="data_loads",
        description="The rows load, and enough of them are complete and not duplicated.",
        function=lambda i: check_data_loading(i.raw, i.workload.raw_schema, i.settings),
        select_limit=lambda times: times.data_loading,
    ),
    GateCheck(
        check_id="raw_schema",
        name="raw_rows_match_schema",
        description="The raw rows have the declared columns, index and dtypes.",
        function=lambda i: check_raw_schema(i.raw, i.workload.raw_schema),
        select_limit=lambda times: times.raw_schema,
        needs=("data_loads",),
    ),
    GateCheck(
        check_id="features",
        name="features_are_valid",
        description="The features can be computed, match their schema, vary, and do not contain "
        "the target.",
        function=lambda i: check_features(i.workload, i.raw, i.frame, i.folds, i.settings),
        select_limit=lambda times: times.features,
        needs=("raw_rows_match_schema",),
    ),
    GateCheck(
        check_id="look_ahead",
        name="features_do_not_look_ahead",
        description="No feature of a row changes when only later rows change.",
        function=lambda i: check_look_ahead(i.workload, i.raw, i.frame, i.settings, seed=i.seed),
        select_limit=lambda times: times.look_ahead,
        needs=("features_are_valid",),
        levels=_FULL_LEVEL,
    ),
    GateCheck(
        check_id="split_independence",
        name="examples_do_not_depend_on_split",
        description="An example does not depend on the other rows of its split.",
        function=_check_fit_and_examples,
        select_limit=lambda times: times.features,
        needs=("features_are_valid",),
        levels=_FULL_LEVEL,
    ),
    GateCheck(
        check_id="served_inputs",
        name="inputs_can_be_served",
        description="A server can build the inputs from requests: as windows of feature rows, or "
        "with the workload's codec.",
        function=lambda i: check_served_inputs(
            i.workload, required=i.is_served, raw=i.raw, frame=i.frame, folds=i.folds
        ),
        select_limit=lambda times: times.features,
        # A feature that looks ahead would fail here, too, because a request has no later rows.
        needs=("features_are_valid", "features_do_not_look_ahead"),
        levels=_FULL_LEVEL,
    ),
    GateCheck(
        check_id="signal",
        name="targets_depend_on_features",
        description="The features explain more of the target than of shuffled targets.",
        function=lambda i: check_signal(
            i.train, i.settings, expects_signal=i.workload.expects_signal, seed=i.seed
        ),
        select_limit=lambda times: times.signal,
        needs=("features_are_valid",),
        levels=_FULL_LEVEL,
    ),
    GateCheck(
        check_id="instantiation",
        name="model_runs_on_real_batch",
        description="The model runs on one real batch, and its output has the required shape.",
        function=lambda i: check_instantiation(
            i.fitted, i.model_settings, i.train, i.settings, seed=i.seed
        ),
        select_limit=lambda times: times.instantiation,
        needs=("features_are_valid",),
    ),
    GateCheck(
        check_id="gradient_flow",
        name="gradients_reach_all_parameters",
        description="Every trainable parameter is in the optimizer and gets a finite gradient.",
        function=lambda i: check_gradient_flow(
            i.fitted, i.model_settings, i.train_settings, i.train, i.settings, seed=i.seed
        ),
        select_limit=lambda times: times.gradient_flow,
        needs=("model_runs_on_real_batch",),
    ),
    GateCheck(
        check_id="event_log",
        name="event_log_is_writable",
        description="The event log can be written, flushed, read back and validated.",
        function=lambda i: check_event_log(
            i.folder,
            architecture=i.model_settings.architecture,
            features=i.workload.feature_columns,
            config={
                "model": i.model_settings.model_dump(mode="json"),
                "training": i.train_settings.model_dump(mode="json"),
            },
            headline=i.workload.headline_metric,
            clock=i.clock,
        ),
        select_limit=lambda times: times.event_log,
    ),
    GateCheck(
        check_id="epoch_selector",
        name="selector_finds_best_epoch",
        description="The epoch selector returns the known best epoch of synthetic histories.",
        function=lambda i: check_epoch_selector(i.workload.select_epoch, i.settings, seed=i.seed),
        select_limit=lambda times: times.selector,
    ),
    GateCheck(
        check_id="overfit_one_batch",
        name="model_overfits_one_batch",
        description="The model can overfit one tiny batch.",
        function=lambda i: check_overfit_one_batch(
            i.fitted, i.model_settings, i.train, i.settings, seed=i.seed
        ),
        select_limit=lambda times: times.overfit_one_batch,
        needs=("model_runs_on_real_batch", "gradients_reach_all_parameters"),
        levels=_FULL_LEVEL,
    ),
    GateCheck(
        check_id="mini_training",
        name="mini_training_lowers_loss",
        description="A short training lowers the loss by more than the variation between seeds.",
        function=_check_mini_training,
        select_limit=lambda times: times.mini_training,
        needs=("model_runs_on_real_batch", "gradients_reach_all_parameters"),
    ),
    GateCheck(
        check_id="predictions",
        name="predictions_have_plausible_spread",
        description="The spread of predictions on held-out rows is similar to that of the targets.",
        function=_check_predictions,
        select_limit=lambda times: times.predictions,
        needs=("model_runs_on_real_batch", "gradients_reach_all_parameters"),
        levels=_FULL_LEVEL,
    ),
    GateCheck(
        check_id="scoring",
        name="predictions_can_be_scored",
        description="The workload's metrics and baseline can be computed as in the evaluation.",
        function=_check_scoring,
        select_limit=lambda times: times.predictions,
        needs=("model_runs_on_real_batch", "gradients_reach_all_parameters"),
        levels=_FULL_LEVEL,
    ),
    GateCheck(
        check_id="checkpoint",
        name="training_resumes_from_checkpoint",
        description="A stopped and resumed training is bit-identical to an uninterrupted training.",
        function=lambda i: check_checkpoint(
            i.fitted,
            i.model_settings,
            i.train_settings,
            i.train,
            i.settings,
            seed=i.seed,
            folder=i.folder,
        ),
        select_limit=lambda times: times.checkpoint,
        needs=("model_runs_on_real_batch", "gradients_reach_all_parameters"),
        levels=_FULL_LEVEL,
    ),
)
