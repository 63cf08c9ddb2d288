"""Averages the losses of each evaluation.

An evaluation consists of all losses that are computed without gradients between two training
losses.
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from sluice.trace.recording.log_spaced_sampler import LogSpacedSampler
from sluice.trace.records.losses import EvaluationPassRecord
from sluice.trace.sink import EventSink

_MAX_PENDING_LOSSES = 512
"""Number of pending losses of a pass at which they are summed, to free their memory."""


class _EvaluationPass:
    """Sum of the losses of one network, loader and loss function in one evaluation.

    Args:
        step: Number of optimizer steps before the pass.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        self.num_calls = 0
        self.total: Tensor | float = 0.0
        self.pending: list[Tensor] = []
        """Losses that are not yet part of the total."""

    def add(self, loss: Tensor) -> None:
        self.num_calls += 1
        self.pending.append(loss)
        if len(self.pending) >= _MAX_PENDING_LOSSES:
            self.sum_pending()

    def sum_pending(self) -> None:
        if self.pending:
            self.total = self.total + torch.stack(self.pending).sum()
            self.pending = []


class EvaluationPasses:
    """Evaluation passes of a trace. Losses on a GPU are read when the records are flushed."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self.open_passes: dict[tuple[int, int, str], _EvaluationPass] = {}
        """Passes that are not closed, by network, loader and loss function. The hook of every
        training loss checks whether it is empty, and reads it directly to save a call."""
        self._sampler = LogSpacedSampler(sink.settings.history_rows)

    def add(self, kind: str, loss: Tensor) -> None:
        """Add the mean loss of one call, for the last network and the last loader."""
        step, thread = self._sink.steps.last, self._sink.local.thread
        key = (thread.call.network, thread.last_loader, kind)
        evaluation = self.open_passes.get(key)
        if evaluation is not None and evaluation.step != step:
            self.write()
            evaluation = None
        if evaluation is None:
            evaluation = self.open_passes[key] = _EvaluationPass(step)
        evaluation.add(loss)

    def write(self) -> None:
        """Close the open passes, and write the records of a sample of them."""
        passes, self.open_passes = self.open_passes, {}
        for (network, loader, kind), evaluation in passes.items():
            evaluation.sum_pending()
            if not self._sampler.advance():
                continue
            total = evaluation.total
            self._sink.recorder.device_reads.request(
                [total if isinstance(total, Tensor) else torch.tensor(total)],
                functools.partial(self._write, network, loader, kind, evaluation),
            )

    def _write(
        self,
        network: int,
        loader: int,
        kind: str,
        evaluation: _EvaluationPass,
        values: Sequence[float],
    ) -> None:
        record = EvaluationPassRecord(
            step=evaluation.step,
            network=network,
            loader=loader,
            kind=kind,
            num_calls=evaluation.num_calls,
            mean=values[0] / evaluation.num_calls,
        )
        self._sink.recorder.write("evaluation", record)
