"""Hooks depend on a protocol of the tracer, not on the tracer or the fast path."""

import ast
from pathlib import Path

import pytest
import torch
from torch import nn

import sluice.trace
from sluice.trace import attach
from sluice.trace.fast_path import install_fast_path
from sluice.trace.prediction import step_patterns
from sluice.trace.tracer import Tracer
from sluice.trace.tracer_context import TracerContext

ROOT = Path(sluice.trace.__file__).parent
PACKAGES = ("hooks", "functional", "sampling", "recording", "objects", "inspection")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).glob("*.py"))
FORBIDDEN = ("attach", "fast_path", "prediction", "tracer")


def imported_names(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield f"{node.module}.{node.names[0].name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_hook_modules_import_neither_the_tracer_nor_the_fast_path(path):
    sluice_names = {name for name in imported_names(path) if name.startswith("sluice.trace.")}

    assert {name for name in sluice_names if name.split(".")[2] in FORBIDDEN} == set()


def test_the_public_members_of_the_tracer_are_those_of_the_protocol():
    lifecycle = {"begin", "detach", "end", "end_process"}
    public = {name for name in dir(Tracer) if not name.startswith("_")}
    protocol = {*TracerContext.__annotations__} | {
        name for name in vars(TracerContext) if not name.startswith("_")
    }

    assert public - lifecycle == protocol


def train():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def sequences(trace):
    return [(sequence.events, sequence.count) for sequence in trace.sequences]


def test_without_the_fast_path_every_step_is_recorded_fully(trace_of, monkeypatch):
    monkeypatch.setattr(step_patterns, "_MIN_REPEATS", 8)
    fast = trace_of(train)
    installers = tuple(part for part in attach._INSTALLERS if part is not install_fast_path)
    monkeypatch.setattr(attach, "_INSTALLERS", installers)
    full = trace_of(train)

    assert len(fast.recent_steps) < 40
    assert len(full.recent_steps) == 60
    assert [(s.step, s.losses) for s in fast.scalars] == [(s.step, s.losses) for s in full.scalars]
    assert sequences(fast) == sequences(full)
