"""Detects parameters that take part in every step but never receive a gradient."""

from collections.abc import Callable, Iterable
from functools import partial

from pydantic import Field

from sluice.base.pluralize import pluralize
from sluice.base.settings import Settings
from sluice.findings.fault import Severity
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.events import StepSequence
from sluice.trace.records.forward_passes import ForwardPassRecord
from sluice.trace.records.membership import Membership, NetworkRecord
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.gradient_reach import (
    GradientReachSettings,
    unreached_by_optimizer,
    unreached_parameters,
)
from sluice.trace.rules._helpers.measurements import parameter_names
from sluice.trace.rules._helpers.optimizer_steps import first_step_of, stepping_optimizers, steps_of
from sluice.trace.rules._helpers.parameters import has_manual_gradients, list_names


class DetachedSubgraphSettings(Settings):
    """Thresholds of the rule ``DETACHED_SUBGRAPH``."""

    min_effect: float = Field(
        1e-5,
        gt=0,
        description="An output counts as dependent on parameters if it changes by more than this "
        "share of the largest output when the values of the parameters are replaced.",
    )
    reach: GradientReachSettings = Field(
        GradientReachSettings(),
        description="Thresholds of the evidence that no gradient reaches a parameter.",
    )


_FIX = (
    "Remove detach(), .data or no_grad() between these parameters and the loss. To freeze the "
    "parameters, set requires_grad to False and remove them from the optimizer."
)


Detachment = tuple[int, set[int], str]
"""First step, parameters and location of a part of the network that is detached from the loss.

The location is a phrase for a message, such as "between a and b".
"""
_Detector = Callable[[Trace, frozenset[int], int], Detachment | None]
"""Function that returns a detachment; its arguments are those of ``_detect_detachment``."""


def _detect_detached_input(
    trace: Trace, unreached: frozenset[int], start_step: int
) -> Detachment | None:
    """Detect a module whose input was detached from the output of a module before it."""
    parameters_by_step: dict[int, set[int]] = {}
    for forward_pass in _forward_passes_since(trace, start_step):
        has_call_without_grad = any(
            set(c.parameters) & unreached and not c.output_requires_grad for c in forward_pass.calls
        )
        parameters_before = parameters_by_step.setdefault(forward_pass.step, set())
        for call in forward_pass.calls:
            if call.detached_from and call.output_requires_grad and parameters_before & unreached:
                location = f"between {call.detached_from} and {call.module or call.kind}"
                return (
                    forward_pass.step + 1,
                    parameters_before & unreached,
                    location + (" (no_grad)" if has_call_without_grad else ""),
                )
            parameters_before.update(call.parameters)
    return None


def _forward_passes_since(trace: Trace, start_step: int) -> list[ForwardPassRecord]:
    """Return the forward passes of step ``start_step`` and of later steps."""
    return [
        forward_pass for forward_pass in trace.forward_passes if forward_pass.step + 1 >= start_step
    ]


def _detect_by_probe(
    settings: DetachedSubgraphSettings, trace: Trace, unreached: frozenset[int], start_step: int
) -> Detachment | None:
    """Detect parameters that, according to a probe, affect an output that the loss uses."""
    for probe in trace.probes:
        parameters = set(probe.parameters) & unreached
        if (
            probe.probe == "weights"
            and probe.step + 1 >= start_step
            and parameters
            and probe.largest_effect > settings.min_effect
        ):
            first_calls = next(
                (f.calls for f in trace.forward_passes if f.network == probe.network), ()
            )
            module_names = [c.module for c in first_calls if set(c.parameters) & parameters]
            location = (
                f"after {module_names[-1]}"
                if module_names and module_names[-1]
                else "in the network"
            )
            evidence = "The parameters are used, because replacing their values changes the output"
            return max(start_step, 1), parameters, f"{location}. {evidence}"
    return None


def _training_sequences(trace: Trace, start_step: int = 0) -> list[StepSequence]:
    """Return complete sequences with a backward pass that first occur from ``start_step`` on."""
    return [
        sequence
        for sequence in trace.sequences
        if sequence.first_step >= start_step
        and sequence.find("backward")
        and sequence.final_event is not None
    ]


def _find_unreached_networks(
    membership: Membership, unreached: frozenset[int]
) -> list[tuple[NetworkRecord, set[int]]]:
    """Return the networks whose optimized parameters are all unreached, with these parameters."""
    return [
        (network, parameters)
        for network in membership.networks
        if (parameters := set(network.parameters) & membership.optimized)
        and parameters <= unreached
    ]


def _detect_network_without_grad(
    settings: DetachedSubgraphSettings, trace: Trace, unreached: frozenset[int], start_step: int
) -> Detachment | None:
    """Detect a network that training steps call in training mode, but never with gradients."""
    if trace.membership is None:
        return None
    sequences = _training_sequences(trace, start_step)
    for network, parameters in _find_unreached_networks(trace.membership, unreached):
        calls = [
            (sequence.first_step, sequence.count, event.flags)
            for sequence in sequences
            for event in sequence.events[: sequence.find("backward")[-1]]
            if event.kind == "forward" and event.object_id == network.index
        ]
        num_calls = sum(count for _, count, flags in calls if "training" in flags)
        is_grad_enabled = any("grad" in flags for _, _, flags in calls)
        if num_calls >= settings.reach.min_measured_steps and not is_grad_enabled:
            first_step, _, _ = calls[0]
            return (
                first_step,
                parameters,
                f"at {network.name}, which runs without gradients (no_grad)",
            )
    return None


def _detect_module_without_grad(
    trace: Trace, unreached: frozenset[int], start_step: int
) -> Detachment | None:
    """Detect modules that run without gradients in a pass that has gradients elsewhere."""
    names = {n.index: n.name for m in trace.memberships for n in m.networks}
    for forward_pass in _forward_passes_since(trace, start_step):
        calls = [
            c
            for c in forward_pass.calls
            if set(c.parameters) & unreached and not c.output_requires_grad
        ]
        if calls and any(c.output_requires_grad for c in forward_pass.calls):
            parameters = {p for c in calls for p in c.parameters} & unreached
            module = f"{names.get(forward_pass.network, 'a network')}.{calls[-1].module}"
            return (
                forward_pass.step + 1,
                parameters,
                f"at {module}, which runs without gradients (no_grad)",
            )
    return None


def _detect_detachment(
    rule: Rule[DetachedSubgraphSettings],
    trace: Trace,
    unreached: frozenset[int],
    start_step: int = 0,
) -> tuple[TraceFinding, ...]:
    """Return a finding about the first detachment that a detector returns; () without one.

    Args:
        rule: This rule.
        trace: Trace of one process.
        unreached: Parameters without a gradient at step ``start_step`` and later.
        start_step: First step that counts.
    """
    detectors: tuple[tuple[Severity, _Detector], ...] = (
        ("error", _detect_detached_input),
        ("error", partial(_detect_by_probe, rule.settings)),
        ("error", partial(_detect_network_without_grad, rule.settings)),
        ("confirm", _detect_module_without_grad),
    )
    for severity, detect in detectors:
        detachment = detect(trace, unreached, start_step)
        if detachment is not None:
            step, parameters, location = detachment
            details = f"The graph is detached {location}."
            return (_build_finding(rule, trace, severity, step, parameters, details, start_step),)
    return ()


def _judge(rule: Rule[DetachedSubgraphSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    if has_manual_gradients(trace):
        return ()
    unreached = unreached_parameters(trace, rule.settings.reach)
    if unreached:
        return _detect_detachment(rule, trace, unreached) or _detect_called_networks(
            rule, trace, unreached
        )
    return _detect_in_late_optimizers(rule, trace)


def _detect_in_late_optimizers(
    rule: Rule[DetachedSubgraphSettings], trace: Trace
) -> tuple[TraceFinding, ...]:
    """Detect parameters without a gradient in an optimizer that makes its first step late."""
    for optimizer in trace.membership.optimizers if trace.membership is not None else ():
        steps = steps_of(trace, optimizer.index)
        start_step = first_step_of(steps) if steps else 1
        if start_step <= 1:
            continue
        unreached = unreached_by_optimizer(trace, optimizer, rule.settings.reach, start_step)
        findings = _detect_detachment(rule, trace, unreached, start_step) if unreached else ()
        if findings:
            return findings
    return ()


def _detect_called_networks(
    rule: Rule[DetachedSubgraphSettings], trace: Trace, unreached: frozenset[int]
) -> tuple[TraceFinding, ...]:
    """Detect networks that are called in nearly every step but that no gradient reaches.

    () if the program has only one network.
    """
    if trace.membership is None or len(trace.membership.networks) < 2:
        return ()
    sequences, findings = _training_sequences(trace), []
    # If several optimizers alternate, a network may be called only in the steps of one optimizer.
    num_optimizers = max(len(stepping_optimizers(trace)), 1)
    num_steps = sum(sequence.count for sequence in sequences)
    min_steps = 0.9 * num_steps / num_optimizers
    for network, parameters in _find_unreached_networks(trace.membership, unreached):
        calling_sequences = [
            sequence
            for sequence in sequences
            if any(
                event.kind == "forward"
                and event.object_id == network.index
                and "grad" in event.flags
                for event in sequence.events
            )
        ]
        num_calling_steps = sum(sequence.count for sequence in calling_sequences)
        if num_calling_steps >= min_steps:
            step = calling_sequences[0].first_step
            details = f"{network.name} is called at {num_calling_steps:,} of {num_steps:,} steps."
            findings.append(_build_finding(rule, trace, "error", step, parameters, details))
    return tuple(findings)


def _build_finding(
    rule: Rule[DetachedSubgraphSettings],
    trace: Trace,
    severity: Severity,
    step: int,
    parameters: Iterable[int],
    details: str,
    start_step: int = 0,
) -> TraceFinding:
    """Return a finding about parameters without a gradient from ``start_step`` on."""
    names = parameter_names(trace)
    unreached_names = [names[p] for p in sorted(parameters)]
    period = f"in any step from step {start_step} on" if start_step > 1 else "in any step"
    return rule.finding(
        severity=severity,
        step=step,
        what=f"{pluralize(len(unreached_names), 'parameter')} of the optimizer "
        f"{'is' if len(unreached_names) == 1 else 'are'} used but "
        f"{'receives' if len(unreached_names) == 1 else 'receive'} no gradient {period}: "
        f"{list_names(unreached_names)}. {details}",
        cause="The loss is not connected to these parameters, so they do not learn.",
        fix=_FIX,
        num_parameters=len(unreached_names),
        num_recorded_parameters=len(names),
    )


DETACHED_SUBGRAPH = Rule(
    name="gradients reach every part of the network that the loss depends on",
    fault="detached subgraph",
    priority=140,
    requires="Two measured steps, and the order of the modules in a training forward pass.",
    contradicted_by="A gradient of one of the parameters, or an output that does not depend on "
    "these parameters.",
    abstains="The parameters are frozen, belong to no optimizer, are changed by the program, or "
    "are in a branch that the output does not use; or the program sets gradients itself.",
    settings=DetachedSubgraphSettings(),
    judge=_judge,
)
