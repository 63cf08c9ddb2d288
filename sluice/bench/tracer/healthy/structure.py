"""Healthy programs with networks in which some layers are zero, frozen or inactive on purpose."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from sluice.bench.tracer.case import CaseSetup, HealthyCase
from sluice.bench.tracer.data import digits
from sluice.bench.tracer.nets import classifier


class _GatedBlock(nn.Module):
    """A residual block whose gate starts at zero, so that the block starts as the identity."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = x + self.gate * self.inner(x)
        return output


def _gated_net(net: str) -> nn.Module:
    if net == "cnn":
        blocks = [
            _GatedBlock(nn.Sequential(nn.Conv2d(12, 12, 3, padding=1), nn.ReLU())) for _ in range(3)
        ]
        stem = nn.Conv2d(1, 12, 3, padding=1)
        return nn.Sequential(stem, nn.ReLU(), *blocks, nn.Flatten(), nn.Linear(12 * 64, 10))
    blocks = [
        _GatedBlock(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)))
        for _ in range(4)
    ]
    return nn.Sequential(nn.Linear(64, 64), *blocks, nn.Linear(64, 10))


def zero_gates(setup: CaseSetup) -> list[nn.Module]:
    """Fit a residual network whose blocks start as the identity."""
    torch.manual_seed(setup.seed)
    training, _ = digits(setup.net, setup.seed)
    model = _gated_net(setup.net)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(3):
        for x, y in DataLoader(training, batch_size=32, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return [model]


class _LoraLinear(nn.Module):
    """A frozen linear layer with a low-rank adapter (LoRA) that starts at zero."""

    def __init__(self, base: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.base(x) + 2.0 * F.linear(F.linear(x, self.down), self.up)
        return output


def lora(setup: CaseSetup) -> list[nn.Module]:
    """Train on digits, freeze all weights, and fit LoRA adapters to other labels."""
    torch.manual_seed(setup.seed)
    training, _ = digits(setup.net, setup.seed)
    model = classifier(setup.net)
    x_all, y_all = training[:]
    pretraining_optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(60):
        rows = torch.randint(len(x_all), (64,))
        pretraining_optimizer.zero_grad()
        F.cross_entropy(model(x_all[rows]), y_all[rows]).backward()
        pretraining_optimizer.step()

    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for name, child in list(model.named_children()):
        if isinstance(child, nn.Linear):
            setattr(model, name, _LoraLinear(child))
    adapters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(adapters, lr=1e-2)
    for _ in range(4):
        for x, y in DataLoader(training, batch_size=48, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), (y + 1) % 10).backward()
            optimizer.step()
    return [model]


def sparse_relu(setup: CaseSetup) -> list[nn.Module]:
    """Fit a wide layer whose units are inactive in about 70 % of the rows; no unit is dead."""
    torch.manual_seed(setup.seed)
    training, _ = digits(setup.net, setup.seed)
    if setup.net == "cnn":
        wide_layer: nn.Linear | nn.Conv2d = nn.Conv2d(1, 64, 3, padding=1)
        model = nn.Sequential(
            wide_layer, nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64 * 16, 10)
        )
    else:
        wide_layer = nn.Linear(64, 768)
        model = nn.Sequential(wide_layer, nn.ReLU(), nn.Linear(768, 10))
    assert wide_layer.bias is not None
    with torch.no_grad():
        x, _ = training[:256]
        threshold = wide_layer(x).movedim(1, -1).flatten(0, -2).quantile(0.7, dim=0)
        wide_layer.bias -= threshold
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        for x, y in DataLoader(training, batch_size=32, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return [model]


class _Experts(nn.Module):
    """Four experts and a router that selects one expert for each row, but never the last expert."""

    def __init__(self, net: str, width: int = 32) -> None:
        super().__init__()
        self.body = nn.GRU(8, width, batch_first=True) if net == "gru" else None
        self.stem = nn.Linear(64, width)
        self.router = nn.Linear(width, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 10)) for _ in range(4)
        )
        with torch.no_grad():
            assert self.router.bias is not None
            self.router.bias[3] = -30.0

    def forward(self, x: Tensor) -> Tensor:
        if self.body is None:
            hidden = F.relu(self.stem(x))
        else:
            hidden = self.body(x)[0][:, -1] + self.stem(x.flatten(1))
        weight, selected_expert = self.router(hidden).softmax(-1).max(-1)
        output = hidden.new_zeros(len(hidden), 10)
        for index, expert in enumerate(self.experts):
            rows = (selected_expert == index).nonzero().squeeze(-1)
            if len(rows):
                output = output.index_add(0, rows, expert(hidden[rows]) * weight[rows, None])
        return output


def idle_expert(setup: CaseSetup) -> list[nn.Module]:
    """Fit a mixture of experts, one of which is never selected."""
    torch.manual_seed(setup.seed)
    training, _ = digits(setup.net, setup.seed)
    model = _Experts(setup.net)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(3):
        for x, y in DataLoader(training, batch_size=32, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return [model]


CASES = (
    HealthyCase(number=6, name="zero-initialised gates", program=zero_gates, nets=("mlp", "cnn")),
    HealthyCase(
        number=7,
        name="LoRA with B = 0",
        program=lora,
        nets=("mlp", "cnn", "gru", "transformer"),
    ),
    HealthyCase(number=18, name="wide sparse ReLU", program=sparse_relu, nets=("mlp", "cnn")),
    HealthyCase(
        number=19, name="expert that is never selected", program=idle_expert, nets=("mlp", "gru")
    ),
)
