"""Small correct training programs, whose results must be the same with and without the tracer."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from sluice.bench.tracer import programs as benchmark

STEPS = 6


def rows(num=96, features=8, classes=3, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num, features, generator=generator)
    return TensorDataset(x, torch.randint(classes, (num,), generator=generator))


def net(features=8, classes=3):
    return nn.Sequential(
        nn.Linear(features, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(16, classes),
    )


def with_validation():
    torch.manual_seed(0)
    model, held_out = net(), DataLoader(rows(32, seed=2), batch_size=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(2):
        model.train()
        for x, y in DataLoader(rows(), batch_size=32, shuffle=True):
            optimizer.zero_grad(set_to_none=False)
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.5)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, _ in held_out:
                model(x)
        scheduler.step()
    return [model]


def mixed_precision():
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    for x, y in DataLoader(rows(), batch_size=16, shuffle=True):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [model]


def scaled_losses():
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)  # the first steps overflow
    for x, y in DataLoader(rows(), batch_size=16):
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(x), y, reduction="sum")).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return [model]


def accumulation():
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.RMSprop(model.parameters())
    for index, (x, y) in enumerate(DataLoader(rows(192), batch_size=16)):
        (F.cross_entropy(model(x), y) / 4).backward()
        if index % 4 == 3:
            optimizer.step()
            for parameter in model.parameters():  # some programs clear gradients this way
                parameter.grad = None
    return [model]


def closure():
    torch.manual_seed(0)
    model, (x, y) = net(), rows()[:]
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def loss():
        optimizer.zero_grad()
        value = F.cross_entropy(model(x), y)
        value.backward()
        return value

    for _ in range(STEPS):
        optimizer.step(loss)
    return [model]


def workers():
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.Adagrad(model.parameters())
    for x, y in DataLoader(rows(), batch_size=16, shuffle=True, num_workers=1):
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.data.zero_()  # as older programs do
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return [model]


def checkpointed():
    torch.manual_seed(0)
    body, head = nn.Sequential(nn.Linear(8, 16), nn.Tanh()), nn.Linear(16, 3)
    optimizer = torch.optim.NAdam([*body.parameters(), *head.parameters()])
    for x, y in DataLoader(rows(), batch_size=16):
        hidden = torch.utils.checkpoint.checkpoint(body, x.requires_grad_(), use_reentrant=True)
        optimizer.zero_grad()
        F.cross_entropy(head(hidden), y).backward()
        optimizer.step()
    return [body, head]


def sparse():
    torch.manual_seed(0)
    table, head = nn.EmbeddingBag(50, 4, sparse=True, mode="sum"), nn.Linear(4, 3)
    optimizers = torch.optim.SparseAdam(table.parameters()), torch.optim.Adam(head.parameters())
    for _ in range(STEPS // 2):
        tokens, labels = torch.randint(50, (16, 5)), torch.randint(3, (16,))
        for optimizer in optimizers:
            optimizer.zero_grad()
        F.cross_entropy(head(table(tokens)), labels).backward()
        for optimizer in optimizers:
            optimizer.step()
    return [table, head]


def manual_gradients():
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(rows(), batch_size=16):
        grads = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
        for parameter, grad in zip(model.parameters(), grads, strict=True):
            parameter.grad = grad
        optimizer.step()
    return [model]


def functional_gradients():
    torch.manual_seed(0)
    model = nn.Linear(8, 3)
    optimizer, (x, y) = torch.optim.SGD(model.parameters(), lr=0.1), rows()[:]

    def loss(weights):
        return F.cross_entropy(torch.func.functional_call(model, weights, (x,)), y)

    for _ in range(STEPS):
        grads = torch.func.grad(loss)({k: v.detach() for k, v in model.named_parameters()})
        for name, parameter in model.named_parameters():
            parameter.grad = grads[name]  # not cleared: the next gradient replaces it
        optimizer.step()
    return [model]


def frozen_statistics():
    torch.manual_seed(0)
    model = net().train()
    model[1].eval()  # batch norm keeps its pretrained statistics
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(rows(), batch_size=16):
        with torch.no_grad():
            pseudo_labels = model(x).argmax(-1)  # as in self-training
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.where(y == 0, pseudo_labels, y)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # after the step: without effect
    return [model]


def _benchmark_program(name):
    return lambda: benchmark.PROGRAMS[name](STEPS, lambda: None)


HEALTHY = {
    **{name: _benchmark_program(name) for name in benchmark.PROGRAMS},
    "validation": with_validation,
    "bfloat16": mixed_precision,
    "scaler that skips": scaled_losses,
    "accumulation": accumulation,
    "closure": closure,
    "workers": workers,
    "checkpointing": checkpointed,
    "sparse": sparse,
    "manual gradients": manual_gradients,
    "functional gradients": functional_gradients,
    "frozen statistics": frozen_statistics,
}
