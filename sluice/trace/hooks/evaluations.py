"""Averages the losses of each evaluation.

An evaluation consists of losses that are computed without gradients. It ends at the next training
loss, optimizer step or load of weights.
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from sluice.trace.recording.log_spaced_sampler import LogSpacedSampler
from sluice.trace.records.losses import EvaluationPassRecord
from sluice.trace.tracer_context import TracerContext

_MAX_PENDING_LOSSES = 512
"""A pass sums its pending losses when this number is reached, to free their memory."""


class _EvaluationPass:
    """Sum of the losses of one network, loader and loss function in one evaluation.

    Args:
        step: Number of optimizer steps before the pass.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        self.num_calls = 0
        self.loss_sum: Tensor | float = 0.0
        self.pending_losses: list[Tensor] = []
        """Losses that are not yet added to ``loss_sum``."""

    def add(self, loss: Tensor) -> None:
        self.num_calls += 1
        self.pending_losses.append(loss)
        if len(self.pending_losses) >= _MAX_PENDING_LOSSES:
            self.sum_pending_losses()

    def sum_pending_losses(self) -> None:
        if self.pending_losses:
            self.loss_sum = self.loss_sum + torch.stack(self.pending_losses).sum()
            self.pending_losses = []


class EvaluationPasses:
    """Evaluation passes of a trace. Losses on a GPU are read when the records are flushed."""

    def __init__(self, tracer: TracerContext) -> None:
        self._tracer = tracer
        self.open_passes: dict[tuple[int, int, str], _EvaluationPass] = {}
        """Passes that may get further losses, by network index, loader index and name of the loss
        function. The hook of the loss functions reads this dictionary directly, to save a call."""
        self._sampler = LogSpacedSampler(tracer.settings.history_rows)

    def add(self, kind: str, loss: Tensor) -> None:
        """Add a loss to the evaluation pass of the last network and the last loader.

        Args:
            kind: Name of the loss function.
            loss: Mean loss of one call of the function.
        """
        step, thread = self._tracer.steps.last_step, self._tracer.local.thread
        pass_key = (thread.call.network, thread.last_loader, kind)
        evaluation_pass = self.open_passes.get(pass_key)
        if evaluation_pass is not None and evaluation_pass.step != step:
            self.close()
            evaluation_pass = None
        if evaluation_pass is None:
            evaluation_pass = self.open_passes[pass_key] = _EvaluationPass(step)
        evaluation_pass.add(loss)

    def close(self) -> None:
        """Close all open passes, and write the records of those that the sampler selects."""
        passes, self.open_passes = self.open_passes, {}
        for (network, loader, kind), evaluation_pass in passes.items():
            evaluation_pass.sum_pending_losses()
            if not self._sampler.advance():
                continue
            loss_sum = evaluation_pass.loss_sum
            self._tracer.recorder.device_reads.request(
                [loss_sum if isinstance(loss_sum, Tensor) else torch.tensor(loss_sum)],
                functools.partial(self._write, network, loader, kind, evaluation_pass),
            )

    def _write(
        self,
        network: int,
        loader: int,
        kind: str,
        evaluation_pass: _EvaluationPass,
        values: Sequence[float],
    ) -> None:
        record = EvaluationPassRecord(
            step=evaluation_pass.step,
            network=network,
            loader=loader,
            kind=kind,
            num_calls=evaluation_pass.num_calls,
            mean=values[0] / evaluation_pass.num_calls,
        )
        self._tracer.recorder.write("evaluation", record)
