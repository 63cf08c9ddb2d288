"""Is the whole of a checkpoint used?"""

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule


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
        # Who loads one of the two goes on with a training.
        goes_on = "optimizer" in later
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


RESUME_UNREAD = Rule(
    name="the whole of a checkpoint is used",
    fault="resume lost state",
    requirement="TRACE-13",
    requires="A file that was read with torch.load, and weights that were loaded after it.",
    contradicted_by="Fine-tuning that is meant to begin with the weights alone.",
    abstains="No step is made after it.",
    judge=_judge,
)
