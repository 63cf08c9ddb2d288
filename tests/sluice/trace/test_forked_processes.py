"""Forked processes keep their own traces (TRACE-1)."""

import functools
import gc
import multiprocessing
import weakref

import torch
from torch import nn

from sluice.trace.attach import active_tracer, traced
from sluice.trace.settings import TraceSettings
from sluice.trace.trace_reader import find_traces, read_trace
from tests.support.traced.small_programs import random_rows, train_step


def _train(rank):
    torch.manual_seed(rank)
    model, x = nn.Linear(6, 1), random_rows(16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(20):
        train_step(optimizer, (model(x)[:, 0] - x.sum(1)).square().mean())
    if rank:
        raise ValueError("of the program itself")


def test_a_forked_process_keeps_its_trace_to_the_end(tmp_path, capfd):
    """A forked process ends without calling atexit functions."""
    context = multiprocessing.get_context("fork")
    with traced(tmp_path / "traces", TraceSettings()):
        for rank in range(2):
            process = context.Process(target=functools.partial(_train, rank))
            process.start()
            process.join()

    ends = [read_trace(folder).end for folder in find_traces(tmp_path / "traces")]

    assert [end.steps for end in ends] == [20, 20]
    assert sorted(end.raised for end in ends) == ["", "ValueError: of the program itself"]
    assert "of the program itself" in capfd.readouterr().err


def test_processes_forked_after_ended_traces_keep_no_tracer_state(tmp_path):
    """Fork callbacks cannot be unregistered; one for each trace would accumulate in a notebook."""
    tracers = []
    for number in range(3):
        with traced(tmp_path / f"traces{number}", TraceSettings()):
            tracers.append(weakref.ref(active_tracer()))
    gc.collect()
    receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_send_whether_run_is_wrapped, args=(sender,)
    )
    process.start()
    is_wrapped = receiver.recv()
    process.join()

    assert [tracer() for tracer in tracers] == [None, None, None]
    assert not is_wrapped


def _send_whether_run_is_wrapped(sender):
    sender.send("run" in vars(multiprocessing.current_process()))
