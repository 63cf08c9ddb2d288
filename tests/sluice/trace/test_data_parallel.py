"""Tracing keeps the process group of a data-parallel wrapper."""

import gc
import weakref

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sluice.trace.attach import traced
from sluice.trace.settings import TraceSettings


def test_the_process_group_outlives_its_wrapper(tmp_path, monkeypatch):
    """If destroyed with the wrapper, it could wait forever for a thread that needs the GIL."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store = f"file://{tmp_path / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        with traced(tmp_path / "t", TraceSettings()):
            wrapper = DistributedDataParallel(nn.Linear(2, 1), process_group=dist.new_group([0]))
            group = weakref.ref(wrapper.process_group)
            wrapper(torch.ones(1, 2)).sum().backward()
            del wrapper
    finally:
        dist.destroy_process_group()
    gc.collect()

    assert group() is not None
