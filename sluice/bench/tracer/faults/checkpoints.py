"""Faults of checkpoints: state lost on resume, keys not loaded, a wrong best checkpoint."""

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

from sluice.bench.tracer.case import ANY_STEP, CaseSetup, FaultCase
from sluice.bench.tracer.data import digits
from sluice.bench.tracer.nets import classifier

_SCHEDULE_STEPS = 160
"""Length of the schedule [steps]. The program trains for 138 steps."""

_STEPS_BEFORE_RESUME = 69
"""Number of steps before the resume: three epochs of 23 batches."""

_WRONG_METRIC_EPOCH_STEPS = 12
"""Number of steps of an epoch in ``best_by_wrong_metric``."""


def _make_optimizer(
    model: nn.Module,
) -> tuple[torch.optim.Optimizer, CosineAnnealingLR]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return optimizer, CosineAnnealingLR(optimizer, T_max=_SCHEDULE_STEPS)


def _train(
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


def resume_without_state(setup: CaseSetup) -> list[nn.Module]:
    """Train, save and resume; with the fault, optimizer and schedule are not restored."""
    torch.manual_seed(setup.seed)
    model = classifier(setup.net)
    optimizer, scheduler = _make_optimizer(model)
    loader = DataLoader(digits(setup.net, setup.seed)[0], batch_size=64, shuffle=True)
    _train(model, optimizer, scheduler, loader, 3)
    state_owners: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    file = setup.folder / "checkpoint.pt"
    torch.save({name: owner.state_dict() for name, owner in state_owners.items()}, file)

    checkpoint = torch.load(file)
    model = classifier(setup.net)
    model.load_state_dict(checkpoint["model"])
    optimizer, scheduler = _make_optimizer(model)
    if not setup.has_fault:
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
    _train(model, optimizer, scheduler, loader, 3)
    return [model]


def wrapper_prefix(setup: CaseSetup) -> list[nn.Module]:
    """Fine-tune weights from a file; with the fault, its keys have the prefix of a wrapper."""
    torch.manual_seed(setup.seed)
    rows, _ = digits(setup.net, setup.seed)
    pretrained = classifier(setup.net)
    key_format = "module.{}" if setup.has_fault else "{}"
    state = {key_format.format(name): value for name, value in pretrained.state_dict().items()}
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


def best_by_wrong_metric(setup: CaseSetup) -> list[nn.Module]:
    """Save the network with the lowest validation loss or, with the fault, the lowest accuracy."""
    torch.manual_seed(setup.seed)
    rows, held_out = digits(setup.net, setup.seed)
    model = classifier(setup.net)
    optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
    lowest_score, best = float("inf"), copy.deepcopy(model.state_dict())
    metric = "accuracy" if setup.has_fault else "loss"
    for _ in range(8):
        model.train()
        for x, y in DataLoader(rows, batch_size=128, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        scores = _evaluate(model, held_out)
        if scores[metric] < lowest_score:
            lowest_score = scores[metric]
            best = copy.deepcopy(model.state_dict())
            torch.save(best, setup.folder / "best.pt")
    model.load_state_dict(torch.load(setup.folder / "best.pt"))
    return [model]


def _evaluate(model: nn.Module, held_out: TensorDataset) -> dict[str, float]:
    """Return the validation loss and accuracy by name."""
    model.eval()
    losses, num_correct = [], 0
    with torch.no_grad():
        for x, y in DataLoader(held_out, batch_size=120):
            logits = model(x)
            losses.append(float(F.cross_entropy(logits, y)))
            num_correct += int((logits.argmax(1) == y).sum())
    return {"loss": sum(losses) / len(losses), "accuracy": num_correct / len(held_out)}


CHECKPOINT_CASES = (
    FaultCase(
        number=39,
        name="resume loses state",
        program=resume_without_state,
        correct_causes=frozenset({"resume state lost"}),
        max_late_steps=1,
        nets=("mlp", "cnn", "gru", "transformer"),
        starts_at=_STEPS_BEFORE_RESUME + 1,
    ),
    FaultCase(
        number=44,
        name="0 of n keys loaded",
        program=wrapper_prefix,
        correct_causes=frozenset({"checkpoint not loaded"}),
        max_late_steps=1,
        nets=("mlp", "cnn", "gru"),
    ),
    FaultCase(
        number=44,
        name="best checkpoint chosen by the wrong metric",
        program=best_by_wrong_metric,
        correct_causes=frozenset({"stale best checkpoint"}),
        max_late_steps=ANY_STEP,
        nets=("mlp", "cnn", "gru"),
        starts_at=_WRONG_METRIC_EPOCH_STEPS + 1,  # after the first evaluation
    ),
)
