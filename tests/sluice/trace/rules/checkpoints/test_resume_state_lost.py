"""Runs that resume without optimizer or scheduler state (TRACE-13)."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.support.traced.small_programs import (
    classifier,
    fault_severities,
    labeled_batches,
    random_rows,
    root_causes,
    root_fault_steps,
    tanh_classifier,
    train_on_batches,
    train_step,
)


@pytest.mark.parametrize("kind", ["lambda", "sequential"])
def test_loaded_schedulers_with_a_custom_state_dict_are_recorded(trace_of, tmp_path, kind):
    def make_parts():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        slow = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 / (1 + i))
        if kind == "lambda":
            return model, optimizer, slow
        late = torch.optim.lr_scheduler.StepLR(optimizer, 100)
        return model, optimizer, torch.optim.lr_scheduler.SequentialLR(optimizer, [slow, late], [9])

    def program():
        x, parts = random_rows(16), make_parts()
        for phase in range(2):
            if phase:
                new_parts = make_parts()
                for new, state in zip(new_parts, torch.load(tmp_path / "a.pt"), strict=True):
                    new.load_state_dict(state)
                parts = new_parts
            model, optimizer, schedule = parts
            for _ in range(8):
                train_step(optimizer, (model(x)[:, 0] - x.sum(1)).square().mean())
                schedule.step()
            torch.save([part.state_dict() for part in parts], tmp_path / "a.pt")

    trace = trace_of(program)

    assert {load.what for load in trace.loads} == {"network", "optimizer", "scheduler"}
    assert fault_severities(trace) == set()


@pytest.mark.parametrize("is_recreated", [True, False])
def test_a_state_loaded_into_a_previous_optimizer_is_reported(trace_of, tmp_path, is_recreated):
    def program():
        torch.manual_seed(2)
        x, path = random_rows(16), tmp_path / "state.pt"
        for phase in range(4):
            model = nn.Linear(6, 1)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            if phase:
                states = torch.load(path)
                optimizer.load_state_dict(states["optimizer"])
                model.load_state_dict(states["model"])
                if is_recreated:
                    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            for _ in range(8):
                train_step(optimizer, (model(x)[:, 0] - x.sum(1)).square().mean())
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(states, path)

    found = fault_severities(trace_of(program))

    assert found == ({("resume state lost", "error")} if is_recreated else set())


FIRST_PHASE_STEPS = 80


@pytest.mark.usefixtures("early_fast_path")
@pytest.mark.parametrize("kind", ["lost", "kept", "only the state of torch", "another"])
def test_a_custom_schedule_restarted_by_a_resume_is_reported(trace_of, tmp_path, kind):
    def rate(step):
        warmup_steps = 20
        share = (
            step / warmup_steps
            if step < warmup_steps
            else 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / 160))
        )
        return 4e-3 * share + 1e-5

    def program():
        model, batch, num_steps = tanh_classifier(), labeled_batches(), 0
        optimizer = torch.optim.Adam(model.parameters(), lr=0.0)

        def set_rate(_):
            nonlocal num_steps
            is_other = kind == "another" and num_steps >= FIRST_PHASE_STEPS
            optimizer.param_groups[0]["lr"] = (
                1e-4 * (num_steps - FIRST_PHASE_STEPS + 1) if is_other else rate(num_steps)
            )
            num_steps += 1

        train_on_batches(model, optimizer, batch, FIRST_PHASE_STEPS, before_step=set_rate)
        torch.save([model.state_dict(), optimizer.state_dict()], tmp_path / "last.pt")
        model = tanh_classifier()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
        states = torch.load(tmp_path / "last.pt")
        model.load_state_dict(states[0])
        optimizer.load_state_dict(states[1])
        if kind == "lost":
            num_steps = 0
        train_on_batches(
            model,
            optimizer,
            batch,
            FIRST_PHASE_STEPS,
            before_step=set_rate if kind != "only the state of torch" else lambda _: None,
        )

    found = root_fault_steps(trace_of(program))

    assert found == ({("resume state lost", FIRST_PHASE_STEPS + 1)} if kind == "lost" else set())


class TrainingJob:
    """A training run that is resumed from its checkpoint and sets its own learning rate."""

    def __init__(self, rate, *, decay=0.01):
        self.model, self.step, self.rate = classifier(), 0, rate
        self.configure(decay)

    def configure(self, decay=0.01):
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3, weight_decay=decay)

    def train(self, steps):
        x = random_rows(64)
        y = (x[:, 0] > 0).long()
        self.model.train()
        for _ in range(steps):
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate(self.step)
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()
            self.step += 1


def falling_rate(step):
    return 3e-3 * (0.55 + 0.45 * math.cos(math.pi * step / 120))


@pytest.mark.parametrize("kind", ["not loaded", "loaded last", "another phase", "other settings"])
def test_a_state_loaded_into_a_replaced_optimizer_is_reported(trace_of, kind):
    def program():
        job = TrainingJob(falling_rate)
        job.train(40)
        saved = {"model": job.model.state_dict(), "optimizer": job.optimizer.state_dict()}
        job = TrainingJob(
            (lambda step: 0.1 * falling_rate(step)) if kind == "another phase" else falling_rate
        )
        job.model.load_state_dict(saved["model"])
        if kind == "loaded last":
            job.configure()
            job.optimizer.load_state_dict(saved["optimizer"])
        else:
            job.optimizer.load_state_dict(saved["optimizer"])
            job.configure(decay=0.2 if kind == "other settings" else 0.01)
        job.step = 40
        job.train(30)

    found = root_causes(trace_of(program))

    assert found == ({("resume state lost", "error", 41)} if kind == "not loaded" else set())
