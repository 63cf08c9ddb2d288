"""Packs a fold run as a job that any worker of a pool can run."""

from dataclasses import dataclass

from sluice.base.errors import SluiceError
from sluice.cluster.jobs import Emit
from sluice.findings.user_code import training_error
from sluice.training.device import release_memory
from sluice.training.fold_run import Clock, train_fold_run, utc_now
from sluice.training.fold_run_events import FoldRunEvent, OnFoldRunEvent, fold_run_event
from sluice.training.fold_run_spec import FoldRunSpec
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
    """Train one fold run. An error names the seed and the fold, and is also emitted as an event.

    Raises:
        SluiceError: As for ``train_fold_run``.
        TrainingFailed: User code raised an exception.
        OutOfMemory: User code ran out of memory.
    """
    reporter = _FailureReporter(spec, on_event)
    try:
        return train_fold_run(spec, reporter, clock=clock)
    except SluiceError as error:
        raise reporter.report(with_name(spec, error)) from error
    except (BrokenPipeError, ConnectionResetError):  # the process that receives events has ended
        raise
    except Exception as error:  # process boundary: user code may raise anything
        raise reporter.report(with_name(spec, training_error(error))) from error


def failed_event(spec: FoldRunSpec, epochs_done: int, error: SluiceError) -> FoldRunEvent:
    """Return the 'failed' event of a fold run, with the message of ``error`` as its reason."""
    return fold_run_event(spec, "failed", epochs_done, reason=error.what)


class _FailureReporter:
    """Passes events on, and adds the event of a failure with the number of finished epochs."""

    def __init__(self, spec: FoldRunSpec, on_event: OnFoldRunEvent) -> None:
        self._spec = spec
        self._on_event = on_event
        self._epochs_done = 0
        self._was_delivered = True
        """Whether the last call of ``on_event`` returned. If it raised, ``on_event`` itself has
        failed, so it does not get the 'failed' event."""

    def __call__(self, event: FoldRunEvent) -> None:
        self._epochs_done = event.epochs_done
        self._was_delivered = False
        self._on_event(event)
        self._was_delivered = True

    def report(self, error: SluiceError) -> SluiceError:
        """Emit the event of the error and return the error."""
        if self._was_delivered:
            self._on_event(failed_event(self._spec, self._epochs_done, error))
        return error


def with_name(spec: FoldRunSpec, error: SluiceError) -> SluiceError:
    """Return the error with the seed and fold of the fold run in its message."""
    return type(error)(f"{spec.name}: {error.what}", cause=error.cause, fix=error.fix)
