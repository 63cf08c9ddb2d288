"""Building blocks for small traced programs, and functions that summarize findings."""

import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.diagnosis import diagnose
from sluice.trace.rules.library import judge


def found_faults(trace):
    """Return (fault, severity) of every finding, in order."""
    return [(f.fault, f.severity) for f in judge(trace)]


def fault_severities(trace):
    """Return the set of (fault, severity) of all findings."""
    return set(found_faults(trace))


def root_findings(trace):
    """Return the findings that are root causes, without their consequences."""
    return [d.finding for d in diagnose(judge(trace))]


def root_causes(trace):
    """Return the set of (fault, severity, step) of all root causes."""
    return {(f.fault, f.severity, f.step) for f in root_findings(trace)}


def root_fault_steps(trace):
    """Return the set of (fault, step) of all root causes."""
    return {(f.fault, f.step) for f in root_findings(trace)}


def root_faults(trace):
    """Return the set of faults of all root causes."""
    return {f.fault for f in root_findings(trace)}


def train_step(optimizer, loss):
    """Compute the gradients of a loss, and make one optimizer step."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def seeded_generator(seed=1):
    """Return a seeded random number generator."""
    return torch.Generator().manual_seed(seed)


def random_rows(rows, columns=6, seed=1):
    """Return normally distributed rows."""
    return torch.randn(rows, columns, generator=seeded_generator(seed))


def labeled_rows(num_rows, columns=8, seed=0):
    """Return random rows, and labels that depend on the first three columns."""
    x = random_rows(num_rows, columns, seed)
    return x, x[:, :3].argmax(1)


def labeled_batches():
    """Return a function that draws random batches of a linear task with three classes."""
    generator = seeded_generator(3)
    weights = torch.randn(6, 3, generator=generator)

    def batch(rows=32):
        x = torch.randn(rows, 6, generator=generator)
        return x, (x @ weights).argmax(1)

    return batch


def classifier(columns=6, outputs=3):
    """Return a network with dropout."""
    return nn.Sequential(nn.Linear(columns, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, outputs))


def tanh_classifier(outputs=3):
    """Return a network with six inputs and without dropout."""
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, outputs))


def train_on_batches(
    model, optimizer, batch, steps, *, loss_of=F.cross_entropy, before_step=lambda _: None
):
    """Make optimizer steps on batches; before each step, call ``before_step`` with its index."""
    for step in range(steps):
        before_step(step)
        x, y = batch()
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
