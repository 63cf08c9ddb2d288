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


def test_adjacent_values_of_patches_are_not_neighbors(trace_of):
    def program():
        x = random_rows(256, 64).reshape(256, 16, 4) * torch.linspace(1, 2, 64).reshape(16, 4) + 3
        x[:, 11, 1] = -0.8
        model = nn.Sequential(nn.Linear(4, 2), nn.Flatten(), nn.Linear(32, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        for rows in torch.arange(256).chunk(8):
            train_step(optimizer, model(x[rows]).square().mean())

    assert fault_severities(trace_of(program)) == set()


def table_program(spoil):
    def program():
        x, later = random_rows(1200, 9), random_rows(200, 9, seed=2)
        x[:, 6:], later[:, 6:] = (x[:, 6:] > 0).float(), (later[:, 6:] > 0).float()
        model = nn.Linear(9, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x, later = spoil(x, later)
        for part in x.split(100):
            train_step(optimizer, F.mse_loss(model(part)[:, 0], part[:, 0]))
        with torch.no_grad():
            model.eval()(later)

    return program


def fill_columns(columns, value):
    def spoil(x, later):
        x[:, columns] = later[:, columns] = value
        return x, later

    return spoil


def shift_column(by):
    def spoil(x, later):
        later[:, 2] = later[:, 2] / 2 + by
        return x, later

    return spoil


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (fill_columns([3], 0.0), "constant column"),
        (fill_columns([0, 1, 2], torch.tensor([0.0, 1.0, 0.0])), "constant column"),
        (fill_columns([7], 0.0), None),
        (fill_columns([0], 1.0), None),
        (shift_column(9.0), "preprocessing skew"),
        (shift_column(3.0), None),
    ],
    ids=["between", "three", "a flag that no row has", "ones", "far away", "a trend"],
)
def test_missing_or_shifted_parts_of_a_table_are_reported(trace_of, spoil, fault):
    found = {
        fault
        for fault, severity in fault_severities(trace_of(table_program(spoil)))
        if severity == "error"
    }

    assert found == ({fault} if fault else set())


def test_a_finding_lists_all_constant_columns(trace_of):
    spoil = fill_columns([0, 1, 2], torch.tensor([0.0, 1.0, 0.0]))

    findings = judge(trace_of(table_program(spoil)))

    (finding,) = (f for f in findings if f.fault == "constant column")
    assert ": columns 0, 1, 2 of 9 are constant, the first one 0, in all " in finding.what


def test_the_columns_of_a_wide_table_are_counted_although_only_some_are_measured(trace_of):
    def program():
        x, y = labeled_rows(320, columns=128)
        x[:, 126] = 0
        model = nn.Linear(128, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch, labels in DataLoader(TensorDataset(x, y), 32):
            train_step(optimizer, F.cross_entropy(model(batch), labels))

    (finding,) = (f for f in judge(trace_of(program)) if f.fault == "constant column")

    assert ": column 126 of 128 is 0 in all " in finding.what


@pytest.mark.parametrize("beside", ["numbers", "flags"])
def test_a_zero_column_of_a_raw_table_is_reported_unless_it_is_a_category(trace_of, beside):
    def program():
        x = random_rows(1280).exp()
        x[:, 2] = 0
        if beside == "flags":
            x[:, 3] = (x[:, 3] > 1).float()
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for batch, y in DataLoader(TensorDataset(x, x.sum(1)), 32):
            train_step(optimizer, F.mse_loss(model(batch)[:, 0], y))

    found = ("constant column", "error") in fault_severities(trace_of(program))
    assert found is (beside == "numbers")


def fit_table(learned, judged, *, from_loader=False):
    model = nn.Sequential(nn.Linear(learned.shape[1], 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    y = random_rows(len(learned), 1, seed=7)
    batches = DataLoader(TensorDataset(learned, y), batch_size=100)
    for _ in range(2):
        rows = batches if from_loader else zip(learned.split(100), y.split(100), strict=True)
        for x, target in rows:
            optimizer.zero_grad()
            F.mse_loss(model(x), target).backward()
            optimizer.step()
        with torch.no_grad():
            model(judged)


@pytest.mark.parametrize(
    ("sine", "cosine", "is_reported"), [(0.0, 1.0, True), (0.0, None, True), (1.0, 1.0, False)]
)
def test_a_constant_hour_encoding_is_a_constant_column(trace_of, sine, cosine, is_reported):
    table = torch.cat([random_rows(1200, 3) * 0.9 + 0.4, torch.rand(1200, 4)], 1)
    table[:, 3] = sine
    if cosine is not None:
        table[:, 4] = cosine

    trace = trace_of(lambda: fit_table(table, table[:300], from_loader=True))

    assert ("constant column" in {f.fault for f in judge(trace)}) is is_reported


@pytest.mark.parametrize("is_made", [True, False])
def test_a_dead_neuron_is_not_a_constant_input_column(trace_of, is_made):
    """An encoder whose features are standardized for a linear probe."""

    def program():
        features = random_rows(256, columns=12)
        features[:, 7] = 0.0
        encoder = nn.Linear(5, 12 if is_made else 8)
        with torch.no_grad():
            encoder(random_rows(256, columns=5))
        probe = nn.Linear(12, 3)
        optimizer = torch.optim.SGD(probe.parameters(), lr=0.1)
        for rows in features.split(32):
            optimizer.zero_grad()
            F.cross_entropy(probe(rows), rows[:, :3].argmax(1)).backward()
            optimizer.step()

    faults = {fault for fault, _, _ in root_causes(trace_of(program))}

    assert ("constant column" in faults) == (not is_made)


@pytest.mark.parametrize("is_other_task", [True, False])
def test_a_column_that_varies_in_another_task_is_not_reported(trace_of, is_other_task):
    learned = random_rows(1000, 12) * torch.arange(1, 13) + 3 * torch.arange(12)
    judged = random_rows(300, 12, seed=2) * torch.arange(1, 13) + 3 * torch.arange(12)
    learned[:, 4] = 0
    if is_other_task:
        judged = judged[:, torch.arange(12).roll(5)]

    trace = trace_of(lambda: fit_table(learned, judged))

    assert ("constant column" in {f.fault for f in judge(trace)}) is not is_other_task


@pytest.mark.parametrize(("still", "severity"), [((5, 20, 33), "confirm"), ((20,), "error")])
def test_columns_that_a_scaler_leaves_at_zero_need_confirmation(trace_of, still, severity):
    def program():
        x, y = labeled_rows(320, columns=48)
        x[:, list(still)] = 0
        model = nn.Linear(48, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch, labels in DataLoader(TensorDataset(x, y), 32):
            train_step(optimizer, F.cross_entropy(model(batch), labels))

    assert [f for f in found_faults(trace_of(program)) if f[0] == "constant column"] == [
        ("constant column", severity)
    ]


@pytest.mark.parametrize("place", [0, 3, 7])
def test_an_intercept_is_not_a_lost_column(trace_of, place):
    def program():
        x, y = labeled_rows(320)
        x[:, place] = 1  # as statistics packages add it, before or after all other columns
        model = nn.Linear(8, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch, labels in DataLoader(TensorDataset(x, y), 32):
            train_step(optimizer, F.cross_entropy(model(batch), labels))

    assert (("constant column", "error") in found_faults(trace_of(program))) is (place == 3)
