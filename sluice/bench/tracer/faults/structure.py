"""Faults of structure: parameters that are detached, unregistered, frozen or no longer tied."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from sluice.bench.tracer.case import CaseSetup, FaultCase, NetName
from sluice.bench.tracer.data import PAD, VOCAB_SIZE, digits, sentences
from sluice.bench.tracer.nets import LanguageModel, TransformerClassifier, classifier


class _BodyAndHead(nn.Module):
    """A body and a head; with the fault, the output of the body is detached."""

    def __init__(self, net: NetName, *, is_detached: bool) -> None:
        super().__init__()
        self.is_detached = is_detached
        self.body: nn.Module
        if net == "cnn":
            self.body = nn.Sequential(
                nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
            )
        else:
            self.body = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 192))
        self.head = nn.Sequential(nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.body(x))
        if self.is_detached:
            hidden = hidden.detach()
        output: Tensor = self.head(hidden)
        return output


class _DetachableTransformer(TransformerClassifier):
    """A ``TransformerClassifier`` whose encoder runs without gradients, with the fault."""

    is_detached = False

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(not self.is_detached):
            states = self.encoder(self.embedding(x) + self.position).mean(1)
        output: Tensor = self.head(states)
        return output


def detached_body(setup: CaseSetup) -> list[nn.Module]:
    """Train a body and a head; gradients reach only the head."""
    torch.manual_seed(setup.seed)
    train, _ = digits(setup.net, setup.seed)
    if setup.net == "gru":
        return _train_encoder_and_head(setup, train.tensors)
    model: nn.Module
    if setup.net == "transformer":
        model = _DetachableTransformer(10)
        model.is_detached = setup.has_fault
    else:
        model = _BodyAndHead(setup.net, is_detached=setup.has_fault)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(3):
        for x, y in DataLoader(train, batch_size=48, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return [model]


def _train_encoder_and_head(setup: CaseSetup, tensors: tuple[Tensor, ...]) -> list[nn.Module]:
    x, y = tensors
    encoder, head = nn.GRU(8, 32, batch_first=True), nn.Linear(32, 10)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.2, momentum=0.9)
    for _ in range(120):
        rows = torch.randint(len(x), (64,))
        states, _ = encoder(x[rows])
        last_state = states[:, -1].detach() if setup.has_fault else states[:, -1]
        loss = F.cross_entropy(head(last_state), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [encoder, head]


class _Blocks(nn.Module):
    """A network with residual blocks in a Python list or a ``ModuleList``."""

    def __init__(self, net: NetName, *, is_plain_list: bool) -> None:
        super().__init__()
        if net == "cnn":
            self.first: nn.Module = nn.Conv2d(1, 12, 3, padding=1)
            layers: list[nn.Module] = [nn.Conv2d(12, 12, 3, padding=1) for _ in range(3)]
        elif net == "transformer":
            self.first = nn.Linear(8, 32)
            layers = [
                nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
                for _ in range(2)
            ]
        else:
            self.first = nn.Linear(64, 48)
            layers = [nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 48)) for _ in range(3)]
        self.blocks = layers if is_plain_list else nn.ModuleList(layers)
        self.norm = nn.LayerNorm({"cnn": 12, "transformer": 32}.get(net, 48))
        self.head = nn.Linear({"cnn": 12, "transformer": 32}.get(net, 48), 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + F.relu(block(x))
        if x.dim() == 4:
            x = x.flatten(2).transpose(1, 2)
        if x.dim() == 3:
            x = x.mean(1)
        output: Tensor = self.head(self.norm(x))
        return output


def plain_list(setup: CaseSetup) -> list[nn.Module]:
    """Train a network whose blocks are in a Python list."""
    torch.manual_seed(setup.seed)
    train, held_out = digits(setup.net, setup.seed)
    model = _Blocks(setup.net, is_plain_list=setup.has_fault)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(2):
        model.train()
        for x, y in DataLoader(train, batch_size=32, shuffle=True):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, _ in DataLoader(held_out, batch_size=180):
                model(x)
    return [model]


def frozen_head(setup: CaseSetup) -> list[nn.Module]:
    """Fine-tune the normalisation layers of a network and, without the fault, its head."""
    torch.manual_seed(setup.seed)
    train, _ = digits(setup.net, setup.seed)
    if setup.net == "mlp":
        model: nn.Module = nn.Sequential(
            nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64), nn.LayerNorm(64),
            nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip
    else:
        model = classifier(setup.net)
    norm_classes = (nn.LayerNorm, nn.BatchNorm2d)
    modules = list(model.modules())
    head = next(m for m in reversed(modules) if isinstance(m, nn.Linear))
    for module in modules:
        for parameter in module.parameters(recurse=False):
            parameter.requires_grad = isinstance(module, norm_classes)
    if not setup.has_fault:
        head.requires_grad_(True)
    trainable_parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable_parameters, lr=5e-3)
    for _ in range(3):
        for x, y in DataLoader(train, batch_size=64, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(trainable_parameters, 1.0)
            optimizer.step()
    return [model]


def detached_loss(setup: CaseSetup) -> list[nn.Module]:
    """Train on a detached loss that was set to require gradients, so that backward() succeeds."""
    torch.manual_seed(setup.seed)
    train, _ = digits(setup.net, setup.seed)
    x, y = train.tensors
    model = classifier(setup.net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    for step in range(100):
        rows = slice(step * 48 % 1400, step * 48 % 1400 + 48)
        loss = F.cross_entropy(model(x[rows]), y[rows])
        if setup.has_fault:
            loss = (
                torch.tensor(loss.item(), requires_grad=True)
                if setup.seed % 2
                else loss.detach().requires_grad_()
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [model]


class _ConvLanguageModel(nn.Module):
    """A language model that predicts from the last three tokens."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB_SIZE, width)
        self.body = nn.Conv1d(width, width, 3)
        self.head = nn.Linear(width, VOCAB_SIZE, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = F.pad(self.embedding(ids).transpose(1, 2), (2, 0))
        output: Tensor = self.head(F.gelu(self.body(x)).transpose(1, 2))
        return output


def pad_sentences(rows: list[list[int]], length: int) -> Tensor:
    """Return sentences of token ids as one tensor (rows, length), padded at the end."""
    return torch.tensor([row + [PAD] * (length - len(row)) for row in rows])


def untied_output_layer(setup: CaseSetup) -> list[nn.Module]:
    """Train a language model whose output layer has a copy of the tied embedding."""
    torch.manual_seed(setup.seed)
    ids = pad_sentences(sentences(setup.seed), 18)
    model = _ConvLanguageModel() if setup.net == "cnn" else LanguageModel(setup.net)
    model.head.weight = model.embedding.weight
    nn.init.normal_(model.embedding.weight, std=0.1)
    if setup.has_fault:
        separate_head = nn.Linear(32, VOCAB_SIZE, bias=False)
        separate_head.weight.data.copy_(model.embedding.weight.data)
        model.head = separate_head
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for step in range(80):
        rows = ids[step * 32 % 736 :][:32]
        logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [model]


_ALL_NETS: tuple[NetName, ...] = ("mlp", "cnn", "gru", "transformer")

STRUCTURE_CASES = (
    FaultCase(
        number=16,
        name="detached output of the body",
        program=detached_body,
        correct_causes=frozenset({"detached subgraph"}),
        max_late_steps=1,
        nets=_ALL_NETS,
    ),
    FaultCase(
        number=17,
        name="layers in a plain list",
        program=plain_list,
        correct_causes=frozenset({"unregistered module"}),
        max_late_steps=1,
        nets=("mlp", "cnn", "transformer"),
    ),
    FaultCase(
        number=19,
        name="unintended freeze",
        program=frozen_head,
        correct_causes=frozenset({"unintended freeze"}),
        max_late_steps=1,
        nets=("mlp", "cnn", "transformer"),
        required_severity="confirm",
    ),
    FaultCase(
        number=21,
        name="detached loss that requires gradients",
        program=detached_loss,
        correct_causes=frozenset({"detached loss"}),
        max_late_steps=1,
        nets=_ALL_NETS,
    ),
    FaultCase(
        number=24,
        name="tied weights replaced by a copy",
        program=untied_output_layer,
        correct_causes=frozenset({"tied weights broken"}),
        max_late_steps=1,
        nets=("cnn", "gru", "transformer"),
    ),
)
