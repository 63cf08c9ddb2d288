"""Six ordinary training loops, with which overhead and false alarms are measured."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

Tick = Callable[[], None]
"""Function without arguments, which a program calls after each optimizer step."""

TimedProgram = Callable[[int, Tick], list[nn.Module]]
"""Trains for a number of optimizer steps, calls ``Tick`` after each, and returns the networks."""

EPOCH_STEPS = 32
"""Number of optimizer steps per epoch. The GAN has no epochs, because it never repeats a row."""


def _fit(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    num_steps: int,
    tick: Tick,
    *,
    batch_rows: int,
    lr: float,
) -> list[nn.Module]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=batch_rows, shuffle=True)
    step = 0
    model.train()
    while step < num_steps:
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            step += 1
            tick()
            if step == num_steps:
                break
    return [model]


def mlp(num_steps: int, tick: Tick) -> list[nn.Module]:
    """Fit a perceptron with three layers to rows of 64 values."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 256), nn.ReLU(),
        nn.Linear(256, 10),
    )  # fmt: skip
    x, y = torch.randn(4096, 64), torch.randint(10, (4096,))
    return _fit(model, x, y, num_steps, tick, batch_rows=128, lr=1e-3)


def cnn(num_steps: int, tick: Tick) -> list[nn.Module]:
    """Fit a small convolutional network with batch norm to 16 x 16 images."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 16, 10),
    )  # fmt: skip
    x, y = torch.randn(1024, 1, 16, 16), torch.randint(10, (1024,))
    return _fit(model, x, y, num_steps, tick, batch_rows=32, lr=1e-3)


class _Recurrent(nn.Module):
    def __init__(self, layer_class: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.encoder = layer_class(9, 32, batch_first=True)
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.encoder(x)
        output: Tensor = self.head(states[:, -1])
        return output


def _fit_recurrent(
    layer_class: type[nn.LSTM] | type[nn.GRU], num_steps: int, tick: Tick
) -> list[nn.Module]:
    torch.manual_seed(0)
    x, y = torch.randn(2048, 22, 9), torch.randint(4, (2048,))
    return _fit(_Recurrent(layer_class), x, y, num_steps, tick, batch_rows=64, lr=2e-3)


def lstm(num_steps: int, tick: Tick) -> list[nn.Module]:
    """Fit an LSTM to sequences of 22 time steps with nine features."""
    return _fit_recurrent(nn.LSTM, num_steps, tick)


def gru(num_steps: int, tick: Tick) -> list[nn.Module]:
    """Fit a GRU to sequences of 22 time steps with nine features."""
    return _fit_recurrent(nn.GRU, num_steps, tick)


class _Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = self.head(self.encoder(self.embedding(tokens)).mean(1))
        return output


def transformer(num_steps: int, tick: Tick) -> list[nn.Module]:
    """Fit a transformer of two layers to sequences of 32 tokens."""
    torch.manual_seed(0)
    x, y = torch.randint(64, (1024, 32)), torch.randint(8, (1024,))
    return _fit(_Transformer(), x, y, num_steps, tick, batch_rows=32, lr=1e-3)


def gan(num_steps: int, tick: Tick) -> list[nn.Module]:
    """Train a generator against a discriminator; each has an optimizer and steps once per batch."""
    torch.manual_seed(0)
    generator = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 784),
        nn.Tanh(),
    )  # fmt: skip
    discriminator = nn.Sequential(
        nn.Linear(784, 256), nn.LeakyReLU(0.2), nn.Linear(256, 256), nn.LeakyReLU(0.2),
        nn.Linear(256, 1),
    )  # fmt: skip
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    discriminator_optimizer = torch.optim.Adam(
        discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999)
    )
    criterion = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(100, 1), torch.zeros(100, 1)
    for _ in range(num_steps // 2):
        real, noise = torch.randn(100, 784), torch.randn(100, 64)
        discriminator_optimizer.zero_grad()
        generated = generator(noise)
        (
            criterion(discriminator(real), ones)
            + criterion(discriminator(generated.detach()), zeros)
        ).backward()
        discriminator_optimizer.step()
        tick()
        generator_optimizer.zero_grad()
        criterion(discriminator(generated), ones).backward()
        generator_optimizer.step()
        tick()
    return [generator, discriminator]


PROGRAMS: Mapping[str, TimedProgram] = {
    "MLP": mlp,
    "CNN": cnn,
    "LSTM": lstm,
    "GRU": gru,
    "Transformer": transformer,
    "GAN": gan,
}
"""Programs by name."""
