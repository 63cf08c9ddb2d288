"""Curves of a run over its steps, with a limited number of points for display."""

import math
from collections.abc import Sequence
from itertools import groupby

from sluice.trace.records.step_statistics import ClippingRecord
from sluice.trace.records.trace import Trace

MAX_POINTS = 1500
"""Maximum number of points of a curve. The width of a chart is less than this number of pixels."""

_NUM_CLIP_CALLS = 100
"""The share of clip calls with a norm above max_norm is computed over this number of the latest
recorded calls."""

Point = tuple[int, float]
"""Step and value."""
Curve = list[Point]


def curves(trace: Trace) -> dict[str, dict[str, Curve]]:
    """Return the curves of every chart by its title; charts without curves are omitted."""
    gradient_norms, update_ratios, moments = _optimizer_curves(trace)
    clips = [(scalars.step, clip) for scalars in trace.scalars for clip in scalars.clips]
    charts: dict[str, dict[str, Curve]] = {
        "loss": {
            "training": _mean_losses(trace),
            "evaluation": [(record.step, record.mean) for record in trace.evaluations],
        },
        "learning rate": _learning_rate_curves(trace),
        "gradient norm": {
            "before clipping": [(step, clip.norm) for step, clip in clips],
            "max_norm": [(step, clip.max_norm) for step, clip in clips],
            **gradient_norms,
        },
        "share of clip calls with a norm above max_norm": {
            f"last {_NUM_CLIP_CALLS} recorded calls": _clipped_shares(clips)
        },
        "update-to-weight ratio": update_ratios,
        "optimizer moments": moments,
        "loss scale": {
            "scale": [(s.step, s.scale) for s in trace.scalars if s.scale is not None],
        },
        "input": _input_curves(trace),
    }
    return {
        title: {name: decimate(curve) for name, curve in curve_by_name.items() if curve}
        for title, curve_by_name in charts.items()
        if any(curve_by_name.values())
    }


def decimate(curve: Curve, max_points: int = MAX_POINTS) -> Curve:
    """Return a curve with a limited number of points, in which peaks and gaps remain visible.

    The curve is divided into segments. Of each segment, the minimum, the maximum and the first
    non-finite point are kept. A chart shows the non-finite point as a gap. If all points of a
    segment are finite, its first point is kept instead of a non-finite point.
    """
    if len(curve) <= max_points:
        return curve
    # Up to three points of each segment are kept.
    segment_length = math.ceil(3 * len(curve) / max_points)
    kept_points: Curve = []
    for _, group in groupby(enumerate(curve), key=lambda item: item[0] // segment_length):
        points = [point for _, point in group]
        finite_points = [point for point in points if math.isfinite(point[1])]
        chosen_points = {next((p for p in points if not math.isfinite(p[1])), points[0])}
        if finite_points:
            chosen_points |= {
                min(finite_points, key=lambda p: p[1]),
                max(finite_points, key=lambda p: p[1]),
            }
        kept_points += sorted(chosen_points)
    return kept_points


def _mean_losses(trace: Trace) -> Curve:
    """Return the mean loss of the backward passes of each step."""
    return [(s.step, math.fsum(s.losses) / len(s.losses)) for s in trace.scalars if s.losses]


def _learning_rate_curves(trace: Trace) -> dict[str, Curve]:
    """Return the recorded learning rates of each optimizer.

    The points are the sampled steps and the recorded changes. If a learning rate changes often,
    only some changes are recorded. Parameter groups with equal learning rates share a curve.
    """
    rates_by_step = {(record.step, record.optimizer): record.rates for record in trace.rates}
    rates_by_step |= {
        (statistics.step, optimizer.optimizer): optimizer.rates
        for statistics in trace.statistics
        for optimizer in statistics.optimizers
    }
    curve_by_name: dict[str, Curve] = {}
    for (step, optimizer), rates in sorted(rates_by_step.items()):
        for number, rate in enumerate(dict.fromkeys(rates), 1):
            name = f"optimizer {optimizer}" + (f", rate {number}" if number > 1 else "")
            curve_by_name.setdefault(name, []).append((step, rate))
    return curve_by_name


def _clipped_shares(clips: Sequence[tuple[int, ClippingRecord]]) -> Curve:
    """Return after each clip call the share of the latest calls whose norm exceeded max_norm."""
    shares: Curve = []
    for end, (step, _) in enumerate(clips, 1):
        latest_clips = clips[max(0, end - _NUM_CLIP_CALLS) : end]
        shares.append(
            (step, sum(clip.norm > clip.max_norm for _, clip in latest_clips) / len(latest_clips))
        )
    return shares


def _optimizer_curves(trace: Trace) -> tuple[dict[str, Curve], dict[str, Curve], dict[str, Curve]]:
    """Return the curves of gradient norms, of update-to-weight ratios, and of moments, by name."""
    gradient_norms: dict[str, Curve] = {}
    update_ratios: dict[str, Curve] = {}
    moments: dict[str, Curve] = {}
    for statistics in trace.statistics:
        for optimizer in statistics.optimizers:
            name = f"optimizer {optimizer.optimizer}"
            if not optimizer.parameters:
                continue
            curve = gradient_norms.setdefault(f"used by {name}", [])
            curve.append((statistics.step, _joint_norm(optimizer.grad_norms)))
            weight_norm = _joint_norm(optimizer.weight_norms)
            ratio = (
                _joint_norm(optimizer.update_norms) / weight_norm if weight_norm > 0 else math.nan
            )
            update_ratios.setdefault(name, []).append((statistics.step, ratio))
            for moment, norm in optimizer.moments.items():
                moments.setdefault(f"{name}, {moment}", []).append((statistics.step, norm))
    return gradient_norms, update_ratios, moments


def _input_curves(trace: Trace) -> dict[str, Curve]:
    """Return curves of the statistics of the first float tensor of each batch.

    If a step has several batches, the curves contain the minimum of their smallest values, and the
    maximum of their largest values and of their means.
    """
    curve_by_name: dict[str, Curve] = {}
    for batch in trace.batches:
        step = batch.step + 1  # ``batch.step`` is the number of steps before the batch
        field = next((f for f in batch.fields if f.dtype.startswith(("float", "bfloat"))), None)
        if field is not None:
            for name, value in (
                ("mean", field.mean),
                ("smallest", field.smallest),
                ("largest", field.largest),
            ):
                curve_by_name.setdefault(name, []).append((step, value))
    return {
        name: [
            min(points) if name == "smallest" else max(points)
            for _, points in groupby(curve, key=lambda point: point[0])
        ]
        for name, curve in curve_by_name.items()
    }


def _joint_norm(norms: Sequence[float]) -> float:
    """Return the norm of all tensors together from their norms; NaN if a norm is non-finite."""
    return (
        math.sqrt(math.fsum(norm * norm for norm in norms))
        if all(map(math.isfinite, norms))
        else math.nan
    )
