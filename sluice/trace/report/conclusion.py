"""Summary of a trace: how the program ended, and what the rules could check."""

from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import Field

from sluice.base.pluralize import pluralize
from sluice.base.settings import Record
from sluice.trace.records.trace import Trace

Ending = Literal[
    "ended",
    "failed",
    "interrupted",
    "killed or still running",
    "tracing stopped before the program ended",
]

_MAX_MESSAGE_LENGTH = 300
"""Maximum length of an exception message in a report [characters]. Longer messages are cut off."""
_INTERRUPT_NAMES = ("KeyboardInterrupt",)
"""Names of exceptions by which the user ends a program."""
_CLEAN_EXIT_TEXTS = ("SystemExit: 0", "SystemExit: None", "SystemExit: ")
"""Texts of exceptions that end a program without an error."""
_MEMORY_ERROR_TEXTS = (
    "memoryerror",
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
)
"""An exception is an out-of-memory error if its text in lower case contains one of these texts."""


class Conclusion(Record):
    """Summary of a whole trace."""

    ending: Ending
    what: str = Field(
        description="What ended the program or the trace, and at which step; '' if the program "
        "ended without an error."
    )
    fix: str = Field(description="What to do; '' if the program ended without an error.")
    checked: tuple[str, ...] = Field(description="What the rules could check.")
    unchecked: tuple[str, ...] = Field(
        description="What the rules could not check, each with the reason."
    )


def conclude(trace: Trace) -> Conclusion:
    """Return how the program ended, and what the rules could and could not check."""
    ending = _classify_ending(trace)
    what, fix = _explain_ending(trace, ending)
    texts = list(_evidence_texts(trace))
    return Conclusion(
        ending=ending,
        what=what,
        fix=fix,
        checked=tuple(checked for checked, _ in texts if checked),
        unchecked=tuple(unchecked for checked, unchecked in texts if not checked),
    )


def ran_out_of_memory(trace: Trace) -> bool:
    """Return whether the program ended with an out-of-memory error, on the host or a device."""
    return trace.end is not None and any(
        text in trace.end.raised.lower() for text in _MEMORY_ERROR_TEXTS
    )


def _is_stopped_by_guard(trace: Trace) -> bool:
    """Return whether the non-finite guard stopped the program (setting ``stop_after``)."""
    return any(note.kind == "stopped" for note in trace.notes)


def _classify_ending(trace: Trace) -> Ending:
    if any(note.kind == "failed" for note in trace.notes):
        return "tracing stopped before the program ended"
    if trace.end is None:
        return "killed or still running"
    if _is_stopped_by_guard(trace):
        return "failed"
    if not trace.end.raised or trace.end.raised in _CLEAN_EXIT_TEXTS:
        return "ended"
    return "interrupted" if trace.end.raised.startswith(_INTERRUPT_NAMES) else "failed"


def _explain_ending(trace: Trace, ending: Ending) -> tuple[str, str]:
    """Return what ended the program or the trace, and what to do; '' for a normal end."""
    steps = trace.num_steps
    if ending == "ended":
        return "", ""
    if ending == "killed or still running":
        return (
            f"the trace has no end record after step {steps}: the process was killed, crashed in "
            "native code, or is still running",
            "Check the exit code: 137 is SIGKILL, which the system sends, for example, when memory "
            "runs out; 139 is a crash in native code.",
        )
    if trace.end is None or ending == "tracing stopped before the program ended":
        return (
            f"the tracer failed after step {steps}, and the program continued without it",
            "A note in the report states the reason. Trace the program again to check later steps.",
        )
    if _is_stopped_by_guard(trace):
        return (
            f"the tracer stopped the program after {pluralize(steps, 'step')}, because of "
            "non-finite losses",
            "Fix the cause of the non-finite losses. A note in the report states whether a good "
            "state was saved, from which the training may continue.",
        )
    message = " ".join(trace.end.raised.split())
    if len(message) > _MAX_MESSAGE_LENGTH:
        message = f"{message[:_MAX_MESSAGE_LENGTH]}..."
    verb = "was interrupted" if ending == "interrupted" else ending
    what = f"the program {verb} at step {steps + 1}, after {pluralize(steps, 'step')}: {message}"
    if ending == "interrupted":
        return what, "Let the program finish to get a report on the whole training."
    if ran_out_of_memory(trace):
        return what, (
            "The program ran out of memory. Halve the batch size and accumulate gradients over two "
            "batches. If that is not enough, use activation checkpointing "
            "(torch.utils.checkpoint), then bf16."
        )
    return what, "Fix the error in the program's traceback, and trace the program again."


def _evidence_texts(trace: Trace) -> Iterator[tuple[str, str]]:
    """Yield two texts for each kind of evidence.

    The first text states what was checked; it is '' if the trace lacks this evidence. If the trace
    lacks the evidence, the second text states what could not be checked, and why.
    """
    membership = trace.membership
    networks = () if membership is None else membership.networks
    optimizers = () if membership is None else membership.optimizers
    loss_names = sorted({record.kind for record in trace.losses if record.is_learning})
    yield f"the order of events in {pluralize(trace.num_steps, 'step')}", ""
    yield (
        _count_text("step", trace.statistics, "gradients and updates in "),
        "gradients and updates (no step was sampled)",
    )
    yield (
        _count_text("network", networks) + _count_text("optimizer", optimizers, " and ")
        if networks and optimizers
        else "",
        "which parameters are trained (no network or no optimizer was called)",
    )
    yield ", ".join(loss_names), "the kind of the loss (no known loss function was called)"
    yield "inputs" if trace.inputs else "", "inputs (no network was called with a tensor)"
    yield (
        _count_text("evaluation", trace.evaluations),
        "validation and overfitting (no loss function was called under torch.no_grad())",
    )
    yield (
        _count_text("loader", trace.loaders),
        "the shuffling of rows, the seeds of loader workers, and whether evaluations run in "
        "evaluation mode (no DataLoader was used)",
    )
    yield (
        _count_text("learning-rate scheduler", trace.schedulers),
        "the learning-rate schedule (no scheduler was used)",
    )


def _count_text(noun: str, records: Sequence[object], prefix: str = "") -> str:
    """Return the prefix and the number of records with its noun; '' without records."""
    return f"{prefix}{pluralize(len(records), noun)}" if records else ""
