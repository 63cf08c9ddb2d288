"""Is the whole of a checkpoint used?"""

import os.path

from sluice.trace.evidence.membership import OptimizerFact
from sluice.trace.evidence.surroundings import ReadFact
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.rates import rates_of
from sluice.trace.rules.steps import first, optimizers_in, own_steps

_SAME_RATE = 0.1


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    for read in trace.reads:
        later = {load.what for load in trace.loads if load.step >= read.step}
        trains_on = any(not w.is_open and w.last_step > read.step for w in trace.words)
        steered = any(not s.start for s in trace.schedulers)
        unread = [
            *["the optimizer"] * ("optimizer" in read.states and "optimizer" not in later),
            *["the scheduler"]
            * ("scheduler" in read.states and "scheduler" not in later and steered),
        ]
        if not unread or "network" not in later or not trains_on:
            continue
        # Who loads one of the two goes on with a training, and who reads what it wrote itself.
        goes_on = "optimizer" in later or _goes_on(trace, read)
        found.append(
            rule.finding(
                severity="error" if goes_on else "confirm",
                step=read.step + 1,
                what=f"The file that was read after step {read.step} holds the state of "
                f"{' and of '.join(unread)}, which was never loaded; the weights were.",
                cause="Training goes on without the moments, the count of steps or the learning "
                "rate that it had.",
                fix="Load every state that the checkpoint holds.",
                num_unread=len(unread),
            )
        )
    return tuple(found[:1])


def _goes_on(trace: Trace, read: ReadFact) -> bool:
    """Tell whether this run wrote the file, and a new optimizer begins where one like it stopped.

    A second phase has another optimizer, other parameters or another rate.
    """
    # It may have been written beside, and renamed.
    written = {os.path.dirname(s.path) for s in trace.saves if s.path and s.step <= read.step}
    if not read.path or os.path.dirname(read.path) not in written:
        return False
    kinds = {o.index: (o.kind, _sizes(o)) for m in trace.memberships for o in m.optimizers}
    spans = {
        o: (first(steps), max(s.word.last_step for s in steps))
        for o in optimizers_in(trace)
        if (steps := own_steps(trace, o))
    }
    for one, (_, stopped) in spans.items():
        for other, (began, _) in spans.items():
            if stopped > read.step or began <= read.step or kinds.get(one) != kinds.get(other):
                continue
            rates = rates_of(trace, one), rates_of(trace, other)
            if rates[0] is None or rates[1] is None:
                continue
            last, now = rates[0].at(stopped), rates[1].at(began)
            if abs(now - last) <= _SAME_RATE * last:
                return True
    return False


def _sizes(optimizer: OptimizerFact) -> tuple[int, ...]:
    return tuple(len(group.parameters) for group in optimizer.groups)


RESUME_UNREAD = Rule(
    name="the whole of a checkpoint is used",
    fault="resume lost state",
    requirement="TRACE-13",
    requires="A file that was read with torch.load, and weights that were loaded after it.",
    contradicted_by="Fine-tuning that is meant to begin with the weights alone.",
    abstains="No step is made after it.",
    judge=_judge,
)
