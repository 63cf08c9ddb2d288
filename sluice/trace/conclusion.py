"""How a traced program ended, and what the rules had evidence to check."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from sluice.base.pluralize import counted
from sluice.base.settings import Record
from sluice.trace.evidence.trace import Trace

Ending = Literal[
    "ended",
    "died",
    "interrupted",
    "killed or still running",
    "tracing stopped before the program ended",
]

_MAX_MESSAGE = 300
"""Characters of an exception's message that are shown."""
_INTERRUPTS = ("KeyboardInterrupt",)
_CLEAN_EXITS = ("SystemExit: 0", "SystemExit: None", "SystemExit: ")
_MEMORY = ("memoryerror", "out of memory", "can't allocate memory", "cannot allocate memory")


class Conclusion(Record):
    """What can be said of a trace as a whole."""

    ending: Ending
    what: str = Field(
        description="What ended the program or the trace, and at which step; '' when it ended "
        "without an error."
    )
    fix: str = Field(description="What to do about it; '' when it ended without an error.")
    checked: tuple[str, ...] = Field(description="Evidence that the rules judged.")
    unchecked: tuple[str, ...] = Field(description="Evidence that is missing, and why.")


def conclude(trace: Trace) -> Conclusion:
    """Return how the program ended, what was checked and what was not."""
    ending = _ending(trace)
    what, fix = _explain(trace, ending)
    evidence = list(_evidence(trace))
    return Conclusion(
        ending=ending,
        what=what,
        fix=fix,
        checked=tuple(found for found, _ in evidence if found),
        unchecked=tuple(missing for found, missing in evidence if not found),
    )


def ran_out_of_memory(trace: Trace) -> bool:
    """Whether an exception about missing memory ended the program, on the host or on a device."""
    return trace.end is not None and any(word in trace.end.raised.lower() for word in _MEMORY)


def _ending(trace: Trace) -> Ending:
    if any(note.kind == "failed" for note in trace.notes):
        return "tracing stopped before the program ended"
    if trace.end is None:
        return "killed or still running"
    if not trace.end.raised or trace.end.raised in _CLEAN_EXITS:
        return "ended"
    return "interrupted" if trace.end.raised.startswith(_INTERRUPTS) else "died"


def _explain(trace: Trace, ending: Ending) -> tuple[str, str]:
    steps = trace.num_steps
    if ending == "ended":
        return "", ""
    if ending == "killed or still running":
        return (
            f"no end is recorded after step {steps}: the process was killed, ended in native code, "
            "or is still running",
            "Check its exit code: 137 is SIGKILL, which the system sends when memory runs out; "
            "139 is a crash in native code.",
        )
    if trace.end is None or ending == "tracing stopped before the program ended":
        return (
            f"the tracer itself failed after step {steps}, and the program went on without it",
            "The note has the reason. Judge the rest of the run from another trace.",
        )
    message = " ".join(trace.end.raised.split())
    shown = message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]}..."
    what = f"the program {ending} at step {steps + 1}, after {counted(steps, 'step')}: {shown}"
    if ending == "interrupted":
        return what, "Run it to its end for a verdict on the whole training."
    if ran_out_of_memory(trace):
        return what, (
            "It ran out of memory: halve the batch and accumulate the gradients of two; then "
            "recompute activations (torch.utils.checkpoint); then train in bf16."
        )
    return what, "Correct what its own traceback names, and trace it again."


def _evidence(trace: Trace) -> Iterator[tuple[str, str]]:
    """Yield what there is of each kind of evidence, or '', and what to say when it is missing."""
    now = trace.membership
    networks = () if now is None else now.networks
    optimizers = () if now is None else now.optimizers
    kinds = sorted({fact.kind for fact in trace.losses if fact.is_learning})
    yield f"the order of events in {counted(trace.num_steps, 'step')}", ""
    yield (
        f"gradients and updates in {counted(len(trace.measures), 'step')}" * bool(trace.measures),
        "gradients and updates (no step was measured)",
    )
    yield (
        f"{counted(len(networks), 'network')} and {counted(len(optimizers), 'optimizer')}"
        * bool(networks and optimizers),
        "which parameters learn (no network or no optimizer was seen)",
    )
    yield ", ".join(kinds), "the training loss (no loss function that is known was called)"
    yield "inputs" * bool(trace.inputs), "inputs (no network was called with a tensor)"
    yield (
        counted(len(trace.evaluations), "evaluation") * bool(trace.evaluations),
        "validation and overfitting (no loss function was called under torch.no_grad())",
    )
    yield (
        counted(len(trace.loaders), "loader") * bool(trace.loaders),
        "shuffling and workers (no DataLoader was used)",
    )
    yield (
        counted(len(trace.schedulers), "learning-rate scheduler") * bool(trace.schedulers),
        "the learning-rate schedule (no scheduler was used)",
    )
