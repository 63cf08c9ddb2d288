"""Speed of the trainer relative to a minimal correct loop with torch's DataLoader.

Both read the same row sources batch by batch: a table in memory, token ids padded to the longest of
the batch, and images in a memory-mapped file; in this process and with loader processes. Their
final weights are compared bit by bit, so neither loop can be faster by doing less.

Shape legend: N = examples, B = rows of a batch, L = tokens of the longest example of a batch.
"""

import copy
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from sluice.base.errors import ContractError
from sluice.base.seeding import RandomStream, derive_seed, deterministic
from sluice.base.settings import Record
from sluice.data.rows.protocol import ModelInput, RowSource
from sluice.models.scaled import Scaled
from sluice.training.loop import train
from sluice.training.schedule import learning_rate_at
from sluice.training.settings import TrainSettings
from sluice.workloads.examples import Examples

_VOCABULARY = 1000
_MAX_TOKENS = 64
_PIXELS = 32
_VAL_ROWS = 256
"""Validation rows: few enough for one chunk, so that both loops predict them at once."""


class LoaderSpeed(Record):
    """Speed of the trainer relative to the loop, for one source and number of loader processes."""

    source: str = Field(description="'table', 'tokens' or 'images'.")
    workers: int = Field(description="Number of loader processes.")
    trainer_rows_per_s: float = Field(
        description="Speed of the trainer, median over the rounds [rows/s]."
    )
    loop_rows_per_s: float = Field(
        description="Speed of the loop, median over the rounds [rows/s]."
    )
    ratio: float = Field(
        description="Speed of the trainer divided by that of the loop, median over the rounds."
    )


class LoaderOverhead(Record):
    """Speeds for every source and number of loader processes."""

    loader_rows: int = Field(description="Number of training rows per epoch.")
    loader_rounds: int = Field(
        description="Number of timed rounds per case; each trains once with the trainer and once "
        "with the loop."
    )
    loaders: tuple[LoaderSpeed, ...]


def measure_loaders(
    *,
    num_rows: int,
    num_epochs: int,
    rounds: int,
    workers: Sequence[int],
    folder: Path,
    clock: Callable[[], float] = time.perf_counter,
) -> LoaderOverhead:
    """Train on every source with the trainer and with the loop in turns, and compare.

    Args:
        num_rows: Training rows per epoch.
        num_epochs: Epochs of a training.
        rounds: Pairs of trainings per case; the order within a pair alternates.
        workers: Numbers of loader processes.
        folder: Folder for the file of images.
        clock: Monotonic time [s].

    Raises:
        ContractError: The final weights differ.

    Cost:
        ``2 * rounds + 2`` trainings per case.
    """
    speeds = []
    with deterministic(), RandomStream(derive_seed(0, "benchmark")).active():
        for case in _cases(num_rows, folder):
            for count in workers:
                settings = TrainSettings(
                    max_epochs=num_epochs,
                    patience_epochs=num_epochs,
                    batch_rows=64,
                    device="cpu",
                    loader_workers=count,
                )
                speeds.append(_measure(case, settings, rounds, clock))
    return LoaderOverhead(loader_rows=num_rows, loader_rounds=rounds, loaders=tuple(speeds))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    source: str
    model: Scaled
    train: Examples
    val: Examples


def _measure(
    case: _Case, settings: TrainSettings, rounds: int, clock: Callable[[], float]
) -> LoaderSpeed:
    _require_same(case, _trainer(case, settings), _loop(case, settings))  # also warms up both
    seconds: dict[str, list[float]] = {"trainer": [], "loop": []}
    for number in range(rounds):
        pair = [("trainer", _trainer), ("loop", _loop)]
        for name, run in pair if number % 2 else reversed(pair):
            started = clock()
            run(case, settings)
            seconds[name].append(clock() - started)
    count = settings.max_epochs * len(case.train)
    pairs = zip(seconds["loop"], seconds["trainer"], strict=True)
    return LoaderSpeed(
        source=case.source,
        workers=settings.loader_workers,
        trainer_rows_per_s=count / statistics.median(seconds["trainer"]),
        loop_rows_per_s=count / statistics.median(seconds["loop"]),
        ratio=statistics.median(loop / trainer for loop, trainer in pairs),
    )


def _trainer(case: _Case, settings: TrainSettings) -> nn.Module:
    model = copy.deepcopy(case.model)
    epochs = train(
        model,
        _loss,
        _losses,
        case.train,
        case.val,
        settings,
        seed=0,
        on_state=lambda _state: None,
        is_due=lambda: time.perf_counter() < 0,  # as costly as in a real training
    )
    for _ in epochs:
        pass
    return model


def _loop(case: _Case, settings: TrainSettings) -> nn.Module:
    """Run a minimal loop with the same result."""
    model, rows, val = copy.deepcopy(case.model), case.train, case.val
    optimizer = torch.optim.AdamW(
        model.parameters(), weight_decay=settings.weight_decay, fused=True
    )
    sampler, workers = _Batches(), settings.loader_workers
    loader = DataLoader(
        _Rows(rows),
        sampler=sampler,
        batch_size=None,
        num_workers=workers,
        persistent_workers=workers > 0,
        generator=torch.Generator(),
    )
    steps = -(-len(rows) // settings.batch_rows)
    step, lowest, best = itertools.count(), float("inf"), dict[str, Tensor]()
    torch.manual_seed(derive_seed(0, "dropout"))
    for epoch in range(1, settings.max_epochs + 1):
        model.train()
        order = torch.Generator().manual_seed(derive_seed(0, f"order_{epoch}"))
        sampler.parts = torch.randperm(len(rows), generator=order).split(settings.batch_rows)
        for x, y in loader:
            optimizer.zero_grad()
            loss = _loss(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
            rate = learning_rate_at(next(step), settings.max_epochs * steps, settings)
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
        model.eval()
        with torch.inference_mode():
            losses = _losses(model(val.inputs), val.targets)
        if (val_loss := float(losses.double().mean())) < lowest:
            lowest = val_loss
            best = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(best)
    return model


class _Batches:
    """Sampler of the loop: the rows of every batch of an epoch."""

    parts: Sequence[Tensor] = ()

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)


class _Rows(Dataset[tuple[ModelInput, Tensor]]):
    """Dataset of the loop, indexed by whole batches."""

    def __init__(self, rows: Examples) -> None:
        self._x, self._y = rows.x, rows.targets

    def __getitem__(self, part: Tensor) -> tuple[ModelInput, Tensor]:
        return self._x[part], self._y[part]


def _losses(output: Tensor, y: Tensor) -> Tensor:
    return (output - y).square().mean(dim=1)


def _loss(output: Tensor, y: Tensor) -> Tensor:
    return _losses(output, y).mean()


def _require_same(case: _Case, trainer: nn.Module, loop: nn.Module) -> None:
    weights = [nn.utils.parameters_to_vector(m.parameters()).detach() for m in (trainer, loop)]
    if not torch.equal(*weights):
        raise ContractError(
            f"Both loops must end with equal weights on {case.source}; they differ by up to "
            f"{float((weights[0] - weights[1]).abs().max()):.3g}.",
            cause="The loops do different work, so their times cannot be compared.",
            fix="Report this as a bug.",
        )


def _cases(num_rows: int, folder: Path) -> Iterator[_Case]:
    generator = torch.Generator().manual_seed(0)
    total = num_rows + _VAL_ROWS
    y = torch.randn(total, 1, generator=generator)
    table = torch.randn(total, 32, 8, generator=generator)
    hidden = nn.Sequential(nn.Flatten(), nn.Linear(256, 128), nn.ReLU(), nn.Dropout(0.1))
    parts = [table[part] for part in _split_slices(num_rows)]
    yield _case("table", nn.Sequential(*hidden, nn.Linear(128, 1)), parts, y, num_rows)

    lengths = torch.randint(4, _MAX_TOKENS + 1, (total,), generator=generator)
    ids = torch.randint(1, _VOCABULARY, (total, _MAX_TOKENS), generator=generator)
    tokens = [_Tokens(ids[part], lengths[part]) for part in _split_slices(num_rows)]
    yield _case("tokens", _TokenNetwork(), tokens, y, num_rows)

    pixels = torch.randint(256, (total, 1, _PIXELS, _PIXELS), generator=generator)
    path = folder / "images.npy"
    np.save(path, pixels.to(torch.uint8).numpy())
    try:
        images = [_Images(path, part) for part in _split_slices(num_rows)]
        network = nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU()
        )
        yield _case(
            "images", nn.Sequential(*network, nn.Flatten(), nn.Linear(288, 1)), images, y, num_rows
        )
    finally:
        path.unlink()


def _case(
    source: str, network: nn.Module, x: Sequence[Tensor | RowSource], y: Tensor, num_rows: int
) -> _Case:
    """Return a case; ``x`` has the inputs of the train rows and those of the validation rows."""
    model = Scaled(network, num_features=0, num_outputs=1, scale_inputs=False, scale_target=False)
    train_rows, val_rows = (
        Examples(x=inputs_of_part, y=y[part], rows=np.arange(len(inputs_of_part)))
        for inputs_of_part, part in zip(x, _split_slices(num_rows), strict=True)
    )
    return _Case(source=source, model=model, train=train_rows, val=val_rows)


def _split_slices(num_rows: int) -> tuple[slice, slice]:
    return slice(0, num_rows), slice(num_rows, num_rows + _VAL_ROWS)


class _Tokens:
    """Token ids, padded to the longest of the batch, with their mask."""

    def __init__(self, ids: Tensor, lengths: Tensor) -> None:
        self._ids, self._lengths = ids, lengths

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, rows: Tensor, /) -> dict[str, Tensor]:
        lengths = self._lengths[rows]
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        return {"ids": self._ids[rows, : mask.shape[1]] * mask, "mask": mask}


class _TokenNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, 64)
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.out = nn.Linear(64, 1)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        weight = mask[:, :, None].float()
        mean = (self.layers(self.embedding(ids)) * weight).sum(1) / weight.sum(1)
        output: Tensor = self.out(mean)
        return output


class _Images:
    """Images of a memory-mapped file, as float32."""

    def __init__(self, path: Path, part: slice) -> None:
        self._pixels = np.load(path, mmap_mode="r")[part]

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, rows: Tensor, /) -> Tensor:
        return torch.from_numpy(self._pixels[rows.numpy()]).float() / 255
