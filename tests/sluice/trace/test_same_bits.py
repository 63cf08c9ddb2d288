"""A traced program computes the same bits, and all patches are removed afterwards (TRACE-1)."""

import copy
import io
import threading

import pytest
import torch
from torch import nn

from sluice.bench.tracer.overhead import weights_digest
from sluice.trace.attach import traced
from sluice.trace.settings import TraceSettings
from sluice.trace.trace_reader import read_trace
from tests.support.traced import healthy
from tests.support.traced.healthy import HEALTHY

PATCHED = (
    (nn.Module, ("__call__", "train", "zero_grad", "load_state_dict")),
    (torch.optim.Optimizer, ("__init__", "zero_grad", "load_state_dict")),
    (torch.autograd, ("backward", "grad")),
    (torch.nn.utils, ("clip_grad_norm_", "clip_grad_value_")),
    (torch.amp.GradScaler, ("scale", "unscale_", "step", "update")),
    (torch.utils.data.DataLoader, ("__iter__",)),
    (torch.optim.lr_scheduler.LRScheduler, ("step", "__init_subclass__")),
)
SHORT = TraceSettings(flush_s=0)


def patched_attributes():
    return {(owner, name): vars(owner).get(name) for owner, names in PATCHED for name in names}


@pytest.mark.parametrize("name", HEALTHY)
def test_traced_and_untraced_weights_are_bit_identical(tmp_path, name):
    program = HEALTHY[name]
    untraced_digest = weights_digest(program())
    state = torch.get_rng_state()
    with traced(tmp_path, SHORT) as folder:
        traced_digest = weights_digest(program())

    assert traced_digest == untraced_digest
    assert torch.equal(torch.get_rng_state(), state)
    trace = read_trace(folder)
    assert trace.notes == ()
    assert trace.num_steps > 0
    assert trace.statistics
    assert trace.end is not None


def test_all_patches_are_removed_after_an_exception(tmp_path):
    before = patched_attributes()
    folders = []

    def run_failing_program():
        with traced(tmp_path, SHORT) as folder:
            folders.append(folder)
            assert patched_attributes() != before
            healthy.with_validation()
            raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        run_failing_program()

    assert patched_attributes() == before
    assert read_trace(folders[0]).end.raised == "ValueError: its own"


@pytest.mark.parametrize("part", ["sampling", "recorder", "objects"])
def test_a_failure_of_the_tracer_never_stops_the_program(tmp_path, monkeypatch, part):
    untraced_digest, messages = weights_digest(healthy.with_validation()), []
    before = patched_attributes()

    class Broken:
        def __getattr__(self, name):
            raise RuntimeError(f"no {name}")

    with traced(tmp_path, SHORT, print_line=messages.append):
        from sluice.trace.attach import active_tracer

        monkeypatch.setattr(active_tracer(), part, Broken())
        traced_digest = weights_digest(healthy.with_validation())

    assert traced_digest == untraced_digest
    assert patched_attributes() == before
    assert "tracing stopped (RuntimeError" in messages[0]


def test_a_folder_that_cannot_be_written_ends_only_the_trace(tmp_path):
    (tmp_path / "file").write_text("in the way")
    untraced_digest, messages = weights_digest(healthy.accumulation()), []
    with traced(tmp_path / "file" / "traces", SHORT, print_line=messages.append):
        traced_digest = weights_digest(healthy.accumulation())

    assert traced_digest == untraced_digest
    assert "the program continues" in messages[0]


def test_networks_can_be_copied_and_saved_while_traced(tmp_path):
    model = healthy.net()
    with traced(tmp_path, SHORT):
        model(torch.randn(4, 8)).sum().backward()
        copied = copy.deepcopy(model)
        torch.save(model, io.BytesIO())

    assert not model._forward_hooks
    assert weights_digest([copied]) == weights_digest([model])


def test_a_nested_trace_records_into_the_outer_one(tmp_path):
    with traced(tmp_path / "outer", SHORT) as outer, traced(tmp_path / "inner", SHORT) as inner:
        healthy.accumulation()

    assert inner == outer
    assert not (tmp_path / "inner").exists()


def test_a_trace_without_events_creates_no_folder(tmp_path):
    with traced(tmp_path / "traces", SHORT):
        torch.ones(3).sum()

    assert not (tmp_path / "traces").exists()


def test_networks_trained_in_two_threads_have_separate_sequences(trace_of):
    def run_both():
        threads = [
            threading.Thread(target=healthy.closure),
            threading.Thread(target=healthy.sparse),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    trace = trace_of(run_both)

    ends = {
        (sequence.thread, tuple(event.kind for event in sequence.events[-1:]))
        for sequence in trace.sequences
        if not sequence.is_open
    }
    assert {thread for thread, _ in ends} == {0, 1}
    assert len(ends) == 2


def test_a_compiled_network_is_one_forward_event(trace_of):
    def program():
        model = healthy.net()
        fast = torch.compile(model, backend="eager", fullgraph=True)
        optimizer = torch.optim.Adam(model.parameters())
        for x, y in torch.utils.data.DataLoader(healthy.rows(), batch_size=32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(fast(x), y).backward()
            optimizer.step()

    trace = trace_of(program)

    assert [note.kind for note in trace.notes] == ["untraced"]
    assert [n.kind for n in trace.membership.networks] == ["OptimizedModule"]
