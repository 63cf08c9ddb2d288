"""Layers that mix the rows of a batch because they expect another layout."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.rules.library import judge
from tests.support.traced.small_programs import fault_severities, train_step

EXPECTED = {("batch dependence", "error")}
ROWS, POSITIONS, FEATURES = 16, 10, 4


class Recurrent(nn.Module):
    def __init__(self, *, batch_first, transposes=False):
        super().__init__()
        self.gru, self.head = nn.GRU(FEATURES, 8, batch_first=batch_first), nn.Linear(8, 3)
        self.transposes = transposes

    def forward(self, x):
        if self.transposes:
            return self.head(self.gru(x.transpose(0, 1))[0][-1])
        return self.head(self.gru(x)[0][:, -1])


class Attending(nn.Module):
    def __init__(self, *, batch_first):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(FEATURES, 2, 8, batch_first=batch_first)
        self.head = nn.Linear(FEATURES, 3)

    def forward(self, x):
        return self.head(self.layer(x).mean(1))


def make_program(model, *, rows=ROWS, shape=(POSITIONS, FEATURES), targets_of=None):
    def program():
        optimizer = torch.optim.Adam(model.parameters())
        generator = torch.Generator().manual_seed(7)
        for _ in range(5):
            x = torch.randn(rows, *shape, generator=generator)
            y = torch.randint(3, (rows,), generator=generator)
            output = model(x)
            loss = F.cross_entropy(output, y) if targets_of is None else targets_of(output, x)
            train_step(optimizer, loss)

    return program


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Recurrent(batch_first=False), EXPECTED),
        (Recurrent(batch_first=True), set()),
        (Recurrent(batch_first=False, transposes=True), set()),
        (Attending(batch_first=False), EXPECTED),
        (Attending(batch_first=True), set()),
    ],
    ids=["gru", "gru batch first", "gru transposed", "attention", "attention batch first"],
)
def test_only_layers_that_mix_rows_are_reported(trace_of, model, expected):
    assert fault_severities(trace_of(make_program(model))) == expected


def test_the_finding_names_the_sequence_layers(trace_of):
    (finding,) = judge(trace_of(make_program(Recurrent(batch_first=False))))

    assert finding.step == 1
    assert "Layers that read sequences: gru." in finding.what


def test_a_batch_that_a_recurrent_layer_reads_as_one_sequence_needs_confirmation(trace_of):
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru, self.head = nn.GRU(FEATURES, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, x):
            return self.head(self.gru(x)[0])

    found = fault_severities(trace_of(make_program(Flat(), shape=(FEATURES,))))

    assert found == {("batch dependence", "confirm")}


def test_a_sequence_first_network_with_a_target_per_position_is_not_reported(trace_of):
    """The input is (positions, rows, features), as the layers expect."""

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru, self.head = nn.GRU(FEATURES, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.head(self.gru(x)[0])

    def tags(output, x):
        return F.cross_entropy(output.flatten(0, 1), (x.sum(-1) > 0).long().flatten())

    assert fault_severities(trace_of(make_program(Tagger(), targets_of=tags))) == set()


def test_a_sequence_first_regression_per_position_is_not_reported(trace_of):
    class Forecast(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru, self.head = nn.GRU(FEATURES, 8), nn.Linear(8, 1)

        def forward(self, x):
            return self.head(self.gru(x)[0])[..., 0]

    def squares(output, x):
        return F.mse_loss(output, x.sum(-1))

    assert fault_severities(trace_of(make_program(Forecast(), targets_of=squares))) == set()


def test_equal_numbers_of_rows_and_positions_are_not_reported(trace_of):
    assert (
        fault_severities(trace_of(make_program(Recurrent(batch_first=False), rows=POSITIONS)))
        == set()
    )
