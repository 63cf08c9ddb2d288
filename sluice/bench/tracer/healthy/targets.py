"""Healthy programs with unusual inputs or targets, or a loss that can be negative."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from sluice.bench.tracer.case import CaseSetup, HealthyCase, NetName
from sluice.bench.tracer.data import digits, table
from sluice.bench.tracer.nets import classifier

_ALL_NETS: tuple[NetName, ...] = ("mlp", "cnn", "gru", "transformer")


class _SmallLstm(nn.Module):
    """An LSTM with eight hidden units."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 8, batch_first=True)
        self.out = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(x)
        output: Tensor = self.out(states[:, -1]).squeeze(-1)
        return output


def small_lstm(setup: CaseSetup) -> list[nn.Module]:
    """Predict the mean of the last eight of 60 time steps with an LSTM of eight hidden units."""
    torch.manual_seed(setup.seed)
    x = torch.randn(1024, 60, 2)
    y = 3 * x[:, -8:, 0].mean(1) + 0.1 * torch.randn(1024)
    model = _SmallLstm()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(4):
        for rows in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            F.mse_loss(model(x[rows]), y[rows]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
    return [model]


def rare_label(setup: CaseSetup) -> list[nn.Module]:
    """Classify whether a digit is 0, which holds for 2 % of the rows."""
    torch.manual_seed(setup.seed)
    training, _ = digits(setup.net, setup.seed)
    x, y = training[:]
    positives = (y == 0).nonzero().squeeze(-1)
    negatives = (y != 0).nonzero().squeeze(-1)
    selected_rows = torch.cat([positives[: len(negatives) // 49], negatives])
    rows = TensorDataset(x[selected_rows], (y[selected_rows] == 0).float())
    model = classifier(setup.net, num_outputs=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(3):
        for inputs, labels in DataLoader(rows, batch_size=32, shuffle=True):
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model(inputs).squeeze(-1), labels)
            loss.backward()
            optimizer.step()
    return [model]


def negatively_correlated_target(setup: CaseSetup) -> list[nn.Module]:
    """Fit a target that is negatively correlated with the inputs."""
    torch.manual_seed(setup.seed)
    x = torch.randn(1024, 8, 8)
    y = -x.flatten(1)[:, :16].sum(1) / 4 + 0.2 * torch.randn(1024)
    net_inputs = {"mlp": x.flatten(1), "cnn": x[:, None]}.get(setup.net, x)
    model = classifier(setup.net, num_outputs=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(net_inputs, y), batch_size=32, shuffle=True)
    for _ in range(5):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.MSELoss()(model(inputs).squeeze(1), targets).backward()
            optimizer.step()
    return [model]


def raw_pixels(setup: CaseSetup) -> list[nn.Module]:
    """Pass pixels from 0 to 255 to a batch norm, which scales them."""
    torch.manual_seed(setup.seed)
    training, held_out = digits(setup.net, setup.seed)
    x, y = training[:]
    input_norm: nn.Module = nn.BatchNorm2d(1) if setup.net == "cnn" else nn.BatchNorm1d(x.shape[1])
    model = nn.Sequential(input_norm, classifier(setup.net))
    rows = TensorDataset((x * 255).round(), y)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(3):
        model.train()
        for inputs, labels in DataLoader(rows, batch_size=32, shuffle=True, drop_last=True):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            inputs, labels = held_out[:]
            F.cross_entropy(model((inputs * 255).round()), labels)
    return [model]


def gaussian_likelihood(setup: CaseSetup) -> list[nn.Module]:
    """Fit the mean and variance of a Gaussian; the loss falls below 0."""
    torch.manual_seed(setup.seed)
    columns = 12 if setup.net == "mlp" else 16
    training, _ = table(setup.seed, rows=2048, columns=columns)
    x, y = training[:]
    y = 0.2 * y
    x = x if setup.net == "mlp" else x.reshape(len(x), 2, 8)
    model = (
        nn.Sequential(nn.Linear(columns, 48), nn.Tanh(), nn.Linear(48, 2))
        if setup.net == "mlp"
        else classifier(setup.net, num_outputs=2)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(5):
        for inputs, targets in DataLoader(TensorDataset(x, y), batch_size=48, shuffle=True):
            mean, raw_variance = model(inputs).unbind(-1)
            loss = F.gaussian_nll_loss(mean, targets, F.softplus(raw_variance) + 1e-4)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return [model]


CASES = (
    HealthyCase(number=9, name="small LSTM over 60 time steps", program=small_lstm, nets=("gru",)),
    HealthyCase(number=10, name="rare class, 2 % of the rows", program=rare_label, nets=_ALL_NETS),
    HealthyCase(
        number=11,
        name="negatively correlated target",
        program=negatively_correlated_target,
        nets=_ALL_NETS,
    ),
    HealthyCase(number=14, name="raw 0-255 inputs", program=raw_pixels, nets=("mlp", "cnn", "gru")),
    HealthyCase(number=16, name="Gaussian NLL", program=gaussian_likelihood, nets=("mlp", "gru")),
)
