"""Faults of data: labels, preprocessing, leakage, non-finite values, constant columns."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

from sluice.bench.tracer.case import ANY_STEP, CaseSetup, FaultCase
from sluice.bench.tracer.data import digits, table
from sluice.bench.tracer.nets import classifier

_BATCH_ROWS = 48
_EPOCH_STEPS = 30
"""Number of steps of an epoch over all training digits, in batches of ``_BATCH_ROWS``."""

_NON_FINITE_BATCH = 8
"""Number of the batch with the non-finite value, from 1."""

_PIXEL = 28
"""Index of a pixel whose mean value differs between the digits."""


def _validation_loss(model: nn.Module, loader: DataLoader[tuple[Tensor, ...]]) -> float:
    model.eval()
    with torch.no_grad():
        losses = [float(F.cross_entropy(model(x), y)) for x, y in loader]
    model.train()
    return sum(losses) / len(losses)


def labels_permuted(setup: CaseSetup) -> list[nn.Module]:
    """Train on digits whose labels were shuffled separately from the images."""
    torch.manual_seed(setup.seed)
    train, held_out = digits(setup.net, setup.seed)
    images, labels = train.tensors
    if setup.has_fault:
        labels = labels[torch.randperm(len(labels))]
    loader = DataLoader(TensorDataset(images, labels), batch_size=_BATCH_ROWS, shuffle=True)
    val_loader = DataLoader(held_out, batch_size=120)
    model = classifier(setup.net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(4):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        _validation_loss(model, val_loader)
    return [model]


def split_not_scaled(setup: CaseSetup) -> list[nn.Module]:
    """Train on standardised digits and validate on raw digits."""
    torch.manual_seed(setup.seed)
    train, held_out = digits(setup.net, setup.seed)
    (images, labels), (val_images, val_labels) = train.tensors, held_out.tensors
    images, val_images = images * 16, val_images * 16
    mean, std = images.mean(), images.std()
    images = (images - mean) / std
    if not setup.has_fault:
        val_images = (val_images - mean) / std
    model, criterion = classifier(setup.net), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        model.train()
        order = torch.randperm(len(images))
        for rows in order.split(_BATCH_ROWS):
            loss = criterion(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            (model(val_images).argmax(-1) == val_labels).float().mean()
    return [model]


def leaked_rows(setup: CaseSetup) -> list[nn.Module]:
    """Train on the training rows and on 60 of the validation rows."""
    torch.manual_seed(setup.seed)
    train, held_out = digits(setup.net, setup.seed)
    leaked = Subset(held_out, range(60))
    data = ConcatDataset([train, leaked]) if setup.has_fault else train
    loader = DataLoader(data, batch_size=_BATCH_ROWS, shuffle=True, drop_last=True)
    val_loader = DataLoader(held_out, batch_size=90)
    model = classifier(setup.net)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad(set_to_none=True)
            F.nll_loss(F.log_softmax(model(x), -1), y).backward()
            optimizer.step()
        _validation_loss(model, val_loader)
    return [model]


def non_finite_pixel(setup: CaseSetup) -> list[nn.Module]:
    """Train on digits in which one value is NaN, or infinite for odd seeds."""
    torch.manual_seed(setup.seed)
    train, _ = digits(setup.net, setup.seed)
    images, labels = train.tensors
    images = images.clone()
    if setup.has_fault:
        flat = images.view(len(images), -1)
        flat[_BATCH_ROWS * (_NON_FINITE_BATCH - 1) + 5, _PIXEL] = (
            float("inf") if setup.seed % 2 else float("nan")
        )
    model = classifier(setup.net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        for x, y in DataLoader(TensorDataset(images, labels), batch_size=_BATCH_ROWS):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return [model]


def constant_pixel(setup: CaseSetup) -> list[nn.Module]:
    """Train on digits of which one informative pixel is always 0."""
    torch.manual_seed(setup.seed)
    train, held_out = digits(setup.net, setup.seed)
    images, labels = train.tensors
    images = images.clone()
    if setup.has_fault:
        images.view(len(images), -1)[:, _PIXEL] = 0.0
        held_out.tensors[0].view(len(held_out), -1)[:, _PIXEL] = 0.0
    model = classifier(setup.net)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loader = DataLoader(TensorDataset(images, labels), batch_size=_BATCH_ROWS, shuffle=True)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        _validation_loss(model, DataLoader(held_out, batch_size=90))
    return [model]


def constant_feature(setup: CaseSetup) -> list[nn.Module]:
    """Fit a noisy table of standard normal columns, one of which was filled with zeros."""
    torch.manual_seed(setup.seed)
    train, held_out = table(setup.seed)
    inputs, targets = (t.clone() for t in train.tensors)
    if setup.has_fault:
        inputs[:, setup.seed % inputs.shape[1]] = 0.0
    model = nn.Sequential(nn.Linear(12, 48), nn.Tanh(), nn.Linear(48, 1))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    val_inputs, val_targets = held_out.tensors
    for _ in range(4):
        for x, y in DataLoader(TensorDataset(inputs, targets), batch_size=32, shuffle=True):
            loss = F.mse_loss(model(x).squeeze(-1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            F.mse_loss(model(val_inputs).squeeze(-1), val_targets)
    return [model]


CASES = (
    FaultCase(
        number=5,
        name="labels permuted",
        program=labels_permuted,
        correct_causes=frozenset({"shuffled labels"}),
        max_late_steps=ANY_STEP,
        nets=("mlp", "cnn", "gru", "transformer"),
    ),
    FaultCase(
        number=6,
        name="validation rows are not scaled",
        program=split_not_scaled,
        correct_causes=frozenset({"preprocessing skew"}),
        max_late_steps=ANY_STEP,
        nets=("mlp", "cnn", "gru"),
        starts_at=_EPOCH_STEPS,  # the last step before the first validation
    ),
    FaultCase(
        number=7,
        name="train-validation leakage",
        program=leaked_rows,
        correct_causes=frozenset({"train-validation leakage"}),
        max_late_steps=ANY_STEP,
        nets=("mlp", "cnn", "gru"),
    ),
    FaultCase(
        number=8,
        name="an input value is NaN or infinite",
        program=non_finite_pixel,
        correct_causes=frozenset({"non-finite input"}),
        max_late_steps=10,
        nets=("mlp", "cnn", "gru"),
        starts_at=_NON_FINITE_BATCH,
    ),
    FaultCase(
        number=8,
        name="a pixel is always 0",
        program=constant_pixel,
        correct_causes=frozenset({"constant column"}),
        max_late_steps=ANY_STEP,
        nets=("mlp", "cnn", "gru"),
    ),
    FaultCase(
        number=8,
        name="a column is filled with zeros",
        program=constant_feature,
        correct_causes=frozenset({"constant column"}),
        max_late_steps=ANY_STEP,
        nets=("mlp",),
    ),
)
