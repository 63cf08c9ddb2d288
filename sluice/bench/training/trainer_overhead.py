"""How much the trainer costs above the shortest correct loop, measured side by side.

Both loops do the same work: the same batches, gradients, clipping, rate, steps, validation, best
weights. They end with the same bits, which is checked, so neither can win by doing less.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.base.seeding import Stream, derive_seed, deterministic
from sluice.base.settings import Record
from sluice.models.scaled import Scaled
from sluice.models.settings import ModelSettings
from sluice.training.checkpoint import discard_checkpoints, load_checkpoint, save_checkpoint
from sluice.training.checkpoint_writer import CheckpointWriter
from sluice.training.loop import TrainState, train
from sluice.training.schedule import rate_at
from sluice.training.settings import TrainSettings
from sluice.workloads.prepare_model import prepare_model
from sluice.workloads.workload import Examples, Workload

_SUBJECT = {"benchmark": "trainer"}


class TrainerSpeed(Record):
    """The trainer beside a bare loop, and what its checkpoints cost."""

    rows: int = Field(description="Train rows of an epoch.")
    rounds: int = Field(description="Pairs of trainings that were timed.")
    trainer_rows_per_s: float = Field(description="Median over the rounds [rows/s].")
    bare_rows_per_s: float = Field(description="Median over the rounds [rows/s].")
    ratio: float = Field(description="Trainer over bare, median over the rounds; 1 is no cost.")
    epoch_seconds: float = Field(description="Median of an epoch with validation [s].")
    checkpoint_seconds: float = Field(description="Median of one checkpoint, synced to disk [s].")
    checkpoint_share: float = Field(
        description="Of a training's time, at the interval of the settings."
    )
    resume_seconds: float = Field(
        description="Median of reading, checking and taking over the newest checkpoint [s]."
    )


def measure_trainer(
    workload: Workload,
    model_settings: ModelSettings,
    training: TrainSettings,
    train_rows: Examples,
    val_rows: Examples,
    *,
    rounds: int,
    seed: int,
    folder: Path,
    clock: Callable[[], float] = time.perf_counter,
) -> TrainerSpeed:
    """Train the same model with the trainer and with a bare loop in turns, and compare.

    Args:
        workload: Builds the model and has the losses.
        model_settings: Architecture and size.
        training: As in training; every round runs all of ``max_epochs``. It must be the default
            way to compute: fp32, whole batches, the CPU.
        train_rows: Rows to fit.
        val_rows: Rows to validate on.
        rounds: Pairs of trainings; the order within a pair alternates.
        seed: Base seed.
        folder: On the disk that holds the real checkpoints; nothing is left in it.
        clock: Monotonic time [s].

    Raises:
        ContractError: The two did not end with the same weights.

    Cost:
        ``2 * rounds + 4`` trainings.
    """
    settings = training.model_copy(update={"patience_epochs": training.max_epochs, "device": "cpu"})
    make = _Trainings(workload, model_settings, settings, train_rows, val_rows, seed)
    count = settings.max_epochs * len(train_rows)
    seconds: dict[str, list[float]] = {"trainer": [], "bare": []}
    with deterministic(), Stream(derive_seed(seed, "benchmark")).active():
        _require_same(make.trainer(), make.bare())  # and both are warm
        for number in range(rounds):
            pair = [("trainer", make.trainer), ("bare", make.bare)]
            for name, run in pair if number % 2 else reversed(pair):
                started = clock()
                run()
                seconds[name].append(clock() - started)
        saving, resuming, share = make.checkpoints(folder, clock)
    pairs = zip(seconds["bare"], seconds["trainer"], strict=True)
    per_epoch = statistics.median(seconds["trainer"]) / settings.max_epochs
    return TrainerSpeed(
        rows=len(train_rows),
        rounds=rounds,
        trainer_rows_per_s=count / statistics.median(seconds["trainer"]),
        bare_rows_per_s=count / statistics.median(seconds["bare"]),
        ratio=statistics.median(bare / trainer for bare, trainer in pairs),
        epoch_seconds=per_epoch,
        checkpoint_seconds=saving,
        checkpoint_share=share,
        resume_seconds=resuming,
    )


class _Trainings:
    """The two loops over the same start."""

    def __init__(
        self,
        workload: Workload,
        model_settings: ModelSettings,
        settings: TrainSettings,
        train_rows: Examples,
        val_rows: Examples,
        seed: int,
    ) -> None:
        self._workload, self._settings, self._seed = workload, settings, seed
        self._train, self._val = train_rows, val_rows
        self._model_settings = model_settings

    def _start(self) -> Scaled:
        return prepare_model(self._workload, self._model_settings, self._train, seed=self._seed)

    def trainer(self, keep: Callable[[TrainState], None] | None = None) -> nn.Module:
        model = self._start()
        for _ in self._epochs(model, keep=keep):
            pass
        return model

    def _epochs(
        self,
        model: Scaled,
        *,
        keep: Callable[[TrainState], None] | None = None,
        resume: TrainState | None = None,
    ) -> Iterator[object]:
        return train(
            model,
            self._workload.loss,
            self._workload.losses,
            self._train,
            self._val,
            self._settings,
            seed=self._seed,
            keep=keep,
            resume=resume,
        )

    def bare(self) -> nn.Module:
        """The shortest loop that does the same."""
        model, settings, train_rows, val_rows = (
            self._start(),
            self._settings,
            self._train,
            self._val,
        )
        optimizer = torch.optim.AdamW(
            model.parameters(), weight_decay=settings.weight_decay, fused=True
        )
        steps = -(-len(train_rows) // settings.batch_rows)
        step, lowest, best = itertools.count(), float("inf"), dict[str, Tensor]()
        torch.manual_seed(derive_seed(self._seed, "dropout"))
        for epoch in range(1, settings.max_epochs + 1):
            model.train()
            order = torch.Generator().manual_seed(derive_seed(self._seed, f"order_{epoch}"))
            for part in torch.randperm(len(train_rows), generator=order).split(settings.batch_rows):
                optimizer.zero_grad()
                loss = self._workload.loss(model(train_rows.x[part]), train_rows.y[part])
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
                rate = rate_at(next(step), settings.max_epochs * steps, settings)
                optimizer.param_groups[0]["lr"] = rate
                optimizer.step()
            model.eval()
            with torch.inference_mode():
                losses = self._workload.losses(model(val_rows.x), val_rows.y)
            if (val_loss := float(losses.double().mean())) < lowest:
                lowest = val_loss
                best = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict(best)
        return model

    def checkpoints(self, folder: Path, clock: Callable[[], float]) -> tuple[float, float, float]:
        """Return the median times of saving a checkpoint and of going on from one [s], and a share.

        The share is that of a whole training's time that checkpoints take.
        """
        saving: list[float] = []

        def keep(state: TrainState) -> None:
            started = clock()
            save_checkpoint(folder, state, subject=_SUBJECT)
            saving.append(clock() - started)

        try:
            self.trainer(keep)
            resuming = [self._resume(folder, clock) for _ in range(3)]
            share = self._share(folder, clock)
        finally:
            discard_checkpoints(folder)
        return statistics.median(saving), statistics.median(resuming), share

    def _share(self, folder: Path, clock: Callable[[], float]) -> float:
        every = self._settings.checkpoint_every_epochs
        writer = CheckpointWriter(folder, subject=_SUBJECT, every_epochs=every, clock=clock)
        began = clock()
        self.trainer(writer.offer)
        return writer.spent_s / (clock() - began)

    def _resume(self, folder: Path, clock: Callable[[], float]) -> float:
        model = self._start()
        started = clock()
        # The newest is of the last epoch, so that what follows is nothing but taking it over.
        state = load_checkpoint(folder, subject=_SUBJECT).state
        for _ in self._epochs(model, resume=state):
            pass
        return clock() - started


def _require_same(trainer: nn.Module, bare: nn.Module) -> None:
    weights = [nn.utils.parameters_to_vector(m.parameters()).detach() for m in (trainer, bare)]
    if not torch.equal(*weights):
        raise ContractError(
            f"Both loops must end with the same weights; they differ by up to "
            f"{float((weights[0] - weights[1]).abs().max()):.3g}.",
            cause="One of them does other work, so their times say nothing; or the validation rows "
            "are more than are scored at once.",
            fix="Compare the loops with the same settings: fp32, whole batches, no groups.",
        )
