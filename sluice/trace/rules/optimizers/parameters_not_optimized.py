"""Detects parameters that receive gradients but belong to no optimizer."""

from collections import Counter
from collections.abc import Collection, Iterable

from sluice.trace.finding import NoThresholds, Rule, TraceFinding
from sluice.trace.records.membership import Membership, ParameterRecord
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.optimizer_steps import stepping_optimizers
from sluice.trace.rules._helpers.parameters import (
    first_names,
    first_unoptimized_step,
    has_manual_gradients,
    list_names,
    unoptimized_parameters,
)
from sluice.trace.rules.optimizers.stale_optimizer_parameters import STALE_OPTIMIZER_PARAMETERS


def _judge(rule: Rule[NoThresholds], trace: Trace) -> tuple[TraceFinding, ...]:
    membership = trace.membership
    stepping_indices = stepping_optimizers(trace)
    if membership is None or not stepping_indices or has_manual_gradients(trace):
        return ()
    # Parameters of an earlier optimizer are left out: they were already trained, in a first phase.
    ever_optimized_indices = frozenset[int]().union(*(m.optimized for m in trace.memberships))
    unoptimized_records = [
        p for p in unoptimized_parameters(membership) if p.index not in ever_optimized_indices
    ]
    if (
        not unoptimized_records
        or STALE_OPTIMIZER_PARAMETERS(trace)
        or _have_master_weights(membership, unoptimized_records, stepping_indices)
    ):
        return ()
    return (
        rule.finding(
            severity="confirm",
            step=first_unoptimized_step(trace, unoptimized_records),
            what=f"{_describe_parameters(len(unoptimized_records))} in no optimizer: "
            f"{list_names(first_names(unoptimized_records))}.",
            cause="Such parameters keep their initial values, and their gradients are never used.",
            fix="Add the parameters to the optimizer. To freeze them, set requires_grad to False, "
            "which also saves time.",
            num_unoptimized=len(unoptimized_records),
            num_parameters=len(membership.parameters),
        ),
    )


def _have_master_weights(
    membership: Membership, parameters: Iterable[ParameterRecord], stepping_indices: Collection[int]
) -> bool:
    """Whether the optimizers that step contain master weights of all given parameters.

    Master weights are tensors of the same shapes that belong to no network. Optimizers that never
    step are ignored: their parameters may belong to a network that was never called, and are then
    recorded without names, too.
    """
    optimized_indices = {
        p for o in membership.optimizers if o.index in stepping_indices for p in o.parameters
    }
    num_copies_by_shape = Counter(
        p.shape for p in membership.parameters if not p.names and p.index in optimized_indices
    )
    return not Counter(p.shape for p in parameters) - num_copies_by_shape


def _describe_parameters(num_parameters: int) -> str:
    return (
        "1 parameter receives gradients and is"
        if num_parameters == 1
        else f"{num_parameters} parameters receive gradients and are"
    )


PARAMETERS_NOT_OPTIMIZED = Rule(
    name="every parameter that receives gradients belongs to an optimizer",
    fault="parameters not optimized",
    priority=90,
    requires="A snapshot of the networks and optimizers, and a step of an optimizer.",
    contradicted_by="Parameters that are intentionally constant, but whose gradients are used.",
    abstains="The program sets gradients itself; a replaced layer explains the finding; "
    "the parameters belonged to an optimizer before; or an optimizer contains copies of the "
    "parameters, as in manual mixed precision.",
    settings=NoThresholds(),
    judge=_judge,
)
