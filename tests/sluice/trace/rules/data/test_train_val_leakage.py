"""Evaluation rows that are training rows (TRACE-2)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.support.traced.small_programs import (
    fault_severities,
    found_faults,
    labeled_rows,
    random_rows,
    root_causes,
    train_step,
)


@pytest.mark.parametrize("leaks", [True, False])
def test_rows_duplicated_before_the_split_are_reported_without_a_validation_loader(trace_of, leaks):
    def program():
        x = random_rows(240)
        y = x[:, 0] + x[:, 1] ** 2
        rare = torch.randint(30, (60,), generator=torch.Generator().manual_seed(2))
        if leaks:
            x, y = torch.cat([x, x[rare]]), torch.cat([y, y[rare]])
        mix = torch.randperm(len(x), generator=torch.Generator().manual_seed(4))
        train, held_out = mix[:200], mix[200:]
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(2):
            for a, b in DataLoader(TensorDataset(x[train], y[train]), batch_size=40, shuffle=True):
                train_step(optimizer, (model(a)[:, 0] - b).square().mean())
            with torch.no_grad():
                model(x[held_out])

    found = fault_severities(trace_of(program))

    assert found == ({("train-validation leakage", "error")} if leaks else set())


@pytest.mark.parametrize("uses", [0.25, 1.0])
def test_a_part_of_the_training_rows_is_not_a_validation_set(trace_of, uses):
    """The score on all training rows measures memorization, which may be intended."""

    def program():
        x = random_rows(200)
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(2):
            for (a,) in DataLoader(TensorDataset(x), batch_size=40, shuffle=True):
                train_step(optimizer, (model(a)[:, 0] - a.sum(1)).square().mean())
            with torch.no_grad():
                for (a,) in DataLoader(TensorDataset(x[: int(200 * uses)]), batch_size=50):
                    model(a)

    found = fault_severities(trace_of(program))

    assert found == ({("train-validation leakage", "error")} if uses < 1 else set())


@pytest.mark.parametrize("is_leak", [True, False])
def test_pseudo_labeled_rows_do_not_leak(trace_of, is_leak):
    def program():
        model, first, rest = nn.Linear(6, 1), random_rows(32, seed=1), random_rows(128, seed=2)
        known = torch.cat([first, rest[:8]]) if is_leak else first
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(4):
            for _ in range(5):
                train_step(optimizer, model(known).square().mean())
            with torch.no_grad():
                is_sure = model(rest)[:, 0] > 0
            if not is_leak:
                known = torch.cat([first, rest[is_sure]])

    found = "train-validation leakage" in {
        fault for fault, _ in fault_severities(trace_of(program))
    }
    assert found is is_leak


@pytest.mark.parametrize("is_evaluation", [True, False])
def test_states_that_make_targets_at_every_step_are_not_an_evaluation(trace_of, is_evaluation):
    def program():
        draws = torch.Generator().manual_seed(6)
        states = random_rows(200)
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for number in range(40):
            rows = torch.randint(199, (32,), generator=draws)
            if not is_evaluation:
                with torch.no_grad():
                    target = 0.5 * model(states[rows + 1])
            elif number % 10 == 9:
                with torch.no_grad():
                    model(torch.cat([states[:20], random_rows(60, seed=9)]))
            target = target.detach() if not is_evaluation else states[rows].sum(1, keepdim=True)
            train_step(optimizer, F.mse_loss(model(states[rows]), target))

    found = "train-validation leakage" in {
        fault for fault, _ in fault_severities(trace_of(program))
    }
    assert found is is_evaluation


GENERATOR = torch.Generator().manual_seed(3)
"""Generator of this module, as scripts have one for their batches."""


@pytest.mark.parametrize("is_reported", [False, True])
def test_a_forward_pass_on_all_rows_is_not_an_evaluation(trace_of, is_reported):
    num = 150 if is_reported else 3000

    def program():
        model, x = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 1)), random_rows(3000)
        y = x.sum(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(30):
            rows = torch.randint(0, num, (40,), generator=GENERATOR)
            optimizer.zero_grad()
            F.mse_loss(model(x[rows])[:, 0], y[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            model(x[100:400] if is_reported else x)

    found = {fault for fault, _, _ in root_causes(trace_of(program))}

    assert ("train-validation leakage" in found) is is_reported


@pytest.mark.parametrize("copies", [True, False])
def test_distant_duplicates_are_reported_even_if_batches_contain_them(trace_of, copies):
    letters = torch.randint(0, 4, (500, 60), generator=torch.Generator().manual_seed(5))
    rows = F.one_hot(letters, 4).float()
    more = rows[:150].repeat(4, 1, 1)

    def program():
        model = nn.Sequential(nn.Flatten(), nn.Linear(240, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        mixed = torch.cat([rows, more])[torch.randperm(1100, generator=GENERATOR)]
        learned, judged = mixed[:800], mixed[800:]
        if not copies:
            learned, judged = torch.cat([rows[:350], more]), rows[350:]
        for x in learned[torch.randperm(len(learned), generator=GENERATOR)].split(50):
            optimizer.zero_grad()
            F.mse_loss(model(x)[:, 0], x[:, 0, 0]).backward()
            optimizer.step()
        with torch.no_grad():
            model(judged)

    found = {fault for fault, _, _ in root_causes(trace_of(program))}

    assert ("train-validation leakage" in found) is copies


@pytest.mark.parametrize("is_memory", [True, False])
def test_replay_memory_targets_of_alternating_optimizers_are_not_an_evaluation(trace_of, is_memory):
    def program():
        memory, later = labeled_rows(256)[0], labeled_rows(256, seed=2)[0]
        critic, actor = nn.Linear(8, 1), nn.Linear(8, 1)
        steps = [torch.optim.SGD(m.parameters(), lr=1e-3) for m in (critic, actor)]
        draws = torch.Generator().manual_seed(1)
        for turn in range(60):
            some = torch.randint(128, (16,), generator=draws)
            if is_memory:
                with torch.no_grad():  # the next states are in the memory as well
                    target = critic(memory[some + torch.randint(2, (16,), generator=draws)])
            else:
                target = memory[some, :1]
            train_step(steps[0], F.mse_loss(critic(memory[some]), target))
            train_step(steps[1], actor(memory[some]).square().mean())
            if not is_memory and turn % 20 == 19:
                with torch.no_grad():
                    F.mse_loss(critic(torch.cat([memory[:40], later[:60]])), later[:100, :1])

    found = ("train-validation leakage", "error") in found_faults(trace_of(program))
    assert found is not is_memory


@pytest.mark.parametrize("acts", [True, False])
def test_states_acted_on_after_training_are_not_an_evaluation(trace_of, acts):
    def program():
        states = labeled_rows(200)[0]
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for now in range(20, 140):
            train_step(optimizer, F.mse_loss(model(states[now - 16 : now + 1]), states[:17, :1]))
            if acts and now % 3 == 0:
                with torch.no_grad():
                    model(states[now][None])
            if not acts and now % 40 == 0:
                with torch.no_grad():
                    for row in (*states[now - 10 : now], *states[180:190]):
                        model(row[None])

    found = ("train-validation leakage", "error") in found_faults(trace_of(program))
    assert found is not acts
