"""Faults of the run itself: exceptions, memory, time and storage."""

from functools import partial
from typing import Literal

from sluice.findings.fault import Fault

RuntimeFault = Literal[
    "user code raised",
    "bug in Sluice",
    "time limit exceeded",
    "slower than usual",
    "storage not writable",
    "log validation failed",
    "out of memory",
    "process crashed",
]

_fault = partial(Fault, topic="runtime")

RUNTIME_FAULTS: tuple[Fault, ...] = (
    _fault(
        id="user-code-raised",
        name="user code raised",
        severity="error",
        description="The code of the workload or the model raised an exception.",
        cause="The code of the workload or the model raised an exception.",
        fix="Correct the named line, then run the gate again.",
        detectors=("POC gate",),
    ),
    _fault(
        id="bug-in-sluice",
        name="bug in Sluice",
        severity="error",
        description="Sluice's own code raised an exception.",
        cause=(
            "This is a bug in Sluice: its own code raised the exception, not the workload or the "
            "model. Sluice should have handled the received value, or rejected the value with a "
            "reason."
        ),
        fix=(
            "Please report this bug with the message, and with the dtypes and shapes of your "
            "inputs and targets."
        ),
        detectors=("POC gate",),
    ),
    _fault(
        id="time-limit-exceeded",
        name="time limit exceeded",
        severity="error",
        description="A check, or the whole POC gate, exceeded its time limit.",
        cause=(
            "The model or the data subset is too large for this machine, or the workload's code is "
            "slow. On Linux, the time in which the process waits for a CPU does not count."
        ),
        fix=(
            "Use a smaller data subset (poc settings), profile the named check, or raise its time "
            "limit if the time is justified."
        ),
        detectors=("POC gate",),
    ),
    _fault(
        id="slower-than-usual",
        name="slower than usual",
        severity="warning",
        description="A check took longer than usual.",
        cause="The check is slower than usual: a large model, a slow disk or a busy machine.",
        fix="No action is required. Profile the named check if this repeats.",
        detectors=("POC gate",),
    ),
    _fault(
        id="storage-not-writable",
        name="storage not writable",
        severity="error",
        description="A file cannot be written.",
        cause="The folder is read-only, full, or belongs to another user.",
        fix="Make the folder writable, or set SLUICE_HOME to a writable folder.",
        detectors=("POC gate",),
    ),
    _fault(
        id="log-validation-failed",
        name="log validation failed",
        severity="error",
        description="An event log is incomplete or invalid.",
        cause="The code that writes the event log omitted a field, or wrote it with another type.",
        fix="Write the named field with every event of that type, then run again.",
        detectors=("POC gate",),
    ),
    _fault(
        id="out-of-memory",
        name="out of memory",
        severity="error",
        description="A process needs more memory than is available or allowed.",
        cause="The model, the batch or the data do not fit into the memory of this machine.",
        fix=(
            "Try first a smaller training.micro_batch_rows, training.precision: bf16, and "
            "training.recompute_activations: true; 'sluice doctor batch-size PIPELINE' measures "
            "the largest batch that fits. Then lower the network's width or depth, load fewer "
            "columns, or use a machine with more memory."
        ),
        detectors=("POC gate",),
    ),
    _fault(
        id="process-crashed",
        name="process crashed",
        severity="error",
        description="A process ended without an exception.",
        cause=(
            "A library crashed in native code, the operating system ended the process, or the "
            "code called exit()."
        ),
        fix=(
            "Run the named line alone; a crash in native code is most often caused by an "
            "incompatible build of a library."
        ),
        detectors=(
            "POC gate",
            "rollout",
        ),
    ),
)
