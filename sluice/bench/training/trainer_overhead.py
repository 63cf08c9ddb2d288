"""Speed of the trainer compared with a minimal correct loop, and the cost of checkpoints.

Both loops do the same work: they draw batches, compute and clip gradients, follow the learning rate
schedule, make optimizer steps, validate, and keep the best weights. Their final weights are
compared bit by bit, so neither loop can be faster by doing less.
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

_CHECKPOINT_SUBJECT = {"benchmark": "trainer"}


class TrainerSpeed(Record):
    """Speed of the trainer relative to a minimal loop, and the cost of checkpoints."""

    num_rows: int = Field(description="Number of training rows per epoch.")
    num_rounds: int = Field(
        description="Number of timed rounds; each trains once with the trainer and once with the "
        "minimal loop."
    )
    trainer_rows_per_s: float = Field(
        description="Speed of the trainer, median over the rounds [rows/s]."
    )
    loop_rows_per_s: float = Field(
        description="Speed of the minimal loop, median over the rounds [rows/s]."
    )
    ratio: float = Field(
        description="Speed of the trainer divided by the speed of the minimal loop, median over "
        "the rounds; 1 if the trainer has no overhead."
    )
    epoch_seconds: float = Field(description="Median duration of an epoch with validation [s].")
    checkpoint_seconds: float = Field(
        description="Median duration of one checkpoint, synced to disk [s]."
    )
    checkpoint_share: float = Field(
        description="Share of the training time that checkpoints take. One is written after an "
        "epoch if it is due by the settings (see ``CheckpointWriter``)."
    )
    checkpoint_load_seconds: float = Field(
        description="Median time to read and verify the newest checkpoint and load its state [s]."
    )


def measure_trainer(
    workload: Workload,
    model_settings: ModelSettings,
    training: TrainSettings,
    train_examples: Examples,
    val_examples: Examples,
    *,
    num_rounds: int,
    seed: int,
    folder: Path,
    clock: Callable[[], float] = time.perf_counter,
) -> TrainerSpeed:
    """Train the same model with the trainer and a minimal loop in turns, and compare.

    Args:
        workload: Defines the losses, and the shapes of the model.
        model_settings: Architecture and size of the network.
        training: Settings of the training, which runs all of ``max_epochs`` on the CPU. They must
            have the precision fp32, the default optimizer, and neither ``micro_batch_rows`` nor
            ``changes``.
        train_examples: Training examples.
        val_examples: Validation examples.
        num_rounds: Number of pairs of trainings; the order within a pair alternates.
        seed: Base seed.
        folder: Folder on the disk on which real checkpoints are stored. Its checkpoints are
            removed at the end.
        clock: Monotonic time [s].

    Raises:
        ContractError: The final weights differ.

    Cost:
        ``2 * num_rounds + 4`` trainings.
    """
    settings = training.model_copy(update={"patience_epochs": training.max_epochs, "device": "cpu"})
    trainings = _Trainings(workload, model_settings, settings, train_examples, val_examples, seed)
    rows_per_training = settings.max_epochs * len(train_examples)
    seconds: dict[str, list[float]] = {"trainer": [], "loop": []}
    with deterministic(), RandomStream(derive_seed(seed, "benchmark")).active():
        _require_same_weights(trainings.run_trainer(), trainings.run_loop())  # also warms up both
        for round_number in range(num_rounds):
            pair = [("trainer", trainings.run_trainer), ("loop", trainings.run_loop)]
            for name, run in pair if round_number % 2 else reversed(pair):
                start_s = clock()
                run()
                seconds[name].append(clock() - start_s)
        save_s, load_s, checkpoint_share = trainings.measure_checkpoints(folder, clock)
    pairs = zip(seconds["loop"], seconds["trainer"], strict=True)
    epoch_s = statistics.median(seconds["trainer"]) / settings.max_epochs
    return TrainerSpeed(
        num_rows=len(train_examples),
        num_rounds=num_rounds,
        trainer_rows_per_s=rows_per_training / statistics.median(seconds["trainer"]),
        loop_rows_per_s=rows_per_training / statistics.median(seconds["loop"]),
        ratio=statistics.median(loop_s / trainer_s for loop_s, trainer_s in pairs),
        epoch_seconds=epoch_s,
        checkpoint_seconds=save_s,
        checkpoint_share=checkpoint_share,
        checkpoint_load_seconds=load_s,
    )


class _Trainings:
    """Trainings of one model with the trainer and with the minimal loop, from the same weights."""

    def __init__(
        self,
        workload: Workload,
        model_settings: ModelSettings,
        settings: TrainSettings,
        train_examples: Examples,
        val_examples: Examples,
        seed: int,
    ) -> None:
        self._workload, self._settings, self._seed = workload, settings, seed
        self._train, self._val = train_examples, val_examples
        self._model_settings = model_settings

    def _build_model(self) -> Scaled:
        return prepare_model(self._workload, self._model_settings, self._train, seed=self._seed)

    def run_trainer(self, on_state: Callable[[TrainState], None] | None = None) -> nn.Module:
        model = self._build_model()
        for _ in self._train_epochs(model, on_state=on_state):
            pass
        return model

    def _train_epochs(
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

    def run_loop(self) -> nn.Module:
        """Run the minimal loop; return a model with the same weights as ``run_trainer``."""
        model, settings, train_examples, val_examples = (
            self._build_model(),
            self._settings,
            self._train,
            self._val,
        )
        optimizer = torch.optim.AdamW(
            model.parameters(), weight_decay=settings.weight_decay, fused=True
        )
        steps_per_epoch = -(-len(train_examples) // settings.batch_rows)
        num_steps = settings.max_epochs * steps_per_epoch
        step, lowest_loss, best_weights = itertools.count(), float("inf"), dict[str, Tensor]()
        torch.manual_seed(derive_seed(self._seed, "dropout"))
        for epoch in range(1, settings.max_epochs + 1):
            model.train()
            order = torch.Generator().manual_seed(derive_seed(self._seed, f"order_{epoch}"))
            for rows in torch.randperm(len(train_examples), generator=order).split(
                settings.batch_rows
            ):
                optimizer.zero_grad()
                loss = self._workload.loss(
                    model(train_examples.x[rows]), train_examples.targets[rows]
                )
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
                learning_rate = learning_rate_at(next(step), num_steps, settings)
                optimizer.param_groups[0]["lr"] = learning_rate
                optimizer.step()
            model.eval()
            with torch.inference_mode():
                losses = self._workload.losses(model(val_examples.inputs), val_examples.targets)
            if (val_loss := float(losses.double().mean())) < lowest_loss:
                lowest_loss = val_loss
                best_weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict(best_weights)
        return model

    def measure_checkpoints(
        self, folder: Path, clock: Callable[[], float]
    ) -> tuple[float, float, float]:
        """Return the median times to save and to load a checkpoint [s], and the checkpoint share.

        The checkpoint share is the part of the training time that checkpoints take.
        """
        save_times_s: list[float] = []

        def store_state(state: TrainState) -> None:
            start_s = clock()
            save_checkpoint(folder, state, subject=_CHECKPOINT_SUBJECT)
            save_times_s.append(clock() - start_s)

        try:
            self.run_trainer(store_state)
            load_times_s = [self._time_load(folder, clock) for _ in range(3)]
            checkpoint_share = self._checkpoint_share(folder, clock)
        finally:
            discard_checkpoints(folder)
        return statistics.median(save_times_s), statistics.median(load_times_s), checkpoint_share

    def _checkpoint_share(self, folder: Path, clock: Callable[[], float]) -> float:
        writer = CheckpointWriter(
            folder,
            subject=_CHECKPOINT_SUBJECT,
            every_epochs=self._settings.checkpoint_every_epochs,
            clock=clock,
        )
        start_s = clock()
        self.run_trainer(writer.write_if_due)
        return writer.spent_s / (clock() - start_s)

    def _time_load(self, folder: Path, clock: Callable[[], float]) -> float:
        model = self._build_model()
        start_s = clock()
        # The newest checkpoint was written after the last epoch, so no epoch is trained.
        state = load_checkpoint(folder, subject=_CHECKPOINT_SUBJECT).state
        for _ in self._train_epochs(model, resume=state):
            pass
        return clock() - start_s


def _require_same_weights(trainer_model: nn.Module, loop_model: nn.Module) -> None:
    weights = [
        nn.utils.parameters_to_vector(model.parameters()).detach()
        for model in (trainer_model, loop_model)
    ]
    if not torch.equal(*weights):
        raise ContractError(
            f"Both loops must end with equal weights; they differ by up to "
            f"{float((weights[0] - weights[1]).abs().max()):.3g}.",
            cause="The trainer does something that the minimal loop does not do, so their times "
            "cannot be compared.",
            fix="Use the precision fp32, the default optimizer, and neither micro_batch_rows nor "
            "changes. Use fewer validation rows: the trainer predicts many rows in several chunks, "
            "the minimal loop predicts all at once.",
        )
