"""Does the first step of a scheduler come after the first step of its optimizer?"""

from sluice.trace.evidence.trace import SchedulerFact, Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.steps import name_of, optimizers_in


def _steps_too_early(trace: Trace, scheduler: SchedulerFact) -> int:
    """Return how often it stepped before its optimizer; 0 also when a scaler skipped that."""
    early = 0
    for word in trace.words:
        for mark in word.marks:
            if mark.kind == "schedule" and mark.subject == scheduler.index:
                early += 1
            if mark.kind in ("step", "skip") and mark.subject == scheduler.optimizer:
                return early if mark.kind == "step" else 0
    return 0


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    stepping = optimizers_in(trace)
    for scheduler in trace.schedulers:
        early = _steps_too_early(trace, scheduler)
        if not early or scheduler.optimizer not in stepping:
            continue
        found.append(
            rule.finding(
                severity="confirm",
                step=1,
                what=f"{scheduler.kind} stepped {early} times before the first step of "
                f"{name_of(trace, scheduler.optimizer)}.",
                cause="The schedule runs ahead: its first learning rate is never used.",
                fix="Call scheduler.step() after optimizer.step(). After a checkpoint, load the "
                "scheduler's state instead of stepping to it.",
                num_early=early,
            )
        )
    return tuple(found)


SCHEDULER_BEFORE_OPTIMIZER = Rule(
    name="the scheduler steps after its optimizer",
    fault="scheduler before optimizer",
    requirement="TRACE-11",
    requires="A step of a scheduler and one of its optimizer.",
    contradicted_by="A schedule that is wound forward on purpose before training.",
    abstains="A gradient scaler skipped the first step of the optimizer.",
    judge=_judge,
)
