"""Progress events of fold runs, for progress displays and trackers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sluice.training.fold_run_spec import FoldRunSpec
from sluice.training.members import Member
from sluice.training.train_state import EpochResult

FoldRunEventKind = Literal["started", "epoch", "finished", "reused", "failed", "lost", "replaces"]
"""'failed': the fold run raised an error, which ends the whole training; 'lost': the process or
machine of the fold run was lost, and the fold run resumes from its last checkpoint; 'replaces': the
fold run replaces an unfinished fold run that has other settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldRunEvent:
    """A progress event of a fold run."""

    kind: FoldRunEventKind
    seed: int
    fold_id: int
    epochs_done: int
    max_epochs: int
    steps_done: int = 0
    """Finished steps of the epoch after ``epochs_done``, for kind 'started'."""
    result: EpochResult | None = None
    """Result of the epoch, for kind 'epoch'."""
    num_damaged_checkpoints: int = 0
    """Number of damaged checkpoints that were skipped on resuming, for kind 'started'."""
    history: tuple[EpochResult, ...] = ()
    """Results of the first ``epochs_done`` epochs of a resumed fold run, for kind 'started'."""
    member: Member | None = None
    """Result of the fold run, for the kinds 'finished' and 'reused'."""
    reason: str = ""
    """For kind 'failed', the error; for kind 'lost', how the worker was lost; for kind 'replaces',
    the settings that differ."""


OnFoldRunEvent = Callable[[FoldRunEvent], None]


def ignore_event(_: FoldRunEvent) -> None:
    """Ignore an event."""


def fold_run_event(
    spec: FoldRunSpec,
    kind: FoldRunEventKind,
    epochs_done: int,
    *,
    steps: int = 0,
    result: EpochResult | None = None,
    num_damaged: int = 0,
    history: tuple[EpochResult, ...] = (),
    member: Member | None = None,
    reason: str = "",
) -> FoldRunEvent:
    """Return a progress event of the fold run ``spec``."""
    return FoldRunEvent(
        kind=kind,
        seed=spec.seed,
        fold_id=spec.fold.fold_id,
        epochs_done=epochs_done,
        max_epochs=spec.training.max_epochs,
        steps_done=steps,
        result=result,
        num_damaged_checkpoints=num_damaged,
        history=history,
        member=member,
        reason=reason,
    )
