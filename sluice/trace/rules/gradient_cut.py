"""Does the gradient reach everything that the loss was computed with?"""

from collections.abc import Iterable

from sluice.trace.evidence.flow import FlowFact
from sluice.trace.evidence.membership import OptimizerFact
from sluice.trace.evidence.order import StepWord
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.membership import has_manual_gradients, listing
from sluice.trace.rules.series import measures_of, moved, names_in
from sluice.trace.rules.steps import first, optimizers_in, own_steps

_LEAST, _LEAST_LATER = 2, 5
"""Measured steps; of an optimizer that is not the first."""

_MOVES = 1e-5
_FIX = (
    "Remove detach(), .data or no_grad() there; if it is meant, set requires_grad to False and "
    "leave the parameters out of the optimizer."
)


def never_reached(trace: Trace) -> frozenset[int]:
    """Return trainable parameters of stepping optimizers that never had a gradient, nor moved."""
    now = trace.membership
    if now is None:
        return frozenset()
    reached = {p.index for m in trace.memberships for p in m.parameters if p.has_had_gradient}
    held: set[int] = set()
    for optimizer in now.optimizers:
        measured = measures_of(trace, optimizer.index)
        reached |= {p for _, own in measured for p in own.parameters}
        if optimizer.index in optimizers_in(trace) and len(measured) >= _LEAST:
            held |= {p for group in optimizer.groups for p in group.parameters}
    if not reached & held:  # the loss has no path at all, whatever other programs' networks have
        return frozenset()
    trainable = {p.index for p in now.parameters if p.is_trainable and p.names}
    return frozenset((held & trainable) - reached - moved(trace))


def _not_reached_by(trace: Trace, optimizer: OptimizerFact, since: int) -> frozenset[int]:
    """Return trainable parameters that had no gradient in any look at one optimizer, nor moved."""
    now, measured = trace.membership, measures_of(trace, optimizer.index)
    held = {p for group in optimizer.groups for p in group.parameters}
    reached = {p for _, own in measured for p in own.parameters}
    if now is None or len(measured) < _LEAST_LATER or not reached & held:
        return frozenset()
    trainable = {p.index for p in now.parameters if p.is_trainable and p.names}
    return frozenset((held & trainable) - reached - moved(trace, since))


Cut = tuple[int, set[int], str]
"""First step, parameters, and where it is."""


def _detached(trace: Trace, left: frozenset[int], since: int) -> Cut | None:
    """Tell of an output in the same memory as the input of a module that learns."""
    before: dict[int, set[int]] = {}
    for flow in _flows(trace, since):
        off = {c.module for c in flow.calls if set(c.parameters) & left and not c.gives_gradient}
        for call in flow.calls:
            used = before.setdefault(flow.step, set())
            if call.cut_from and call.gives_gradient and used & left:
                into = call.module or call.kind
                why = " (no_grad)" if off else ""
                return flow.step + 1, used & left, f"between {call.cut_from} and {into}{why}"
            used.update(call.parameters)
    return None


def _flows(trace: Trace, since: int) -> list[FlowFact]:
    return [flow for flow in trace.flows if flow.step + 1 >= since]


def _tried(trace: Trace, left: frozenset[int], since: int) -> Cut | None:
    """Tell of parameters on which an output depends that the loss was computed from."""
    for probe in trace.probes:
        own = set(probe.parameters) & left if probe.step + 1 >= since else set()
        if probe.probe == "weights" and own and probe.largest_effect > _MOVES:
            flows = [f for f in trace.flows if f.network == probe.network]
            called = [c.module for c in flows[0].calls if set(c.parameters) & own] if flows else []
            place = f"after {called[-1]}" if called and called[-1] else "in the network"
            return max(since, 1), own, f"{place}: other numbers in them move the output"
    return None


def _learning(trace: Trace, since: int = 0) -> list[StepWord]:
    return [
        w
        for w in trace.words
        if w.first_step >= since and w.find("backward") and w.step_mark is not None
    ]


def _switched_off(trace: Trace, left: frozenset[int], since: int) -> Cut | None:
    """Tell of a network that is called at learning steps, never with gradients."""
    now, learning = trace.membership, _learning(trace, since)
    for network in now.networks if now is not None else ():
        own = set(network.parameters) & left
        if now is None or not own or own != set(network.parameters) & now.optimized:
            continue
        flags = [
            (w.first_step, w.count, m.flags)
            for w in learning
            for m in w.marks[: w.find("backward")[-1]]
            if m.kind == "forward" and m.subject == network.index
        ]
        calls = sum(count for _, count, f in flags if "training" in f)
        if calls >= _LEAST and not any("grad" in f for _, _, f in flags):
            return flags[0][0], own, f"{network.name}, which runs without gradients (no_grad)"
    return None


def _off_inside(trace: Trace, left: frozenset[int], since: int) -> Cut | None:
    """Tell of modules that run without gradients inside a network that learns."""
    names = {n.index: n.name for m in trace.memberships for n in m.networks}
    for flow in _flows(trace, since):
        calls = [c for c in flow.calls if set(c.parameters) & left and not c.gives_gradient]
        if calls and any(c.gives_gradient for c in flow.calls):
            own = {p for c in calls for p in c.parameters} & left
            place = f"{names.get(flow.network, 'a network')}.{calls[-1].module}"
            return flow.step + 1, own, f"{place}, which runs without gradients (no_grad)"
    return None


def _place(rule: Rule, trace: Trace, left: frozenset[int], since: int = 0) -> tuple[Finding, ...]:
    for severity, look in (
        ("error", _detached),
        ("error", _tried),
        ("error", _switched_off),
        ("confirm", _off_inside),
    ):
        found = look(trace, left, since)
        if found is not None:
            step, own, place = found
            return (_finding(rule, trace, severity, step, own, f"The cut is {place}."),)
    return ()


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    left = never_reached(trace)
    if has_manual_gradients(trace):
        return ()
    if left:
        return _place(rule, trace, left) or _beside(rule, trace, left)
    return _later(rule, trace)


def _later(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    """Tell of what had gradients in a first phase, and has none from the optimizer of a later."""
    for optimizer in trace.membership.optimizers if trace.membership is not None else ():
        steps = own_steps(trace, optimizer.index)
        since = first(steps) if steps else 1
        left = _not_reached_by(trace, optimizer, since) if since > 1 else frozenset()
        found = _place(rule, trace, left, since) if left else ()
        if found:
            return found
    return ()


def _beside(rule: Rule, trace: Trace, left: frozenset[int]) -> tuple[Finding, ...]:
    """Tell of networks of their own that are called at every step, and never get a gradient."""
    now = trace.membership
    if now is None or len(now.networks) < 2:
        return ()
    learning, found = _learning(trace), []
    # Of several optimizers that take turns, each has its share of the steps.
    least = 0.9 * sum(w.count for w in learning) / max(len(optimizers_in(trace)), 1)
    for network in now.networks:
        own = set(network.parameters) & left
        if not own or own != set(network.parameters) & now.optimized:
            continue
        used = [
            w
            for w in learning
            if any(
                m.kind == "forward" and m.subject == network.index and "grad" in m.flags
                for m in w.marks
            )
        ]
        if sum(w.count for w in used) >= least:
            step = used[0].first_step
            text = f"{network.name} is called at nearly every step."
            found.append(_finding(rule, trace, "error", step, own, text))
    return tuple(found)


def _finding(
    rule: Rule, trace: Trace, severity: str, step: int, own: Iterable[int], place: str
) -> Finding:
    names = names_in(trace)
    told = [names[p] for p in sorted(own)]
    return rule.finding(
        severity="error" if severity == "error" else "confirm",
        step=step,
        what=f"{len(told)} parameters are in the optimizer, take part in every step and never get "
        f"a gradient: {listing(told)}. {place}",
        cause="The loss cannot reach them: they keep their first values.",
        fix=_FIX,
        num_parameters=len(told),
        num_known=len(names),
    )


GRADIENT_CUT = Rule(
    name="the gradient reaches what the loss was computed with",
    fault="gradient cut",
    requirement="TRACE-16",
    requires="Two measured steps, and the order of the modules in a learning pass.",
    contradicted_by="A gradient of one of the parameters, or an output that does not depend on "
    "them.",
    abstains="The parameters are frozen, in no optimizer, moved by hand or in a branch that the "
    "output does not use; gradients are set by hand.",
    judge=_judge,
)
