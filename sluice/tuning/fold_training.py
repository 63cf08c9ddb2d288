"""Trains the network of one trial on one fold; the training can pause after each epoch."""

from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from sluice.base.seeding import RandomStream, deterministic
from sluice.training.checkpoint import load_checkpoint, save_checkpoint
from sluice.training.loop import EpochResult, TrainState, train
from sluice.tuning.prepared_folds import PreparedFold
from sluice.tuning.spaces import TrialSettings
from sluice.workloads.prepare_model import prepare_model


class FoldTraining:
    """Training on one fold that advances to a given epoch and can be continued later.

    Several instances can be advanced in turns. Each instance has its own random generators, so the
    weights are bit-identical to the weights of folds that are trained one after another.

    Args:
        fold: Train and validation rows, and their workload.
        trial_settings: Settings of the trial, including changes during training.
        seed: Base seed of weights, row order and dropout.
        data_seed: Base seed of the row order; ``seed`` if None.
        state: State to resume from; None to start from initial weights.
    """

    def __init__(
        self,
        fold: PreparedFold,
        trial_settings: TrialSettings,
        *,
        seed: int,
        data_seed: int | None,
        state: TrainState | None,
    ) -> None:
        self._trial_settings = trial_settings
        self._seed, self._data_seed = seed, data_seed
        self._random_stream = RandomStream(seed, fold.rng_state)
        self._fold, self._state = fold, state
        self._epoch_results: Generator[EpochResult, None, None] | None = None

    @property
    def history(self) -> tuple[EpochResult, ...]:
        """Results of all epochs, including the epochs before a resume."""
        return () if self._state is None else self._state.history

    def has_ended(self) -> bool:
        """Return whether training has ended, by early stopping or after the last epoch."""
        if self._state is None:
            return False
        epochs_done, training = len(self._state.history), self._trial_settings.training
        is_stopped_early = epochs_done - self._state.best_epoch >= training.patience_epochs
        return is_stopped_early or epochs_done >= training.max_epochs

    def advance(self, until_epoch: int) -> None:
        """Train up to the end of epoch ``until_epoch``, or until training ends.

        Raises:
            SluiceError: As for ``training.loop.train``; exceptions of user code are passed on.
        """
        while len(self.history) < until_epoch and not self.has_ended():
            with self._random_stream.active(), deterministic():
                if self._epoch_results is None:
                    self._epoch_results = self._start()
                next(self._epoch_results)

    def save(self, folder: Path, *, subject: Mapping[str, Any]) -> None:
        """Write the checkpoint of the last epoch.

        Args:
            folder: Folder of the checkpoint.
            subject: Values that ``restore_fold`` compares before it restores the checkpoint.

        Raises:
            StorageError: As for ``save_checkpoint``.
        """
        assert self._state is not None, "no epoch was trained yet"
        save_checkpoint(folder, self._state, subject=subject)

    def close(self) -> None:
        """Release the network and its examples."""
        if self._epoch_results is not None:
            self._epoch_results.close()

    def _start(self) -> Generator[EpochResult, None, None]:
        fold, trial_settings = self._fold, self._trial_settings
        workload = fold.workload
        model = prepare_model(workload, trial_settings.model, fold.train, seed=self._seed)

        def store_state(state: TrainState) -> None:
            self._state = state

        yield from train(
            model,
            workload.loss,
            workload.losses,
            fold.train,
            fold.val,
            trial_settings.training,
            seed=self._seed,
            data_seed=self._data_seed,
            select=workload.select_epoch,
            loss_weight=workload.loss_weight,
            groups=workload.parameter_groups(model.network),
            augment=workload.augmentation,
            resume=self._state,
            on_state=store_state,
        )


def restore_fold(folder: Path, *, subject: Mapping[str, Any]) -> TrainState | None:
    """Return the state that ``FoldTraining.save`` wrote; None if the file is damaged or missing.

    Raises:
        ContractError: The checkpoint was written for another subject.
        StorageError: The checkpoint cannot be read.
    """
    return load_checkpoint(folder, subject=subject).state
