"""A unit as a job of a pool."""

from dataclasses import dataclass

from sluice.base.errors import SluiceError
from sluice.cluster.jobs import Tell
from sluice.findings.user_code import training_error
from sluice.training.device import release_memory
from sluice.training.members import Member
from sluice.training.unit import Clock, Hear, UnitSpec, train_unit, utc_now


@dataclass(frozen=True, slots=True)
class UnitJob:
    """One unit, ready to be fitted in any process; it tells its ``UnitEvent``s."""

    unit: UnitSpec

    def __call__(self, tell: Tell) -> Member:
        """Fit it."""
        try:
            return fit_unit(self.unit, tell)
        finally:
            release_memory()


def fit_unit(unit: UnitSpec, on_event: Hear, clock: Clock = utc_now) -> Member:
    """Fit one unit; whatever goes wrong is told with its name.

    Raises:
        SluiceError: As ``train_unit`` raises it.
        TrainingFailed: The user's code raised.
        OutOfMemory: Memory is exhausted.
    """
    try:
        return train_unit(unit, on_event, clock=clock)
    except SluiceError as error:
        raise _named(unit, error) from error
    except (BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:  # the edge of the process: the user's code may raise anything
        raise _named(unit, training_error(error)) from error


def _named(unit: UnitSpec, error: SluiceError) -> SluiceError:
    return type(error)(f"{unit.name}: {error.what}", cause=error.cause, fix=error.fix)
