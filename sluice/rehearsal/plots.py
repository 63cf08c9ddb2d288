"""Pictures of a rehearsal: who got the traffic, and how the evidence grew.

Each function returns the bytes of a PNG.
"""

import math

from sluice.evaluation.plots import (
    INK,
    MUTED,
    OUTCOME_COLOUR,
    VALIDATION,
    as_png,
    new_figure,
    set_headline,
)
from sluice.rehearsal.result import Rehearsal
from sluice.rollout.evidence import GUARDS

_END_COLOUR = {
    "promoted": OUTCOME_COLOUR["PROMOTE"],
    "rolled_back": OUTCOME_COLOUR["REJECT"],
    "paused": OUTCOME_COLOUR["INCONCLUSIVE"],
    "unsettled": OUTCOME_COLOUR["INCONCLUSIVE"],
}
_GUARD_COLOURS = ("#0967d2", "#b7791f", "#8719e0", "#147d64")
_FLOOR = 1e-3
"""Evidence below it says the same: nothing speaks against the challenger."""


def share_png(rehearsal: Rehearsal) -> bytes:
    """Draw the challenger's share of the users over time, with every transition."""
    figure, axes = new_figure(height_in=2.6)
    told = rehearsal.transitions
    times = [(t.at - told[0].at).total_seconds() for t in told]
    shares = [100.0 if t.outcome == "promote" else 100 * t.rollout.share for t in told]
    colour = _END_COLOUR[rehearsal.ended]
    end = max(times[-1], 1e-3)
    axes.step(
        [*times, 1.04 * end], [*shares, shares[-1]], where="post", color=VALIDATION, linewidth=2
    )
    axes.fill_between(
        [*times, 1.04 * end],
        [*shares, shares[-1]],
        step="post",
        color=VALIDATION,
        alpha=0.12,
        linewidth=0,
    )
    axes.axvline(times[-1], color=colour, linewidth=2)
    axes.set_ylim(0, 108)
    axes.set_xlim(0, 1.04 * end)
    axes.set_xlabel("seconds since the rollout began")
    axes.set_ylabel("users the challenger answers [%]")
    words = rehearsal.ended.replace("_", " ")
    detail = f"after {rehearsal.settled_s:.1f} s; the vertical line marks the end"
    set_headline(axes, words, detail, colour=colour)
    return as_png(figure)


def evidence_png(rehearsal: Rehearsal) -> bytes:
    """Draw each guard's evidence as a share of what rolls back, over time, on a log scale."""
    figure, axes = new_figure(height_in=3.0)
    times = [moment.at_s for moment in rehearsal.moments]
    top = 1.0
    for guard, colour in zip(GUARDS, _GUARD_COLOURS, strict=True):
        limit = rehearsal.limits[guard]
        values = [max(m.evidence.get(guard, 0.0) / limit, _FLOOR) for m in rehearsal.moments]
        values = [value if math.isfinite(value) else 1e6 for value in values]
        top = max([top, *values])
        axes.plot(times, values, color=colour, linewidth=1.8, label=guard.replace("_", " "))
    known = [(m.at_s, m.distance) for m in rehearsal.moments if m.distance is not None]
    if known:
        values = [max(distance / rehearsal.drift_limit, _FLOOR) for _, distance in known]
        top = max([top, *values])
        axes.plot(
            [at for at, _ in known],
            values,
            color=MUTED,
            linewidth=1.8,
            linestyle=(0, (1, 1.2)),
            label="predictions apart",
        )
    axes.axhline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_yscale("log")
    axes.set_ylim(0.5 * _FLOOR, 100 * min(top, 1e6))
    axes.set_xlim(0, 1.04 * max([*times, 1e-3]))
    for transition in rehearsal.transitions[1:]:
        at_s = (transition.at - rehearsal.transitions[0].at).total_seconds()
        axes.axvline(at_s, color=MUTED, linewidth=0.8, linestyle=(0, (2, 3)))
    axes.set_xlabel("seconds since the rollout began")
    axes.set_ylabel("share of the limit")
    axes.legend(loc="upper left", frameon=False, fontsize=8.5, ncols=3)
    set_headline(
        axes,
        "what speaks against the challenger",
        "above the dashed line the rollout goes back; thin lines mark what happened",
        colour=INK,
    )
    return as_png(figure)
