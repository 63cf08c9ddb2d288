"""Detects networks that are trained in evaluation mode."""

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.events import StepSequence
from sluice.trace.records.membership import NetworkRecord
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.forward_passes import trained_networks, training_forwards


class TrainingInEvalModeSettings(Settings):
    """Thresholds of the rule ``TRAINING_IN_EVAL_MODE``."""

    min_steps: int = Field(
        2, ge=1, description="A finding requires at least this number of steps in evaluation mode."
    )


def _judge(rule: Rule[TrainingInEvalModeSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    for network in trained_networks(trace):
        num_train_steps = num_eval_steps = first_step = 0
        for sequence in trace.sequences:
            flags = {
                flag for event in training_forwards(sequence, network.index) for flag in event.flags
            }
            # "sensitive evaluating": dropout or batch norm is in evaluation mode.
            if {"evaluating", "sensitive evaluating"} <= flags:
                num_eval_steps += sequence.count
                first_step = first_step or sequence.first_step
            elif "training" in flags:
                num_train_steps += sequence.count
        if num_eval_steps < rule.settings.min_steps:
            continue
        stays_in_eval = any(_stays_in_eval(sequence, network.index) for sequence in trace.sequences)
        was_created_in_eval = not num_train_steps and not any(
            _calls_eval(sequence, network.index)
            for sequence in trace.sequences
            if sequence.first_step <= first_step
        )
        # A partly frozen network is reported only if an evaluation changed its mode. Fine-tuning
        # often freezes batch norm statistics intentionally.
        if _is_partly_frozen(trace, network) and not (num_train_steps and stays_in_eval):
            continue
        findings.append(
            rule.finding(
                severity="error"
                if num_train_steps or stays_in_eval or was_created_in_eval
                else "confirm",
                step=first_step,
                what=f"{network.name} made {num_eval_steps} of its "
                f"{num_eval_steps + num_train_steps} steps in evaluation mode, the first at step "
                f"{first_step}.",
                cause="Dropout is off and batch norm does not update its statistics"
                + (
                    ": the network was created in evaluation mode, for example as a copy."
                    if was_created_in_eval
                    else ": train() is not called after an evaluation."
                    if num_train_steps or stays_in_eval
                    else "."
                ),
                fix="Call model.train() at the start of each epoch and after each evaluation.",
                num_eval_steps=num_eval_steps,
                num_train_steps=num_train_steps,
            )
        )
    return tuple(findings)


def _calls_eval(sequence: StepSequence, network: int) -> bool:
    """Whether the program sets the network to evaluation mode in a sequence.

    Also True if it sets a module with the id -1 to evaluation mode: any submodule, or any network
    that was not called yet.
    """
    return any(
        event.kind == "mode" and event.object_id in (network, -1) and "eval" in event.flags
        for event in sequence.events
    )


def _stays_in_eval(sequence: StepSequence, network: int) -> bool:
    """Whether the first training pass in a sequence is still in the mode of an evaluation."""
    training_event_ids = {id(event) for event in training_forwards(sequence, network)}
    is_in_eval_mode = was_evaluated = False
    for event in sequence.events:
        if event.kind == "mode" and event.object_id in (network, -1):
            # "restored": the program called train(False), usually train(was_training) after an
            # evaluation, so the network is still in the mode of the evaluation. With any other call
            # of train() or eval(), the program sets the mode intentionally.
            was_evaluated = was_evaluated and is_in_eval_mode and "restored" in event.flags
            is_in_eval_mode = "eval" in event.flags
        elif event.kind == "forward" and event.object_id == network:
            if id(event) in training_event_ids:
                return was_evaluated and "training" not in event.flags
            was_evaluated = was_evaluated or (is_in_eval_mode and "grad" not in event.flags)
    return False


def _is_partly_frozen(trace: Trace, network: NetworkRecord) -> bool:
    membership = trace.membership
    frozen_indices = (
        set()
        if membership is None
        else {p.index for p in membership.parameters if not p.is_trainable}
    )
    return bool(frozen_indices & set(network.parameters))


TRAINING_IN_EVAL_MODE = Rule(
    name="networks are trained in training mode",
    fault="training in evaluation mode",
    priority=60,
    requires="At least two steps of a trained network that contains dropout or batch norm.",
    contradicted_by="Fine-tuning with dropout and batch norm statistics intentionally disabled.",
    abstains="One of: only parts of the network are in evaluation mode, such as frozen batch norm; "
    "parts of the network are frozen, and no step was made in training mode; parts of the network "
    "are frozen, and no evaluation set the mode.",
    settings=TrainingInEvalModeSettings(),
    judge=_judge,
)
