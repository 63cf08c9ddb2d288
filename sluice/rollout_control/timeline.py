"""Draws the challenger's share over time as an SVG that uses the colours of the page."""

import math
from collections.abc import Callable, Sequence
from datetime import datetime
from html import escape
from typing import NamedTuple

from sluice.reports.page import Tone

_WIDTH = 1000
"""Width of the drawing [SVG units, like all sizes here]."""
_PLOT_HEIGHT = 174
"""Height of the plot of the share, without marks and labels."""
_LEFT_MARGIN = 52
"""Left margin of the plot."""
_RIGHT_MARGIN = 18
"""Right margin of the plot."""
_BOTTOM_MARGIN = 30
"""Margin below the plot."""
_MARK_RADIUS = 10
"""Radius of a mark."""
_LANE_HEIGHT = 23
"""Height of a lane. Marks that would overlap are drawn in lanes, one above the other."""
_MAX_LANES = 4
"""Maximum number of lanes of marks."""
_TICKS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400)
"""Possible intervals between labels of the time axis [s]; the shortest that fits is used."""
_DAY_S = 86400
_MAX_TICKS = 8
"""Maximum number of intervals between labels of the time axis."""


class TimelineMark(NamedTuple):
    """One transition on the timeline."""

    time: datetime
    share: float
    """Share of the users from this time on, in 0..1."""

    tone: Tone
    tooltip: str
    """Text shown when the pointer is over the mark."""


def timeline_svg(marks: Sequence[TimelineMark], *, until: datetime) -> str:
    """Return the share as a step curve with a numbered mark for each transition.

    Args:
        marks: Marks in order, at least one. They are numbered from 1.
        until: End of the time axis, at or after the last mark.
    """
    start_time = marks[0].time
    span_s = max((until - start_time).total_seconds(), 1.0)

    def x_at(time: datetime) -> float:
        fraction = (time - start_time).total_seconds() / span_s
        return _LEFT_MARGIN + min(max(fraction, 0.0), 1.0) * (_WIDTH - _LEFT_MARGIN - _RIGHT_MARGIN)

    lanes = _assign_lanes([x_at(mark.time) for mark in marks])
    plot_top = 30 + (max(lanes) + 1) * _LANE_HEIGHT

    def y_at(share: float) -> float:
        return plot_top + (1 - share) * _PLOT_HEIGHT

    step_ends = [*(x_at(mark.time) for mark in marks[1:]), x_at(until)]
    steps = [
        (x_at(mark.time), step_end, y_at(mark.share))
        for mark, step_end in zip(marks, step_ends, strict=True)
    ]
    line_points = " ".join(
        f"{left:.1f},{level:.1f} {right:.1f},{level:.1f}" for left, right, level in steps
    )
    area_points = f"{steps[0][0]:.1f},{y_at(0):.1f} {line_points} {steps[-1][1]:.1f},{y_at(0):.1f}"
    height = plot_top + _PLOT_HEIGHT + _BOTTOM_MARGIN
    elements = [
        f'<svg class="timeline" viewBox="0 0 {_WIDTH} {height}" role="img" '
        'aria-label="share of the users over time">',
        *_grid(span_s, y_at),
        f'<polygon class="area" points="{area_points}"/>',
        f'<polyline class="share" points="{line_points}"/>',
        *(
            _mark(
                number, mark, x_at(mark.time), plot_top - 18 - lane * _LANE_HEIGHT, y_at(mark.share)
            )
            for number, (mark, lane) in enumerate(zip(marks, lanes, strict=True), start=1)
        ),
        "</svg>",
    ]
    return "\n".join(elements)


def format_duration(seconds: float) -> str:
    """Format a duration with its one or two largest units.

    >>> [format_duration(seconds) for seconds in (42, 90, 600, 5400, 200_000)]
    ['42 s', '1 min 30 s', '10 min', '1 h 30 min', '2 d 7 h']
    """
    total_s = round(seconds)
    if total_s < 60:
        return f"{total_s} s"
    if total_s < 600 and total_s % 60:
        return f"{total_s // 60} min {total_s % 60} s"
    minutes = round(total_s / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def _grid(span_s: float, y_at: Callable[[float], float]) -> list[str]:
    """Return the grid lines of the share, and the labels of both axes."""
    elements = []
    for percent in (0, 25, 50, 75, 100):
        line_y = y_at(percent / 100)
        elements.append(
            f'<line class="grid" x1="{_LEFT_MARGIN}" x2="{_WIDTH - _RIGHT_MARGIN}" '
            f'y1="{line_y:.1f}" y2="{line_y:.1f}"/>'
            f'<text x="{_LEFT_MARGIN - 8}" y="{line_y + 4:.1f}" text-anchor="end">'
            f"{percent} %</text>"
        )
    tick_interval_s = next((tick for tick in _TICKS_S if span_s / tick <= _MAX_TICKS), None)
    if tick_interval_s is None:
        tick_interval_s = _DAY_S * max(1, round(span_s / _DAY_S / _MAX_TICKS + 0.5))
    for number in range(int(span_s // tick_interval_s) + 1):
        label_x = _LEFT_MARGIN + number * tick_interval_s / span_s * (
            _WIDTH - _LEFT_MARGIN - _RIGHT_MARGIN
        )
        anchor = "start" if number == 0 else "end" if label_x > _WIDTH - 40 else "middle"
        elements.append(
            f'<text x="{label_x:.1f}" y="{y_at(0) + 22:.1f}" text-anchor="{anchor}">'
            f"{format_duration(number * tick_interval_s)}</text>"
        )
    return elements


def _assign_lanes(x_positions: Sequence[float]) -> list[int]:
    """Return for each mark the lowest lane in which it overlaps no earlier mark.

    A mark that overlaps in all lanes gets the lane whose last mark is farthest away.
    """
    last_x_by_lane = [-math.inf] * _MAX_LANES
    lanes = []
    for x in x_positions:
        lane = next((n for n in range(_MAX_LANES) if x - last_x_by_lane[n] > _LANE_HEIGHT), None)
        lanes.append(last_x_by_lane.index(min(last_x_by_lane)) if lane is None else lane)
        last_x_by_lane[lanes[-1]] = x
    return lanes


def _mark(number: int, mark: TimelineMark, x: float, y: float, curve_y: float) -> str:
    """Return a numbered circle at (x, y), with a dashed line down to the curve at ``curve_y``."""
    return (
        f'<g><title>{escape(mark.tooltip)}</title><line class="grid" x1="{x:.1f}" x2="{x:.1f}" '
        f'y1="{y:.1f}" y2="{curve_y:.1f}" stroke-dasharray="3 3"/>'
        f'<circle class="mark {mark.tone}" cx="{x:.1f}" cy="{y:.1f}" r="{_MARK_RADIUS}"/>'
        f'<text class="number" x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle">{number}'
        "</text></g>"
    )
