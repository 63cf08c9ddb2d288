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


@pytest.mark.parametrize("has_duplicates", [True, False])
def test_rows_duplicated_before_the_split_are_reported_without_a_validation_loader(
    trace_of, has_duplicates
):
    def program():
        x = random_rows(240)
        y = x[:, 0] + x[:, 1] ** 2
        rare = torch.randint(30, (60,), generator=torch.Generator().manual_seed(2))
        if has_duplicates:
            x, y = torch.cat([x, x[rare]]), torch.cat([y, y[rare]])
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(4))
        train, held_out = order[:200], order[200:]
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(2):
            for a, b in DataLoader(TensorDataset(x[train], y[train]), batch_size=40, shuffle=True):
                train_step(optimizer, (model(a)[:, 0] - b).square().mean())
            with torch.no_grad():
                model(x[held_out])

    found = fault_severities(trace_of(program))

    assert found == ({("train-validation leakage", "error")} if has_duplicates else set())


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_evaluating_a_part_of_the_training_rows_is_reported(trace_of, share):
    """The score on all training rows measures memorization, which may be intended."""

    def program():
        x = random_rows(200)
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(2):
            for (a,) in DataLoader(TensorDataset(x), batch_size=40, shuffle=True):
                train_step(optimizer, (model(a)[:, 0] - a.sum(1)).square().mean())
            with torch.no_grad():
                for (a,) in DataLoader(TensorDataset(x[: int(200 * share)]), batch_size=50):
                    model(a)

    found = fault_severities(trace_of(program))

    assert found == ({("train-validation leakage", "error")} if share < 1 else set())


@pytest.mark.parametrize("is_leak", [True, False])
def test_pseudo_labeled_rows_are_not_reported(trace_of, is_leak):
    def program():
        model, first, rest = nn.Linear(6, 1), random_rows(32, seed=1), random_rows(128, seed=2)
        labeled = torch.cat([first, rest[:8]]) if is_leak else first
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(4):
            for _ in range(5):
                train_step(optimizer, model(labeled).square().mean())
            with torch.no_grad():
                is_sure = model(rest)[:, 0] > 0
            if not is_leak:
                labeled = torch.cat([first, rest[is_sure]])

    found = "train-validation leakage" in {
        fault for fault, _ in fault_severities(trace_of(program))
    }
    assert found is is_leak


@pytest.mark.parametrize("is_evaluation", [True, False])
def test_a_forward_pass_for_the_targets_of_every_step_is_not_an_evaluation(trace_of, is_evaluation):
    def program():
        generator = torch.Generator().manual_seed(6)
        states = random_rows(200)
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for number in range(40):
            rows = torch.randint(199, (32,), generator=generator)
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
"""Module-level generator, as in scripts that sample their batches with it."""


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


@pytest.mark.parametrize("is_duplicated", [True, False])
def test_distant_duplicates_are_reported_even_if_batches_contain_them(trace_of, is_duplicated):
    letters = torch.randint(0, 4, (500, 60), generator=torch.Generator().manual_seed(5))
    rows = F.one_hot(letters, 4).float()
    duplicates = rows[:150].repeat(4, 1, 1)

    def program():
        model = nn.Sequential(nn.Flatten(), nn.Linear(240, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        shuffled = torch.cat([rows, duplicates])[torch.randperm(1100, generator=GENERATOR)]
        train_rows, eval_rows = shuffled[:800], shuffled[800:]
        if not is_duplicated:
            train_rows, eval_rows = torch.cat([rows[:350], duplicates]), rows[350:]
        for x in train_rows[torch.randperm(len(train_rows), generator=GENERATOR)].split(50):
            optimizer.zero_grad()
            F.mse_loss(model(x)[:, 0], x[:, 0, 0]).backward()
            optimizer.step()
        with torch.no_grad():
            model(eval_rows)

    found = {fault for fault, _, _ in root_causes(trace_of(program))}

    assert ("train-validation leakage" in found) is is_duplicated


@pytest.mark.parametrize("uses_replay_memory", [True, False])
def test_targets_from_a_replay_memory_are_not_an_evaluation(trace_of, uses_replay_memory):
    def program():
        replay_memory, new_states = labeled_rows(256)[0], labeled_rows(256, seed=2)[0]
        critic, actor = nn.Linear(8, 1), nn.Linear(8, 1)
        steps = [torch.optim.SGD(m.parameters(), lr=1e-3) for m in (critic, actor)]
        generator = torch.Generator().manual_seed(1)
        for step in range(60):
            rows = torch.randint(128, (16,), generator=generator)
            if uses_replay_memory:
                with torch.no_grad():  # the next states are in the memory as well
                    target = critic(
                        replay_memory[rows + torch.randint(2, (16,), generator=generator)]
                    )
            else:
                target = replay_memory[rows, :1]
            train_step(steps[0], F.mse_loss(critic(replay_memory[rows]), target))
            train_step(steps[1], actor(replay_memory[rows]).square().mean())
            if not uses_replay_memory and step % 20 == 19:
                with torch.no_grad():
                    F.mse_loss(
                        critic(torch.cat([replay_memory[:40], new_states[:60]])),
                        new_states[:100, :1],
                    )

    found = ("train-validation leakage", "error") in found_faults(trace_of(program))
    assert found is not uses_replay_memory


@pytest.mark.parametrize("is_acting", [True, False])
def test_choosing_actions_for_trained_states_is_not_an_evaluation(trace_of, is_acting):
    def program():
        states = labeled_rows(200)[0]
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for step in range(20, 140):
            train_step(optimizer, F.mse_loss(model(states[step - 16 : step + 1]), states[:17, :1]))
            if is_acting and step % 3 == 0:
                with torch.no_grad():
                    model(states[step][None])
            if not is_acting and step % 40 == 0:
                with torch.no_grad():
                    for row in (*states[step - 10 : step], *states[180:190]):
                        model(row[None])

    found = ("train-validation leakage", "error") in found_faults(trace_of(program))
    assert found is not is_acting
