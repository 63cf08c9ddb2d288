"""What every module did at every measured step: the numbers behind the map of a replay."""

import math
from collections.abc import Iterator, Mapping, Sequence

from pydantic import Field

from sluice.base.settings import Record
from sluice.trace.evidence.measures import StepMeasures
from sluice.trace.evidence.trace import Trace
from sluice.trace.replay.abnormal import network_name

MOST_STEPS = 360
"""Columns of the map."""

Values = list[list[float | None]]
"""One list for each module, along ``steps``; None where nothing was measured."""


class ModuleGrid(Record):
    """Statistics by module, in the order of their calls, and step."""

    modules: tuple[str, ...]
    steps: tuple[int, ...]
    forward: Values = Field(description="Norm of the output, of the root of its size.")
    backward: Values = Field(description="Norm of the gradients of its own parameters.")
    update: Values = Field(description="Norm of the step, of the norm of the weights.")
    zeros: Values = Field(description="Share of zeros in the output.")


def module_grid(trace: Trace, *, must_have: tuple[int, ...]) -> ModuleGrid:
    """Return the map of a run.

    Args:
        trace: Of one process.
        must_have: Steps that are not left out, if they were measured at all.
    """
    measures = _chosen(trace, must_have)
    owners = _owners(trace)
    rows: dict[str, dict[str, dict[int, float]]] = {}
    kinds: dict[str, str] = {}
    for column, one in enumerate(measures):
        for output in one.outputs:
            name = network_name(trace.membership, output.network)
            module = f"{name}.{output.module}" if output.module else name
            kinds[module] = output.kind
            row = _row(rows, module)
            row["forward"][column] = output.norm / math.sqrt(output.numel)
            row["zeros"][column] = output.zero_share
        for optimizer in one.optimizers:
            squares: dict[str, list[float]] = {}
            for index, *norms in zip(
                optimizer.parameters,
                optimizer.grad_norms,
                optimizer.weight_norms,
                optimizer.update_norms,
                strict=True,
            ):
                sums = squares.setdefault(owners.get(index, f"parameter {index}"), [0.0, 0.0, 0.0])
                for place, norm in enumerate(norms):
                    sums[place] += norm * norm
            for owner, (gradient, weight, update) in squares.items():
                row = _row(rows, owner)
                row["backward"][column] = math.sqrt(gradient)
                row["update"][column] = math.sqrt(update / weight) if weight > 0 else math.nan
    num = len(measures)

    def values(kind: str) -> Values:
        return [[row[kind].get(column) for column in range(num)] for row in rows.values()]

    return ModuleGrid(
        modules=tuple(_labels(list(rows), kinds)),
        steps=tuple(one.step for one in measures),
        forward=values("forward"),
        backward=values("backward"),
        update=values("update"),
        zeros=values("zeros"),
    )


def _chosen(trace: Trace, must_have: tuple[int, ...]) -> list[StepMeasures]:
    """Return measured steps, evenly over the run, with those at and around the ones asked for."""
    told = [m for m in trace.measures if m.outputs or m.optimizers]
    if len(told) <= MOST_STEPS:
        return told
    near = {
        place + offset
        for step in must_have
        for place in [min(range(len(told)), key=lambda i: abs(told[i].step - step))]
        for offset in range(-2, 3)
    }
    # By step, not by place: the last steps of a long run are measured more often than its middle.
    marks = [told[-1].step * (i + 1) / MOST_STEPS for i in range(MOST_STEPS)]
    even, at = set[int](), 0
    for mark in marks:
        while at < len(told) - 1 and told[at].step < mark:
            at += 1
        even.add(at)
    return [told[i] for i in sorted(even | {i for i in near if 0 <= i < len(told)})]


def _labels(modules: Sequence[str], kinds: Mapping[str, str]) -> Iterator[str]:
    """Yield what to call each module: with its kind, without the network when there is only one."""
    is_one = len({module.partition(".")[0] for module in modules}) == 1
    for module in modules:
        network, dot, inside = module.partition(".")
        kind = kinds.get(module, "")
        name = inside if is_one and dot else module
        yield f"{name} {kind}" if kind and kind != network else name


def _owners(trace: Trace) -> dict[int, str]:
    return {
        fact.index: fact.names[0].rpartition(".")[0]
        for membership in trace.memberships
        for fact in membership.parameters
        if fact.names
    }


def _row(rows: dict[str, dict[str, dict[int, float]]], name: str) -> dict[str, dict[int, float]]:
    return rows.setdefault(name, {"forward": {}, "backward": {}, "update": {}, "zeros": {}})
