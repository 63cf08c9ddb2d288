"""What a trial is: training on the train and validation rows of the chosen folds.

Test rows are never turned into examples here.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from sluice.artifacts import ArtifactStore
from sluice.data.folds import Fold
from sluice.data.table import TableRecord, load_table
from sluice.errors import ContractError, SettingsError, TrainingFailed
from sluice.models.scaled import prepare_model
from sluice.training.checkpoint import load_checkpoint
from sluice.training.checkpoint_writer import CheckpointWriter
from sluice.training.code import code_digest
from sluice.training.loop import EpochResult, TrainState, train
from sluice.training.seeds import Stream, derive_seed, deterministic
from sluice.training.settings import NO_EFFECT
from sluice.tuning.accidents import is_accident
from sluice.tuning.recipe import setup_of
from sluice.tuning.records import EpochLosses, Outcome, Report, Segment, Step
from sluice.tuning.spaces import Setup
from sluice.workloads.load import load_workload
from sluice.workloads.workload import Examples, Workload


class Objective(Protocol):
    """Function that a search minimises. It is pickled to workers, which must be able to import it.

    The same arguments lead to the same losses, wherever and however often it runs, and however
    the epochs are divided among calls.
    """

    def subject(self) -> Mapping[str, Any]:
        """Return all that determines the losses, by name, as plain JSON."""
        ...

    def train(
        self, schedule: tuple[Step, ...], *, start: Path | None, report_epochs: tuple[int, ...]
    ) -> Iterator[Report]:
        """Train one trial; yield after each of ``report_epochs`` ahead and at the end of training.

        Args:
            schedule: Values of the trial from the first epoch on.
            start: Folder that ``Report.save`` wrote a checkpoint into, to go on from; None to
                train from nothing. A damaged checkpoint is replaced by training from nothing.
            report_epochs: Epochs to report after, ascending [epochs].

        Raises:
            SluiceError: The values or the code end the trial, or an accident of the machine does
                (``accidents.is_accident``).
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingObjective:
    """Validation loss of a workload's model, trained with the values of the trial.

    All trials have the same seed: they differ by their values alone.
    """

    workload: str
    """Import path, 'module:Class'."""
    workload_settings: dict[str, Any]
    base: Setup
    """The settings of everything that is not searched."""
    seed: int
    folds: tuple[Fold, ...]
    table: TableRecord
    """The feature frame."""
    artifacts: Path
    data_seed: int | None = None
    """Base seed of the row order; ``seed`` when absent."""
    sys_path: tuple[str, ...] = ()
    """Folders to add to Python's path, so that the workload imports in another process."""

    def subject(self) -> Mapping[str, Any]:
        """Return all that determines the outcomes."""
        workload = self._open()
        return {
            "data": self.table.digest,
            "workload": self.workload,
            "workload_settings": workload.settings.model_dump(mode="json"),
            "base": self.base.model_dump(mode="json", exclude={"training": set(NO_EFFECT)}),
            "code": code_digest(workload, self.base.model),
            "train_seed": self.seed,
            "data_seed": self.data_seed,
            # Train and validation rows only: a test window that moves changes no trial.
            "rows": [f.model_dump(mode="json", include={"train", "val"}) for f in self.folds],
        }

    def run(self, segment: Segment, folder: Path, start: Path | None) -> Outcome:
        """Train the segment on every fold in turn."""
        began, workload = perf_counter(), self._open()
        frame = load_table(self.table, ArtifactStore(self.artifacts))
        histories: list[tuple[EpochResult, ...]] = []
        reason, damaged = "", 0
        for fold in self.folds:
            name = f"fold-{fold.fold_id}"
            try:
                with Stream(derive_seed(self.seed, "unit")).active(), deterministic():
                    history, passed_over = self._fit(
                        segment,
                        workload,
                        workload.examples(frame, fold.train),
                        workload.examples(frame, fold.val),
                        [folder / name, *([start / name] if start else [])],
                    )
            except TrainingFailed as error:
                if is_accident(error):
                    raise
                reason = f"Fold {fold.fold_id}: {error}"
                break
            histories.append(history)
            damaged += passed_over
        status = "failed" if reason else "reached"
        if not reason and all(len(history) < segment.until for history in histories):
            status = "finished"
            reason = "No better epoch within patience_epochs."
        return Outcome(
            trial=segment.trial,
            until=segment.until,
            epochs=() if status == "failed" else _means(histories),
            status=status,
            reason=reason,
            seconds=perf_counter() - began,
            damaged_checkpoints=damaged,
        )

    def _open(self) -> Workload:
        sys.path.extend(folder for folder in self.sys_path if folder not in sys.path)
        return load_workload(self.workload, self.workload_settings, where=self.workload)

    def _fit(
        self,
        segment: Segment,
        workload: Workload,
        train_rows: Examples,
        val_rows: Examples,
        folders: list[Path],
    ) -> tuple[tuple[EpochResult, ...], int]:
        """Return the epochs, and how many damaged checkpoints were passed over on resuming."""
        state, damaged = self._restore(folders, segment.until)
        if state is not None and len(state.history) == segment.until:
            return state.history, damaged
        try:
            setup = setup_of(self.base, segment.schedule, where=f"Trial {segment.trial}")
        except SettingsError as error:  # of these values alone
            raise TrainingFailed(error.what, cause=error.cause, fix=error.fix) from None
        checkpoints = CheckpointWriter(
            folders[0],
            subject=self._checkpoint_subject(),
            every_epochs=setup.training.checkpoint_every_epochs,
        )

        def ended(of: TrainState) -> bool:
            return len(of.history) - of.best_epoch >= setup.training.patience_epochs

        if state is not None and ended(state):
            # The next segment looks for it here: the folder it came from is removed before.
            checkpoints.offer(state, must=True)
            return state.history, damaged
        model = prepare_model(workload, setup.model, train_rows, seed=self.seed)

        def keep(new: TrainState) -> None:
            nonlocal state
            state = new
            # The next segment goes on from the end.
            checkpoints.offer(new, must=ended(new) or len(new.history) == segment.until)

        for result in train(
            model,
            workload.loss,
            workload.losses,
            train_rows,
            val_rows,
            setup.training,
            seed=self.seed,
            data_seed=self.data_seed,
            select=workload.select_epoch,
            weigh=workload.loss_weight,
            groups=workload.parameter_groups(model.network),
            resume=state,
            keep=keep,
        ):
            if result.epoch == segment.until:
                break
        assert state is not None  # a segment covers at least one epoch
        return state.history, damaged

    def _restore(self, folders: list[Path], until: int) -> tuple[TrainState | None, int]:
        """Return where to go on: in the segment, at its start, or None at the beginning."""
        damaged = 0
        for folder in folders:
            restored = load_checkpoint(folder, subject=self._checkpoint_subject())
            damaged += len(restored.damaged)
            if restored.state is not None and len(restored.state.history) <= until:
                return restored.state, damaged
        return None, damaged

    def _checkpoint_subject(self) -> dict[str, Any]:
        # Not the values of the trial: PBT changes them between two checkpoints.
        seeds = {"seed": self.seed, "data_seed": self.data_seed}
        return {"data": self.table.digest, "workload": self.workload, **seeds}


def _means(histories: list[tuple[EpochResult, ...]]) -> tuple[EpochLosses, ...]:
    """Return the means over folds; a fold that ended earlier keeps its last losses."""
    longest = max(map(len, histories))
    epochs = []
    for at in range(longest):
        parts = [history[: at + 1] for history in histories]
        kept = [next(r.val_loss for r in reversed(part) if r.improved) for part in parts]
        epochs.append(
            EpochLosses(
                epoch=at + 1,
                train_loss=sum(part[-1].train_loss for part in parts) / len(parts),
                val_loss=sum(part[-1].val_loss for part in parts) / len(parts),
                kept_loss=sum(kept) / len(kept),
            )
        )
    return tuple(epochs)


def search_folds(folds: tuple[Fold, ...], chosen: tuple[int, ...]) -> tuple[Fold, ...]:
    """Return the chosen folds, when none of their train and validation rows is tested on later.

    With walk-forward folds that is fold 0 alone: every later one trains on the test rows of an
    earlier one, and a winner found there would have seen the data it is then judged on (TUNE-4).

    Raises:
        ContractError: A fold is unknown, or its rows are test rows of some fold.
    """
    by_id = {fold.fold_id: fold for fold in folds}
    unknown = sorted(set(chosen) - by_id.keys())
    if unknown:
        raise ContractError(
            f"The search asks for fold {unknown[0]}; there are {sorted(by_id)}.",
            fix="Correct search.folds.",
        )
    for fold_id in chosen:
        for part in (by_id[fold_id].train, by_id[fold_id].val):
            for other in folds:
                if part.start < other.test.stop and other.test.start < part.stop:
                    raise ContractError(
                        f"The search may not use fold {fold_id}: its rows "
                        f"{part.start}:{part.stop} hold test rows of fold {other.fold_id} "
                        f"({other.test.start}:{other.test.stop}).",
                        cause="The winner would be judged on rows it was chosen by.",
                        fix="Search on folds whose rows lie before all test rows; with "
                        "walk-forward folds that is fold 0.",
                    )
    return tuple(by_id[fold_id] for fold_id in chosen)
