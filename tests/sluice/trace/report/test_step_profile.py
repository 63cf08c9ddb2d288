"""Profiles of the phases of a training step (TRACE-17)."""

import time

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from sluice.trace.records.events import RecentStep
from sluice.trace.report.replay.page import replay_page
from sluice.trace.report.step_profile import profile_steps
from sluice.trace.report.trace_report import format_report, report_traces


class SlowDataset(Dataset):
    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 48

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.full((4,), float(index)), index % 2


def make_program(seconds=0.0):
    def program():
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for x, y in DataLoader(SlowDataset(seconds), batch_size=4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    return program


def set_event_times(trace, gaps_us):
    """Return the trace with given times between the events of its steps [us]."""
    time_us, recent_steps = 0, []
    for step in trace.recent_steps:
        kinds = [event.kind for event in trace.sequences[step.sequence].events]
        began_us, times_us = time_us, []
        for kind in kinds:
            time_us += gaps_us.get(kind, 0)
            times_us.append(time_us)
        time_us += gaps_us["ended"]
        recent_steps.append(
            RecentStep(
                step=step.step,
                sequence=step.sequence,
                times_us=tuple(times_us),
                ended_us=time_us,
                began_us=began_us,
            )
        )
    return trace.model_copy(update={"recent_steps": tuple(recent_steps)})


@pytest.mark.parametrize(
    ("gaps_us", "bottleneck", "share"),
    [
        ({"batch": 600, "forward": 100, "backward": 200, "ended": 100}, "data", 0.6),
        ({"batch": 100, "forward": 100, "backward": 700, "ended": 100}, "backward", 0.7),
        ({"batch": 100, "forward": 200, "backward": 200, "ended": 500}, "optimizer", 0.5),
        ({"batch": 50, "forward": 50, "backward": 100, "step": 700, "ended": 100}, "other", 0.7),
    ],
)
def test_known_times_are_assigned_to_their_phases(trace_of, gaps_us, bottleneck, share):
    found = profile_steps(set_event_times(trace_of(make_program()), gaps_us))

    assert found.bottleneck == bottleneck
    assert {p.phase: p.share for p in found.phases}[bottleneck] == pytest.approx(share)
    assert found.step_us == sum(gaps_us.values())
    assert sum(p.share for p in found.phases) == pytest.approx(1)


def test_repeated_events_count_as_the_phase_that_repeats(trace_of):
    """Many forward passes precede one backward pass, as for a text or an episode (TRACE-17)."""

    def program():
        cell, validation = nn.RNNCell(4, 4), torch.ones(2, 4)
        optimizer = torch.optim.SGD(cell.parameters(), lr=0.01)
        for _ in range(12):
            state = torch.zeros(2, 4)
            for _ in range(6):
                state = cell(torch.ones(2, 4), state)
            state.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for _ in range(4):
                    cell(validation)

    trace = trace_of(program)
    events = trace.sequences[trace.recent_steps[-1].sequence].events
    found = profile_steps(
        set_event_times(trace, {"forward": 300, "backward": 100, "zero": 50, "ended": 50})
    )

    assert [(event.kind, event.repeat_length) for event in events] == [
        ("zero", 0), ("forward", 1), ("forward", 1), ("backward", 0), ("step", 0),
    ]  # fmt: skip
    assert {p.phase: round(p.share, 3) for p in found.phases} == {
        "forward": 0.375, "evaluation": 0.375, "backward": 0.125, "optimizer": 0.125,
    }  # fmt: skip


def test_a_repeated_block_counts_as_its_slowest_phase(trace_of):
    """Backward passes row by row take most of the time up to the last event of the block."""

    def program():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(12):
            total = torch.zeros(1, 4)
            for _ in range(6):
                model(torch.ones(1, 4)).sum().backward()
                total += model.weight.grad
                optimizer.zero_grad()
            model.weight.grad = total / 6
            optimizer.step()

    trace = trace_of(program)
    events = trace.sequences[trace.recent_steps[-1].sequence].events
    found = profile_steps(
        set_event_times(trace, {"forward": 100, "backward": 100, "zero": 250, "ended": 50})
    )

    assert [(event.kind, event.repeat_length) for event in events] == [
        ("forward", 0), ("backward", 0), ("zero", 3), ("step", 0),
    ]  # fmt: skip
    assert {p.phase: round(p.share, 3) for p in found.phases} == {
        "backward": 0.7, "forward": 0.2, "optimizer": 0.1,
    }  # fmt: skip


def test_mean_times_agree_with_the_shares(trace_of):
    """With one slow step, a median time would contradict the shares of the total time."""
    trace = set_event_times(trace_of(make_program()), {"batch": 600, "forward": 100, "ended": 100})
    slow_step = trace.recent_steps[-1]
    lengthened = slow_step.model_copy(update={"ended_us": slow_step.ended_us + 9_000})
    other_steps = set_event_times(trace, {"batch": 600, "forward": 100, "ended": 0}).recent_steps[
        :-1
    ]
    skewed = trace.model_copy(update={"recent_steps": (*other_steps, lengthened)})
    found, page = profile_steps(skewed), replay_page(skewed, ())

    assert sum(phase.mean_us for phase in found.phases) == pytest.approx(found.step_us)
    for phase in found.phases:
        assert phase.mean_us == pytest.approx(phase.share * found.step_us)
        assert (
            f"{phase.phase} <b>{100 * phase.share:.0f} %</b> {phase.mean_us / 1000:.3g} ms<" in page
        )
    assert found.step_us > 2 * found.median_us == 2 * 700
    assert f"Mean step time: {found.step_us / 1000:.3g} ms; median: 0.7 ms" in page


def test_a_slow_loader_is_reported_with_advice(trace_of, tmp_path):
    found = profile_steps(trace_of(make_program(0.005)))
    (report,) = report_traces(tmp_path / "traces")

    assert found.bottleneck == "data"
    assert "The loader has 0 workers" in found.advice
    assert found.peak_host_bytes > 2**20
    assert "bottleneck: data. The step waits for its batch" in format_report(report)


def test_too_few_steps_have_no_profile(trace_of):
    trace = trace_of(make_program())

    assert profile_steps(trace.model_copy(update={"recent_steps": trace.recent_steps[:4]})) is None
