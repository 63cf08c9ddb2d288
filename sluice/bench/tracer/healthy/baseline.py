"""Ordinary healthy programs: plain, with a frozen backbone, with accumulation, with warmup."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from sluice.bench.tracer.case import CaseSetup, HealthyCase, NetName
from sluice.bench.tracer.data import digits
from sluice.bench.tracer.nets import classifier

_ALL_NETS: tuple[NetName, ...] = ("mlp", "cnn", "gru", "transformer")


def plain_training(setup: CaseSetup) -> list[nn.Module]:
    """Fit digits, with validation after every epoch."""
    torch.manual_seed(setup.seed)
    training, held_out = digits(setup.net, setup.seed)
    model = classifier(setup.net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)
    for _ in range(3):
        model.train()
        for x, y in DataLoader(training, batch_size=32, shuffle=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        scheduler.step()
        model.eval()
        with torch.no_grad():
            for x, y in DataLoader(held_out, batch_size=120):
                F.cross_entropy(model(x), y)
    return [model]


def frozen_backbone(setup: CaseSetup) -> list[nn.Module]:
    """Load weights that were trained on the digits 0 to 4, and train only a new head."""
    torch.manual_seed(setup.seed)
    training, _ = digits(setup.net, setup.seed)
    x_all, y_all = training[:]
    is_small_digit = y_all < 5
    pretrained = classifier(setup.net)
    _fit(pretrained, x_all[is_small_digit], y_all[is_small_digit], num_steps=60, lr=3e-3)
    torch.save(pretrained.state_dict(), setup.folder / "backbone.pt")

    model = classifier(setup.net)
    model.load_state_dict(torch.load(setup.folder / "backbone.pt", weights_only=True))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    head = _replace_head(model)
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)
    loader = DataLoader(training, batch_size=64, shuffle=True)
    for _ in range(4):
        model.eval()  # also freezes the running statistics of batch norm in the backbone
        head.train()
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return [model]


def _fit(model: nn.Module, x: torch.Tensor, y: torch.Tensor, *, num_steps: int, lr: float) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    model.train()
    for _ in range(num_steps):
        rows = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()


def _replace_head(model: nn.Module) -> nn.Linear:
    """Replace the last layer by a new layer for ten classes, and return the new layer."""
    if isinstance(model, nn.Sequential):
        old_head = model[-1]
        assert isinstance(old_head, nn.Linear)
        model[-1] = head = nn.Linear(old_head.in_features, 10)
        return head
    old_head = model.get_submodule("head")
    assert isinstance(old_head, nn.Linear)
    model.head = head = nn.Linear(old_head.in_features, 10)
    return head


def accumulation(setup: CaseSetup) -> list[nn.Module]:
    """Step after every eighth batch; the loss of each batch is divided by eight."""
    torch.manual_seed(setup.seed)
    training, _ = digits(setup.net, setup.seed)
    model = classifier(setup.net)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    loader = DataLoader(training, batch_size=8, shuffle=True, drop_last=True)
    optimizer.zero_grad()
    for _ in range(3):
        for batch_number, (x, y) in enumerate(loader, start=1):
            loss = nn.CrossEntropyLoss()(model(x), y) / 8
            loss.backward()
            if batch_number % 8 == 0:
                optimizer.step()
                optimizer.zero_grad()
    return [model]


def warmup(setup: CaseSetup) -> list[nn.Module]:
    """Raise the learning rate from 0 over 30 steps; the schedule is stepped after every batch."""
    torch.manual_seed(setup.seed)
    training, _ = digits(setup.net, setup.seed)
    model = classifier(setup.net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step / 30, 1.0))
    loader = DataLoader(training, batch_size=32, shuffle=True)
    for _ in range(3):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
    return [model]


CASES = (
    HealthyCase(number=1, name="plain training", program=plain_training, nets=_ALL_NETS),
    HealthyCase(number=2, name="frozen backbone", program=frozen_backbone, nets=_ALL_NETS),
    HealthyCase(number=3, name="accumulation x 8", program=accumulation, nets=_ALL_NETS),
    HealthyCase(number=4, name="warmup from 0", program=warmup, nets=_ALL_NETS),
)
