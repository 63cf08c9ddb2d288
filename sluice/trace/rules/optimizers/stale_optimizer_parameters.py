"""Detects optimizers that contain parameters of a replaced layer."""

from sluice.base.pluralize import pluralize
from sluice.trace.finding import NoThresholds, Rule, TraceFinding
from sluice.trace.records.membership import OptimizerRecord
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.optimizer_steps import count_steps, stepping_optimizers, steps_of
from sluice.trace.rules._helpers.parameters import (
    first_names,
    first_unoptimized_step,
    has_manual_gradients,
    list_names,
    orphaned_parameters,
    unoptimized_parameters,
)


def _is_stale(trace: Trace, optimizer: OptimizerRecord) -> bool:
    orphaned_indices = orphaned_parameters(trace, optimizer)
    if not orphaned_indices:
        return False
    if len(orphaned_indices) < len(optimizer.parameters):
        return True
    # If all parameters are orphaned, they may belong to a network that was not called yet. Two
    # steps without gradients show that the network is not used.
    steps = steps_of(trace, optimizer.index)
    return count_steps(tuple(s for s in steps if "none" in s.end_event.flags)) >= 2


def _judge(rule: Rule[NoThresholds], trace: Trace) -> tuple[TraceFinding, ...]:
    membership = trace.membership
    unoptimized_records = () if membership is None else unoptimized_parameters(membership)
    if membership is None or not unoptimized_records or has_manual_gradients(trace):
        return ()
    findings = []
    for optimizer in membership.optimizers:
        if optimizer.index not in stepping_optimizers(trace) or not _is_stale(trace, optimizer):
            continue
        orphaned_indices = orphaned_parameters(trace, optimizer)
        findings.append(
            rule.finding(
                severity="error",
                step=first_unoptimized_step(trace, unoptimized_records),
                what=f"{optimizer.kind} contains "
                f"{pluralize(len(orphaned_indices), 'parameter')} that no network contains. "
                f"{pluralize(len(unoptimized_records), 'parameter')} with gradients "
                f"{'belongs' if len(unoptimized_records) == 1 else 'belong'} to no optimizer: "
                f"{list_names(first_names(unoptimized_records))}.",
                cause="A layer was replaced after the optimizer was created: the new layer never "
                "learns.",
                fix="Create the optimizer after the network is complete, or add the new "
                "parameters with add_param_group().",
                num_orphaned=len(orphaned_indices),
                num_unoptimized=len(unoptimized_records),
            )
        )
    return tuple(findings)


STALE_OPTIMIZER_PARAMETERS = Rule(
    name="the optimizer contains the current parameters of the network",
    fault="stale optimizer parameters",
    priority=30,
    requires="A snapshot of the networks and optimizers, and a step of an optimizer.",
    contradicted_by="The optimizer's parameters receive gradients, or belong to some network.",
    abstains="The program sets gradients itself, or every parameter with a gradient belongs to "
    "an optimizer.",
    settings=NoThresholds(),
    judge=_judge,
)
