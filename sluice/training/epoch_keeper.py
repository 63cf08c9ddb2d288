"""Stores the state of a training within an epoch."""

from collections.abc import Callable, Mapping

from torch import Tensor

from sluice.base.seeding import rng_state
from sluice.training.epoch import StepRecords, require_finite_steps
from sluice.training.precision import MixedPrecision
from sluice.training.settings import TrainSettings
from sluice.training.train_state import EpochProgress


class EpochKeeper:
    """Stores the state of the running epoch whenever ``is_due`` returns True.

    The state can be stored after every step except the last, and after every chunk of validation
    rows.

    Args:
        is_due: Returns whether to store the state now; called whenever the state can be stored.
        store_state: Stores the state of the random generators and the progress of the epoch, with
            the rest of the training's state.
        mixed_precision: Number format and loss scale of the steps.
        steps_per_epoch: Number of batches of an epoch.
        clock: Monotonic time [s].
    """

    def __init__(
        self,
        is_due: Callable[[], bool],
        store_state: Callable[[Mapping[str, Tensor], EpochProgress], None],
        mixed_precision: MixedPrecision,
        *,
        steps_per_epoch: int,
        clock: Callable[[], float],
    ) -> None:
        self._is_due, self._store_state = is_due, store_state
        self._mixed_precision = mixed_precision
        self._steps_per_epoch, self._clock = steps_per_epoch, clock

    def begin(self, epoch: int, settings: TrainSettings, *, started_at: float) -> None:
        """Begin an epoch.

        Args:
            epoch: Number of the epoch, counted from 1.
            settings: Settings in effect in this epoch.
            started_at: Time of the clock at which the epoch started, minus the time that the epoch
                took in an earlier process [s].
        """
        self._epoch, self._settings, self._started_at = epoch, settings, started_at

    def after_step(self, records: StepRecords) -> None:
        """Store the state after a step if ``is_due`` returns True.

        Raises:
            TrainingFailed: A loss or a gradient so far is not finite.
        """
        if self._is_due():
            self._store_state(rng_state(), self._progress(records))

    def make_chunk_callback(self, records: StepRecords) -> Callable[[], None]:
        """Return the function to call after every chunk of validation rows.

        It stores the state after all steps of the epoch if ``is_due`` returns True.

        The state of the random generators is read now, before validation. Code that runs during
        validation may draw random numbers, and draws them again after a resume.
        """
        rng = rng_state()

        def store_if_due() -> None:
            if self._is_due():
                self._store_state(rng, self._progress(records))

        return store_if_due

    def _progress(self, records: StepRecords) -> EpochProgress:
        loss_S, norm_S, taken_S = records.read()
        require_finite_steps(
            loss_S, norm_S, taken_S, self._epoch, self._steps_per_epoch, self._settings
        )
        return EpochProgress(
            loss_S=loss_S,
            norm_S=norm_S,
            taken_S=taken_S,
            learning_rate=records.learning_rate,
            seconds=self._clock() - self._started_at,
            scale=self._mixed_precision.state,
        )
