"""Speed of the trainer relative to a minimal correct loop with torch's DataLoader.

Both read the same row sources batch by batch: a table in memory, token ids padded to the longest
example of the batch, and images in a memory-mapped file. The sources are read in this process, and
in loader processes. The final weights of both are compared bit by bit, so neither can be faster by
doing less.
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

_VOCAB_SIZE = 1000
_MAX_TOKENS = 64
_IMAGE_PIXELS = 32
_NUM_VAL_ROWS = 256
"""Number of validation rows. The trainer predicts so few rows at once, as the loop does."""


class LoaderSpeed(Record):
    """Speeds of the trainer and of the loop for one source and number of loader processes."""

    source: str = Field(description="'table', 'tokens' or 'images'.")
    num_workers: int = Field(description="Number of loader processes.")
    trainer_rows_per_s: float = Field(
        description="Speed of the trainer, median over the rounds [rows/s]."
    )
    loop_rows_per_s: float = Field(
        description="Speed of the loop, median over the rounds [rows/s]."
    )
    ratio: float = Field(
        description="Speed of the trainer divided by the speed of the loop, median over the rounds."
    )


class LoaderOverhead(Record):
    """Speeds for every source and number of loader processes."""

    loader_num_rows: int = Field(description="Number of training rows per epoch.")
    loader_num_rounds: int = Field(
        description="Number of timed rounds per source and number of loader processes; each round "
        "trains once with the trainer and once with the loop."
    )
    loaders: tuple[LoaderSpeed, ...]


def measure_loaders(
    *,
    num_rows: int,
    num_epochs: int,
    num_rounds: int,
    worker_counts: Sequence[int],
    folder: Path,
    clock: Callable[[], float] = time.perf_counter,
) -> LoaderOverhead:
    """Train on every source with the trainer and with the loop in turns, and compare.

    Args:
        num_rows: Number of training rows per epoch.
        num_epochs: Number of epochs of a training.
        num_rounds: Number of pairs of trainings per case. A case is one source with one number of
            loader processes. The order within a pair alternates.
        worker_counts: Numbers of loader processes.
        folder: Folder for the file of images, which is removed at the end.
        clock: Monotonic time [s].

    Raises:
        ContractError: The final weights differ.

    Cost:
        ``2 * num_rounds + 2`` trainings per case.
    """
    speeds = []
    with deterministic(), RandomStream(derive_seed(0, "benchmark")).active():
        for case in _build_cases(num_rows, folder):
            for num_workers in worker_counts:
                settings = TrainSettings(
                    max_epochs=num_epochs,
                    patience_epochs=num_epochs,
                    batch_rows=64,
                    device="cpu",
                    loader_workers=num_workers,
                )
                speeds.append(_measure(case, settings, num_rounds, clock))
    return LoaderOverhead(
        loader_num_rows=num_rows, loader_num_rounds=num_rounds, loaders=tuple(speeds)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """Row source with a model for its inputs."""

    source: str
    model: Scaled
    train: Examples
    val: Examples


def _measure(
    case: _Case, settings: TrainSettings, num_rounds: int, clock: Callable[[], float]
) -> LoaderSpeed:
    # The first two trainings also warm up both loops.
    _require_same_weights(case, _run_trainer(case, settings), _run_loop(case, settings))
    seconds: dict[str, list[float]] = {"trainer": [], "loop": []}
    for round_number in range(num_rounds):
        pair = [("trainer", _run_trainer), ("loop", _run_loop)]
        for name, run in pair if round_number % 2 else reversed(pair):
            start_s = clock()
            run(case, settings)
            seconds[name].append(clock() - start_s)
    rows_per_training = settings.max_epochs * len(case.train)
    pairs = zip(seconds["loop"], seconds["trainer"], strict=True)
    return LoaderSpeed(
        source=case.source,
        num_workers=settings.loader_workers,
        trainer_rows_per_s=rows_per_training / statistics.median(seconds["trainer"]),
        loop_rows_per_s=rows_per_training / statistics.median(seconds["loop"]),
        ratio=statistics.median(loop_s / trainer_s for loop_s, trainer_s in pairs),
    )


def _run_trainer(case: _Case, settings: TrainSettings) -> nn.Module:
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
        is_due=lambda: time.perf_counter() < 0,  # never due, but as costly as in a real training
    )
    for _ in epochs:
        pass
    return model


def _run_loop(case: _Case, settings: TrainSettings) -> nn.Module:
    """Run a minimal loop; return a model with the same weights as the model of ``_run_trainer``."""
    model, train_examples, val_examples = copy.deepcopy(case.model), case.train, case.val
    optimizer = torch.optim.AdamW(
        model.parameters(), weight_decay=settings.weight_decay, fused=True
    )
    sampler, num_workers = _BatchSampler(), settings.loader_workers
    loader = DataLoader(
        _BatchDataset(train_examples),
        sampler=sampler,
        batch_size=None,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        generator=torch.Generator(),
    )
    steps_per_epoch = -(-len(train_examples) // settings.batch_rows)
    num_steps = settings.max_epochs * steps_per_epoch
    step, lowest_loss, best_weights = itertools.count(), float("inf"), dict[str, Tensor]()
    torch.manual_seed(derive_seed(0, "dropout"))
    for epoch in range(1, settings.max_epochs + 1):
        model.train()
        order = torch.Generator().manual_seed(derive_seed(0, f"order_{epoch}"))
        sampler.batches = torch.randperm(len(train_examples), generator=order).split(
            settings.batch_rows
        )
        for x, y in loader:
            optimizer.zero_grad()
            loss = _loss(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
            learning_rate = learning_rate_at(next(step), num_steps, settings)
            optimizer.param_groups[0]["lr"] = learning_rate
            optimizer.step()
        model.eval()
        with torch.inference_mode():
            losses = _losses(model(val_examples.inputs), val_examples.targets)
        if (val_loss := float(losses.double().mean())) < lowest_loss:
            lowest_loss = val_loss
            best_weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(best_weights)
    return model


class _BatchSampler:
    """Sampler of the loop. It yields the row numbers of each batch of an epoch."""

    batches: Sequence[Tensor] = ()

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class _BatchDataset(Dataset[tuple[ModelInput, Tensor]]):
    """Dataset of the loop, indexed by the row numbers of a batch."""

    def __init__(self, examples: Examples) -> None:
        self._x, self._y = examples.x, examples.targets

    def __getitem__(self, rows: Tensor) -> tuple[ModelInput, Tensor]:
        return self._x[rows], self._y[rows]


def _losses(output: Tensor, y: Tensor) -> Tensor:
    return (output - y).square().mean(dim=1)


def _loss(output: Tensor, y: Tensor) -> Tensor:
    return _losses(output, y).mean()


def _require_same_weights(case: _Case, trainer_model: nn.Module, loop_model: nn.Module) -> None:
    weights = [
        nn.utils.parameters_to_vector(model.parameters()).detach()
        for model in (trainer_model, loop_model)
    ]
    if not torch.equal(*weights):
        raise ContractError(
            f"Both loops must end with equal weights on {case.source}; they differ by up to "
            f"{float((weights[0] - weights[1]).abs().max()):.3g}.",
            cause="The loops do different work, so their times cannot be compared.",
            fix="Report this as a bug.",
        )


def _build_cases(num_rows: int, folder: Path) -> Iterator[_Case]:
    """Yield a case for each row source; the target is random.

    The inputs are built from ``num_rows`` train rows, followed by the validation rows.
    """
    generator = torch.Generator().manual_seed(0)
    total_rows = num_rows + _NUM_VAL_ROWS
    y = torch.randn(total_rows, 1, generator=generator)
    table = torch.randn(total_rows, 32, 8, generator=generator)
    hidden = nn.Sequential(nn.Flatten(), nn.Linear(256, 128), nn.ReLU(), nn.Dropout(0.1))
    split_inputs = [table[part] for part in _split_slices(num_rows)]
    yield _build_case("table", nn.Sequential(*hidden, nn.Linear(128, 1)), split_inputs, y, num_rows)

    lengths = torch.randint(4, _MAX_TOKENS + 1, (total_rows,), generator=generator)
    ids = torch.randint(1, _VOCAB_SIZE, (total_rows, _MAX_TOKENS), generator=generator)
    tokens = [_Tokens(ids[part], lengths[part]) for part in _split_slices(num_rows)]
    yield _build_case("tokens", _TokenNetwork(), tokens, y, num_rows)

    pixels = torch.randint(256, (total_rows, 1, _IMAGE_PIXELS, _IMAGE_PIXELS), generator=generator)
    path = folder / "images.npy"
    np.save(path, pixels.to(torch.uint8).numpy())
    try:
        images = [_Images(path, part) for part in _split_slices(num_rows)]
        network = nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU()
        )
        yield _build_case(
            "images", nn.Sequential(*network, nn.Flatten(), nn.Linear(288, 1)), images, y, num_rows
        )
    finally:
        path.unlink()


def _build_case(
    source: str, network: nn.Module, x: Sequence[Tensor | RowSource], y: Tensor, num_rows: int
) -> _Case:
    """Return a case; ``x`` contains the inputs of the train rows and of the validation rows."""
    model = Scaled(network, num_features=0, num_outputs=1, scale_inputs=False, scale_target=False)
    train_examples, val_examples = (
        Examples(x=inputs_of_part, y=y[part], rows=np.arange(len(inputs_of_part)))
        for inputs_of_part, part in zip(x, _split_slices(num_rows), strict=True)
    )
    return _Case(source=source, model=model, train=train_examples, val=val_examples)


def _split_slices(num_rows: int) -> tuple[slice, slice]:
    return slice(0, num_rows), slice(num_rows, num_rows + _NUM_VAL_ROWS)


class _Tokens:
    """Row source of token ids, padded to the longest example of the batch, with their mask."""

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
        self.embedding = nn.Embedding(_VOCAB_SIZE, 64)
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.out = nn.Linear(64, 1)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        weight = mask[:, :, None].float()
        mean = (self.layers(self.embedding(ids)) * weight).sum(1) / weight.sum(1)
        output: Tensor = self.out(mean)
        return output


class _Images:
    """Row source of the images in a memory-mapped file, as float32."""

    def __init__(self, path: Path, part: slice) -> None:
        self._pixels = np.load(path, mmap_mode="r")[part]

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, rows: Tensor, /) -> Tensor:
        return torch.from_numpy(self._pixels[rows.numpy()]).float() / 255
