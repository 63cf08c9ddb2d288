"""Faults of checkpoints: state lost on resume, keys not loaded, wrong best checkpoint."""

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

from sluice.bench.tracer.case import CaseSetup, FaultCase
from sluice.bench.tracer.data import digits
from sluice.bench.tracer.nets import classifier

_STEPS = 160
_HALF = 69
"""Three epochs of 23 batches."""


def _parts(
    model: nn.Module,
) -> tuple[torch.optim.Optimizer, CosineAnnealingLR]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return optimizer, CosineAnnealingLR(optimizer, T_max=_STEPS)


def _learn(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: CosineAnnealingLR,
    loader: "DataLoader[Any]",
    epochs: int,
) -> None:
    model.train()
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            scheduler.step()


def resume(setup: CaseSetup) -> list[nn.Module]:
    """Train, save and resume; the fault does not restore optimizer and schedule."""
    torch.manual_seed(setup.seed)
    model = classifier(setup.net)
    optimizer, scheduler = _parts(model)
    loader = DataLoader(digits(setup.net, setup.seed)[0], batch_size=64, shuffle=True)
    _learn(model, optimizer, scheduler, loader, 3)
    states: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    file = setup.folder / "checkpoint.pt"
    torch.save({name: part.state_dict() for name, part in states.items()}, file)

    checkpoint = torch.load(file)
    model = classifier(setup.net)
    model.load_state_dict(checkpoint["model"])
    optimizer, scheduler = _parts(model)
    if not setup.has_fault:
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
    _learn(model, optimizer, scheduler, loader, 3)
    return [model]


def prefix(setup: CaseSetup) -> list[nn.Module]:
    """Fine-tune from a file; with the fault its keys have a wrapper's prefix."""
    torch.manual_seed(setup.seed)
    rows, _ = digits(setup.net, setup.seed)
    teacher = classifier(setup.net)
    before = "module.{}" if setup.has_fault else "{}"
    state = {before.format(name): value for name, value in teacher.state_dict().items()}
    torch.save(state, setup.folder / "pretrained.pt")

    model = classifier(setup.net)
    model.load_state_dict(torch.load(setup.folder / "pretrained.pt"), strict=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(4):
        for x, y in DataLoader(rows, batch_size=64, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return [model]


def wrong_key(setup: CaseSetup) -> list[nn.Module]:
    """Save the network with the lowest validation loss or, with the fault, the lowest accuracy."""
    torch.manual_seed(setup.seed)
    rows, held_out = digits(setup.net, setup.seed)
    model = classifier(setup.net)
    optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
    smallest, best = float("inf"), copy.deepcopy(model.state_dict())
    key = "accuracy" if setup.has_fault else "loss"
    for _ in range(8):
        model.train()
        for x, y in DataLoader(rows, batch_size=128, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        scores = _scores(model, held_out)
        if scores[key] < smallest:
            smallest = scores[key]
            best = copy.deepcopy(model.state_dict())
            torch.save(best, setup.folder / "best.pt")
    model.load_state_dict(torch.load(setup.folder / "best.pt"))
    return [model]


def _scores(model: nn.Module, held_out: TensorDataset) -> dict[str, float]:
    model.eval()
    losses, right = [], 0
    with torch.no_grad():
        for x, y in DataLoader(held_out, batch_size=120):
            logits = model(x)
            losses.append(float(F.cross_entropy(logits, y)))
            right += int((logits.argmax(1) == y).sum())
    return {"loss": sum(losses) / len(losses), "accuracy": right / len(held_out)}


CHECKPOINT_CASES = (
    FaultCase(
        number=39,
        name="resume loses state",
        program=resume,
        answers=frozenset({"resume state lost"}),
        within=1,
        nets=("mlp", "cnn", "gru", "transformer"),
        starts_at=_HALF + 1,
    ),
    FaultCase(
        number=44,
        name="0 of n keys loaded",
        program=prefix,
        answers=frozenset({"checkpoint not loaded"}),
        within=1,
        nets=("mlp", "cnn", "gru"),
    ),
    FaultCase(
        number=44,
        name="best chosen by the wrong key",
        program=wrong_key,
        answers=frozenset({"stale best checkpoint"}),
        within=200,
        nets=("mlp", "cnn", "gru"),
        starts_at=13,
    ),
)
