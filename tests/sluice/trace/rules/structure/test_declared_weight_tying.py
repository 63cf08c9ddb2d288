"""Weight tying that is declared or broken before the first step (TRACE-16).

Networks that are untied on purpose have no finding.
"""

import argparse
import copy
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.objects.attribute_names import is_tying_name
from sluice.trace.rules.library import judge

ROWS, WIDTH = 12, 6


def step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train(model, *, steps=3):
    ids = torch.arange(ROWS).repeat(2, 1)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for _ in range(steps):
        step(optimizer, F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()))


def random_embeddings(rows=ROWS):
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(1))


def tying_findings(trace):
    return [(f.severity, f.step) for f in judge(trace) if f.fault == "tied weights broken"]


@dataclass(frozen=True, slots=True)
class FrozenSettings:
    """Settings as a frozen dataclass."""

    tie_embeddings: bool


class PlainSettings:
    """Settings as a plain object."""

    tied = True


class Model(nn.Module):
    """A language model whose embedding is in a submodule."""

    def __init__(self, *, tied=True, declaration=None):
        super().__init__()
        if declaration is not None:
            name, settings = declaration
            setattr(self, name, settings)
        self.body = nn.ModuleDict(
            {"table": nn.Embedding(ROWS, WIDTH), "mix": nn.Linear(WIDTH, WIDTH)}
        )
        self.out = nn.Linear(WIDTH, ROWS)
        if tied:
            self.tie()

    def tie(self):
        self.out.weight = self.body["table"].weight

    def forward(self, ids):
        return self.out(self.body["mix"](self.body["table"](ids)))


# Declarations in the settings of a network

DECLARATIONS = {
    "a namespace": ("args", argparse.Namespace(tie_word_embeddings=True)),
    "a dict": ("hparams", {"share_input_output_embed": True, "width": WIDTH}),
    "a dataclass with slots": ("cfg", FrozenSettings(tie_embeddings=True)),
    "a class": ("config", PlainSettings),
    "an object of a class": ("opt", PlainSettings()),
    "an attribute of the network": ("weight_tying", True),
}


@pytest.mark.parametrize("declaration", DECLARATIONS.values(), ids=DECLARATIONS)
def test_a_network_declared_as_tied_but_untied_is_reported(trace_of, declaration):
    assert tying_findings(trace_of(lambda: train(Model(tied=False, declaration=declaration)))) == [
        ("error", 1)
    ]


@pytest.mark.parametrize("declaration", DECLARATIONS.values(), ids=DECLARATIONS)
def test_a_network_that_matches_its_settings_is_not_reported(trace_of, declaration):
    assert tying_findings(trace_of(lambda: train(Model(declaration=declaration)))) == []


@pytest.mark.parametrize("tied", [True, False])
def test_a_network_declared_as_untied_is_not_reported(trace_of, tied):
    declaration = ("config", argparse.Namespace(tie_word_embeddings=False))

    assert tying_findings(trace_of(lambda: train(Model(tied=tied, declaration=declaration)))) == []


@pytest.mark.parametrize(
    ("name", "is_tying"),
    [
        ("tie_word_embeddings", True),
        ("tied", True),
        ("use_tied_weights", True),
        ("share_decoder_input_output_embed", True),
        ("no_tie_embeddings", False),
        ("untie_embeddings", False),
        ("share_weights", False),
        ("tie_encoder_decoder", False),
        ("tie_breaking", False),
        ("share_memory", False),
        ("embedding_dim", False),
    ],
)
def test_a_setting_name_declares_tying_of_embedding_and_output_only(name, is_tying):
    assert is_tying_name(name) is is_tying


class Positions(nn.Module):
    """Position embedding and hidden layer of equal shape, neither vocabulary nor output."""

    def __init__(self):
        super().__init__()
        self.config = {"tie_word_embeddings": True}  # the default of every configuration
        self.table, self.places = nn.Embedding(30, WIDTH), nn.Embedding(ROWS, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, ROWS), nn.Linear(ROWS, WIDTH)
        self.out = nn.Linear(WIDTH, ROWS + 1)

    def forward(self, ids):
        return self.out(self.down(self.up(self.table(ids) + self.places.weight)))


class Pair(nn.Module):
    """Encoder and decoder share one embedding; the output is a separate weight."""

    def __init__(self, *, twice):
        super().__init__()
        self.cfg = {"share_embeddings": True}
        self.table = nn.Embedding(ROWS, WIDTH)
        self.encoder = nn.Embedding(ROWS, WIDTH)
        self.twice = twice
        if not twice:
            self.encoder.weight = self.table.weight
        self.out = nn.Linear(WIDTH, ROWS)

    def forward(self, ids):
        return self.out(self.table(ids) + (self.table if self.twice else self.encoder)(ids.flip(1)))


class Decoder(nn.Module):
    """Tied as declared; the encoder has a separate embedding of equal size."""

    def __init__(self):
        super().__init__()
        self.cfg = {"tie_embeddings": True}
        self.source, self.table = nn.Embedding(ROWS, WIDTH), nn.Embedding(ROWS, WIDTH)
        self.out = nn.Linear(WIDTH, ROWS)
        self.out.weight = self.table.weight

    def forward(self, ids):
        return self.out(self.table(ids) + self.source(ids.flip(1)))


class Inner(nn.Module):
    """A body whose settings declare a tied output layer that it does not have."""

    def __init__(self):
        super().__init__()
        self.config = argparse.Namespace(tie_word_embeddings=True)
        self.table = nn.Embedding(ROWS, WIDTH)

    def forward(self, ids):
        return self.table(ids)


@pytest.mark.parametrize(
    "make",
    [
        Positions,
        lambda: Pair(twice=True),
        lambda: Pair(twice=False),
        Decoder,
        lambda: nn.Sequential(Inner(), nn.Linear(WIDTH, ROWS)),
    ],
    ids=[
        "positions",
        "one embedding, used twice",
        "two embeddings, one weight",
        "an encoder and a decoder",
        "settings of the body",
    ],
)
def test_an_unrelated_setting_is_not_reported(trace_of, make):
    assert tying_findings(trace_of(lambda: train(make()))) == []


@pytest.mark.parametrize("value", [True, False])
def test_an_output_copied_from_the_embedding_follows_the_settings(trace_of, value):
    def program():
        model = Model(tied=False, declaration=("config", argparse.Namespace(tie_weights=value)))
        model.out.weight.data.copy_(model.body["table"].weight)
        train(model)

    assert tying_findings(trace_of(program)) == [("error", 1)] * value


def test_a_copied_network_follows_its_own_settings(trace_of):
    def program():
        first = Model(declaration=("config", argparse.Namespace(tie_weights=True)))
        other = copy.deepcopy(first)
        other.config.tie_weights = False
        other.out = nn.Linear(WIDTH, ROWS)
        other.out.weight.data.copy_(other.body["table"].weight)
        train(first)
        train(other)

    assert tying_findings(trace_of(program)) == []


# Layers that are replaced before the first step


def replace_embedding(model):
    model.body["table"] = nn.Embedding.from_pretrained(random_embeddings(), freeze=False)


def replace_embedding_weight(model):
    model.body["table"].weight = nn.Parameter(random_embeddings())


def replace_body(model):
    parts = {"table": nn.Embedding(ROWS, WIDTH), "mix": nn.Linear(WIDTH, WIDTH)}
    model.body = nn.ModuleDict(parts)


def enlarge_vocabulary(model):
    model.body["table"] = nn.Embedding(ROWS + 2, WIDTH)
    model.out = nn.Linear(WIDTH, ROWS + 2)


def replace_output(model):
    model.out = nn.Linear(WIDTH, ROWS)


CHANGES = [
    replace_embedding,
    replace_embedding_weight,
    replace_body,
    enlarge_vocabulary,
    replace_output,
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_retied", [False, True])
def test_weight_tying_broken_before_the_first_step_is_reported(trace_of, change, is_retied):
    def program():
        model = Model()
        change(model)
        if is_retied:
            model.tie()
        train(model)

    # A new output layer with the old embedding may be intentional.
    expected = [] if is_retied else [("confirm" if change is replace_output else "error", 1)]
    assert tying_findings(trace_of(program)) == expected


@pytest.mark.parametrize("change", CHANGES)
def test_changing_an_untied_network_is_not_reported(trace_of, change):
    def program():
        model = Model(tied=False)
        change(model)
        train(model)

    assert tying_findings(trace_of(program)) == []


def test_a_change_declared_in_the_settings_is_not_reported(trace_of):
    def program():
        model = Model(declaration=("cfg", {"tied": False}))
        replace_embedding(model)
        train(model)

    assert tying_findings(trace_of(program)) == []


def test_a_frozen_embedding_is_not_reported(trace_of):
    def program():
        model = Model()
        model.body["table"] = nn.Embedding.from_pretrained(random_embeddings(), freeze=True)
        train(model)

    assert tying_findings(trace_of(program)) == []


def test_tied_networks_untied_networks_and_copies_are_not_reported(trace_of):
    def program():
        for number in range(20):
            model = Model(tied=bool(number % 2))
            train(copy.deepcopy(model) if number % 3 else model, steps=1)
            if number % 2:  # sharing a weight with another network is not weight tying
                other = Model(tied=False)
                other.out.weight = model.out.weight
                other.out = nn.Linear(WIDTH, ROWS)
                train(other, steps=1)

    assert tying_findings(trace_of(program)) == []


def test_a_wrapped_layer_is_not_reported(trace_of):
    class WithSecondLayer(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.more = inner, nn.Linear(WIDTH, ROWS)

        def forward(self, x):
            return self.inner(x) + self.more(x)

    def program():
        model = Model()
        model.out = WithSecondLayer(model.out)
        train(model)

    assert tying_findings(trace_of(program)) == []
