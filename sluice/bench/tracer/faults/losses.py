"""Faults of losses: sums instead of means, probabilities instead of logits, broadcasting."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from sluice.bench.tracer.case import CaseSetup, FaultCase
from sluice.bench.tracer.data import digits, table
from sluice.bench.tracer.nets import classifier

_BATCH_ROWS = 32


def accumulation_not_divided(setup: CaseSetup) -> list[nn.Module]:
    """Accumulate the gradients of four batches without dividing the loss."""
    torch.manual_seed(setup.seed)
    train, held_out = digits(setup.net, setup.seed)
    model, criterion, num_accumulated = classifier(setup.net), nn.CrossEntropyLoss(), 4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(train, batch_size=16, shuffle=True, drop_last=True)
    for _ in range(4):
        for i, (x, y) in enumerate(loader):
            loss = criterion(model(x), y)
            if not setup.has_fault:
                loss = loss / num_accumulated
            loss.backward()
            if (i + 1) % num_accumulated == 0:
                optimizer.step()
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            for x, y in DataLoader(held_out, batch_size=180):
                criterion(model(x), y)
        model.train()
    return [model]


def slices_not_divided(setup: CaseSetup) -> list[nn.Module]:
    """Split each batch into two halves to save memory, without dividing the losses by two."""
    torch.manual_seed(setup.seed)
    train, _ = digits(setup.net, setup.seed)
    images, labels = train.tensors
    model = classifier(setup.net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        for rows in torch.randperm(len(images)).split(_BATCH_ROWS):
            optimizer.zero_grad()
            for half in rows.chunk(2):
                loss = F.cross_entropy(model(images[half]), labels[half])
                (loss if setup.has_fault else loss / 2).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
    return [model]


def softmax_twice(setup: CaseSetup) -> list[nn.Module]:
    """Pass softmax outputs to cross entropy, which expects logits."""
    torch.manual_seed(setup.seed)
    train, _ = digits(setup.net, setup.seed)
    model = classifier(setup.net)
    if setup.has_fault:
        model = nn.Sequential(model, nn.Softmax(dim=1))
    optimizer, criterion = torch.optim.Adam(model.parameters(), lr=2e-3), nn.CrossEntropyLoss()
    for _ in range(3):
        for x, y in DataLoader(train, batch_size=_BATCH_ROWS, shuffle=True):
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
    return [model]


def sigmoid_twice(setup: CaseSetup) -> list[nn.Module]:
    """Pass sigmoid outputs to a loss that expects logits."""
    torch.manual_seed(setup.seed)
    train, _ = digits(setup.net, setup.seed)
    model, criterion = classifier(setup.net, num_outputs=1), nn.BCEWithLogitsLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        for x, y in DataLoader(train, batch_size=_BATCH_ROWS, shuffle=True):
            output = model(x)
            if setup.has_fault:
                output = torch.sigmoid(output)
            optimizer.zero_grad()
            criterion(output.squeeze(1), (y % 2).float()).backward()
            optimizer.step()
    return [model]


def column_against_row(setup: CaseSetup) -> list[nn.Module]:
    """Compare outputs of shape (rows, 1) with targets of shape (rows,)."""
    torch.manual_seed(setup.seed)
    train, _ = table(setup.seed)
    model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 1))
    optimizer, criterion = torch.optim.AdamW(model.parameters(), lr=5e-3), nn.MSELoss()
    for _ in range(3):
        for x, y in DataLoader(train, batch_size=_BATCH_ROWS, shuffle=True):
            output = model(x)
            optimizer.zero_grad()
            criterion(output if setup.has_fault else output[:, 0], y).backward()
            optimizer.step()
    return [model]


def probabilities_as_logs(setup: CaseSetup) -> list[nn.Module]:
    """Pass probabilities instead of log-probabilities to the negative log-likelihood."""
    torch.manual_seed(setup.seed)
    train, _ = digits(setup.net, setup.seed)
    model = classifier(setup.net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    activation = F.softmax if setup.has_fault else F.log_softmax
    for _ in range(2):
        for x, y in DataLoader(train, batch_size=_BATCH_ROWS, shuffle=True):
            optimizer.zero_grad()
            F.nll_loss(activation(model(x), dim=-1), y).backward()
            optimizer.step()
    return [model]


CASES = (
    FaultCase(
        number=35,
        name="accumulated losses not divided",
        program=accumulation_not_divided,
        correct_causes=frozenset({"unnormalized gradient accumulation"}),
        max_late_steps=1,
        nets=("mlp", "cnn", "gru"),
    ),
    FaultCase(
        number=35,
        name="losses of half batches not divided",
        program=slices_not_divided,
        correct_causes=frozenset({"unnormalized gradient accumulation"}),
        max_late_steps=1,
        nets=("mlp", "cnn", "transformer"),
    ),
    FaultCase(
        number=43,
        name="softmax before cross entropy",
        program=softmax_twice,
        correct_causes=frozenset({"logits-probability mix-up"}),
        max_late_steps=1,
        nets=("mlp", "cnn", "gru", "transformer"),
    ),
    FaultCase(
        number=43,
        name="sigmoid before a loss with logits",
        program=sigmoid_twice,
        correct_causes=frozenset({"logits-probability mix-up"}),
        max_late_steps=1,
        nets=("mlp", "cnn", "gru"),
    ),
    FaultCase(
        number=43,
        name="targets broadcast against outputs",
        program=column_against_row,
        correct_causes=frozenset({"loss broadcasting"}),
        max_late_steps=1,
        nets=("mlp",),
    ),
    FaultCase(
        number=43,
        name="probabilities as log-probabilities",
        program=probabilities_as_logs,
        correct_causes=frozenset({"logits-probability mix-up"}),
        max_late_steps=1,
        nets=("mlp", "cnn", "transformer"),
    ),
)
