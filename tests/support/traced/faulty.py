"""Programs with one common fault each: wrong order of calls, wrong mode or wrong parameters."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from tests.support.traced.healthy import net, rows


def batches():
    return DataLoader(rows(), batch_size=16, shuffle=True)


def loss_of(model, x, y):
    return F.cross_entropy(model(x), y)


def no_zero_grad():
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in batches():
        loss_of(model, x, y).backward()
        optimizer.step()


def zero_grad_after_backward():
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in batches():
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.zero_grad()
        optimizer.step()


def zeros_after_backward():
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in batches():
        loss = loss_of(model, x, y)
        loss.backward()
        model.zero_grad(set_to_none=False)
        optimizer.step()


def step_before_backward():
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in batches():
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        optimizer.step()
        loss.backward()


def no_backward():
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in batches():
        optimizer.zero_grad()
        loss_of(model, x, y)
        optimizer.step()


def scheduler_before_optimizer():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for x, y in batches():
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        scheduler.step()
        optimizer.step()


def clip_after_step():
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in batches():
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def clip_before_unscale():
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for x, y in batches():
        optimizer.zero_grad()
        scaler.scale(loss_of(model, x, y)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def head_not_in_optimizer():
    model = net()
    optimizer = torch.optim.Adam(model[0].parameters())
    for x, y in batches():
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()


def parameter_in_two_optimizers():
    model = net()
    optimizers = (
        torch.optim.Adam(model.parameters()),
        torch.optim.SGD(model[4].parameters(), lr=0.1),
    )
    for x, y in batches():
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(model, x, y).backward()
        for optimizer in optimizers:
            optimizer.step()


def alternating_optimizers():
    model = net()
    optimizers = torch.optim.Adam(model.parameters()), torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches():
        for optimizer in optimizers:
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()


def head_replaced():
    model = net(classes=10)
    optimizer = torch.optim.Adam(model.parameters())
    model[4] = nn.Linear(16, 3)
    for x, y in batches():
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()


def head_replaced_halfway():
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    for step, (x, y) in enumerate(batches()):
        if step == 3:
            model[4] = nn.Linear(16, 3)
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()


def stays_in_eval():
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        for x, y in batches():
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, _ in DataLoader(rows(32, seed=2), batch_size=32):
                model(x)


def always_in_eval():
    model = net().eval()
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in batches():
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()


def evaluates_before_training():
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    model.eval()
    with torch.no_grad():
        model(rows(32, seed=2).tensors[0])
    for x, y in batches():
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()


def validates_in_training_mode():
    model, held_out = net(), DataLoader(rows(32, seed=2), batch_size=16)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        for x, y in batches():
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
        with torch.no_grad():
            for x, _ in held_out:
                model(x)


class Recurrent(nn.Module):
    """A GRU, whose first input dimension is the position (batch_first=False), and a classifier."""

    def __init__(self, num_features):
        super().__init__()
        self.gru, self.head = nn.GRU(num_features, 8), nn.Linear(8, 3)


class LastOutput(Recurrent):
    """Passes inputs (rows, positions, features), so the GRU takes rows for positions."""

    def forward(self, x):
        return self.head(self.gru(x)[0][:, -1])


class EveryOutput(Recurrent):
    """Maps token ids (rows, positions) to logits of every position."""

    def __init__(self):
        super().__init__(4)
        self.embedding = nn.Embedding(3, 4)

    def forward(self, ids):
        return self.head(self.gru(self.embedding(ids).transpose(0, 1))[0]).transpose(0, 1)


def takes_rows_for_positions():
    """Pass inputs (rows, positions, features) to a GRU that expects positions first."""
    generator = torch.Generator().manual_seed(5)
    model = LastOutput(4)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(8):
        optimizer.zero_grad()
        x = torch.randn(16, 6, 4, generator=generator)
        loss_of(model, x, torch.randint(3, (16,), generator=generator)).backward()
        optimizer.step()


def returns_its_input():
    """Train on targets that are equal to the inputs."""
    generator = torch.Generator().manual_seed(5)
    model = EveryOutput()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(8):
        optimizer.zero_grad()
        ids = torch.randint(3, (16, 6), generator=generator)
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
