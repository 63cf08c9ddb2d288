"""Does the gradient scaler ever let the optimizer step?"""

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.steps import OwnStep, own_steps, total

_SURE = 24
"""Skipped steps in a row: the scale was halved as often, from 2^16 to less than 2^-7."""
_FEW = 5


def _skipped_at_the_end(steps: tuple[OwnStep, ...]) -> tuple[int, int]:
    """Return since which step all were skipped, and how many; (0, 0) when the last was made."""
    made = max((s.word.last_step for s in steps if s.end.kind == "step"), default=0)
    since = [s for s in steps if s.end.kind == "skip" and s.word.last_step > made]
    if not since:
        return 0, 0
    whole = [s for s in since if s.word.first_step > made]
    # A word that was there before the last step that was made, too: it goes on right after.
    first = made + 1 if len(whole) < len(since) else min(s.word.first_step for s in whole)
    return first, sum(min(s.word.count, s.word.last_step - first + 1) for s in since)


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    by_scaler = {m.subject for word in trace.words for m in word.marks if m.kind == "skip"}
    for optimizer in sorted(by_scaler):
        steps = own_steps(trace, optimizer)
        since, num = _skipped_at_the_end(steps)
        scales = [n.scale for n in trace.numbers if n.scale is not None and n.step >= since]
        scale = scales[-1] if scales else float("nan")
        if num < _FEW or not (num >= _SURE or scale < 1):
            continue
        found.append(
            rule.finding(
                severity="error",
                step=since,
                what=f"The gradient scaler skipped the last {num} of {total(steps)} steps; the "
                f"scale fell to {scale:.3g}.",
                cause="A gradient is infinite or NaN whatever the scale: no weight moves any more.",
                fix="Look for the first gradient that is not finite: a division by 0, a log or "
                "root of 0, or a loss that overflows by itself.",
                num_skipped=num,
                num_steps=total(steps),
                scale=scale,
            )
        )
    return tuple(found)


SCALER_SKIPS = Rule(
    name="the gradient scaler lets the optimizer step",
    fault="scaler skips",
    requirement="TRACE-10",
    requires="Five skipped steps in a row up to the end.",
    contradicted_by="A step that is made after them.",
    abstains="The scale may still be too large: it is 1 or more, and fewer than 24 were skipped.",
    judge=_judge,
)
