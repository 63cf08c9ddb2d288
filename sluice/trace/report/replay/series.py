"""Curves of a run over its steps, decimated for display."""

import math
from collections.abc import Sequence
from itertools import groupby

from sluice.trace.records.trace import Trace

MAX_POINTS = 1500
"""Maximum number of points of a curve. A chart has fewer pixels in width."""

_CLIP_WINDOW = 100
"""Number of consecutive recorded clip calls over which the share of clipped calls is computed."""

Point = tuple[int, float]
"""Step and value."""
Curve = list[Point]


def curves(trace: Trace) -> dict[str, dict[str, Curve]]:
    """Return the curves of every chart by its title; charts without curves are omitted."""
    optimizers = _statistics(trace)
    charts: dict[str, dict[str, Curve]] = {
        "loss": {"training": _losses(trace), **_evaluations(trace)},
        "learning rate": _rates(trace),
        "gradient norm": {**_clips(trace), **optimizers["gradient"]},
        "share of clip calls above max_norm": {
            f"last {_CLIP_WINDOW} recorded calls": _clip_share(trace)
        },
        "update-to-weight ratio": optimizers["update"],
        "optimizer moments": optimizers["moments"],
        "loss scale": {"scale": [(n.step, n.scale) for n in trace.scalars if n.scale is not None]},
        "input": _inputs(trace),
    }
    return {
        title: {name: decimate(curve) for name, curve in lines.items() if curve}
        for title, lines in charts.items()
        if any(lines.values())
    }


def decimate(curve: Curve, max_points: int = MAX_POINTS) -> Curve:
    """Return a curve with a limited number of points that keeps all peaks and gaps.

    The minimum, the maximum and the first non-finite point of every segment are kept.
    """
    if len(curve) <= max_points:
        return curve
    segment = math.ceil(3 * len(curve) / max_points)
    kept_points: Curve = []
    for _, group in groupby(enumerate(curve), key=lambda item: item[0] // segment):
        points = [point for _, point in group]
        finite = [point for point in points if math.isfinite(point[1])]
        chosen_points = {next((p for p in points if not math.isfinite(p[1])), points[0])}
        if finite:
            chosen_points |= {min(finite, key=lambda p: p[1]), max(finite, key=lambda p: p[1])}
        kept_points += sorted(chosen_points)
    return kept_points


def _losses(trace: Trace) -> Curve:
    return [(n.step, math.fsum(n.losses) / len(n.losses)) for n in trace.scalars if n.losses]


def _evaluations(trace: Trace) -> dict[str, Curve]:
    lines: dict[str, Curve] = {}
    for record in trace.evaluations:
        lines.setdefault("evaluation", []).append((record.step, record.mean))
    return lines


def _rates(trace: Trace) -> dict[str, Curve]:
    """Combine the learning rates recorded at changes with those recorded at sampled steps.

    Only some of many changes are recorded.
    """
    rates_by_step = {(record.step, record.optimizer): record.rates for record in trace.rates}
    rates_by_step |= {
        (statistics.step, optimizer.optimizer): optimizer.rates
        for statistics in trace.statistics
        for optimizer in statistics.optimizers
    }
    lines: dict[str, Curve] = {}
    for (step, optimizer), rates in sorted(rates_by_step.items()):
        for number, rate in enumerate(dict.fromkeys(rates), 1):
            name = f"optimizer {optimizer}" + (f", rate {number}" if number > 1 else "")
            lines.setdefault(name, []).append((step, rate))
    return lines


def _clips(trace: Trace) -> dict[str, Curve]:
    lines: dict[str, Curve] = {}
    for scalars in trace.scalars:
        for clip in scalars.clips:
            lines.setdefault("before clipping", []).append((scalars.step, clip.norm))
            lines.setdefault("max_norm", []).append((scalars.step, clip.max_norm))
    return lines


def _clip_share(trace: Trace) -> Curve:
    """Return the share of recorded clip calls in which the norm exceeded ``max_norm``."""
    calls = [(n.step, c.norm > c.max_norm) for n in trace.scalars for c in n.clips]
    shares: Curve = []
    for end, (step, _) in enumerate(calls, 1):
        recent = calls[max(0, end - _CLIP_WINDOW) : end]
        shares.append((step, sum(is_clipped for _, is_clipped in recent) / len(recent)))
    return shares


def _statistics(trace: Trace) -> dict[str, dict[str, Curve]]:
    charts: dict[str, dict[str, Curve]] = {"gradient": {}, "update": {}, "moments": {}}
    for statistics in trace.statistics:
        for optimizer in statistics.optimizers:
            name = f"optimizer {optimizer.optimizer}"
            if not optimizer.parameters:
                continue
            weight, update = _norm(optimizer.weight_norms), _norm(optimizer.update_norms)
            curve = charts["gradient"].setdefault(f"used by {name}", [])
            curve.append((statistics.step, _norm(optimizer.grad_norms)))
            ratio = update / weight if weight > 0 else math.nan
            charts["update"].setdefault(name, []).append((statistics.step, ratio))
            for moment, norm in optimizer.moments.items():
                curve = charts["moments"].setdefault(f"{name}, {moment}", [])
                curve.append((statistics.step, norm))
    return charts


def _inputs(trace: Trace) -> dict[str, Curve]:
    lines: dict[str, Curve] = {}
    for batch in trace.batches:
        field = next((f for f in batch.fields if f.dtype.startswith(("float", "bfloat"))), None)
        if field is not None:
            for name, value in (
                ("mean", field.mean),
                ("smallest", field.smallest),
                ("largest", field.largest),
            ):
                lines.setdefault(name, []).append((batch.step + 1, value))
    return {
        name: [
            min(points) if name == "smallest" else max(points)
            for _, points in groupby(curve, key=lambda point: point[0])
        ]
        for name, curve in lines.items()
    }


def _norm(norms: Sequence[float]) -> float:
    return (
        math.sqrt(math.fsum(norm * norm for norm in norms))
        if all(map(math.isfinite, norms))
        else math.nan
    )
