"""Packs a fold run as a job that any worker of a pool can run."""

from dataclasses import dataclass

from sluice.base.errors import SluiceError
from sluice.cluster.jobs import Emit
from sluice.findings.user_code import training_error
from sluice.training.device import release_memory
from sluice.training.fold_run import Clock, FoldRunSpec, OnFoldRunEvent, train_fold_run, utc_now
from sluice.training.members import Member


@dataclass(frozen=True, slots=True)
class FoldRunJob:
    """Job that trains one fold run in any process and emits its ``FoldRunEvent``s."""

    spec: FoldRunSpec

    def __call__(self, emit: Emit) -> Member:
        """Train the fold run and return its member."""
        try:
            return fit_fold_run(self.spec, emit)
        finally:
            release_memory()


def fit_fold_run(spec: FoldRunSpec, on_event: OnFoldRunEvent, clock: Clock = utc_now) -> Member:
    """Train one fold run; every error names the seed and fold.

    Raises:
        SluiceError: As for ``train_fold_run``.
        TrainingFailed: User code raised an exception.
        OutOfMemory: User code ran out of memory.
    """
    try:
        return train_fold_run(spec, on_event, clock=clock)
    except SluiceError as error:
        raise _with_name(spec, error) from error
    except (BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:  # process boundary: user code may raise anything
        raise _with_name(spec, training_error(error)) from error


def _with_name(spec: FoldRunSpec, error: SluiceError) -> SluiceError:
    """Return the error with the seed and fold of the fold run in its message."""
    return type(error)(f"{spec.name}: {error.what}", cause=error.cause, fix=error.fix)
