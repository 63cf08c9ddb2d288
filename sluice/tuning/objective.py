"""Objective of a search: the validation loss of a network trained with one trial's values.

Training uses the train and validation rows of the selected folds. No examples are created from test
rows.
"""

import contextlib
import sys
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from sluice.base.errors import ContractError, SettingsError, TrainingFailed
from sluice.base.seeding import derive_seed
from sluice.data.folds import Fold
from sluice.data.table import TableRecord
from sluice.training.code import code_digest, optimizer_code
from sluice.training.device import resolve_device, start_device
from sluice.training.loop import EpochResult
from sluice.training.settings import SETTINGS_WITHOUT_EFFECT
from sluice.tuning.fold_training import FoldTraining, restore_fold
from sluice.tuning.prepared_folds import prepare_fold
from sluice.tuning.records import EpochLosses, ScheduleStep, TrialReport
from sluice.tuning.retry_policy import is_transient
from sluice.tuning.schedule_to_settings import settings_from_schedule
from sluice.tuning.spaces import TrialSettings
from sluice.workloads.load import load_workload
from sluice.workloads.workload import Workload


class Objective(Protocol):
    """Function that a search minimises.

    An objective is pickled, so its class must be importable in the workers. The same arguments must
    give the same losses on every machine and in every call, even if the epochs of a trial are
    divided among several calls.
    """

    def subject(self) -> Mapping[str, Any]:
        """Return everything that determines the losses, by name, as plain JSON."""
        ...

    def train(
        self,
        schedule: tuple[ScheduleStep, ...],
        *,
        start: Path | None,
        report_epochs: tuple[int, ...],
    ) -> Generator[TrialReport, None, None]:
        """Train one trial; yield a report after each epoch of ``report_epochs`` and at the end.

        When a trial resumes, epochs that were already trained are not reported again.

        Args:
            schedule: Values of the trial from the first epoch on.
            start: Folder with a checkpoint that ``TrialReport.save`` wrote; None to start from
                initial weights. If the checkpoint is damaged, training starts from initial weights.
            report_epochs: Numbers of the epochs after which to report, ascending.

        Raises:
            SluiceError: The trial fails because of its values or of the code, or a transient error
                of the machine occurred (``retry_policy.is_transient``).
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingObjective:
    """Validation loss of a workload's model, trained with the values of a trial.

    All trials have the same seed, so they differ only by their values. With several folds, the
    networks of all folds are in memory at the same time.
    """

    workload: str
    """Import path of the workload, 'module:Class'."""
    workload_settings: dict[str, Any]
    """Settings of the workload as plain values."""
    base: TrialSettings
    """Settings before the values of a trial replace some of them."""
    seed: int
    """Base seed of weights, dropout and, without ``data_seed``, of the row order."""
    folds: tuple[Fold, ...]
    """Folds whose train and validation rows are used."""
    table: TableRecord
    """Record of the feature frame; its digest identifies the data."""
    frame: pd.DataFrame = field(repr=False, compare=False)
    """Feature frame, as returned by ``load_table``. It is sent to the workers with the
    objective."""
    data_seed: int | None = None
    """Base seed of the row order; ``seed`` if None."""
    sys_path: tuple[str, ...] = ()
    """Folders to add to ``sys.path``, so that the workload can be imported in another process."""

    def subject(self) -> Mapping[str, Any]:
        """Return everything that determines the losses."""
        workload = self._open_workload()
        return {
            "data": self.table.digest,
            "workload": self.workload,
            "workload_settings": workload.settings.model_dump(mode="json"),
            "base": self.base.model_dump(
                mode="json", exclude={"training": set(SETTINGS_WITHOUT_EFFECT)}
            ),
            "code": code_digest(workload, self.base.model),
            **optimizer_code(self.base.training),
            "train_seed": self.seed,
            "data_seed": self.data_seed,
            # Only train and validation rows: test rows do not affect a trial.
            "rows": [f.model_dump(mode="json", include={"train", "val"}) for f in self.folds],
        }

    def train(
        self,
        schedule: tuple[ScheduleStep, ...],
        *,
        start: Path | None,
        report_epochs: tuple[int, ...],
    ) -> Generator[TrialReport, None, None]:
        """Train all folds in turns; see ``Objective.train``.

        Raises:
            TrainingFailed: The loss of a fold diverges, or the settings refuse the values.
            SettingsError: The workload cannot be imported in this process, or the device is
                missing.
            OutOfMemory: A step exceeds the memory.
            ContractError: ``start`` is a checkpoint of other data, seeds or another workload.
            StorageError: ``start`` cannot be read.
        """
        try:
            trial_settings = settings_from_schedule(self.base, schedule, where="A trial")
        except SettingsError as error:  # caused by the values of this trial
            raise TrainingFailed(error.what, cause=error.cause, fix=error.fix) from None
        # Initialise the device first, because the trainings read the state of its random generator.
        start_device(resolve_device(trial_settings.training.device))
        trainings, num_damaged = self._open_trainings(trial_settings, start)
        epochs_done = max(len(training.history) for training in trainings.values())
        max_epochs = trial_settings.training.max_epochs
        remaining_epochs = {epoch for epoch in report_epochs if epochs_done < epoch < max_epochs}
        with contextlib.ExitStack() as stack:
            for training in trainings.values():
                stack.callback(training.close)
            for epoch in sorted(remaining_epochs | {max_epochs}):
                for fold_id, training in trainings.items():
                    with _name_fold_in_errors(fold_id):
                        training.advance(epoch)
                report = self._make_report(trainings, max_epochs, num_damaged)
                yield report
                num_damaged = 0
                if report.is_finished:
                    return

    def _open_workload(self, searched_settings: Mapping[str, Any] | None = None) -> Workload:
        """Build the workload; the searched settings of a trial override its settings."""
        sys.path.extend(folder for folder in self.sys_path if folder not in sys.path)
        settings = self.workload_settings | dict(searched_settings or {})
        return load_workload(self.workload, settings, where=self.workload)

    def _open_trainings(
        self, trial_settings: TrialSettings, start: Path | None
    ) -> tuple[dict[int, FoldTraining], int]:
        """Return the trainings by fold, and the number of damaged checkpoints in ``start``."""
        key = {
            "data": self.table.digest,
            "workload": self.workload,
            "settings": self.workload_settings | trial_settings.workload_settings,
        }
        trainings: dict[int, FoldTraining] = {}
        num_damaged = 0
        for fold in self.folds:
            state = None
            if start is not None:
                state = restore_fold(
                    start / _folder_name(fold.fold_id), subject=self._checkpoint_subject()
                )
                num_damaged += state is None
            prepared = prepare_fold(
                self.frame,
                fold,
                open_workload=lambda: self._open_workload(trial_settings.workload_settings),
                key=key,
                # ``training.fold_run`` uses the same label, so that a trial and a fold run draw the
                # same random numbers.
                seed=derive_seed(self.seed, "unit"),
            )
            trainings[fold.fold_id] = FoldTraining(
                prepared, trial_settings, seed=self.seed, data_seed=self.data_seed, state=state
            )
        return trainings, num_damaged

    def _make_report(
        self, trainings: dict[int, FoldTraining], max_epochs: int, num_damaged: int
    ) -> TrialReport:
        histories = [training.history for training in trainings.values()]
        epochs = _mean_over_folds(histories)
        is_finished = all(training.has_ended() for training in trainings.values())
        reason = ""
        if is_finished:
            reason = "No better epoch within patience_epochs."
            if len(epochs) == max_epochs:
                reason = f"All {max_epochs} epochs were trained."

        def save(folder: Path) -> None:
            current_histories = [training.history for training in trainings.values()]
            assert current_histories == histories, (
                "a report must be saved before training continues"
            )
            for fold_id, training in trainings.items():
                training.save(folder / _folder_name(fold_id), subject=self._checkpoint_subject())

        return TrialReport(
            epochs=epochs,
            is_finished=is_finished,
            reason=reason,
            save=save,
            damaged_checkpoints=num_damaged,
        )

    def _checkpoint_subject(self) -> dict[str, Any]:
        """Return the values that must be equal to restore a checkpoint: data, workload and seeds.

        The values of the trial are not included, because PBT changes them.
        """
        seeds = {"seed": self.seed, "data_seed": self.data_seed}
        return {"data": self.table.digest, "workload": self.workload, **seeds}


def _folder_name(fold_id: int) -> str:
    return f"fold-{fold_id}"


@contextlib.contextmanager
def _name_fold_in_errors(fold_id: int) -> Iterator[None]:
    """Add the fold to the error of a failed training."""
    try:
        yield
    except TrainingFailed as error:
        if is_transient(error):
            raise
        raise TrainingFailed(
            f"Fold {fold_id}: {error.what}", cause=error.cause, fix=error.fix
        ) from error


def _mean_over_folds(histories: list[tuple[EpochResult, ...]]) -> tuple[EpochLosses, ...]:
    """Return the mean losses over the folds after each epoch.

    A fold whose training has ended counts with its last losses.
    """
    epochs = []
    for epoch in range(1, max(map(len, histories)) + 1):
        prefixes = [history[:epoch] for history in histories]
        kept_losses = [
            next(result.val_loss for result in reversed(prefix) if result.improved)
            for prefix in prefixes
        ]
        epochs.append(
            EpochLosses(
                epoch=epoch,
                train_loss=sum(prefix[-1].train_loss for prefix in prefixes) / len(prefixes),
                val_loss=sum(prefix[-1].val_loss for prefix in prefixes) / len(prefixes),
                kept_loss=sum(kept_losses) / len(kept_losses),
            )
        )
    return tuple(epochs)


def select_search_folds(folds: tuple[Fold, ...], selected_ids: tuple[int, ...]) -> tuple[Fold, ...]:
    """Return the selected folds; their train and validation rows must not contain any test row.

    The winner must not be evaluated on rows by which it was selected. With walk-forward folds, only
    fold 0 can be used, because every later fold trains on test rows of an earlier fold.

    Raises:
        ContractError: A fold is unknown, or its rows are test rows of some fold.
    """
    fold_by_id = {fold.fold_id: fold for fold in folds}
    unknown_ids = sorted(set(selected_ids) - fold_by_id.keys())
    if unknown_ids:
        raise ContractError(
            f"search.folds contains {unknown_ids[0]}, but the folds are {sorted(fold_by_id)}.",
            fix="Correct search.folds.",
        )
    for fold_id in selected_ids:
        for rows in (fold_by_id[fold_id].train, fold_by_id[fold_id].val):
            for other_fold in folds:
                test_rows = other_fold.test
                if rows.start < test_rows.stop and test_rows.start < rows.stop:
                    raise ContractError(
                        f"The search cannot use fold {fold_id}: its rows {rows.start}:{rows.stop} "
                        f"contain test rows of fold {other_fold.fold_id} "
                        f"({test_rows.start}:{test_rows.stop}).",
                        cause="The winner would be evaluated on rows by which it was selected.",
                        fix="Search on folds whose rows precede all test rows: with walk-forward "
                        "folds, only on fold 0.",
                    )
    return tuple(fold_by_id[fold_id] for fold_id in selected_ids)
