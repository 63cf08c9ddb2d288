"""Overhead of the trainer over a minimal correct loop.

Both loops do the same work: batches, gradients, clipping, learning rate, steps, validation, best
weights. Their final weights are compared bit by bit, so neither loop can be faster by doing less.
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
from sluice.base.seeding import RandomStream, derive_seed, deterministic
from sluice.base.settings import Record
from sluice.models.scaled import Scaled
from sluice.models.settings import ModelSettings
from sluice.training.checkpoint import discard_checkpoints, load_checkpoint, save_checkpoint
from sluice.training.checkpoint_writer import CheckpointWriter
from sluice.training.loop import TrainState, train
from sluice.training.schedule import learning_rate_at
from sluice.training.settings import TrainSettings
from sluice.workloads.examples import Examples
from sluice.workloads.prepare_model import prepare_model
from sluice.workloads.workload import Workload

_SUBJECT = {"benchmark": "trainer"}


class TrainerSpeed(Record):
    """Speed of the trainer relative to a minimal loop, and the cost of checkpoints."""

    rows: int = Field(description="Number of training rows per epoch.")
    rounds: int = Field(
        description="Number of timed rounds; each trains once with the trainer and once with the "
        "minimal loop."
    )
    trainer_rows_per_s: float = Field(
        description="Speed of the trainer, median over the rounds [rows/s]."
    )
    bare_rows_per_s: float = Field(
        description="Speed of the minimal loop, median over the rounds [rows/s]."
    )
    ratio: float = Field(
        description="Speed of the trainer divided by that of the minimal loop, median over the "
        "rounds; 1 is no overhead."
    )
    epoch_seconds: float = Field(description="Median duration of an epoch with validation [s].")
    checkpoint_seconds: float = Field(
        description="Median duration of one checkpoint, synced to disk [s]."
    )
    checkpoint_share: float = Field(
        description="Share of the training time that checkpoints take, if they are written at the "
        "interval of the settings."
    )
    resume_seconds: float = Field(
        description="Median duration of reading, verifying and loading the newest checkpoint [s]."
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
    """Train the same model with the trainer and a minimal loop in turns, and compare.

    Args:
        workload: Defines the losses, and the shapes of the model.
        model_settings: Architecture and size.
        training: Settings; every round runs all of ``max_epochs``. Requires fp32, whole batches
            and the CPU.
        train_rows: Training rows.
        val_rows: Validation rows.
        rounds: Pairs of trainings; the order within a pair alternates.
        seed: Base seed.
        folder: Folder on the disk of real checkpoints; left empty.
        clock: Monotonic time [s].

    Raises:
        ContractError: The final weights differ.

    Cost:
        ``2 * rounds + 4`` trainings.
    """
    settings = training.model_copy(update={"patience_epochs": training.max_epochs, "device": "cpu"})
    trainings = _Trainings(workload, model_settings, settings, train_rows, val_rows, seed)
    count = settings.max_epochs * len(train_rows)
    seconds: dict[str, list[float]] = {"trainer": [], "bare": []}
    with deterministic(), RandomStream(derive_seed(seed, "benchmark")).active():
        _require_same(trainings.trainer(), trainings.bare())  # also warms up both
        for number in range(rounds):
            pair = [("trainer", trainings.trainer), ("bare", trainings.bare)]
            for name, run in pair if number % 2 else reversed(pair):
                started = clock()
                run()
                seconds[name].append(clock() - started)
        saving, resuming, share = trainings.measure_checkpoints(folder, clock)
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
    """Both loops with the same initial state."""

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

    def trainer(self, on_state: Callable[[TrainState], None] | None = None) -> nn.Module:
        model = self._start()
        for _ in self._epochs(model, on_state=on_state):
            pass
        return model

    def _epochs(
        self,
        model: Scaled,
        *,
        on_state: Callable[[TrainState], None] | None = None,
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
            on_state=on_state,
            resume=resume,
        )

    def bare(self) -> nn.Module:
        """Run the minimal loop with the same result."""
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
                loss = self._workload.loss(model(train_rows.x[part]), train_rows.targets[part])
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
                rate = learning_rate_at(next(step), settings.max_epochs * steps, settings)
                optimizer.param_groups[0]["lr"] = rate
                optimizer.step()
            model.eval()
            with torch.inference_mode():
                losses = self._workload.losses(model(val_rows.inputs), val_rows.targets)
            if (val_loss := float(losses.double().mean())) < lowest:
                lowest = val_loss
                best = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict(best)
        return model

    def measure_checkpoints(
        self, folder: Path, clock: Callable[[], float]
    ) -> tuple[float, float, float]:
        """Return the median time to save a checkpoint and to resume [s], and a share.

        The share is the part of the time of a whole training that its checkpoints take.
        """
        saving: list[float] = []

        def store_state(state: TrainState) -> None:
            started = clock()
            save_checkpoint(folder, state, subject=_SUBJECT)
            saving.append(clock() - started)

        try:
            self.trainer(store_state)
            resuming = [self._resume(folder, clock) for _ in range(3)]
            share = self._checkpoint_share(folder, clock)
        finally:
            discard_checkpoints(folder)
        return statistics.median(saving), statistics.median(resuming), share

    def _checkpoint_share(self, folder: Path, clock: Callable[[], float]) -> float:
        every = self._settings.checkpoint_every_epochs
        writer = CheckpointWriter(folder, subject=_SUBJECT, every_epochs=every, clock=clock)
        began = clock()
        self.trainer(writer.write_if_due)
        return writer.spent_s / (clock() - began)

    def _resume(self, folder: Path, clock: Callable[[], float]) -> float:
        model = self._start()
        started = clock()
        # The newest is that of the last epoch, so that only loading is measured.
        state = load_checkpoint(folder, subject=_SUBJECT).state
        for _ in self._epochs(model, resume=state):
            pass
        return clock() - started


def _require_same(trainer: nn.Module, bare: nn.Module) -> None:
    weights = [nn.utils.parameters_to_vector(m.parameters()).detach() for m in (trainer, bare)]
    if not torch.equal(*weights):
        raise ContractError(
            f"Both loops must end with equal weights; they differ by up to "
            f"{float((weights[0] - weights[1]).abs().max()):.3g}.",
            cause="The loops do different work, so their times cannot be compared; or there are "
            "more validation rows than are scored in one batch.",
            fix="Compare the loops with the same settings: fp32, whole batches, no groups.",
        )
