"""The curves of a run over its steps, as short as a page can hold."""

import math
from collections.abc import Sequence
from itertools import groupby

from sluice.trace.evidence.trace import Trace

MOST_POINTS = 1500
"""Of one curve: more than the pixels of its picture."""

Point = tuple[int, float]
Curve = list[Point]


def curves(trace: Trace) -> dict[str, dict[str, Curve]]:
    """Return the curves of every picture by its title; a picture without any is left out."""
    optimizers = _measured(trace)
    found: dict[str, dict[str, Curve]] = {
        "loss": {"training": _losses(trace), **_evaluations(trace)},
        "learning rate": _rates(trace),
        "gradient norm": {**_clips(trace), **optimizers["gradient"]},
        "share of steps clipped": {"last 100": _clip_share(trace)},
        "update of weight": optimizers["update"],
        "moments": optimizers["moments"],
        "loss scale": {"scale": [(n.step, n.scale) for n in trace.numbers if n.scale is not None]},
        "input": _inputs(trace),
    }
    return {
        title: {name: thin(curve) for name, curve in told.items() if curve}
        for title, told in found.items()
        if any(told.values())
    }


def thin(curve: Curve, most: int = MOST_POINTS) -> Curve:
    """Return a curve of at most so many points that has the ups and downs of the long one.

    Of every stretch of points the lowest and the highest stay, and the first that is not finite.
    """
    if len(curve) <= most:
        return curve
    stretch = math.ceil(3 * len(curve) / most)
    kept: Curve = []
    for _, group in groupby(enumerate(curve), key=lambda item: item[0] // stretch):
        points = [point for _, point in group]
        finite = [point for point in points if math.isfinite(point[1])]
        chosen = {next((p for p in points if not math.isfinite(p[1])), points[0])}
        if finite:
            chosen |= {min(finite, key=lambda p: p[1]), max(finite, key=lambda p: p[1])}
        kept += sorted(chosen)
    return kept


def _losses(trace: Trace) -> Curve:
    return [(n.step, math.fsum(n.losses) / len(n.losses)) for n in trace.numbers if n.losses]


def _evaluations(trace: Trace) -> dict[str, Curve]:
    found: dict[str, Curve] = {}
    for fact in trace.evaluations:
        found.setdefault("evaluation", []).append((fact.step, fact.mean))
    return found


def _rates(trace: Trace) -> dict[str, Curve]:
    """Join what is told at changes, thin when every step is one, and at measured steps."""
    told = {(fact.step, fact.optimizer): fact.rates for fact in trace.rates}
    told |= {(m.step, one.optimizer): one.rates for m in trace.measures for one in m.optimizers}
    found: dict[str, Curve] = {}
    for (step, optimizer), rates in sorted(told.items()):
        for group, rate in enumerate(dict.fromkeys(rates)):
            name = f"optimizer {optimizer}" + (f", rate {group + 1}" if group else "")
            found.setdefault(name, []).append((step, rate))
    return found


def _clips(trace: Trace) -> dict[str, Curve]:
    found: dict[str, Curve] = {}
    for numbers in trace.numbers:
        for clip in numbers.clips:
            found.setdefault("before clipping", []).append((numbers.step, clip.norm))
            found.setdefault("bound", []).append((numbers.step, clip.max_norm))
    return found


def _clip_share(trace: Trace) -> Curve:
    clipped = [(n.step, c.norm > c.max_norm) for n in trace.numbers for c in n.clips]
    window = 100
    shares: Curve = []
    for at in range(len(clipped)):
        recent = clipped[max(0, at + 1 - window) : at + 1]
        shares.append((clipped[at][0], sum(hit for _, hit in recent) / len(recent)))
    return shares


def _measured(trace: Trace) -> dict[str, dict[str, Curve]]:
    found: dict[str, dict[str, Curve]] = {"gradient": {}, "update": {}, "moments": {}}
    for measures in trace.measures:
        for one in measures.optimizers:
            name = f"optimizer {one.optimizer}"
            if not one.parameters:
                continue
            weight, update = _norm(one.weight_norms), _norm(one.update_norms)
            curve = found["gradient"].setdefault(f"{name}, used", [])
            curve.append((measures.step, _norm(one.grad_norms)))
            ratio = update / weight if weight > 0 else math.nan
            found["update"].setdefault(name, []).append((measures.step, ratio))
            for moment, norm in one.moments.items():
                curve = found["moments"].setdefault(f"{name}, {moment}", [])
                curve.append((measures.step, norm))
    return found


def _inputs(trace: Trace) -> dict[str, Curve]:
    found: dict[str, Curve] = {}
    for batch in trace.batches:
        field = next((f for f in batch.fields if f.dtype.startswith(("float", "bfloat"))), None)
        if field is not None:
            for name, value in (
                ("mean", field.mean),
                ("smallest", field.smallest),
                ("largest", field.largest),
            ):
                found.setdefault(name, []).append((batch.step + 1, value))
    return {
        name: [max(same) for _, same in groupby(c, key=lambda p: p[0])] for name, c in found.items()
    }


def _norm(norms: Sequence[float]) -> float:
    return (
        math.sqrt(math.fsum(norm * norm for norm in norms))
        if all(map(math.isfinite, norms))
        else math.nan
    )
