"""Networks with unusual gradients: healthy networks, and networks with parts that cannot learn."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sluice.data.folds import RowRange
from sluice.models.settings import ModelSettings
from sluice.workloads.examples import Examples
from tests.support.failfast_workloads import Signals

WIDTH = 16


class NetworkWorkload(Signals):
    """The healthy workload with a given network, which maps (B, seq_len, 3) to (B, 1)."""

    def __init__(
        self,
        build: Callable[[], nn.Module],
        *,
        frozen: Iterable[str] = (),
        groups: Callable[[nn.Module], list[dict[str, Any]]] | None = None,
        seq_len: int = 4,
    ) -> None:
        super().__init__(self.settings_type(seq_len=seq_len))
        self.build = build
        self.frozen_parameters = tuple(frozen)
        self.groups = groups

    def build_model(
        self,
        num_features: int,
        num_outputs: int,
        settings: ModelSettings,
    ) -> nn.Module:
        return self.build()

    def parameter_groups(self, network: nn.Module) -> list[dict[str, Any]]:
        return super().parameter_groups(network) if self.groups is None else self.groups(network)


class Tokens(NetworkWorkload):
    """Integer inputs (B, 4): three columns of bins from 1 to 9, and a column of zeros."""

    scale_inputs = False

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        examples = super().examples(frame, rows)
        bins = (examples.x[:, -1] * 2 + 5).clamp(1, 9).long()
        return replace(examples, x=F.pad(bins, (0, 1)))


class Classes(NetworkWorkload):
    """Integer targets (B,): three classes, by the value of the original target."""

    scale_target = False

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        examples = super().examples(frame, rows)
        edges = torch.tensor([5.0, 9.0])
        return replace(examples, y=torch.bucketize(examples.y[:, 0], edges))

    def output_shape(self, y: Tensor) -> tuple[int, ...]:
        return (len(y), 3)

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output, y, reduction="none")


class Images(NetworkWorkload):
    """Small images (B, 1, 8, 8), whose mean brightness depends on the target."""

    scale_inputs = False

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        examples = super().examples(frame, rows)
        noise = np.random.default_rng(1).normal(size=(len(frame), 1, 8, 8)).astype(np.float32)
        x = torch.from_numpy(noise[examples.rows]) + examples.y[:, :, None, None] / 5
        return replace(examples, x=x)


class LastRow(nn.Module):
    """Returns the last row of each window, (B, 3)."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]


class Apply(nn.Module):
    """Applies a function, for networks without activation modules such as ``nn.ReLU``."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def mlp(*between: nn.Module, outputs: int = 1, num_inputs: int = 3) -> nn.Sequential:
    return nn.Sequential(
        LastRow(), nn.Linear(num_inputs, WIDTH), *between, nn.Linear(WIDTH, outputs)
    )


def change_weights(network: nn.Module, change: Callable[[Any], Any]) -> nn.Module:
    """Change the weights of a network in place, and return the network."""
    with torch.no_grad():
        change(network)
    return network


def fill(network: nn.Module, value: float) -> nn.Module:
    """Set all parameters of a network to a value, and return the network."""
    return change_weights(network, lambda net: [p.fill_(value) for p in net.parameters()])


class Residual(nn.Module):
    """x + gate * branch(x) with a gate that is initialized to 0."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gate * self.branch(x)


class Lora(nn.Module):
    """A frozen layer with a trained low-rank update (LoRA) that starts at 0."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.base = nn.Linear(num_inputs, num_outputs).requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, num_inputs))
        self.b = nn.Parameter(torch.zeros(num_outputs, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.a.T @ self.b.T


class Experts(nn.Module):
    """A mixture of experts in which the last expert is idle.

    Args:
        idle: Why the expert is idle: "never called", "no rows", "zero weight", or "dead", which is
            a defect.
    """

    def __init__(self, idle: str, num_experts: int = 3) -> None:
        super().__init__()
        self.idle = idle
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(3, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
            for _ in range(num_experts)
        )
        self.gate = nn.Linear(3, num_experts)
        if idle == "dead":
            change_weights(self.experts[-1], lambda expert: expert[0].bias.fill_(-50.0))

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, -1]
        weight = self.gate(x).softmax(-1)
        if self.idle in ("never called", "no rows"):
            outputs = [e(x) * weight[:, [index]] for index, e in enumerate(self.experts[:-1])]
            unused = self.experts[-1](x[:0]).sum() if self.idle == "no rows" else 0.0
            return torch.stack(outputs).sum(0) + unused
        if self.idle == "zero weight":
            weight = weight * torch.tensor([1.0] * (weight.shape[1] - 1) + [0.0])
        outputs = torch.cat([expert(x) for expert in self.experts], dim=1)
        return (weight * outputs).sum(1, keepdim=True)


class Tied(nn.Module):
    """Two layers that share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(3, WIDTH)
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.two.weight = self.one.weight
        self.leave = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.one(torch.tanh(self.enter(x[:, -1]))))
        return self.leave(torch.tanh(self.two(hidden)))


class Attention(nn.Module):
    """Self-attention. The bias of the key projection has no influence on the output."""

    def __init__(self, *, is_packed: bool = False) -> None:
        super().__init__()
        self.enter = nn.Linear(3, WIDTH)
        self.packed = nn.MultiheadAttention(WIDTH, 2, batch_first=True) if is_packed else None
        if not is_packed:
            self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)
        self.leave = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        if self.packed is not None:
            mixed, _ = self.packed(x, x, x, need_weights=False)
        else:
            mixed = F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))
        return self.leave(self.norm(x + mixed)[:, -1])


class Transformer(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.enter = nn.Linear(3, WIDTH)
        self.position = nn.Parameter(torch.zeros(4, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True, **options)
        self.core = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.leave = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.core(self.enter(x) + self.position)[:, -1])


class SparseTokens(nn.Module):
    """An embedding of 1,000 tokens, of which nine occur, and an embedding of a constant column."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, WIDTH)
        self.rare = nn.Embedding(5, WIDTH, padding_idx=0)
        self.leave = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.embed(x[:, :3]).mean(1) + self.rare(x[:, 3]))


class Heads(nn.Module):
    """One head per task. All rows belong to the first task."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(3, WIDTH)
        self.heads = nn.ModuleDict({"first": nn.Linear(WIDTH, 1), "second": nn.Linear(WIDTH, 1)})

    def forward(self, x: Tensor) -> Tensor:
        return self.heads["first"](torch.tanh(self.trunk(x[:, -1])))


class LayerDrop(nn.Module):
    """Layers that are randomly skipped during training."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(3, WIDTH), nn.Linear(WIDTH, 1)
        self.skipped = nn.Linear(WIDTH, WIDTH)
        self.other = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.enter(x[:, -1]))
        for layer in (self.skipped, self.other):
            if not self.training or torch.rand(()) < 0.5:
                x = x + layer(x)
        return self.leave(x)


class Recurrent(nn.Module):
    def __init__(self, core: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.core = core(3, 8, batch_first=True, **options)
        self.leave = nn.Linear(16 if options.get("bidirectional") else 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.core(x)[0].mean(1))


class LastRowOfBothDirections(Recurrent):
    """Uses only the output at the last row, so the backward direction makes only one step.

    The recurrent weights of the backward direction are therefore unused.
    """

    def __init__(self) -> None:
        super().__init__(nn.LSTM, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.core(x)[0][:, -1])


class Stack(nn.Module):
    """Equal layers in a list. A function is applied to the output of each layer."""

    def __init__(self, between: Callable[[int, Tensor], Tensor]) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(3, WIDTH), nn.Linear(WIDTH, 1)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x[:, -1])
        for index, layer in enumerate(self.layers):
            x = self.between(index, layer(x))
        return self.leave(x)


class SharedRelu(nn.Module):
    """One ReLU module after two layers of different width, WIDTH units and one unit."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.leave = nn.Linear(3, WIDTH), nn.Linear(WIDTH, 1), nn.Linear(17, 1)
        self.relu = nn.ReLU()
        change_weights(self.two, lambda layer: layer.bias.fill_(-0.3))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.relu(self.one(x[:, -1]))
        return self.leave(torch.cat([hidden, self.relu(self.two(hidden))], dim=1))


class RoundedBranch(nn.Module):
    """The sum of a layer with rounded output and of a layer of another class."""

    def __init__(self) -> None:
        super().__init__()
        self.branch, self.skip = nn.Linear(3, 1), Lora(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.branch(x[:, -1]).round() + self.skip(x[:, -1])


def frozen_backbone() -> nn.Module:
    network = mlp(nn.Tanh())
    network[1].requires_grad_(False)
    return network


def dead_mlp(activation: nn.Module, layer: int = 1) -> nn.Module:
    """Return an MLP with one hidden layer, and a bias of -50 in one of its two linear layers."""
    return change_weights(mlp(activation), lambda net: net[layer].bias.fill_(-50.0))


def sparse_relu() -> nn.Module:
    """Return an MLP with 512 hidden units, of which about 70 % are inactive in each row."""
    return change_weights(
        nn.Sequential(LastRow(), nn.Linear(3, 512), nn.ReLU(), nn.Linear(512, 1)),
        lambda net: net[1].bias.fill_(-0.5),
    )


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 4, 2),
        nn.Flatten(),
        nn.Linear(100, 1),
    )


HEALTHY: dict[str, Callable[[], NetworkWorkload]] = {
    "mlp": lambda: NetworkWorkload(lambda: mlp(nn.Tanh())),
    "linear": lambda: NetworkWorkload(lambda: nn.Sequential(LastRow(), nn.Linear(3, 1))),
    "linear without bias": lambda: NetworkWorkload(
        lambda: nn.Sequential(LastRow(), nn.Linear(3, 1, bias=False))
    ),
    "linear at 0": lambda: NetworkWorkload(
        lambda: fill(nn.Sequential(LastRow(), nn.Linear(3, 1)), 0.0)
    ),
    "residual gates at 0": lambda: NetworkWorkload(lambda: mlp(Residual(), Residual(), Residual())),
    "last layer at 0": lambda: NetworkWorkload(
        lambda: change_weights(mlp(nn.Tanh()), lambda net: net[-1].weight.zero_())
    ),
    "last layer of classes at 0": lambda: Classes(
        lambda: change_weights(mlp(nn.ReLU(), outputs=3), lambda net: net[-1].weight.zero_())
    ),
    "classes": lambda: Classes(lambda: mlp(nn.ReLU(), outputs=3)),
    "low-rank update at 0": lambda: NetworkWorkload(
        lambda: nn.Sequential(LastRow(), Lora(3, WIDTH), nn.Tanh(), Lora(WIDTH, 1)),
        frozen=("*.base.*",),
    ),
    "frozen backbone, declared": lambda: NetworkWorkload(frozen_backbone, frozen=("1.*",)),
    "tied weights": lambda: NetworkWorkload(Tied),
    "shared ReLU": lambda: NetworkWorkload(SharedRelu),
    "dropout": lambda: NetworkWorkload(lambda: mlp(nn.ReLU(), nn.Dropout(0.5))),
    "batch norm without bias before": lambda: NetworkWorkload(
        lambda: nn.Sequential(
            LastRow(),
            nn.Linear(3, WIDTH, bias=False),
            nn.BatchNorm1d(WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, 1),
        )
    ),
    "layer norm": lambda: NetworkWorkload(lambda: mlp(nn.LayerNorm(WIDTH), nn.GELU())),
    "wide sparse ReLU": lambda: NetworkWorkload(sparse_relu),
    "gelu": lambda: NetworkWorkload(lambda: mlp(nn.GELU())),
    "in-place ReLU": lambda: NetworkWorkload(lambda: mlp(nn.ReLU(inplace=True))),
    "functional ReLU": lambda: NetworkWorkload(lambda: mlp(Apply(F.relu))),
    "transformer": lambda: NetworkWorkload(Transformer),
    "transformer, norm first, no dropout": lambda: NetworkWorkload(
        lambda: Transformer(norm_first=True, dropout=0.0, activation="gelu")
    ),
    "packed attention": lambda: NetworkWorkload(lambda: Attention(is_packed=True)),
    "attention": lambda: NetworkWorkload(Attention),
    "layer drop": lambda: NetworkWorkload(LayerDrop),
    "stack in a list": lambda: NetworkWorkload(lambda: Stack(lambda _, x: F.relu(x))),
    "images": lambda: Images(convolutions),
    "gru": lambda: NetworkWorkload(lambda: Recurrent(nn.GRU)),
    "lstm of two layers": lambda: NetworkWorkload(
        lambda: Recurrent(nn.LSTM, num_layers=2, dropout=0.2)
    ),
    "lstm in both directions": lambda: NetworkWorkload(
        lambda: Recurrent(nn.LSTM, bidirectional=True)
    ),
    "lstm without bias": lambda: NetworkWorkload(lambda: Recurrent(nn.LSTM, bias=False)),
}
"""Networks that learn and must pass without a warning."""

UNUSUAL: dict[str, Callable[[], NetworkWorkload]] = {
    "bias before batch norm": lambda: NetworkWorkload(
        lambda: mlp(nn.BatchNorm1d(WIDTH), nn.ReLU())
    ),
    "expert never called": lambda: NetworkWorkload(lambda: Experts("never called")),
    "expert without rows": lambda: NetworkWorkload(lambda: Experts("no rows")),
    "expert with weight 0": lambda: NetworkWorkload(lambda: Experts("zero weight")),
    "head without rows": lambda: NetworkWorkload(Heads),
    "tokens that do not occur": lambda: Tokens(SparseTokens),
    "lstm over one row": lambda: NetworkWorkload(lambda: Recurrent(nn.LSTM), seq_len=1),
    "gru over one row": lambda: NetworkWorkload(lambda: Recurrent(nn.GRU), seq_len=1),
    "attention over one row": lambda: NetworkWorkload(Attention, seq_len=1),
    "last row of both directions": lambda: NetworkWorkload(LastRowOfBothDirections),
    "declared frozen but trained": lambda: NetworkWorkload(lambda: mlp(nn.Tanh()), frozen=("1.*",)),
}
"""Networks that learn and may cause warnings, but no failures."""

DEFECTS: dict[str, tuple[Callable[[], NetworkWorkload], tuple[str, ...], str]] = {
    "dead ReLU": (
        lambda: NetworkWorkload(lambda: dead_mlp(nn.ReLU())),
        ("dead units",),
        "0 of 16 units of network.2 were above 0",
    ),
    "dead in-place ReLU": (
        lambda: NetworkWorkload(lambda: dead_mlp(nn.ReLU(inplace=True))),
        ("dead units",),
        "0 of 16 units of network.2 were above 0",
    ),
    "dead functional ReLU": (
        lambda: NetworkWorkload(lambda: dead_mlp(Apply(F.relu))),
        ("dead units",),
        "0 of 16 units of network.1 were above 0",
    ),
    "dead GELU": (
        lambda: NetworkWorkload(lambda: dead_mlp(nn.GELU())),
        ("dead units",),
        "0 of 16 units of network.1 were above 0",
    ),
    "dead by a threshold": (
        lambda: NetworkWorkload(lambda: mlp(Apply(lambda x: F.relu(x - 50)))),
        ("dead units",),
        "0 of 16 units of network.1 are active: all inputs of network.3 are 0",
    ),
    "dead in the third layer of a list": (
        lambda: NetworkWorkload(
            lambda: change_weights(
                Stack(lambda _, x: F.relu(x)), lambda net: net.layers[2].bias.fill_(-50.0)
            )
        ),
        ("dead units",),
        "0 of 16 units of network.layers.2 were above 0",
    ),
    "dead between tied layers": (
        lambda: NetworkWorkload(
            lambda: change_weights(Tied(), lambda net: net.two.bias.fill_(99.0))
        ),
        ("zero gradients",),
        "network.enter.weight, network.enter.bias, network.one.weight",
    ),
    "dead channels": (
        lambda: Images(
            lambda: change_weights(convolutions(), lambda net: net[1].bias.fill_(-50.0))
        ),
        ("dead units",),
        "0 of 8 units of network.2 were above 0",
    ),
    "dead expert": (
        lambda: NetworkWorkload(lambda: Experts("dead")),
        ("dead units",),
        "0 of 16 units of network.experts.2.1 were above 0",
    ),
    "all weights 0": (
        lambda: NetworkWorkload(lambda: fill(mlp(nn.Tanh()), 0.0)),
        ("zero gradients", "constant initialization"),
        "network.1",
    ),
    "all weights 0 before ReLU": (
        lambda: NetworkWorkload(lambda: fill(mlp(nn.ReLU()), 0.0)),
        ("zero gradients", "constant initialization"),
        "network.1",
    ),
    "all weights of an LSTM 0": (
        lambda: NetworkWorkload(lambda: fill(Recurrent(nn.LSTM), 0.0)),
        ("zero gradients", "constant initialization"),
        "network.core",
    ),
    "all weights constant": (
        lambda: NetworkWorkload(lambda: fill(mlp(nn.Tanh()), 0.05)),
        ("constant initialization",),
        "network.1.weight",
    ),
    "constant GRU": (
        lambda: NetworkWorkload(lambda: fill(Recurrent(nn.GRU), 0.1)),
        ("constant initialization",),
        "network.core.weight_ih_l0",
    ),
    "constant layer of a stack": (
        lambda: NetworkWorkload(
            lambda: change_weights(
                Stack(lambda _, x: torch.tanh(x)),
                lambda net: [p.fill_(0.1) for p in net.layers.parameters()],
            )
        ),
        ("constant initialization",),
        "network.layers.0.weight",
    ),
    "detach in a list of layers": (
        lambda: NetworkWorkload(lambda: Stack(lambda i, x: x.detach() if i == 1 else x)),
        ("detached subgraph",),
        "network.enter.weight, network.enter.bias, network.layers.0.weight",
    ),
    "rounded": (
        lambda: NetworkWorkload(lambda: mlp(Apply(torch.round))),
        ("zero gradients",),
        "network.1.weight, network.1.bias",
    ),
    "rounded in a nested part": (
        lambda: NetworkWorkload(
            lambda: nn.Sequential(
                nn.Sequential(LastRow(), nn.Linear(3, WIDTH), Apply(torch.round)),
                nn.Linear(WIDTH, 1),
            )
        ),
        ("zero gradients",),
        "network.0.1.weight, network.0.1.bias",
    ),
    "rounded branch": (
        lambda: NetworkWorkload(RoundedBranch, frozen=("*.base.*",)),
        ("zero gradients",),
        "network.branch.weight, network.branch.bias",
    ),
    "saturated": (
        lambda: NetworkWorkload(
            lambda: change_weights(mlp(nn.Tanh()), lambda net: net[1].bias.fill_(99.0))
        ),
        ("zero gradients",),
        "network.1.weight, network.1.bias",
    ),
    "output cut to 0": (
        lambda: NetworkWorkload(lambda: nn.Sequential(dead_mlp(nn.Tanh(), layer=-1), nn.ReLU())),
        ("dead units",),
        "0 of 1 units of network.1 were above 0",
    ),
}
"""By defect: workload, accepted faults, and a text that the check's summary must contain."""
