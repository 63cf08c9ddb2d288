"""Faults of calls in the wrong order or on the wrong objects."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from sluice.bench.tracer.case import CaseSetup, FaultCase, NetName
from sluice.bench.tracer.data import NUM_TRAINING_DIGITS, digits
from sluice.bench.tracer.nets import classifier

_ALL_NETS: tuple[NetName, ...] = ("mlp", "cnn", "gru", "transformer")
_BATCH_ROWS = 32
_EPOCH_STEPS = -(-NUM_TRAINING_DIGITS // _BATCH_ROWS)
"""Number of steps of an epoch in ``never_back_to_training``."""


def head_after_optimizer(setup: CaseSetup) -> list[nn.Module]:
    """Replace the head of a network after the optimizer was created."""
    torch.manual_seed(setup.seed)
    x, y = digits(setup.net, setup.seed)[0][:]
    model = classifier(setup.net, num_outputs=2)
    optimizer = None
    if setup.has_fault:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if isinstance(model, nn.Sequential):
        old_head = model.get_submodule(str(len(model) - 1))
        assert isinstance(old_head, nn.Linear)
        model[-1] = nn.Linear(old_head.in_features, 10)
    else:
        old_head = model.get_submodule("head")
        assert isinstance(old_head, nn.Linear)
        model.head = nn.Linear(old_head.in_features, 10)
    if optimizer is None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(3):
        for rows in torch.randperm(len(x)).split(48):
            loss = F.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return [model]


def _mode_dependent_net(setup: CaseSetup) -> nn.Module:
    if setup.net != "mlp":
        return classifier(setup.net)
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Dropout(0.2), nn.Linear(96, 10))


def never_back_to_training(setup: CaseSetup) -> list[nn.Module]:
    """Validate in evaluation mode after every epoch, and never return to training mode."""
    torch.manual_seed(setup.seed)
    training, held_out = digits(setup.net, setup.seed)
    model = _mode_dependent_net(setup)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(training, batch_size=_BATCH_ROWS, shuffle=True)
    model.train()
    for _ in range(4):
        if not setup.has_fault:
            model.train()
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, y in DataLoader(held_out, batch_size=180):
                F.cross_entropy(model(x), y)
    return [model]


def no_zero_grad(setup: CaseSetup) -> list[nn.Module]:
    """Never clear the gradients, so that each step uses the sum over all batches so far."""
    torch.manual_seed(setup.seed)
    training, _ = digits(setup.net, setup.seed)
    model, criterion = classifier(setup.net), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(3):
        for x, y in DataLoader(training, batch_size=40, shuffle=True):
            if not setup.has_fault:
                optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 1.0)
            optimizer.step()
    return [model]


def gradients_cleared_before_step(setup: CaseSetup) -> list[nn.Module]:
    """Clear the gradients between the backward pass and the step, so that the step has none."""
    torch.manual_seed(setup.seed)
    x, y = digits(setup.net, setup.seed)[0][:]
    model = classifier(setup.net)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    for _ in range(3):
        for rows in torch.randperm(len(x)).split(32):
            if not setup.has_fault:
                optimizer.zero_grad()
            F.nll_loss(F.log_softmax(model(x[rows]), dim=-1), y[rows]).backward()
            if setup.has_fault:
                optimizer.zero_grad()
            optimizer.step()
        scheduler.step()
    return [model]


def clip_while_scaled(setup: CaseSetup) -> list[nn.Module]:
    """Clip gradients while they are scaled. Unscaling them afterwards makes them almost 0."""
    torch.manual_seed(setup.seed)
    training, _ = digits(setup.net, setup.seed)
    model = classifier(setup.net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for _ in range(3):
        for x, y in DataLoader(training, batch_size=48, shuffle=True):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            if not setup.has_fault:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    return [model]


CALL_ORDER_CASES: tuple[FaultCase, ...] = (
    FaultCase(
        number=18,
        name="head replaced after the optimizer was created",
        program=head_after_optimizer,
        correct_causes=frozenset({"stale optimizer parameters", "parameters not optimized"}),
        max_late_steps=1,
        nets=_ALL_NETS,
    ),
    FaultCase(
        number=22,
        name="training in evaluation mode",
        program=never_back_to_training,
        correct_causes=frozenset({"training in evaluation mode"}),
        max_late_steps=1,
        nets=("mlp", "cnn", "transformer"),
        starts_at=_EPOCH_STEPS + 1,  # after the first validation
    ),
    FaultCase(
        number=30,
        name="no zero_grad",
        program=no_zero_grad,
        correct_causes=frozenset({"missing zero_grad"}),
        max_late_steps=2,  # the first step is correct: there are no gradients of earlier batches
        nets=_ALL_NETS,
        required_severity="confirm",
    ),
    FaultCase(
        number=31,
        name="zero_grad between backward and step",
        program=gradients_cleared_before_step,
        correct_causes=frozenset({"misplaced zero_grad"}),
        max_late_steps=1,
        nets=_ALL_NETS,
    ),
    FaultCase(
        number=40,
        name="clip before unscale",
        program=clip_while_scaled,
        correct_causes=frozenset({"clip before unscale"}),
        max_late_steps=1,
        nets=_ALL_NETS,
    ),
)
