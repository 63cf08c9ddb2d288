"""Constant input columns (TRACE-2)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from sluice.trace.rules.library import judge
from tests.support.traced.small_programs import (
    fault_severities,
    found_faults,
    labeled_rows,
    random_rows,
    root_causes,
    train_step,
)


def test_one_constant_value_within_patches_is_not_reported(trace_of):
    def program():
        x = random_rows(256, 64).reshape(256, 16, 4) * torch.linspace(1, 2, 64).reshape(16, 4) + 3
        x[:, 11, 1] = -0.8
        model = nn.Sequential(nn.Linear(4, 2), nn.Flatten(), nn.Linear(32, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        for rows in torch.arange(256).chunk(8):
            train_step(optimizer, model(x[rows]).square().mean())

    assert fault_severities(trace_of(program)) == set()


def make_table_program(corrupt):
    def program():
        x, validation = random_rows(1200, 9), random_rows(200, 9, seed=2)
        x[:, 6:], validation[:, 6:] = (x[:, 6:] > 0).float(), (validation[:, 6:] > 0).float()
        model = nn.Linear(9, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x, validation = corrupt(x, validation)
        for part in x.split(100):
            train_step(optimizer, F.mse_loss(model(part)[:, 0], part[:, 0]))
        with torch.no_grad():
            model.eval()(validation)

    return program


def fill_columns(columns, value):
    def corrupt(x, validation):
        x[:, columns] = validation[:, columns] = value
        return x, validation

    return corrupt


def shift_column(by):
    def corrupt(x, validation):
        validation[:, 2] = validation[:, 2] / 2 + by
        return x, validation

    return corrupt


@pytest.mark.parametrize(
    ("corrupt", "fault"),
    [
        (fill_columns([3], 0.0), "constant column"),
        (fill_columns([0, 1, 2], torch.tensor([0.0, 1.0, 0.0])), "constant column"),
        (fill_columns([7], 0.0), None),
        (fill_columns([0], 1.0), None),
        (shift_column(9.0), "preprocessing skew"),
        (shift_column(3.0), None),
    ],
    ids=["one column", "three columns", "a flag", "ones", "large shift", "small shift"],
)
def test_constant_or_shifted_columns_of_a_table_are_reported(trace_of, corrupt, fault):
    found = {
        fault
        for fault, severity in fault_severities(trace_of(make_table_program(corrupt)))
        if severity == "error"
    }

    assert found == ({fault} if fault else set())


def test_a_finding_lists_all_constant_columns(trace_of):
    corrupt = fill_columns([0, 1, 2], torch.tensor([0.0, 1.0, 0.0]))

    findings = judge(trace_of(make_table_program(corrupt)))

    (finding,) = (f for f in findings if f.fault == "constant column")
    assert ": columns 0, 1, 2 of 9 are constant (the first is always 0) in all " in finding.what


def test_the_finding_counts_all_columns_of_a_table_that_is_sampled(trace_of):
    def program():
        x, y = labeled_rows(320, columns=128)
        x[:, 126] = 0
        model = nn.Linear(128, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch, labels in DataLoader(TensorDataset(x, y), 32):
            train_step(optimizer, F.cross_entropy(model(batch), labels))

    (finding,) = (f for f in judge(trace_of(program)) if f.fault == "constant column")

    assert ": column 126 of 128 is 0 in all " in finding.what


@pytest.mark.parametrize("other_columns", ["floats", "flags"])
def test_a_zero_column_of_a_raw_table_is_reported_unless_it_is_a_category(trace_of, other_columns):
    def program():
        x = random_rows(1280).exp()
        x[:, 2] = 0
        if other_columns == "flags":
            x[:, 3] = (x[:, 3] > 1).float()
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for batch, y in DataLoader(TensorDataset(x, x.sum(1)), 32):
            train_step(optimizer, F.mse_loss(model(batch)[:, 0], y))

    found = ("constant column", "error") in fault_severities(trace_of(program))
    assert found is (other_columns == "floats")


def train_on_table(train_rows, eval_rows, *, from_loader=False):
    model = nn.Sequential(nn.Linear(train_rows.shape[1], 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    y = random_rows(len(train_rows), 1, seed=7)
    batches = DataLoader(TensorDataset(train_rows, y), batch_size=100)
    for _ in range(2):
        rows = batches if from_loader else zip(train_rows.split(100), y.split(100), strict=True)
        for x, target in rows:
            optimizer.zero_grad()
            F.mse_loss(model(x), target).backward()
            optimizer.step()
        with torch.no_grad():
            model(eval_rows)


@pytest.mark.parametrize(
    ("sine_value", "cosine_value", "is_reported"),
    [(0.0, 1.0, True), (0.0, None, True), (1.0, 1.0, False)],
)
def test_a_constant_hour_encoding_is_a_constant_column(
    trace_of, sine_value, cosine_value, is_reported
):
    table = torch.cat([random_rows(1200, 3) * 0.9 + 0.4, torch.rand(1200, 4)], 1)
    table[:, 3] = sine_value
    if cosine_value is not None:
        table[:, 4] = cosine_value

    trace = trace_of(lambda: train_on_table(table, table[:300], from_loader=True))

    assert ("constant column" in {f.fault for f in judge(trace)}) is is_reported


@pytest.mark.parametrize("is_network_output", [True, False])
def test_a_dead_neuron_is_not_a_constant_input_column(trace_of, is_network_output):
    """The features of an encoder are the input of a linear probe."""

    def program():
        features = random_rows(256, columns=12)
        features[:, 7] = 0.0
        encoder = nn.Linear(5, 12 if is_network_output else 8)
        with torch.no_grad():
            encoder(random_rows(256, columns=5))
        probe = nn.Linear(12, 3)
        optimizer = torch.optim.SGD(probe.parameters(), lr=0.1)
        for rows in features.split(32):
            optimizer.zero_grad()
            F.cross_entropy(probe(rows), rows[:, :3].argmax(1)).backward()
            optimizer.step()

    faults = {fault for fault, _, _ in root_causes(trace_of(program))}

    assert ("constant column" in faults) == (not is_network_output)


@pytest.mark.parametrize("is_other_task", [True, False])
def test_a_column_that_varies_in_another_task_is_not_reported(trace_of, is_other_task):
    train_rows = random_rows(1000, 12) * torch.arange(1, 13) + 3 * torch.arange(12)
    eval_rows = random_rows(300, 12, seed=2) * torch.arange(1, 13) + 3 * torch.arange(12)
    train_rows[:, 4] = 0
    if is_other_task:
        eval_rows = eval_rows[:, torch.arange(12).roll(5)]

    trace = trace_of(lambda: train_on_table(train_rows, eval_rows))

    assert ("constant column" in {f.fault for f in judge(trace)}) is not is_other_task


@pytest.mark.parametrize(
    ("constant_columns", "severity"), [((5, 20, 33), "confirm"), ((20,), "error")]
)
def test_columns_that_a_scaler_leaves_at_zero_need_confirmation(
    trace_of, constant_columns, severity
):
    def program():
        x, y = labeled_rows(320, columns=48)
        x[:, list(constant_columns)] = 0
        model = nn.Linear(48, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch, labels in DataLoader(TensorDataset(x, y), 32):
            train_step(optimizer, F.cross_entropy(model(batch), labels))

    assert [f for f in found_faults(trace_of(program)) if f[0] == "constant column"] == [
        ("constant column", severity)
    ]


@pytest.mark.parametrize("position", [0, 3, 7])
def test_a_first_or_last_column_of_ones_is_not_reported(trace_of, position):
    def program():
        x, y = labeled_rows(320)
        x[:, position] = 1  # as statistics packages add it, before or after all other columns
        model = nn.Linear(8, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch, labels in DataLoader(TensorDataset(x, y), 32):
            train_step(optimizer, F.cross_entropy(model(batch), labels))

    assert (("constant column", "error") in found_faults(trace_of(program))) is (position == 3)
