"""The recorded trace of one process, which is the input of every rule."""

from typing import Literal

from pydantic import Field

from sluice.base.settings import Record
from sluice.trace.records.batches import (
    BatchRecord,
    EpochRecord,
    LoaderRecord,
    RandomStateRecord,
    StateLoadRecord,
)
from sluice.trace.records.environment import (
    DataParallelRecord,
    FileReadRecord,
    LearningRateRecord,
    RankWeightsRecord,
    StateSaveRecord,
    WorkerRandomnessRecord,
)
from sluice.trace.records.events import RecentStep, StepSequence
from sluice.trace.records.forward_passes import ForwardPassRecord, PaddingMaskRecord, ProbeRecord
from sluice.trace.records.inputs import (
    InputRecord,
    NonFiniteTensorRecord,
    OutOfRangeIndexRecord,
    RowsRecord,
    TargetSampleRecord,
)
from sluice.trace.records.losses import EvaluationPassRecord, LossRecord
from sluice.trace.records.membership import Membership
from sluice.trace.records.parameter_values import (
    CorruptedWeightsRecord,
    NonFiniteGradientRecord,
    ParameterValuesRecord,
)
from sluice.trace.records.step_statistics import StepScalars, StepStatistics

VERSION = 1
"""Version of the format of the trace files. A reader rejects newer versions."""


class TraceStart(Record):
    """The traced process."""

    version: int = Field(description="Version of the format of the trace files.")
    program: tuple[str, ...] = Field(description="Command line of the program.")
    pid: int
    rank: int = Field(description="Rank in a distributed run; otherwise 0.")
    world_size: int
    torch: str = Field(description="Version of torch.")
    began: float = Field(description="Start time [s since 1970].")


class TraceEnd(Record):
    """End of the trace. It is absent if the process was killed or is still running."""

    steps: int = Field(description="Number of the last step, counted over all optimizers.")
    seconds: float = Field(description="Duration of the trace [s].")
    raised: str = Field(
        description="Exception that ended the program, as 'ValueError: ...'; '' without one."
    )
    peak_host_bytes: int = Field(0, description="Peak memory of the process; 0 if unknown [bytes].")
    peak_device_bytes: int = Field(
        0,
        description="Peak memory of the tensors on each GPU, summed over the GPUs; 0 without a GPU "
        "[bytes].",
    )


class TraceNote(Record):
    """A note for the reader: a gap in the trace, an action of the tracer, or a tracer failure."""

    step: int = Field(description="Number of optimizer steps before the note.")
    kind: Literal["untraced", "failed", "full", "bundle", "skipped", "stopped"] = Field(
        description="'untraced': a part of the program is not traced; 'failed': the tracer failed; "
        "'full': a limit of the trace was reached; 'bundle': the tracer wrote a file with which a "
        "non-finite loss can be reproduced; 'skipped': steps were skipped; 'stopped': the program "
        "was stopped."
    )
    text: str


class SchedulerRecord(Record):
    """One learning-rate scheduler."""

    index: int
    kind: str = Field(description="Class name.")
    optimizer: int = Field(description="Index of the scheduled optimizer; -1 without an optimizer.")
    options: dict[str, float | int | bool | str | None] = Field(
        default_factory=dict,
        description="Settings that are numbers, booleans, texts or None, such as T_max; milestones "
        "and base learning rates as text.",
    )
    start: int = Field(
        0,
        description="Number of scheduler steps before the trace, for example before a resume.",
    )
    end: int = Field(
        0,
        description="Number of scheduler steps after which the learning rate stays constant or "
        "rises again, including steps before the trace; 0 if unknown.",
    )


class Trace(Record):
    """Records of one process, from its first event to the last flush.

    ``statistics`` and ``scalars`` cover the last steps of the run and a sample of earlier steps.
    ``batches``, ``random_states`` and ``recent_steps`` cover only the last steps. These five kinds
    of records are sorted by step. All other records cover the whole run; sequences are sorted by
    their first step, and the others are in the order in which they were written.
    """

    start: TraceStart
    end: TraceEnd | None
    sequences: tuple[StepSequence, ...]
    memberships: tuple[Membership, ...]
    schedulers: tuple[SchedulerRecord, ...]
    loaders: tuple[LoaderRecord, ...]
    statistics: tuple[StepStatistics, ...]
    scalars: tuple[StepScalars, ...]
    batches: tuple[BatchRecord, ...]
    epochs: tuple[EpochRecord, ...]
    random_states: tuple[RandomStateRecord, ...]
    loads: tuple[StateLoadRecord, ...]
    saves: tuple[StateSaveRecord, ...]
    reads: tuple[FileReadRecord, ...]
    rates: tuple[LearningRateRecord, ...]
    workers: tuple[WorkerRandomnessRecord, ...]
    wrappers: tuple[DataParallelRecord, ...] = Field(
        description="Wrappers, sharded networks, and gradients that the program reduces itself."
    )
    rank_weights: tuple[RankWeightsRecord, ...]
    parameter_values: tuple[ParameterValuesRecord, ...]
    nonfinite_gradients: tuple[NonFiniteGradientRecord, ...]
    corrupted_weights: tuple[CorruptedWeightsRecord, ...]
    forward_passes: tuple[ForwardPassRecord, ...]
    padding_masks: tuple[PaddingMaskRecord, ...]
    probes: tuple[ProbeRecord, ...]
    losses: tuple[LossRecord, ...]
    evaluations: tuple[EvaluationPassRecord, ...]
    inputs: tuple[InputRecord, ...]
    rows: tuple[RowsRecord, ...]
    target_samples: tuple[TargetSampleRecord, ...]
    nonfinite_tensors: tuple[NonFiniteTensorRecord, ...]
    out_of_range_indices: tuple[OutOfRangeIndexRecord, ...]
    notes: tuple[TraceNote, ...]
    recent_steps: tuple[RecentStep, ...]
    num_steps_without_sequence: int = Field(
        0,
        ge=0,
        description="Number of steps without a recorded sequence, because there were too many "
        "distinct sequences.",
    )
    num_truncated_files: int = Field(
        description="Number of files whose last line is incomplete. The reader skips such lines."
    )

    @property
    def num_steps(self) -> int:
        """Number of optimizer steps, over all optimizers and threads."""
        return self.num_steps_without_sequence + sum(
            sequence.count for sequence in self.sequences if not sequence.is_open
        )

    @property
    def membership(self) -> Membership | None:
        """The last recorded membership."""
        return self.memberships[-1] if self.memberships else None
