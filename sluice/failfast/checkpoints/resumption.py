"""Check that a training that is stopped and resumed continues bit by bit as if uninterrupted.

The check accepts any save and load functions, also in a script that uses nothing else of Sluice.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from sluice.base.errors import ContractError, StorageError
from sluice.base.files import storage_error
from sluice.base.pluralize import pluralize
from sluice.base.seeding import RandomStream, derive_seed
from sluice.failfast.checkpoints import resumption_findings
from sluice.failfast.checkpoints.training_state import (
    FlatState,
    HasState,
    first_difference,
    flatten,
    hidden_state,
    same_bits,
    state_of,
)
from sluice.findings.check_outcome import CheckOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppableTraining:
    """A newly set up training, and its save and load functions."""

    model: nn.Module
    step: Callable[[], Tensor | float]
    """Train one step on the next batch and return the loss."""
    predict: Callable[[], Tensor]
    """Return predictions of the model for a few fixed inputs; called in eval mode."""
    save: Callable[[Path], object]
    """Write the checkpoint to this path, as a file or a folder."""
    load: Callable[[Path], object]
    """Read the checkpoint back into this newly set up training."""
    states: Mapping[str, HasState] = field(default_factory=dict)
    """Further objects with a state, by name: optimizer, scheduler, scaler."""


Start = Callable[[], StoppableTraining]
"""Function that sets up a training, as a new process would."""


def validate_checkpoint(start: Start, *, num_steps: int, seed: int, folder: Path) -> None:
    """Raise an error unless save and load restore the training exactly.

    In a training script::

        def start():
            model = Net()
            optimizer = torch.optim.AdamW(model.parameters())
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
            return StoppableTraining(
                model=model,
                step=lambda: train_step(model, optimizer, schedule),
                predict=lambda: model(x[:32]),
                save=lambda path: save_checkpoint(path, model, optimizer, schedule),
                load=lambda path: load_checkpoint(path, model, optimizer, schedule),
                states={"optimizer": optimizer, "schedule": schedule},
            )

        validate_checkpoint(start, num_steps=3, seed=0, folder=Path("runs"))

    Args:
        start: Sets up the training as a new process would. The global random generators have a
            different seed at every call.
        num_steps: Steps before the checkpoint, and again after it.
        seed: Seeds the global generators; the caller's generator states are restored.
        folder: An existing folder on the disk of the real checkpoints; temporary files in it are
            removed.

    Raises:
        ContractError: A state was not restored; the message names the state and a difference.
        StorageError: The folder is not writable.
    """
    finding = check_resumption(start, num_steps=num_steps, seed=seed, folder=folder)
    if finding.outcome != "pass":
        cause, fix = finding.response
        kind = StorageError if finding.fault == "storage not writable" else ContractError
        raise kind(finding.summary, cause=cause, fix=fix)


def check_resumption(start: Start, *, num_steps: int, seed: int, folder: Path) -> CheckOutcome:
    """Compare an uninterrupted training with a training that is resumed from the checkpoint.

    After loading, the model, its predictions and every further state must equal the saved state,
    bit by bit. The losses and the final state of the following steps must equal the uninterrupted
    training. If the largest file of the checkpoint is truncated, load() must not restore only a
    part of the state: it should raise an error before it changes anything.

    Args:
        start: Sets up the training as a new process would, with other seeds at every call.
        num_steps: Steps before the checkpoint, and again after it.
        seed: Seeds the global generators.
        folder: An existing folder on the disk of the real checkpoints.

    Raises:
        Exception: Any exception of the training's own code except its ``load``.

    Cost:
        ``3 * num_steps`` steps, and one more setup for the truncated checkpoint. If the resumed
        training differs, ``4 * num_steps`` steps.
    """
    try:
        temporary = TemporaryDirectory(dir=folder, prefix="poc-checkpoint-")
    except OSError as error:
        return resumption_findings.not_writable_finding(storage_error(folder, error))
    with temporary as name:
        return _Comparison(start, num_steps=num_steps, seed=seed, folder=Path(name)).run()


class _Session:
    """One training with its own random number stream."""

    def __init__(self, start: Start, seed: int) -> None:
        self._stream = RandomStream(seed)
        with self._stream.active():
            self.training = start()

    def advance(self, num_steps: int) -> list[float]:
        with self._stream.active():
            losses = [self.training.step() for _ in range(num_steps)]
        return [float(torch.as_tensor(loss).detach()) for loss in losses]

    def save(self, path: Path) -> None:
        with self._stream.active():
            self.training.save(path)

    def load(self, path: Path) -> Exception | None:
        with self._stream.active():
            try:
                self.training.load(path)
            except Exception as error:  # the user's load() is the subject of this check
                return error
        return None

    def predictions(self) -> FlatState:
        modes = [(module, module.training) for module in self.training.model.modules()]
        self.training.model.eval()
        # A model may draw random numbers while it predicts. Both trainings must draw the same
        # numbers, and the prediction must not advance the training's own random stream.
        with RandomStream(0).active(), torch.no_grad():
            output = self.training.predict()
        for module, mode in modes:
            module.training = mode
        return flatten(output, "prediction")

    def registered_state(self) -> dict[str, FlatState]:
        model = self.training.model
        states = {"model": flatten(model.state_dict())}
        return states | {n: state_of(h, model) for n, h in self.training.states.items()}

    def hidden_state(self) -> FlatState:
        return hidden_state(self.training.model, self.training.step)


@dataclass(slots=True)
class _Comparison:
    """Runs an uninterrupted and a resumed training, and compares their losses and states."""

    start: Start
    num_steps: int
    seed: int
    folder: Path

    def run(self) -> CheckOutcome:
        path = self.folder / "checkpoint"
        uninterrupted_session = self._start_session("whole")
        uninterrupted_session.advance(self.num_steps)
        saved_state, saved_hidden_state = (
            uninterrupted_session.registered_state(),
            uninterrupted_session.hidden_state(),
        )
        try:
            uninterrupted_session.save(path)
        except OSError as error:
            return resumption_findings.not_writable_finding(storage_error(self.folder, error))
        except StorageError as error:
            return resumption_findings.not_writable_finding(error)
        if not path.exists():
            return resumption_findings.nothing_saved_finding()
        predictions = uninterrupted_session.predictions()
        losses = uninterrupted_session.advance(self.num_steps)
        final_state = uninterrupted_session.registered_state()

        resumed_session = self._start_session("resumed")
        initial_state = resumed_session.registered_state()
        load_error = resumed_session.load(path)
        if load_error is not None:
            return resumption_findings.load_error_finding(
                load_error, saved_state["model"], initial_state["model"]
            )
        loaded_state = resumed_session.registered_state()
        hidden_difference = first_difference(saved_hidden_state, resumed_session.hidden_state())
        difference = first_difference(saved_state["model"], loaded_state["model"])
        if difference is not None:
            is_unchanged = first_difference(initial_state["model"], loaded_state["model"]) is None
            return resumption_findings.model_difference_finding(
                difference, is_unchanged=is_unchanged
            )
        difference = first_difference(predictions, resumed_session.predictions())
        if difference is not None:
            return resumption_findings.prediction_difference_finding(difference, hidden_difference)
        for name in (name for name in saved_state if name != "model"):
            difference = first_difference(saved_state[name], loaded_state.get(name, {}))
            if difference is not None:
                return resumption_findings.state_difference_finding(name, difference)
        resumed_losses = resumed_session.advance(self.num_steps)
        change = _describe_first_change(
            losses, resumed_losses, final_state, resumed_session.registered_state()
        )
        if change:
            return resumption_findings.continuation_finding(
                change,
                hidden_difference,
                is_repeatable=self._is_repeatable(resumed_losses, path),
            )
        if self._loads_truncated(path, saved_state):
            return resumption_findings.partial_load_finding()
        return resumption_findings.passed_outcome(
            self.num_steps, num_values=sum(map(len, saved_state.values()))
        )

    def _start_session(self, name: str) -> _Session:
        return _Session(self.start, derive_seed(self.seed, f"checkpoint_{name}"))

    def _is_repeatable(self, losses: list[float], path: Path) -> bool:
        """Return whether the same checkpoint, loaded again, gives the same ``losses``."""
        repeated_session = self._start_session("resumed")
        if repeated_session.load(path) is not None:
            return False
        # The first resumed session also predicted before it advanced; predicting may change state.
        repeated_session.predictions()
        return all(map(same_bits, losses, repeated_session.advance(self.num_steps)))

    def _loads_truncated(self, path: Path, saved_state: Mapping[str, FlatState]) -> bool:
        """Truncate the largest file; return whether load() then restores only a part."""
        largest_file = max(_files(path), key=lambda file: file.stat().st_size)
        with largest_file.open("r+b") as file:
            file.truncate(largest_file.stat().st_size // 2)
        truncated_session = self._start_session("torn")
        initial_state = truncated_session.registered_state()
        if truncated_session.load(path) is not None:
            return False
        loaded_state = truncated_session.registered_state()
        changed_states = [
            n
            for n in loaded_state
            if first_difference(initial_state[n], loaded_state[n]) is not None
        ]
        unrestored_states = [
            n
            for n in saved_state
            if first_difference(saved_state[n], loaded_state.get(n, {})) is not None
        ]
        return bool(changed_states and unrestored_states)


def _describe_first_change(
    losses: list[float],
    resumed_losses: list[float],
    final_state: Mapping[str, FlatState],
    resumed_final_state: Mapping[str, FlatState],
) -> str:
    """Describe the first difference after resuming; empty when there is no difference."""
    for index, (one, other) in enumerate(zip(losses, resumed_losses, strict=True), 1):
        if not same_bits(one, other):
            return (
                f"the loss of step {index} after the checkpoint is {one!r} uninterrupted and "
                f"{other!r} resumed"
            )
    for name, state in final_state.items():
        difference = first_difference(state, resumed_final_state.get(name, {}))
        if difference is not None:
            steps = pluralize(len(losses), "step")
            return f"after {steps} with equal losses the {name} differs, {difference}"
    return ""


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
