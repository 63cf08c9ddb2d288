"""Does any unit of a layer answer?"""

from collections import Counter
from collections.abc import Iterator

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.departure import departure
from sluice.trace.rules.series import facts_of, losses_of

_ACTIVATIONS = frozenset({"ReLU", "ReLU6", "GELU", "SiLU", "Hardswish", "Threshold"})
_LEAST = 3
"""Measured steps in a row, up to the last one."""

_LEAST_NUMBERS = 32
"""In the output, rows and units together."""


def _silent(trace: Trace) -> Iterator[tuple[int, int, str, str, int]]:
    """Yield step, network, module, kind and size of each output without an active unit."""
    facts = facts_of(trace)
    names = {n.index: n.name for m in trace.memberships for n in m.networks}
    for measured in trace.measures:
        norms: dict[str, list[float]] = {}
        for own in measured.optimizers:
            for index, norm in zip(own.parameters, own.grad_norms, strict=True):
                for name in facts[index].names if index in facts else ():
                    norms.setdefault(name.rpartition(".")[0], []).append(norm)
        learns = any(n > 0 for found in norms.values() for n in found)
        for output in measured.outputs:
            if output.numel < _LEAST_NUMBERS:
                continue
            if output.kind in _ACTIVATIONS:
                is_silent = output.zero_share == 1
            else:
                given = norms.get(f"{names.get(output.network, '')}.{output.module}", [1.0])
                is_silent = output.largest < 0 and learns and max(given) == 0
            if is_silent:
                yield measured.step, output.network, output.module, output.kind, output.numel


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    names = {n.index: n.name for m in trace.memberships for n in m.networks}
    seen = [(o.network, o.module, m.step) for m in trace.measures for o in m.outputs]
    looked = Counter((network, module) for network, module, _ in seen)
    last = {(network, module): step for network, module, step in seen}
    steps: dict[tuple[int, str], list[int]] = {}
    kinds: dict[tuple[int, str], tuple[str, int]] = {}
    for step, network, module, kind, numel in _silent(trace):
        steps.setdefault((network, module), []).append(step)
        kinds[network, module] = kind, numel
    left = departure(losses_of(trace))
    found = []
    for key, silent in steps.items():
        times = [s for n, m, s in seen if (n, m) == key]
        tail = 0
        for step in reversed(times):
            if step not in silent:
                break
            tail += 1
        if tail < _LEAST or silent[-1] != last[key]:
            continue
        kind, numel = kinds[key]
        name = f"{names.get(key[0], 'a network')}.{key[1]}"
        step = since = times[-tail]
        what = (
            f"{name} ({kind}): none of {numel} numbers is above zero, at {tail} of {looked[key]} "
            f"measured steps, the first at step {since}."
        )
        # It answered at the last look before that, and few steps are looked at.
        if left is not None and times[-tail - 1 : -tail] < [left.step] <= [since]:
            step = left.step
            what += f" The loss left {left.before:.4g} at step {step}."
        found.append(
            rule.finding(
                severity="error",
                step=step,
                what=what,
                cause="No gradient passes through it: neither this layer nor those before it can "
                "come back.",
                fix="Look at the bias and the weights of this layer: begin with a bias of zero and "
                "torch's own initialisation, or a smaller learning rate.",
                num_silent=tail,
                num_measured=looked[key],
            )
        )
    return tuple(sorted(found, key=lambda f: f.step)[:1])


DEAD_UNITS = Rule(
    name="some unit of every layer is active",
    fault="dead units",
    requirement="TRACE-8",
    requires="Three measured steps of an activation, or of a layer with its gradients.",
    contradicted_by="A number above zero in the output, or a gradient in the layer.",
    abstains="Only some units are inactive, or the layer was not called.",
    judge=_judge,
)
