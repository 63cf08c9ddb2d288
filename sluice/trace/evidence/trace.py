"""The whole recorded evidence of one process: what every rule is a function of."""

from typing import Literal

from pydantic import Field

from sluice.base.settings import Record
from sluice.trace.evidence.batches import (
    BatchPrint,
    EpochPrint,
    LoaderFact,
    LoadFact,
    RandomPrint,
)
from sluice.trace.evidence.flow import FlowFact, MaskFact, ProbeFact
from sluice.trace.evidence.inputs import BadNumbersFact, IdFact, InputFact, PairFact, RowsFact
from sluice.trace.evidence.losses import EvaluationFact, LossFact
from sluice.trace.evidence.measures import StepMeasures, StepNumbers
from sluice.trace.evidence.membership import Membership
from sluice.trace.evidence.order import RecentStep, StepWord
from sluice.trace.evidence.surroundings import (
    ParallelFact,
    RateFact,
    ReadFact,
    SaveFact,
    WorkerFact,
    WrapperFact,
)
from sluice.trace.evidence.values import GradientFact, SpoiledFact, ValueFact

VERSION = 1
"""Of the files; a reader refuses a newer one."""


class Start(Record):
    """Who was traced."""

    version: int
    program: tuple[str, ...] = Field(description="Its command line.")
    pid: int
    rank: int = Field(description="Of a distributed run; 0 without one.")
    world_size: int
    torch: str = Field(description="Version.")
    began: float = Field(description="Seconds since 1970 [s].")


class End(Record):
    """How the trace ended; without one the process was killed, or runs still."""

    steps: int
    seconds: float = Field(description="Since the start [s].")
    raised: str = Field(description="What ended the program, as 'ValueError: ...'; '' for nothing.")
    peak_host_bytes: int = Field(0, description="Most memory of the process; 0 for unknown.")
    peak_device_bytes: int = Field(0, description="Most memory of tensors on a GPU; 0 without one.")


class Note(Record):
    """Something a reader must know: what could not be seen, what was done, a failure of ours."""

    step: int
    kind: Literal["blind", "failed", "full", "bundle", "skipped", "stopped"]
    text: str


class SchedulerFact(Record):
    """One learning-rate scheduler."""

    index: int
    kind: str
    optimizer: int
    options: dict[str, float | int | bool | str | None] = Field(
        default_factory=dict, description="Its plain settings, such as T_max or step_size."
    )
    start: int = Field(0, description="Steps it was told that were made before it, as on a resume.")
    end: int = Field(
        0, description="Its own steps until the rate stands still or turns; 0 unknown."
    )


class Trace(Record):
    """One process, from its first event to the last flush.

    Words, memberships, epochs, loads, saves, facts of the start and notes are whole. Measures and
    numbers are those that are recent and those of some earlier steps; batches and recent steps are
    recent only. All are in the order of their steps.
    """

    start: Start
    end: End | None
    words: tuple[StepWord, ...]
    memberships: tuple[Membership, ...]
    schedulers: tuple[SchedulerFact, ...]
    loaders: tuple[LoaderFact, ...]
    measures: tuple[StepMeasures, ...]
    numbers: tuple[StepNumbers, ...]
    batches: tuple[BatchPrint, ...]
    epochs: tuple[EpochPrint, ...]
    randoms: tuple[RandomPrint, ...]
    loads: tuple[LoadFact, ...]
    saves: tuple[SaveFact, ...]
    reads: tuple[ReadFact, ...]
    rates: tuple[RateFact, ...]
    workers: tuple[WorkerFact, ...]
    wrappers: tuple[WrapperFact, ...]
    parallels: tuple[ParallelFact, ...]
    values: tuple[ValueFact, ...]
    gradients: tuple[GradientFact, ...]
    spoiled: tuple[SpoiledFact, ...]
    flows: tuple[FlowFact, ...]
    masks: tuple[MaskFact, ...]
    probes: tuple[ProbeFact, ...]
    losses: tuple[LossFact, ...]
    evaluations: tuple[EvaluationFact, ...]
    inputs: tuple[InputFact, ...]
    rows: tuple[RowsFact, ...]
    pairs: tuple[PairFact, ...]
    bad_numbers: tuple[BadNumbersFact, ...]
    ids: tuple[IdFact, ...]
    notes: tuple[Note, ...]
    recent: tuple[RecentStep, ...]
    num_untold: int = Field(
        0, ge=0, description="Steps whose order is not told, as there were too many to tell apart."
    )
    torn_lines: int = Field(description="Unfinished last lines of its files, 0 to 3.")

    @property
    def num_steps(self) -> int:
        """Optimizer steps, over all optimizers and threads."""
        return self.num_untold + sum(word.count for word in self.words if not word.is_open)

    @property
    def membership(self) -> Membership | None:
        """The last one."""
        return self.memberships[-1] if self.memberships else None
