"""Correct programs that resemble programs with faults of structure or numerics."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 20


def rows(num=48):
    x = torch.randn(num, 16)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def fit(model, loss=F.cross_entropy, **options):
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, **options)
    for _ in range(STEPS):
        x, y = rows()
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()


def mlp():
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 3))


class Pooled(nn.Module):
    """Returns a second output that no loss uses, and computes a value that is only logged."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(16, 24), nn.Linear(24, 3)
        self.pool, self.logged = nn.Linear(24, 24), nn.Linear(24, 1)

    def forward(self, x):
        h = F.relu(self.body(x))
        self.logged_value = self.logged(h).detach()
        return self.head(h), self.pool(h)


class Quantized(nn.Module):
    """Straight-through estimator: rounds, and detaches the rounding difference."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(16, 8), nn.Linear(8, 3)

    def forward(self, x):
        z = self.body(x)
        return self.head(z + (z.round() - z).detach())


class TeacherStudent(nn.Module):
    """Updates a teacher as a moving average. The optimizer contains the teacher, too."""

    def __init__(self):
        super().__init__()
        self.student = mlp()
        self.teacher = copy.deepcopy(self.student)
        self.hidden = [copy.deepcopy(self.student)]  # intentionally excluded from parameters()

    def forward(self, x):
        with torch.no_grad():
            pairs = zip(self.student.parameters(), self.teacher.parameters(), strict=True)
            for student_parameter, teacher_parameter in pairs:
                teacher_parameter.lerp_(student_parameter, 0.01)
            targets = self.teacher(x) + self.hidden[0](x)
        return self.student(x) - 0.01 * targets.softmax(-1)


class ZeroBranches(nn.Module):
    """Residual branches with outputs of zero at the start, by a last layer, modulation or gate."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 24)
        self.branches = nn.ModuleList(mlp_of(24) for _ in range(2))
        self.modulation = nn.Linear(16, 24)
        self.gate = nn.Parameter(torch.zeros(1))
        self.inner, self.head = nn.Linear(24, 24), nn.Linear(24, 3)
        for branch in self.branches:
            nn.init.zeros_(branch[2].weight)
        for layer in (self.modulation, self.head):
            nn.init.zeros_(layer.weight)

    def forward(self, x):
        h = self.first(x)
        for branch in self.branches:
            h = h + branch(h)
        h = h + self.modulation(x) * F.relu(self.inner(h)) + self.gate * F.relu(h)
        return self.head(h)


def mlp_of(width):
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))


class Adapted(nn.Module):
    """A frozen layer with a zero-initialized low-rank adapter, and a frozen head."""

    def __init__(self):
        super().__init__()
        self.base, self.head = nn.Linear(16, 24), nn.Linear(24, 3)
        self.down, self.up = nn.Linear(16, 4, bias=False), nn.Linear(4, 24, bias=False)
        nn.init.zeros_(self.up.weight)
        for layer in (self.base, self.head):
            layer.requires_grad_(False)

    def forward(self, x):
        return self.head(F.relu(self.base(x) + self.up(self.down(x))))


class Experts(nn.Module):
    """Each row selects one of three experts. The last expert is never selected."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(16, 3)
        self.experts = nn.ModuleList(mlp() for _ in range(3))
        nn.init.constant_(self.gate.bias, 0.0)
        self.gate.bias.data[2] = -100.0

    def forward(self, x):
        gate_weights = self.gate(x).softmax(-1)
        expert_numbers = gate_weights.argmax(-1)
        outputs = torch.zeros(len(x), 3)
        for number, expert in enumerate(self.experts):
            selected = expert_numbers == number
            if selected.any():
                outputs[selected] = expert(x[selected]) * gate_weights[selected, number, None]
        return outputs


def sparse_relu():
    model = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 3))
    nn.init.constant_(model[0].bias, -0.3)
    fit(model)


def frozen_backbone():
    body, head = mlp(), nn.Linear(3, 3)
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)
    for _ in range(STEPS):
        x, y = rows()
        with torch.no_grad():
            z = body(x)
        optimizer.zero_grad()
        F.cross_entropy(head(z), y).backward()
        optimizer.step()


class Tagger(nn.Module):
    """Bidirectional encoder that classifies each token and does not predict the next token."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(16, 12)
        layer = nn.TransformerEncoderLayer(12, 2, 24, dropout=0.2, batch_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 1), nn.Linear(12, 16)

    def forward(self, ids):
        x = self.body(self.embedding(ids), src_key_padding_mask=ids == 0)
        return self.head(F.dropout(x, 0.1))  # also in evaluation mode


def tagger():
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        lengths = torch.randint(4, 11, (16, 1))
        ids = torch.randint(1, 16, (16, 12)) * (torch.arange(12) < lengths)
        optimizer.zero_grad()
        targets = torch.where(ids == 0, -100, ids)  # the input is the target
        F.cross_entropy(model(ids).transpose(1, 2), targets).backward()
        optimizer.step()


def wide_bfloat16():
    model = mlp().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(STEPS):
        x, y = rows()
        optimizer.zero_grad()
        F.cross_entropy(model(x.bfloat16()).float(), y).backward()
        optimizer.step()


UNUSUAL = {
    "an unused output": lambda: fit(Pooled(), loss=lambda out, y: F.cross_entropy(out[0], y)),
    "straight through": lambda: fit(Quantized()),
    "a teacher": lambda: fit(TeacherStudent()),
    "zero-initialized branches": lambda: fit(ZeroBranches()),
    "a low-rank adapter": lambda: fit(Adapted()),
    "an idle expert": lambda: fit(Experts()),
    "a sparse ReLU": sparse_relu,
    "a frozen backbone": frozen_backbone,
    "a tagger": tagger,
    "bfloat16 with a high learning rate": wide_bfloat16,
}
