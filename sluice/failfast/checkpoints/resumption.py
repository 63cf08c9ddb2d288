"""POC-10, REPRO-4: does a training that is stopped and resumed go on as if nothing had happened?

Usable on anyone's save and load functions, with or without the rest of Sluice.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from sluice.base.errors import ContractError, StorageError
from sluice.base.files import storage_error
from sluice.base.seeding import Stream, derive_seed
from sluice.failfast.checkpoints import resumption_findings as say
from sluice.failfast.checkpoints.training_state import (
    Flat,
    HasState,
    first_difference,
    flatten,
    hidden_state,
    same_bits,
    state_of,
)
from sluice.findings.finding import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppableTraining:
    """A training that was just set up, and how it is saved and loaded."""

    model: nn.Module
    step: Callable[[], Tensor | float]
    """Train a little and return the loss; takes its own next batch."""
    predict: Callable[[], Tensor]
    """Predictions of the model on a few fixed inputs; called in evaluation mode."""
    save: Callable[[Path], object]
    """Write everything to this path, as a file or a folder."""
    load: Callable[[Path], object]
    """Read it back into this training, which was set up afresh."""
    states: Mapping[str, HasState] = field(default_factory=dict)
    """What else has a state, by name: optimizer, scheduler, scaler."""


Start = Callable[[], StoppableTraining]


def validate_checkpoint(start: Start, *, num_steps: int, seed: int, folder: Path) -> None:
    """Refuse save and load functions after which a training is another one (POC-10).

    In anyone's training script::

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
        start: Sets up the training as a new process would. The global random generators hold
            another seed at every call.
        num_steps: Steps before the checkpoint, and again after it.
        seed: Seeds the global generators; the caller's are left as they were.
        folder: An existing folder on the disk that will hold the real checkpoints; nothing is
            left in it.

    Raises:
        ContractError: Something did not come back; the message names it and its first value.
        StorageError: The folder cannot be written.
    """
    finding = check_resumption(start, num_steps=num_steps, seed=seed, folder=folder)
    if finding.outcome != "pass":
        cause, fix = finding.response
        kind = StorageError if finding.kind == "log not writable" else ContractError
        raise kind(finding.summary, cause=cause, fix=fix)


def check_resumption(start: Start, *, num_steps: int, seed: int, folder: Path) -> Finding:
    """Train, save, train on; load into a fresh training, train on; compare bit by bit (POC-10).

    After loading, the model, its predictions and every further state must be as they were; then
    the losses of the steps that follow, and the state after them. A checkpoint cut in half must
    not be loaded in part without a word.

    Args:
        start: Sets up the training; see ``validate_checkpoint``.
        num_steps: Steps before the checkpoint, and again after it.
        seed: Seeds the global generators.
        folder: An existing folder on the disk that will hold the real checkpoints.

    Raises:
        Exception: Whatever the training's own code raises, but not its ``load``.

    Cost:
        ``3 * num_steps`` steps, one more setting up for the cut checkpoint.
    """
    try:
        made = TemporaryDirectory(dir=folder, prefix="poc-checkpoint-")
    except OSError as error:
        return say.not_writable(storage_error(folder, error))
    with made as name:
        return _Comparison(start, num_steps=num_steps, seed=seed, folder=Path(name)).run()


class _Session:
    """One training in random numbers of its own."""

    def __init__(self, start: Start, seed: int) -> None:
        self._stream = Stream(seed)
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
            except Exception as error:  # the edge of the user's code: it is what is examined
                return error
        return None

    def predictions(self) -> Flat:
        modes = [(module, module.training) for module in self.training.model.modules()]
        self.training.model.eval()
        # A model may draw while it predicts; alike on both sides, and not from this training's.
        with Stream(0).active(), torch.no_grad():
            output = self.training.predict()
        for module, mode in modes:
            module.training = mode
        return flatten(output, "prediction")

    def registered(self) -> dict[str, Flat]:
        model = self.training.model
        parts = {"model": flatten(model.state_dict())}
        return parts | {n: state_of(h, model) for n, h in self.training.states.items()}

    def hidden(self) -> Flat:
        return hidden_state(self.training.model, self.training.step)


@dataclass(slots=True)
class _Comparison:
    start: Start
    num_steps: int
    seed: int
    folder: Path

    def run(self) -> Finding:
        path = self.folder / "checkpoint"
        whole = self._session("whole")
        whole.advance(self.num_steps)
        saved, hidden = whole.registered(), whole.hidden()
        try:
            whole.save(path)
        except OSError as error:
            return say.not_writable(storage_error(self.folder, error))
        except StorageError as error:
            return say.not_writable(error)
        if not path.exists():
            return say.nothing_saved()
        predictions = whole.predictions()
        losses, end = whole.advance(self.num_steps), whole.registered()

        resumed = self._session("resumed")
        untouched = resumed.registered()
        refusal = resumed.load(path)
        if refusal is not None:
            return say.load_raised(refusal, saved["model"], untouched["model"])
        found, found_hidden = resumed.registered(), resumed.hidden()
        beside = first_difference(hidden, found_hidden)
        difference = first_difference(saved["model"], found["model"])
        if difference is not None:
            skipped = first_difference(untouched["model"], found["model"]) is None
            return say.model_differs(difference, skipped=skipped)
        difference = first_difference(predictions, resumed.predictions())
        if difference is not None:
            return say.predictions_differ(difference, beside)
        for name in self._other_names(saved):
            difference = first_difference(saved[name], found.get(name, {}))
            if difference is not None:
                return say.state_differs(name, difference)
        again = resumed.advance(self.num_steps)
        changed = _first_change(losses, again, end, resumed.registered())
        if changed:
            return say.goes_on_differently(changed, beside, repeatable=self._same(again, path))
        if self._half_loaded(path, saved):
            return say.half_loaded()
        return say.round_trips(self.num_steps, num_values=sum(map(len, saved.values())))

    def _session(self, name: str) -> _Session:
        return _Session(self.start, derive_seed(self.seed, f"checkpoint_{name}"))

    def _other_names(self, saved: Mapping[str, Flat]) -> list[str]:
        return [name for name in saved if name != "model"]

    def _same(self, losses: list[float], path: Path) -> bool:
        """Say whether the same checkpoint, loaded once more, goes on like ``losses``."""
        once_more = self._session("resumed")
        if once_more.load(path) is not None:
            return False
        once_more.predictions()
        return all(map(same_bits, losses, once_more.advance(self.num_steps)))

    def _half_loaded(self, path: Path, saved: Mapping[str, Flat]) -> bool:
        """Cut the checkpoint in half; say whether a part of it is loaded without an error."""
        largest = max(_files(path), key=lambda file: file.stat().st_size)
        with largest.open("r+b") as file:
            file.truncate(largest.stat().st_size // 2)
        torn = self._session("torn")
        untouched = torn.registered()
        if torn.load(path) is not None:
            return False
        found = torn.registered()
        changed = [n for n in found if first_difference(untouched[n], found[n]) is not None]
        missing = [n for n in saved if first_difference(saved[n], found.get(n, {})) is not None]
        return bool(changed and missing)


def _first_change(
    losses: list[float], again: list[float], end: Mapping[str, Flat], found: Mapping[str, Flat]
) -> str:
    """Return what was not the same after resuming; empty when everything was."""
    for index, (one, other) in enumerate(zip(losses, again, strict=True), 1):
        if not same_bits(one, other):
            return f"the loss of step {index} was {one!r} uninterrupted and {other!r} resumed"
    for name, state in end.items():
        difference = first_difference(state, found.get(name, {}))
        if difference is not None:
            return f"after {len(again)} equal losses the {name} differs, {difference}"
    return ""


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
