"""Statistics of every module at every sampled step, for the module map of a replay."""

import math
from collections.abc import Iterator, Mapping, Sequence

from pydantic import Field

from sluice.base.settings import Record
from sluice.trace.records.step_statistics import StepStatistics
from sluice.trace.records.trace import Trace
from sluice.trace.report.replay.abnormal import network_name

MAX_STEPS = 360
"""Maximum number of evenly spaced steps in the module map. Sampled steps near required steps are
added."""

ModuleValues = list[list[float | None]]
"""For each module, a list with one value for each step of the map; None if the module was not
sampled at this step."""


class ModuleGrid(Record):
    """Statistics by module, in call order, and by step."""

    modules: tuple[str, ...] = Field(description="Label of each module: name and class.")
    steps: tuple[int, ...] = Field(description="Sampled steps of the map.")
    forward: ModuleValues = Field(description="Root mean square of the output.")
    backward: ModuleValues = Field(
        description="Norm of the gradients of the module's own parameters."
    )
    update: ModuleValues = Field(
        description="Norm of the update divided by the norm of the weights."
    )
    zeros: ModuleValues = Field(description="Share of zeros in the output.")


def module_grid(trace: Trace, *, required_steps: tuple[int, ...]) -> ModuleGrid:
    """Return the module map of a run.

    Args:
        trace: Trace of one process.
        required_steps: For each of these steps, the map includes the nearest sampled step, the two
            sampled steps before it and the two after it.
    """
    chosen_statistics = _choose_statistics(trace, required_steps)
    owner_names = _owner_names(trace)
    rows: dict[str, dict[str, dict[int, float]]] = {}  # values by module, statistic and column
    class_names: dict[str, str] = {}  # by module
    for column, statistics in enumerate(chosen_statistics):
        for output in statistics.outputs:
            name = network_name(trace.membership, output.network)
            module = f"{name}.{output.module}" if output.module else name
            class_names[module] = output.kind
            row = _get_or_add_row(rows, module)
            row["forward"][column] = output.norm / math.sqrt(output.numel)
            row["zeros"][column] = output.zero_share
        for optimizer in statistics.optimizers:
            squared_norms: dict[str, list[float]] = {}
            for index, *norms in zip(
                optimizer.parameters,
                optimizer.grad_norms,
                optimizer.weight_norms,
                optimizer.update_norms,
                strict=True,
            ):
                sums = squared_norms.setdefault(
                    owner_names.get(index, f"parameter {index}"), [0.0, 0.0, 0.0]
                )
                for position, norm in enumerate(norms):
                    sums[position] += norm * norm
            for owner, (squared_grad, squared_weight, squared_update) in squared_norms.items():
                row = _get_or_add_row(rows, owner)
                row["backward"][column] = math.sqrt(squared_grad)
                row["update"][column] = (
                    math.sqrt(squared_update / squared_weight) if squared_weight > 0 else math.nan
                )

    def values(statistic: str) -> ModuleValues:
        columns = range(len(chosen_statistics))
        return [[row[statistic].get(column) for column in columns] for row in rows.values()]

    return ModuleGrid(
        modules=tuple(_labels(list(rows), class_names)),
        steps=tuple(statistics.step for statistics in chosen_statistics),
        forward=values("forward"),
        backward=values("backward"),
        update=values("update"),
        zeros=values("zeros"),
    )


def _choose_statistics(trace: Trace, required_steps: tuple[int, ...]) -> list[StepStatistics]:
    """Return statistics of evenly spaced sampled steps, and of sampled steps near required ones."""
    sampled_statistics = [s for s in trace.statistics if s.outputs or s.optimizers]
    if len(sampled_statistics) <= MAX_STEPS:
        return sampled_statistics
    indices = range(len(sampled_statistics))
    chosen_indices = set[int]()
    for step in required_steps:
        nearest = min(indices, key=lambda i: abs(sampled_statistics[i].step - step))
        chosen_indices.update(indices[max(nearest - 2, 0) : nearest + 3])
    # Choose samples at evenly spaced step numbers, not at evenly spaced indices: of a long run, the
    # trace contains more samples of the first and the last steps than of the steps between them.
    index = 0
    for i in range(MAX_STEPS):
        while index < len(sampled_statistics) - 1 and (
            sampled_statistics[index].step < sampled_statistics[-1].step * (i + 1) / MAX_STEPS
        ):
            index += 1
        chosen_indices.add(index)
    return [sampled_statistics[i] for i in sorted(chosen_indices)]


def _labels(modules: Sequence[str], class_names: Mapping[str, str]) -> Iterator[str]:
    """Yield the label of each module: name and class, without the network if there is only one."""
    has_one_network = len({module.partition(".")[0] for module in modules}) == 1
    for module in modules:
        network, dot, name_inside = module.partition(".")
        class_name = class_names.get(module, "")
        name = name_inside if has_one_network and dot else module
        yield f"{name} {class_name}" if class_name and class_name != network else name


def _owner_names(trace: Trace) -> dict[int, str]:
    """Return the full name of the module that owns each parameter, by parameter index."""
    return {
        record.index: record.names[0].rpartition(".")[0]
        for membership in trace.memberships
        for record in membership.parameters
        if record.names
    }


def _get_or_add_row(
    rows: dict[str, dict[str, dict[int, float]]], name: str
) -> dict[str, dict[int, float]]:
    """Return the row of a module; add an empty row for a new module."""
    return rows.setdefault(name, {"forward": {}, "backward": {}, "update": {}, "zeros": {}})
