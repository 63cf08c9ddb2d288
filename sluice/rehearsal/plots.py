"""Plots of a rehearsal as PNG files: the traffic split and the evidence over time."""

import math
from typing import TYPE_CHECKING

from sluice.evaluation.plots import OUTCOME_COLOUR
from sluice.rehearsal.result import Rehearsal
from sluice.rehearsal.served_steps import served_steps
from sluice.reports.figures import (
    INK,
    MUTED,
    VALIDATION,
    as_png,
    new_figure,
    new_stacked_axes,
    set_headline,
)
from sluice.rollout.evidence import GUARDS, GuardName

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_END_COLOUR = {
    "promoted": OUTCOME_COLOUR["PROMOTE"],
    "rolled_back": OUTCOME_COLOUR["REJECT"],
    "paused": OUTCOME_COLOUR["INCONCLUSIVE"],
    "timed_out": OUTCOME_COLOUR["INCONCLUSIVE"],
}
_FLOOR = 1e-3
"""Minimum of the plotted evidence [multiples of the limit]. Smaller values are plotted here."""
_CEILING = 1e6
"""Maximum of the plotted evidence [multiples of the limit]. Larger values are plotted here."""
_ROW_NAMES: dict[GuardName, str] = {
    "errors": "errors",
    "timeouts": "late",
    "not_finite": "NaN or\ninfinite",
    "slower": "slower",
}


def share_png(rehearsal: Rehearsal) -> bytes:
    """Plot the challenger's share of the users over time, with every transition."""
    figure, axes = new_figure(height_in=2.6)
    transitions = rehearsal.transitions
    times = [(t.at - transitions[0].at).total_seconds() for t in transitions]
    shares = [100 * t.rollout.users_share for t in transitions]
    colour = _END_COLOUR[rehearsal.ended]
    end_s = 1.04 * max(times[-1], 1e-3)
    axes.step([*times, end_s], [*shares, shares[-1]], where="post", color=VALIDATION, linewidth=2)
    axes.fill_between(
        [*times, end_s],
        [*shares, shares[-1]],
        step="post",
        color=VALIDATION,
        alpha=0.12,
        linewidth=0,
    )
    for step in served_steps(transitions):
        if math.isfinite(step.served_share):
            step_times = [
                (time - transitions[0].at).total_seconds() for time in (step.since, step.until)
            ]
            axes.plot(
                step_times, [100 * step.served_share] * 2, color=INK, linewidth=1.4, linestyle=":"
            )
    axes.axvline(times[-1], color=colour, linewidth=2)
    axes.set_ylim(0, 108)
    axes.set_xlim(0, end_s)
    axes.set_xlabel("seconds since the rollout started")
    axes.set_ylabel("challenger's share [%]")
    headline = rehearsal.ended.replace("_", " ")
    detail = (
        f"after {rehearsal.duration_s:.1f} s (vertical line); planned share solid, served dotted"
    )
    set_headline(axes, headline, detail, colour=colour)
    return as_png(figure)


def evidence_png(rehearsal: Rehearsal) -> bytes:
    """Plot each guard's evidence over time, as a multiple of its limit."""
    return as_png(evidence_figure(rehearsal))


def evidence_figure(rehearsal: Rehearsal) -> "Figure":
    """Return the figure of ``evidence_png`` before it is encoded."""
    end_s = 1.04 * max([sample.at_s for sample in rehearsal.samples] + [1e-3])
    rows = _evidence_rows(rehearsal)
    figure, all_axes = new_stacked_axes(len(rows), height_in=0.9 + 0.62 * len(rows))
    y_max = min(100 * max([1.0, *(value for _, points in rows for _, value in points)]), _CEILING)
    for axes, (name, points) in zip(all_axes, rows, strict=True):
        times, values = [time for time, _ in points], [value for _, value in points]
        is_breached = bool(values) and max(values) >= 1
        colour = OUTCOME_COLOUR["REJECT"] if is_breached else VALIDATION
        axes.fill_between(times, values, 0.5 * _FLOOR, color=colour, alpha=0.15, linewidth=0)
        axes.plot(times, values, color=colour, linewidth=1.8)
        axes.axhline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        axes.set_yscale("log")
        axes.set_ylim(0.5 * _FLOOR, y_max)
        axes.set_yticks([1], ["limit"])
        axes.minorticks_off()
        axes.set_xlim(0, end_s)
        axes.set_ylabel(name, rotation=0, ha="right", va="center", labelpad=6)
        for transition in rehearsal.transitions[1:]:
            at_s = (transition.at - rehearsal.transitions[0].at).total_seconds()
            axes.axvline(at_s, color=MUTED, linewidth=0.8, linestyle=(0, (2, 3)))
        label = _maximum_label(values)
        axes.text(
            0.005, 0.9, label, transform=axes.transAxes, color=INK, fontsize=8, ha="left", va="top"
        )
    all_axes[-1].set_xlabel("seconds since the rollout started")
    set_headline(
        all_axes[0],
        "evidence against the challenger",
        "log scale; the rollout rolls back at the dashed line; dotted lines mark transitions",
        colour=INK,
    )
    return figure


def _maximum_label(values: list[float]) -> str:
    if not values:
        return "not measured"
    if max(values) <= _FLOOR:
        return f"at most {_FLOOR:g} times the limit"
    bound = "at most" if max(values) < _CEILING else "at least"
    return f"{bound} {max(values):.2g} times the limit"


def _evidence_rows(rehearsal: Rehearsal) -> list[tuple[str, list[tuple[float, float]]]]:
    """Return name and points (seconds, multiple of the limit) of each guard and of the drift."""

    def clip(value: float) -> float:
        return min(max(value, _FLOOR), _CEILING) if math.isfinite(value) else _CEILING

    rows = [
        (
            _ROW_NAMES[guard],
            [
                (sample.at_s, clip(sample.evidence.get(guard, 0.0) / rehearsal.limits[guard]))
                for sample in rehearsal.samples
            ],
        )
        for guard in GUARDS
    ]
    distances = [
        (sample.at_s, clip(sample.distance / rehearsal.drift_limit))
        for sample in rehearsal.samples
        if sample.distance is not None
    ]
    return [*rows, ("prediction\ndistance", distances)]
