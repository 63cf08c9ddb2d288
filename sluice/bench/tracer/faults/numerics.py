"""Numerical faults: underflow, rounding, non-finite gradients, dead or identical units."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from sluice.bench.tracer.case import CaseSetup, FaultCase, NetName
from sluice.bench.tracer.data import digits
from sluice.bench.tracer.nets import GRUClassifier, TransformerClassifier, classifier


def underflow(setup: CaseSetup) -> list[nn.Module]:
    """Train on a very small loss in half precision without a gradient scaler."""
    torch.manual_seed(setup.seed)
    train, _ = digits(setup.net, setup.seed)
    model = classifier(setup.net)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, eps=1e-15)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, enabled=not setup.has_fault)
    for _ in range(2):
        for x, y in DataLoader(train, batch_size=32, shuffle=True):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = 1e-6 * F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return [model]


def updates_rounded_away(setup: CaseSetup) -> list[nn.Module]:
    """Train bfloat16 weights with a learning rate so low that rounding removes the updates."""
    torch.manual_seed(setup.seed)
    train, _ = digits(setup.net, setup.seed)
    x, y = train.tensors
    model = classifier(setup.net)
    if setup.has_fault:
        model, x = model.bfloat16(), x.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(80):
        rows = torch.randint(len(x), (64,), generator=torch.Generator().manual_seed(step))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not setup.has_fault):
            logits = model(x[rows])
        loss = F.cross_entropy(logits.float(), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [model]


class _Distances(nn.Module):
    """A head on the output of a body and on the distance of this output from that of row 0."""

    def __init__(self, net: NetName, *, has_masked_root: bool) -> None:
        super().__init__()
        self.has_masked_root = has_masked_root
        self.body: nn.Module
        if net == "cnn":
            self.body = nn.Sequential(
                nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 32)
            )
        elif net == "mlp":
            self.body = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 32))
        else:
            self.body = GRUClassifier(32) if net == "gru" else TransformerClassifier(32)
        self.head = nn.Linear(33, 10)

    def forward(self, x: Tensor) -> Tensor:
        states = self.body(x)
        squared_distance = (states - states[:1]).pow(2).sum(1, keepdim=True)  # 0 for row 0
        if self.has_masked_root:
            distance = torch.where(
                squared_distance > 0,
                torch.sqrt(squared_distance),
                torch.zeros_like(squared_distance),
            )
        else:
            distance = torch.sqrt(squared_distance + 1e-6)
        output: Tensor = self.head(torch.cat([states, distance], 1))
        return output


def masked_square_root(setup: CaseSetup) -> list[nn.Module]:
    """Take a square root at 0; ``torch.where`` hides the value of the root, not its gradient."""
    torch.manual_seed(setup.seed)
    train, _ = digits(setup.net, setup.seed)
    model = _Distances(setup.net, has_masked_root=setup.has_fault)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(3):
        for x, y in DataLoader(train, batch_size=48, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return [model]


class _HiddenReluNet(nn.Module):
    """A body (the classifier of ``nets``), a hidden layer with ``F.relu``, and a head."""

    def __init__(self, net: NetName) -> None:
        super().__init__()
        self.body = classifier(net, num_outputs=32)
        self.hidden = nn.Linear(32, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(F.relu(self.hidden(F.gelu(self.body(x)))))
        return output


def dead_or_constant_units(setup: CaseSetup) -> list[nn.Module]:
    """Train a network with a dead layer (odd seeds) or constant initial weights (even seeds)."""
    torch.manual_seed(setup.seed)
    train, _ = digits(setup.net, setup.seed)
    model = _HiddenReluNet(setup.net) if setup.seed % 2 else classifier(setup.net)
    if setup.has_fault:
        _plant_fault(model, setup.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(3):
        for x, y in DataLoader(train, batch_size=64, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return [model]


def _plant_fault(model: nn.Module, seed: int) -> None:
    if isinstance(model, _HiddenReluNet):
        nn.init.constant_(model.hidden.bias, -50.0)
        return
    constant = 0.0 if seed % 4 else 0.02
    for parameter in model.parameters():
        nn.init.constant_(parameter, constant)


_ALL_NETS: tuple[NetName, ...] = ("mlp", "cnn", "gru", "transformer")

NUMERIC_CASES = (
    FaultCase(
        number=27,
        name="half precision without a scaler",
        program=underflow,
        correct_causes=frozenset({"gradient underflow"}),
        max_late_steps=10,
        nets=("mlp", "cnn", "transformer"),
    ),
    FaultCase(
        number=28,
        name="bfloat16 weights with a small learning rate",
        program=updates_rounded_away,
        correct_causes=frozenset({"updates lost to rounding"}),
        max_late_steps=10,
        nets=_ALL_NETS,
    ),
    FaultCase(
        number=32,
        name="square root inside torch.where",
        program=masked_square_root,
        correct_causes=frozenset({"non-finite gradient"}),
        max_late_steps=10,
        nets=_ALL_NETS,
    ),
    FaultCase(
        number=33,
        name="dead or constant units",
        program=dead_or_constant_units,
        correct_causes=frozenset({"dead units", "constant initialization"}),
        max_late_steps=10,
        nets=_ALL_NETS,
    ),
)
